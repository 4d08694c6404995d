"""Wait for a file descriptor."""

from __future__ import annotations

import select


def readable(descriptor: int | None, ms: float) -> bool:
    """Wait until there is something to read, but no longer than this; False when there isn't. None: just wait.

    ``select.select`` refuses descriptors above 1023, which a process with many files open has.
    """
    poll = select.poll()
    if descriptor is not None:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(ms))

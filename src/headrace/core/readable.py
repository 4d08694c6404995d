"""Wait for file descriptors.

``select.select`` refuses descriptors above 1023, which a process with many files open has.
"""

from __future__ import annotations

import select
from collections.abc import Iterable


def readable(descriptor: int | None, ms: float | None) -> bool:
    """Wait until there is something to read, at most ``ms`` if there is a limit; False when there isn't.

    Without a descriptor, just wait.
    """
    return bool(which_readable(() if descriptor is None else (descriptor,), ms))


def which_readable(descriptors: Iterable[int], ms: float | None) -> frozenset[int]:
    """Wait until one of them has something to read or has ended. Returns those; none after ``ms``; None: no limit."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return frozenset(number for number, _ in poll.poll(ms))

"""Ctrl-C as something to look at, not as an exception in the middle of a write.

An exception between a write and the note that it happened would make the next flush write it again. So
commands that write or follow ask ``Interrupt`` at safe places instead. A second Ctrl-C raises as usual.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType


class Interrupt:
    """While entered, the first SIGINT or SIGTERM only sets a flag and makes ``fd`` readable. Main thread only."""

    def __init__(self) -> None:
        self.requested = False
        self._read, self._write = -1, -1
        self._before: dict[signal.Signals, object] = {}

    @property
    def fd(self) -> int:
        """Turns readable when the signal comes; for ``select``."""
        return self._read

    def __enter__(self) -> Interrupt:
        self._read, self._write = os.pipe()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() itself returned
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        os.write(self._write, b"!")

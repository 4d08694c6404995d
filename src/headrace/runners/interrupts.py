"""Ctrl-C (SIGINT) and SIGTERM during a run: the first one drains the app, as soon as there is something to drain.

An exception from a signal handler is lost where Python can't raise it (in a finalizer or a callback of the import
system), and while Spark starts it would leave a half-started Spark behind. So the handler only sets a flag, which the
code that starts things looks at. The second signal raises ``KeyboardInterrupt``, as usual. Only a second SIGTERM right
after the first is the same one, sent to a group or a service and to a process of it, or passed on by ``spark-submit``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from typing_extensions import override

from headrace.core.readable import readable

SAME_S = 1.0
"""A SIGTERM this soon after the first signal doesn't count as a second request."""


class Interrupts:
    """Handles SIGINT and SIGTERM while entered. Has no effect outside the main thread.

    ``said_at_start`` is written to stderr if the first signal comes before ``drain_by`` was called.
    """

    def __init__(self, said_at_start: str = "") -> None:
        self.requested = False
        self._said_at_start = said_at_start
        self._drain: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._requested_s = 0.0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def drain_by(self, drain: Callable[[], None]) -> None:
        """Make the first signal call ``drain``. If it has arrived already, call ``drain`` now."""
        self._drain = drain
        if self.requested:
            drain()

    def request(self) -> None:
        """Ask for what the first signal asks for. From any thread, and any number of times."""
        if not self.requested:
            self.requested, self._requested_s = True, time.monotonic()
            if self._drain is not None:
                self._drain()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and (number != signal.SIGTERM or time.monotonic() - self._requested_s > SAME_S):
            raise KeyboardInterrupt
        to_be_said = self._said_at_start and self._drain is None and not self.requested
        self.request()  # before it is said: who reads it may interrupt at once, and that is the second time
        if to_be_said:
            with suppress(OSError):  # the terminal has closed, so there is nowhere to print
                os.write(2, f"{self._said_at_start}\n".encode())


class Interrupt(Interrupts):
    """While entered, the first SIGINT or SIGTERM sets a flag and makes ``fd`` readable. For the main thread only.

    Commands that write or follow check it at safe places. An exception between a write and the record of it would make
    the next flush write it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read, self._write = -1, -1

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable when the signal comes."""
        return self._read

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the signal, at most so long."""
        readable(self._read, None if seconds is None else 1000 * seconds)

    @override
    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        self.drain_by(self._ring)
        super().__enter__()
        return self

    @override
    def __exit__(self, *_: object) -> None:
        super().__exit__()
        os.close(self._read)
        os.close(self._write)

    def _ring(self) -> None:
        os.write(self._write, b"!")

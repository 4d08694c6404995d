"""Ctrl-C (SIGINT) and SIGTERM from the first moment of a run: the first one drains, as soon as there is what to drain.

An exception out of a signal handler is lost where Python can't raise it (a finalizer, a callback of the import system),
and in the middle of the start of Spark it leaves half of Spark behind. So a handler only notes here, and who starts
things looks. The second signal raises ``KeyboardInterrupt``, as usual.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupts:
    """While entered, in the main thread, SIGINT and SIGTERM are answered here; in other threads nothing changes.

    ``said_at_start`` is written to stderr when the first signal comes before ``drain_by``.
    """

    def __init__(self, said_at_start: str = "") -> None:
        self.requested = False
        self._said_at_start = said_at_start
        self._drain: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def drain_by(self, drain: Callable[[], None]) -> None:
        """From now on the first signal calls ``drain``; one that came before calls it now."""
        self._drain = drain
        if self.requested:
            drain()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self._drain is not None:
            self._drain()
        elif self._said_at_start:
            with suppress(OSError):  # a terminal that is gone
                os.write(2, f"{self._said_at_start}\n".encode())

"""Threads that work beside others: a worker has a name, a start, and an end that others can wait for.

All are daemons, and end with the main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from typing_extensions import override


class WorkerThread:
    """A thread that does ``work`` from ``start`` until that returns, which it does soon after ``close``.

    Subclasses have ``wake`` if ``work`` waits for anything but ``closing``. ``failed`` gets the exception that ends it.
    """

    def __init__(self, name: str, limit_s: float | None = None) -> None:
        """``close`` waits for the thread for ``limit_s`` at most; None: until it has ended."""
        self.closing = threading.Event()
        self._limit_s = limit_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, unless it has been. One thread at a time may call this."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """End the thread and wait for it, if it has started. Idempotent. Not for the thread itself."""
        self.closing.set()
        self.wake()
        self.join(self._limit_s)

    def join(self, limit_s: float | None) -> bool:
        """Wait for the end of the thread; return whether it has ended, or never started."""
        if self._thread.ident is not None:
            self._thread.join(limit_s)
        return not self.alive

    def work(self) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        """Make ``work`` notice that ``closing`` is set. Called by ``close``, perhaps several times."""

    def failed(self, error: Exception) -> None:
        """Take the exception that has ended ``work``, on the thread. By default ``threading.excepthook`` gets it."""
        raise error

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - each class decides what happens then
            self.failed(error)


class RepeatedStep(WorkerThread):
    """Runs a step every ``every_s`` seconds until it is closed, or until a step returns False."""

    def __init__(self, name: str, every_s: float, limit_s: float | None = None) -> None:
        super().__init__(name, limit_s)
        self._every_s = every_s

    def step(self) -> bool:
        raise NotImplementedError

    def last_step(self) -> None:
        """Called on the thread after ``close``, unless a step has returned False."""

    @override
    def work(self) -> None:
        while not self.closing.wait(self._every_s):
            if not self.step():
                return
        self.last_step()


@contextmanager
def at_work(*workers: WorkerThread) -> Iterator[None]:
    """Keep these running for the block; then close them, the last one first."""
    with ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.close)
            worker.start()
        yield

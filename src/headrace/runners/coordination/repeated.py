"""A thread of the driver that does something again and again, while its deployment runs."""

from __future__ import annotations

import threading


class RepeatedStep:
    """Takes a step every ``every_s`` seconds from ``start`` to ``close``, or until one returns False."""

    def __init__(self, name: str, every_s: float) -> None:
        self._every_s = every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headrace-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and wait for it."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def step(self) -> bool:
        """Take a step, on the thread; returns whether there are others."""
        raise NotImplementedError

    def last_step(self) -> None:
        """``close`` was called; called on the thread unless a step has returned False."""

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            if not self.step():
                return
        self.last_step()

"""A thread of the driver that repeats a step while its deployment is running."""

from __future__ import annotations

import threading


class RepeatedStep:
    """Runs a step every ``every_s`` seconds from ``start`` to ``close``, or until a step returns False."""

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
        """Run a step, on the thread; return whether there are more."""
        raise NotImplementedError

    def last_step(self) -> None:
        """Called on the thread after ``close``, unless a step has returned False."""

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            if not self.step():
                return
        self.last_step()

"""A load at a steady rate, in a thread of its own, until it is stopped."""

from __future__ import annotations

import threading
import time

from typing_extensions import override


class SteadyLoad(threading.Thread):
    """Writes a batch again and again. What it has missed it makes up for, but no more than a second of it."""

    def __init__(self, name: str, pause_s: float) -> None:
        """Write a batch every ``pause_s``."""
        super().__init__(name=name, daemon=True)
        self._pause_s = pause_s
        self._over = threading.Event()
        self.error: BaseException | None = None

    def write_batch(self) -> None:
        """Write the next batch."""
        raise NotImplementedError

    @override
    def run(self) -> None:
        due = time.monotonic()
        try:
            while not self._over.wait(max(0.0, due - time.monotonic())):
                self.write_batch()
                due = max(due + self._pause_s, time.monotonic() - 1)
        except BaseException as error:  # noqa: BLE001 - ``stop`` raises it again
            self.error = error

    def stop(self) -> None:
        """Write no more. Raises what has ended the load before."""
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error

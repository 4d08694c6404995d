"""The hosts of a run's containers. The first containers wait a few seconds until all have registered.

Assignments depend on the hosts, so a container gets no tasks earlier. Each waits on the thread of its own connection.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from headrace.core.clock import Clock

WAIT_MS = 3000
"""How long after the first arrival the others may register. It is shorter than one attempt of a client."""


class Arrivals:
    """The hosts of a run's containers. Safe from any thread."""

    def __init__(self, containers: int, clock: Clock, wait_ms: float = WAIT_MS) -> None:
        self._containers = containers
        self._clock = clock
        self._wait_ms = wait_ms
        self._changed = threading.Condition()
        self._hosts: dict[int, str] = {}
        self._deadline: float | None = None
        self._over = False

    def wait(self, container: int, host: str) -> Mapping[int, str]:
        """Note the host of a container. Return the known hosts once all have arrived, or after the time limit."""
        with self._changed:
            self._hosts.setdefault(container, host)
            self._deadline = self._deadline or self._clock.monotonic_ms() + self._wait_ms
            self._changed.notify_all()
            while not self._over and len(self._hosts) < self._containers:
                left_ms = self._deadline - self._clock.monotonic_ms()
                if left_ms <= 0:
                    break
                self._changed.wait(left_ms / 1000)
            self._over = True
            return dict(self._hosts)

    def close(self) -> None:
        """Wake all waiting calls; later calls don't block. Idempotent."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

"""Which tasks of a container the next turn visits. Pure, but for asking connections what has arrived.

A task is left out while nothing has arrived for it, it had nothing more to do when it was visited last, and the time
that it gave then hasn't come. Tasks that read from a system that can't name those of its consumers for which something
has come are visited in every turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from headrace.runtime.connections import Connections
from headrace.runtime.host.task_host import TaskHost
from headrace.systems.base import Consumer

POLL_WITHOUT_FD_MS = 5.0
IDLE_MS_MAX = 1000.0
STALE_MAX = 1000
"""How many times that don't count any more are kept, apart from one for each task."""


class RollCall:
    """The tasks of one run loop, and when each is visited next."""

    def __init__(self, hosts: Sequence[TaskHost], connections: Connections) -> None:
        self._hosts = hosts
        self._connections = connections
        self._number = {host: number for number, host in enumerate(hosts)}
        self._of_consumer: dict[Consumer, TaskHost] = {c: host for host in hosts for c in host.inputs.consumers}
        self._always = [host for host in hosts if not host.inputs.all_woken]
        self._at_once: set[TaskHost] = set(hosts)
        self._due_ms: dict[TaskHost, float] = {}
        self._alarms: list[tuple[float, int]] = []
        """A heap of times and numbers of tasks; entries of times that don't count any more stay until they are due."""

    @property
    def all_woken(self) -> bool:
        """Whether no working task has to be visited in every turn."""
        return all(host.finished for host in self._always)

    def everyone(self) -> None:
        """All tasks are visited in the next turn."""
        self._at_once.update(self._hosts)

    def at_once(self, host: TaskHost) -> None:
        """The task is visited in the next turn, too."""
        self._at_once.add(host)

    def ask_again(self, host: TaskHost, due_ms: float) -> None:
        """The task is visited at this time (monotonic) at the latest."""
        if self._due_ms.get(host) != due_ms:
            self._due_ms[host] = due_ms
            heapq.heappush(self._alarms, (due_ms, self._number[host]))
        if len(self._alarms) > STALE_MAX + 2 * len(self._hosts):
            self._alarms = [(due_ms, self._number[host]) for host, due_ms in self._due_ms.items()]
            heapq.heapify(self._alarms)

    def present(self, now_ms: float) -> Sequence[TaskHost]:
        """The tasks that this turn visits, in their order."""
        present, self._at_once = self._at_once, set()
        present.update(self._named(self._connections.stirred()))
        present.update(self._always)
        while self._alarms and self._alarms[0][0] <= now_ms:
            due_ms, number = heapq.heappop(self._alarms)
            host = self._hosts[number]
            if self._due_ms.get(host) == due_ms:
                del self._due_ms[host]
                present.add(host)
        if len(present) == len(self._hosts):
            return self._hosts
        return sorted(present, key=self._number.__getitem__)

    def arrivals(self, visited: Collection[TaskHost]) -> list[TaskHost]:
        """The tasks for which something has arrived and that this turn hasn't visited; the next turn visits others."""
        found = set(self._named(self._connections.stirred()))
        first = found.difference(visited)
        self._at_once |= found - first
        return sorted(first, key=self._number.__getitem__)

    def _named(self, consumers: Iterable[Consumer]) -> Iterable[TaskHost]:
        return (self._of_consumer[consumer] for consumer in consumers if consumer in self._of_consumer)

    def pause(self, now_ms: float) -> float:
        """Return for how long (ms) no task must be visited, unless something arrives."""
        if self._at_once:
            return 0.0
        while self._alarms and self._due_ms.get(self._hosts[self._alarms[0][1]]) != self._alarms[0][0]:
            heapq.heappop(self._alarms)
        due = max(0.0, self._alarms[0][0] - now_ms) if self._alarms else IDLE_MS_MAX
        if any(not host.inputs.filenos() and not host.finished for host in self._always):
            due = min(due, POLL_WITHOUT_FD_MS)
        return min(due, IDLE_MS_MAX)

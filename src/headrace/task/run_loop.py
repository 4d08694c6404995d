"""The run loop of a container, without the sleep: its tasks take turns on one thread.

A turn visits the tasks for which something has arrived, that had more to do after their last visit, or whose time has
come, so thousands of idle tasks cost nothing. A system that can't name the consumers with news has its readers visited
in every turn. Orders of other threads, and a wall clock that was set, make the next turn visit all (``everyone``).
Tasks keep the order within a partition, not between each other.

``turning`` and ``draining`` pause wherever they would block: a container runs them to the end, the simulator step by
step.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from headrace.core.clock import Clock
from headrace.core.log import logger
from headrace.systems.base import Consumer
from headrace.task.connections import Connections
from headrace.task.host.commits import Together
from headrace.task.host.task_host import Rest, TaskHost, can_rest, settled, wants_to_work
from headrace.task.outputs.outlet import Backpressure
from headrace.task.scope import Pause, Steps, TaskScope

POLL_WITHOUT_FD_MS = 5.0
IDLE_MS_MAX = 1000.0
STALE_MAX = 1000  # how many times that don't count any more are kept, apart from one for each task


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
        self._alarms: list[tuple[float, int]] = []  # a heap; times that don't count any more stay until they are due

    @property
    def all_woken(self) -> bool:
        return all(host.finished for host in self._always)

    def everyone(self) -> None:
        self._at_once.update(self._hosts)

    def at_once(self, host: TaskHost) -> None:
        self._at_once.add(host)

    def ask_again(self, host: TaskHost, due_ms: float) -> None:
        if self._due_ms.get(host) != due_ms:
            self._due_ms[host] = due_ms
            heapq.heappush(self._alarms, (due_ms, self._number[host]))
        if len(self._alarms) > STALE_MAX + 2 * len(self._hosts):
            self._alarms = [(due_ms, self._number[host]) for host, due_ms in self._due_ms.items()]
            heapq.heapify(self._alarms)

    def present(self, now_ms: float) -> Sequence[TaskHost]:
        present, self._at_once = self._at_once, set()
        present.update(self._named(self._connections.stirred()))
        present.update(self._always)
        while self._alarms and self._alarms[0][0] <= now_ms:
            due_ms, number = heapq.heappop(self._alarms)
            host = self._hosts[number]
            if self._due_ms.get(host) == due_ms:
                del self._due_ms[host]
                present.add(host)
        return self._hosts if len(present) == len(self._hosts) else sorted(present, key=self._number.__getitem__)

    def arrivals(self, visited: Collection[TaskHost]) -> list[TaskHost]:
        found = set(self._named(self._connections.stirred()))
        first = found.difference(visited)
        self._at_once |= found - first
        return sorted(first, key=self._number.__getitem__)

    def _named(self, consumers: Iterable[Consumer]) -> Iterable[TaskHost]:
        return (self._of_consumer[consumer] for consumer in consumers if consumer in self._of_consumer)

    def pause(self, now_ms: float) -> float:
        if self._at_once:
            return 0.0
        while self._alarms and self._due_ms.get(self._hosts[self._alarms[0][1]]) != self._alarms[0][0]:
            heapq.heappop(self._alarms)
        due = max(0.0, self._alarms[0][0] - now_ms) if self._alarms else IDLE_MS_MAX
        if any(not host.inputs.filenos() and not host.finished for host in self._always):
            due = min(due, POLL_WITHOUT_FD_MS)
        return min(due, IDLE_MS_MAX)


_log = logger(__name__)
CLOCK_SET_MS = 2.0  # a larger difference between wall clock and monotonic clock means that the former was set


class RunLoop:
    """Tasks that share a thread and their connections."""

    steps_per_turn = 8
    drain_ms_max = 1000.0

    def __init__(self, hosts: Sequence[TaskHost], connections: Connections, clock: Clock) -> None:
        self.hosts = hosts
        self.connections = connections
        self._clock = clock
        self._calling = RollCall(hosts, connections)
        self._wall_ms = self._wall_offset()
        self._together = Together(connections)
        self.whole = False  # whether all tasks of the app are here, so that they may rest together
        self._rest = Rest()
        self._at_work: set[TaskHost] = set(hosts)  # the tasks that weren't settled after their last turn
        for host in hosts:
            host.rest = self._rest

    def starting(self) -> Steps[None]:
        for host in self.hosts:
            yield from self._together.go_on(host.survival, host.starting())
        yield from self._together.wait()

    def everyone(self) -> None:
        self._calling.everyone()

    def turning(self) -> Steps[float]:
        calling, together = self._calling, self._together
        if abs((wall_ms := self._wall_offset()) - self._wall_ms) > CLOCK_SET_MS:
            self._wall_ms = wall_ms
            calling.everyone()
        hosts = arrived = list(calling.present(self._clock.monotonic_ms()))
        while arrived:
            worked = yield from self._work(arrived)
            yield from together.wait()
            yield Pause.ACKNOWLEDGED
            self.connections.flush_records()
            # What these tasks have sent to others of this container needn't wait for the next turn.
            arrived = calling.arrivals(hosts) if worked else []
            hosts = [*hosts, *arrived]
        now = self._clock.monotonic_ms()
        for host in hosts:
            host.metrics.latency.flushed(now)
            yield from together.go_on(host.survival, host.on_time(now), partial(self._ask_again, host))
            began, now = now, self._clock.monotonic_ms()
            host.metrics.shares.work(now - began)
        yield from together.wait()
        yield Pause.ACKNOWLEDGED
        self.connections.flush_records()
        now = self._clock.monotonic_ms()
        for host in hosts:
            host.metrics.shares.turned(now, wants=wants_to_work(host))
            if host.busy or host.due:
                calling.at_once(host)
        if self.whole and calling.all_woken:
            self._rest_or_rise(hosts)
        return calling.pause(self._clock.monotonic_ms())

    def _work(self, hosts: Sequence[TaskHost]) -> Steps[bool]:
        worked = False
        for host in hosts:
            host.poll()
        now = self._clock.monotonic_ms()
        for host in hosts:
            for _ in range(self.steps_per_turn):
                host.collect()
                if host.due:
                    worked = True
                    if not (yield from self._together.go_on(host.survival, host.performing())):
                        break
                if not host.step(now):
                    break
                worked = True
            began, now = now, self._clock.monotonic_ms()
            host.metrics.shares.work(now - began)
        return worked

    def _wall_offset(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic_ms()

    def _ask_again(self, host: TaskHost, due_ms: float) -> None:
        self._calling.ask_again(host, self._clock.monotonic_ms() + due_ms)

    def _rest_or_rise(self, visited: Sequence[TaskHost]) -> None:
        for host in visited:
            if settled(host):
                self._at_work.discard(host)
            else:
                self._at_work.add(host)
        if self._rest.on == (not self._at_work) or (not self._rest.on and not can_rest(self.hosts)):
            return
        self._rest.on = not self._rest.on
        self._calling.everyone()  # other times are due now

    def draining(self) -> Steps[None]:
        """Commit again, and wait a moment for tasks that follow others: the next start does what they missed."""
        deadline = self._clock.monotonic_ms() + self.drain_ms_max
        yield from self._committing(deadline)
        if any(host.publishing.would_repeat for host in self.hosts):
            yield from self._committing(deadline)

    def _committing(self, deadline: float) -> Steps[None]:
        targets = [(host, host.machine.label) for host in self.hosts if not host.finished]
        for host, _ in targets:
            host.ask_for_commit()
            yield from self._together.go_on(host.survival, host.performing())
        yield from self._together.wait()
        while self._clock.monotonic_ms() < deadline:
            for host, _ in targets:
                host.publish(self._clock.monotonic_ms())
            if all(host.finished or host.has_committed(label) for host, label in targets):
                return
            stepped = False
            self.connections.learn()
            for host in self.hosts:
                host.poll()
                host.collect()
                if not host.due or (yield from self._together.go_on(host.survival, host.performing())):
                    stepped |= host.step(self._clock.monotonic_ms())
            yield from self._together.wait()
            yield Pause.ACKNOWLEDGED
            self.connections.flush_records()
            if not stepped:
                yield Pause.REST
        for host, label in targets:
            if not host.finished and not host.has_committed(label):
                _log.info("drained before its last version was committed and published", task=str(host.name))


def backpressures(scopes: Iterable[TaskScope], connections: Connections, now_ms: float) -> dict[str, Backpressure]:
    found: dict[str, Backpressure] = {}
    for scope in scopes:
        if scope.name.stage not in found:
            limit = scope.settings.ahead_bytes_max
            found[scope.name.stage] = Backpressure(scope.app, limit, scope.downstream, connections, now_ms)
    return found

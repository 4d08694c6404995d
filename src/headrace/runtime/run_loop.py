"""The run loop of a container without its sleep: some tasks that take turns on one thread.

A turn is: poll what has arrived, let each task process a bounded amount, flush what they sent, do what is
due. Order within a partition is kept by the tasks; between tasks there is none.

``turning`` and ``draining`` are generators that pause wherever they would block. A container runs them to the end, the
simulator step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.core.clock import Clock
from headrace.core.log import logger
from headrace.core.user_metrics import enter
from headrace.runtime.connections import Connections
from headrace.runtime.host.durability import Together
from headrace.runtime.host.stopwatch import wants_to_work
from headrace.runtime.host.task_host import TaskHost
from headrace.runtime.outputs.backpressure import Backpressure
from headrace.runtime.pauses import Pause, Steps
from headrace.runtime.task_scope import TaskScope

_log = logger(__name__)

STEPS_PER_TURN = 8
POLL_WITHOUT_FD_MS = 5.0
IDLE_MS_MAX = 1000.0
DRAIN_MS_MAX = 1000.0


class RunLoop:
    """Tasks that share a thread and their connections."""

    steps_per_turn = STEPS_PER_TURN
    drain_ms_max: float = DRAIN_MS_MAX

    def __init__(self, hosts: Sequence[TaskHost], connections: Connections, clock: Clock) -> None:
        self.hosts = hosts
        self.connections = connections
        self._clock = clock
        self._together = Together(connections)
        self._due_ms = 0.0

    def starting(self) -> Steps[None]:
        """Restore all tasks from their last commits, and announce them."""
        for host in self.hosts:
            yield from self._together.go_on(host.survival, host.starting())
        yield from self._together.wait()

    def turning(self) -> Steps[float]:
        """One turn; returns for how long (ms) the container may sleep after it."""
        worked = False
        for host in self.hosts:
            host.poll()
        now = self._clock.monotonic_ms()
        for host in self.hosts:
            enter(host.metrics.user)  # calls that run elsewhere take it along
            for _ in range(self.steps_per_turn):
                host.collect()
                if host.due and not (yield from self._together.go_on(host.survival, host.performing())):
                    worked = True
                    break
                if not host.step(now):
                    break
                worked = True
            began, now = now, self._clock.monotonic_ms()
            host.metrics.shares.work(now - began)
        yield from self._together.wait()
        yield Pause.ACKNOWLEDGED
        self.connections.flush_records()
        now = self._clock.monotonic_ms()
        self._due_ms = now + IDLE_MS_MAX
        for host in self.hosts:
            host.metrics.latency.flushed(now)
            yield from self._together.go_on(host.survival, host.on_time(now), self._note_due)
            began, now = now, self._clock.monotonic_ms()
            host.metrics.shares.work(now - began)
        yield from self._together.wait()
        yield Pause.ACKNOWLEDGED
        self.connections.flush_records()
        now = self._clock.monotonic_ms()
        for host in self.hosts:
            host.metrics.shares.turned(now, wants=wants_to_work(host))
        if worked or any(host.busy for host in self.hosts):
            return 0.0
        due = max(
            0.0, self._due_ms - self._clock.monotonic_ms()
        )  # what others did after a host said when has taken its time
        if any(not host.inputs.filenos() and not host.finished for host in self.hosts):
            return min(due, POLL_WITHOUT_FD_MS)
        return due

    def _note_due(self, due: float) -> None:
        self._due_ms = min(self._due_ms, self._clock.monotonic_ms() + due)

    def draining(self) -> Steps[None]:
        """Commit again, and give tasks that follow others a moment to commit that version and publish it too.

        What is uncommitted when the moment is over is not lost: the next start reads it again, or publishes it.
        """
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
    """By stage the back-pressure that all its tasks in a container share."""
    found: dict[str, Backpressure] = {}
    for scope in scopes:
        if scope.name.stage not in found:
            limit = scope.settings.ahead_bytes_max
            found[scope.name.stage] = Backpressure(scope.app, limit, scope.downstream, connections, now_ms)
    return found

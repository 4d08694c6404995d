"""The ports of a task's host: systems, state, time, the coordinator. The simulator replaces them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.core.clock import Clock
from headrace.protocol.machine import ProtocolMachine
from headrace.systems.startpoints import Grant
from headrace.task.connections import Connections
from headrace.task.host.attempt import PATIENCE_MS, Factories
from headrace.task.host.orders import Report, Resolve, by_system
from headrace.task.inputs.chooser import MEMORY_BYTES_MAX
from headrace.task.metrics import TaskMetrics
from headrace.task.outputs.outlet import TRIM_STEP
from headrace.task.scope import TaskScope
from headrace.task.state.depot import Depot
from headrace.task.state.task_state import TaskState

LETS_GO_MS = 5000.0  # how long a standby on this host has for letting go of the folder of a task that begins here
NextGrant = Callable[[], Grant]  # raises ``FencedError`` if another incarnation has taken over


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside itself that a host uses."""

    connections: Connections
    clock: Clock
    next_generation: NextGrant
    make: Factories
    state: TaskState
    machine: ProtocolMachine
    resolve: Resolve
    report_outcomes: Report
    metrics: TaskMetrics = field(default_factory=TaskMetrics)
    jitter: random.Random = field(default_factory=random.Random)
    pulse: Callable[[], None] = lambda: None  # called now and then during a long restore
    trim_step: int = TRIM_STEP  # the bytes of an intermediate stream to trim at once
    early_bytes_max: int = MEMORY_BYTES_MAX  # the bytes of early frames to keep in memory
    patience_ms: float = PATIENCE_MS  # the wait for an upstream task that is late with what others have closed

    @classmethod
    def live(
        cls,
        scope: TaskScope,
        make: Factories,
        next_generation: NextGrant,
        report_outcomes: Report,
        connections: Connections,
        clock: Clock,
        pulse: Callable[[], None],
        depot: Depot | None = None,
    ) -> Ports:
        metrics = TaskMetrics(str(scope.name), clock, scope.interval_ms)
        state = TaskState(
            scope.changelog[0],
            scope.folders,
            metrics.warnings,
            snapshot_after_bytes=scope.settings.snapshot_after_bytes,
            dropped=scope.dropped,
            depot=depot,
            stands_in=_patience(clock) if scope.settings.standby else lambda: True,
        )
        machine, resolve = ProtocolMachine(scope.machine, writer=uuid.uuid4().hex), by_system(scope, connections)
        return cls(
            connections, clock, next_generation, make, state, machine, resolve, report_outcomes, metrics, pulse=pulse
        )


def _patience(clock: Clock) -> Callable[[], bool]:
    until_ms: float | None = None

    def over() -> bool:
        nonlocal until_ms
        now_ms = clock.monotonic_ms()
        until_ms = now_ms + LETS_GO_MS if until_ms is None else until_ms
        return now_ms >= until_ms

    return over

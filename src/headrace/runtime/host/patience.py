"""How long a task waits for upstream tasks that are late with a version, while it could commit what others sent.

Waiting is always safe, and so is not waiting. It only costs a rollback, if frames of a late task that it hasn't
committed were processed. So the wait is longer than a container takes to be replaced. It doesn't count as over before
the task has read what was there at its end: a reader that lags behind finds the missing checkpoints there.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.checkpoint.machine import ProtocolMachine
from headrace.checkpoint.protocol import Phase
from headrace.core.errors import UnavailableError
from headrace.core.ids import SSP, Offset
from headrace.core.log import logger
from headrace.runtime.inputs.consumers import InputConsumers
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.task_scope import TaskScope

PATIENCE_MS = 30_000.0

_log = logger(__name__)


class Patience:
    """The wait of one task for the upstream tasks that are late with its next version."""

    def __init__(self, scope: TaskScope, machine: ProtocolMachine, inputs: InputConsumers, patience_ms: float) -> None:
        self._scope = scope
        self._machine = machine
        self._inputs = inputs
        self._ms = patience_ms
        self._awaited = (-1, -1)
        self._until_ms: float | None = None
        self._ends: Mapping[SSP, Offset] = {}

    @property
    def due_ms(self) -> float | None:
        """When (monotonic) the wait is over at the earliest; None if the task doesn't wait, or must read on first."""
        return None if self._ends else self._until_ms

    def look(self, positions: Mapping[SSP, Offset], now_ms: float, metrics: TaskMetrics, *, resting: bool) -> None:
        """Have late upstream tasks set aside when the wait is over. ``positions`` is how far inputs have been read.

        While all tasks are ``resting``, no task closes versions, so none is late.
        """
        machine = self._machine
        if resting or not machine.lagging:
            self._until_ms = None
            return
        if self._until_ms is None or self._awaited != (machine.generation, machine.version):
            self._awaited = machine.generation, machine.version
            self._until_ms, self._ends = now_ms + self._ms, {}
        if now_ms < self._until_ms:
            return
        late = dict.fromkeys(machine.late())
        if not self._ends:
            try:
                self._ends = self._inputs.ends({ssp for ssp, _ in late})
            except UnavailableError:  # the system is what is late
                self._until_ms = now_ms + self._ms
                return
        if any(positions[ssp] < end for ssp, end in self._ends.items()):
            return
        self._until_ms = None
        names = sorted({str(self._scope.producers[ssp][producer]) for ssp, producer in late})
        if machine.set_aside():
            metrics.warnings.add(
                _log,
                f"no longer waits for {', '.join(names)}: late by {self._ms / 1000:g} s. What others have sent is "
                "committed without what these haven't committed yet",
            )
        if machine.phase is Phase.DOWN:
            metrics.count("rollbacks")

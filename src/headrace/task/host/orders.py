"""What the coordinator orders of a task: startpoints, and shards of slots.

Runs on the run-loop thread. Finding the offset of a startpoint and reporting it may block. Reports about slots contain
only committed positions, because the dealer moves shards based on them. Orders apply only to the generation that they
were given to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from headrace.api.specs import Role
from headrace.core.errors import DeploymentError, HeadraceError, UsageError
from headrace.core.ids import SSP
from headrace.core.log import logger
from headrace.systems.positions import Place, extent_of, resolve_end
from headrace.systems.positions import resolve as where
from headrace.systems.slot_reports import Shards, SlotOrders, SlotReport
from headrace.systems.startpoints import Order, Outcome
from headrace.task.connections import Connections
from headrace.task.event_time import FOREVER, NEVER
from headrace.task.inputs.consumers import InputConsumers
from headrace.task.scope import TaskScope
from headrace.task.task import Task

Resolve = Callable[[Order, SSP], Place]  # raises a ``HeadraceError`` if the startpoint has no offsets
Report = Callable[[Sequence[Outcome]], None]  # tells the coordinator, and waits until it has recorded the outcome
_log = logger(__name__)


class TaskStartpoints:
    """The startpoints of one task: they replace committed positions in sources, at its start or rollback."""

    def __init__(self, scope: TaskScope, resolve: Resolve, report: Report) -> None:
        self._scope = scope
        self._resolve = resolve
        self._report = report

    def applied(self, orders: Iterable[Order], generation: int, ended: Collection[SSP]) -> dict[SSP, Place]:
        """Raise ``DeploymentError`` if one can't be applied. Transient errors, which say nothing about it, pass."""
        found: dict[SSP, Place] = {}
        outcomes: list[Outcome] = []
        for order in orders:
            try:
                ssp = self._input(order)
                if ssp in ended:
                    raise UsageError(
                        f"{ssp} has ended, and the app's state and results already reflect its end",
                        hint="restore a savepoint from before the end, or read the input in an app of another name",
                    )
                place = self._resolve(order, ssp)
            except HeadraceError as error:
                if error.retry:
                    raise
                self._report([Outcome(order=order, state="failed", generation=generation, reason=error.message)])
                raise DeploymentError(
                    f"task {self._scope.name} can't apply startpoint {order.startpoint.id} to partition "
                    f"{order.partition} of {order.stream}: {error.message}",
                    hint=f"{error.hint + '; ' if error.hint else ''}set another startpoint, or delete this one: "
                    f"`headrace startpoint delete {self._scope.app} ...`",
                ) from error
            found[ssp] = place
            outcome = Outcome(order=order, state="applied", generation=generation, offset=place.offset)
            if place.until is not None:
                outcome = msgspec.structs.replace(outcome, until=place.until, first=place.first)
            outcomes.append(outcome)
        if outcomes:
            self._report(outcomes)
        for ssp, place in found.items():
            end = {} if place.until is None else {"until": place.until}
            _log.info("applying a startpoint", task=str(self._scope.name), input=str(ssp), offset=place.offset, **end)
        return found

    def release(self, orders: Iterable[Order], generation: int, version: int) -> None:
        self._report([Outcome(order=o, state="released", generation=generation, version=version) for o in orders])

    def _input(self, order: Order) -> SSP:
        for ssp, spec in self._scope.specs.items():
            outside = spec.role is not Role.INTERMEDIATE
            if outside and (self._scope.position_name(ssp), ssp.partition) == (order.stream, order.partition):
                return ssp
        raise UsageError(
            f"task {self._scope.name} doesn't read partition {order.partition} of {order.stream}",
            hint="`headrace offsets` lists what each task reads",
        )


def by_system(scope: TaskScope, connections: Connections) -> Resolve:
    def resolve(order: Order, ssp: SSP) -> Place:
        spec, end = scope.specs[ssp], order.startpoint.until
        admin = connections.admin(spec.system)
        offset, until, first = order.offset, order.until, order.first
        if offset is None:
            offset = where(order.startpoint, ssp, admin, scope.settings.startpoints)
        else:
            admin.check_offset(ssp, offset)
        if end is UNSET:
            return Place(offset)
        if until is UNSET:
            until = resolve_end(end, offset, ssp, admin)
        if first is UNSET:
            extent = extent_of(ssp, admin)
            first = extent.oldest if spec.start == "oldest" else extent.upcoming
        return Place(offset, until, first)

    return resolve


class Slots:
    """The slots of one task. A generation reports nothing before it has resumed."""

    def __init__(self, inputs: InputConsumers) -> None:
        self._inputs = inputs
        self._names = inputs.slots()
        self._generation = 0
        self._committed: Mapping[SSP, Shards] | None = None
        self._sealed: Mapping[SSP, Shards] = {}
        self._version = -1
        self._number = 0  # the number of the last orders; 0 before the first

    def taken_over(self, generation: int) -> None:
        self._generation, self._committed, self._number = generation, None, 0

    def resumed(self, shards: Mapping[SSP, Shards], version: int) -> None:
        self._version = version
        self._committed = {ssp: shards.get(ssp, {}) for ssp in self._names}

    def sealed(self, shards: Mapping[SSP, Shards]) -> None:
        self._sealed = {ssp: shards.get(ssp, {}) for ssp in self._names}

    def committed(self, version: int) -> None:
        self._committed, self._version = self._sealed, version

    def unsettled(self, task: Task) -> bool:
        return bool(self._names) and (not self._number or any(task.times[ssp].holds for ssp in self._names))

    def reports(self, task: Task) -> dict[SSP, SlotReport]:
        return {ssp: self._report(task, ssp, shards) for ssp, shards in (self._committed or {}).items()}

    def _report(self, task: Task, ssp: SSP, shards: Shards) -> SlotReport:
        # While the slot was idle, the task's event time may have advanced; older messages are late for it.
        watermark = max(task.times[ssp].progress.watermark, task.progress.watermark)
        known = None if watermark in (NEVER, FOREVER) else watermark
        return SlotReport(self._generation, dict(shards), known, dict(self._inputs.behind_ms(ssp)), self._version)

    def direct(self, generation: int, number: int, orders: Mapping[str, SlotOrders]) -> None:
        """Several threads pass orders on: an earlier one could make it read a shard that was dropped since."""
        if generation == self._generation and number >= self._number and self._committed is not None:
            self._number = number
            self._inputs.direct({ssp: orders[str(ssp)] for ssp in self._names if str(ssp) in orders})

"""The coordinator: the real ledger, and generations from a real metadata store that outlives it.

A crash takes the ledger, as the death of a driver does. The next one knows nothing of the containers that are still
there: they get no answer any more.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.coordinator.books import CutOrder, CutReport
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.messages import (
    CheckpointStatus,
    CutStatus,
    ErrorReport,
    Failure,
    Finished,
    GenerationRequest,
    Heartbeat,
    Orders,
    Register,
    TaskStatus,
)
from headrace.coordinator.startpoints import StartpointService
from headrace.core.clock import WallClock
from headrace.core.errors import FencedError, HeadraceError, UnavailableError
from headrace.core.ids import TaskName
from headrace.life.metadata import Generations, MemoryMetadata
from headrace.systems.startpoints import Grant, Order, Outcome
from simulator.world import World

if TYPE_CHECKING:
    from headrace.task.host.task_host import TaskHost
    from simulator.container import SimContainer
    from simulator.dealings import Dealings
    from simulator.startpoints import SimStartpoints

_LOST_AFTER_MS = 60
_ANSWER_LOST = 0.05


class Coordinator:
    """Who runs what. Requests travel, wait for a coordinator that is down, and get lost with one that dies."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.up = True
        self.term = 0
        self.draining = False
        self._metadata = MemoryMetadata()
        self._startpoints: SimStartpoints | None = None
        self._dealings: Dealings | None = None

    def deal(self, dealings: Dealings) -> None:
        """There are slots from now on."""
        self._dealings = dealings

    def serve(self, startpoints: SimStartpoints) -> None:
        """There are startpoints from now on."""
        self._startpoints = startpoints

    def assign(self, stages: Mapping[str, Sequence[TaskName]], containers: int) -> None:
        """What there is to do from the next run on, and for how many containers."""
        self._stages = stages
        self._containers = containers

    def begin(self) -> None:
        """A new run of the app."""
        self.up = True
        self.term += 1
        self.draining = False
        self.generations = Generations(self._metadata, "app")
        self.ledger = Ledger(
            "app",
            self._stages,
            self._containers,
            started_at=0,
            guarantee="exactly_once",
            lost_after_ms=_LOST_AFTER_MS,
            slots=None if self._dealings is None else self._dealings.book(),
        )
        self.desk = (
            StartpointService.none("app", WallClock()) if self._startpoints is None else self._startpoints.desk()
        )
        self.fan_out()

    def crash(self) -> None:
        """Forget everything but the metadata store."""
        self.up = False
        self.term += 1

    @property
    def finished(self) -> bool:
        """All tasks are over, and not because of a drain."""
        return self.up and self.ledger.state == "finished" and not self.draining

    def left(self, seat: int) -> bool:
        """A container has something to do yet."""
        return self.ledger.state_of(seat) != "finished" and self.ledger.state != "finished"

    def is_current(self, container: SimContainer) -> bool:
        """The ledger holds this incarnation for the container's current one."""
        if not self.up or container.term != self.term:
            return False
        try:
            self.ledger.check_current(container.seat, container.incarnation)
        except FencedError:
            return False
        return True

    # -- what containers ask

    def register(self, container: SimContainer) -> Generator[float, None, dict[TaskName, Grant]]:
        """The tasks of a container that starts, with their generations and startpoints."""
        yield from self.reach(container)
        message = Register(
            container=container.seat,
            attempt=container.attempt,
            host=f"host{container.host}",
            pid=container.number,
            incarnation=container.incarnation,
        )
        seat = self.ledger.register(message, self.world.now)
        issued = self.generations.issue([task for task in seat.tasks if task not in seat.grants])
        self.ledger.granted(message, issued)
        grants = {task: {**seat.grants, **issued}[task] for task in seat.tasks}
        orders = self.grant(grants)
        yield from self.answer(container)
        return {task: Grant(generation=number, orders=orders.get(task, ())) for task, number in grants.items()}

    def generation(self, container: SimContainer, task: TaskName) -> Generator[float, None, Grant]:
        """A new generation for a task that rolls back; raises ``FencedError`` when another incarnation is current."""
        while True:
            yield from self.reach(container)
            generation = self.issue(container, task)
            orders = self.grant({task: generation}).get(task, ())
            yield from self.answer(container)
            if self.world.chance.random() >= _ANSWER_LOST:
                return Grant(generation=generation, orders=orders)

    def issue(self, container: SimContainer, task: TaskName) -> int:
        """As the server does it, in one moment."""
        request = GenerationRequest(container=container.seat, incarnation=container.incarnation, task=str(task))
        self.ledger.check_request(request, self.world.now)
        issued = self.generations.issue([task])
        self.ledger.granted(request, issued)
        return issued[task]

    def fan_out(self) -> list[TaskName]:
        """Make orders of the startpoints that are written; the tasks that have some nobody was told about."""
        if self._startpoints is None:
            return []
        with self._startpoints.fanning_out():
            return self.desk.fan_out()

    def apply(self) -> None:
        """Have the tasks concerned start over with what is written."""
        self.ledger.restart(self.fan_out())

    def grant(self, tasks: Mapping[TaskName, int]) -> dict[TaskName, tuple[Order, ...]]:
        """The startpoints that these generations of tasks have to apply."""
        orders = self.desk.grant(tasks)
        if self._startpoints is not None:
            self._startpoints.moves.granted(tasks, orders)
        return orders

    def take(self, container: SimContainer, task: TaskName, outcomes: Sequence[Outcome]) -> None:
        """A task reports what has happened to its startpoints; the first answer may be lost, or it dies between two."""
        self._check(container)
        assert self._startpoints is not None
        generations = {outcome.generation for outcome in outcomes}
        for _ in range(1 if self.world.chance.random() >= _ANSWER_LOST else 2):
            self.ledger.check_report(container.seat, container.incarnation, str(task), generations)
            for number, outcome in enumerate(outcomes):
                if number and self.world.chance.random() < _ANSWER_LOST:
                    self.world.after(0.0, lambda: container.cluster.crash_coordinator(20.0))
                    raise UnavailableError(f"the driver of {container.name} dies while it takes a report")
                with self._startpoints.noting(str(task), outcome):
                    self.desk.note(str(task), [outcome])

    def report_finished(self, container: SimContainer, tasks: Sequence[TaskName]) -> Generator[float, None, None]:
        """These tasks are over."""
        yield from self.reach(container)
        message = Finished(container=container.seat, incarnation=container.incarnation, tasks=[str(t) for t in tasks])
        self.ledger.finished(message, self.world.now)

    def report_failure(self, container: SimContainer, error: HeadraceError) -> None:
        """A container dies of this."""
        if self.is_current(container):
            report = ErrorReport.of(error, with_traceback=False)
            failure = Failure(container=container.seat, incarnation=container.incarnation, error=report)
            self.ledger.failed(failure, self.world.now)

    def sign_of_life(self, container: SimContainer) -> Heartbeat:
        """What a container says of itself now."""
        return Heartbeat(
            container=container.seat,
            incarnation=container.incarnation,
            sent_ms=self.world.now,
            tasks=[_status(host) for host in container.hosts],
        )

    def heartbeat(self, message: Heartbeat) -> Orders:
        """A sign of life has arrived; raises ``FencedError`` if it is from one that isn't current."""
        return self.ledger.heartbeat(message, self.world.now)

    def cut(self, message: CutOrder) -> CutReport:
        """Order a cut, or ask what has come of it."""
        return self.ledger.cut(message, int(self.world.now))

    def reach(self, container: SimContainer) -> Generator[float, None, None]:
        """A request is under way, or waits for a coordinator."""
        while not self.up:
            yield 5.0
        self._check(container)
        yield self.world.chance.random()
        self._check(container)

    def answer(self, container: SimContainer) -> Generator[float, None, None]:
        """An answer is under way."""
        yield self.world.chance.random()
        self._check(container)

    def _check(self, container: SimContainer) -> None:
        if container.term != self.term:
            raise UnavailableError(f"the driver of {container.name} is gone")


def _status(host: TaskHost) -> TaskStatus:
    """Whether it has committed since its start: then the death of its container is no crash loop."""
    committed = host.committed_ms is not None
    checkpoint = CheckpointStatus(version=host.machine.version, age_ms=0, duration_ms=0.0) if committed else None
    cut = None if host.keeper.state is None else CutStatus(id=host.keeper.state[0], state=host.keeper.state[1])
    slots = {str(ssp): report for ssp, report in host.slots.reports(host.task).items()}
    return TaskStatus(name=str(host.name), state="running", checkpoint=checkpoint, cut=cut, slots=slots)

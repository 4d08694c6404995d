"""One process: the real run loop with the real hosts of its tasks, driven in virtual time.

At each pause of the host the process may be killed or stand still, other processes may overtake it, and what it has
sent may land or not. It sleeps as a container does: for as long as its turn says, or until something rings.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from headrace.coordinator.messages import Orders, SlotDirections
from headrace.core.clock import Clock
from headrace.core.errors import (
    DeploymentError,
    FencedError,
    HeadraceError,
    IndeterminateWriteError,
    InfrastructureError,
    ProtocolError,
    UnavailableError,
)
from headrace.core.frame import decode_header
from headrace.core.ids import SSP, TaskName
from headrace.protocol import instructions as do
from headrace.protocol.protocol import Phase
from headrace.protocol.record import Cut
from headrace.systems.startpoints import Grant, Outcome
from headrace.task import scope as pauses
from headrace.task.container import OBSERVE_MS
from headrace.task.host.orders import by_system
from headrace.task.host.ports import Ports
from headrace.task.host.task_host import TaskHost
from headrace.task.run_loop import RunLoop, backpressures
from headrace.task.scope import Pause
from simulator.calls import VirtualCalls
from simulator.cluster import Cluster
from simulator.disks import SimDisk
from simulator.journal import Journal, WatchedMachine
from simulator.objects import SimDepot
from simulator.storage import STEP, Channel, SimLog
from simulator.story import brief
from simulator.systems import SimConnections
from simulator.world import Actor, Steps

T = TypeVar("T")
_PASSING = UnavailableError, IndeterminateWriteError
_SNAPSHOT_AFTER_BYTES = (0, 1000, 1 << 30)
_TRIM_STEPS = (0, 4 * STEP)
_NEVER_TRIM = 1 << 40
PROBED = 0.1
"""How often a sleep is interrupted for nothing."""

_IMPATIENT = 0.05
"""How often a task that is to start over doesn't wait for its commit any longer, at each turn."""

_DRAIN_MS_MAX = 80.0
"""A few checkpoint intervals, as in a container."""


class SimClock(Clock):
    """The clock of one process, which may be off, and may jump."""

    def __init__(self, container: SimContainer) -> None:
        self._container = container

    @override
    def now_ms(self) -> int:
        return int(self._container.world.now + self._container.skew)

    @override
    def monotonic_ms(self) -> float:
        return self._container.world.now


class SimContainer:
    """One incarnation of a container. ``seat`` is the container's number, ``number`` its own among all processes."""

    actor: Actor

    def __init__(self, cluster: Cluster, seat: int, attempt: int, number: int, host: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.seat = seat
        self.attempt = attempt
        self.number = number
        self.incarnation = f"w{number}"
        self.host = host
        self.term = cluster.coordinator.term
        self.name = f"container {seat}~{number}"
        self.skew = cluster.draw_skew(seat)
        self.clock = SimClock(self)
        self.hosts: list[TaskHost] = []
        self.journals: dict[int, Journal] = {}
        self.next_instruction: tuple[Journal, do.Instruction]
        self.disk_fails = False
        self.gives_up = False
        self.draining = False
        self._calls = VirtualCalls(self.world, number, self.ring)
        self._connections = SimConnections(self, cluster.admin, cluster.targets, self._calls)
        self._depot = None if cluster.objects is None else SimDepot(cluster.objects, self)
        self._channels: dict[SSP, Channel] = {}
        self.restarts: Mapping[str, int] = {}
        """The generations that have to start over, as the coordinator says."""
        self._granted: dict[TaskName, Grant] = {}
        self._cut: Cut | None = None
        self._directions: Mapping[str, SlotDirections] = {}
        self._reported = False
        self._rung = False
        self._summoned = False
        self._probed: float | None = None
        """It has woken before its time; when it would have."""
        self._was_settling: set[TaskName] = set()

    # -- as others see it

    @property
    def alive(self) -> bool:
        """It still takes steps."""
        return self.actor.alive

    @property
    def tasks(self) -> list[TaskName]:
        """The tasks that it has been given."""
        return [host.name for host in self.hosts]

    def status(self) -> str:
        """Where it stands, for a run that hangs."""
        machines = [host.machine for host in self.hosts]
        return "; ".join(machine.status() for machine in machines if isinstance(machine, WatchedMachine))

    def ring(self) -> None:
        """Something has come that doesn't say for which task."""
        self._summoned = True
        self.stir()

    def stir(self) -> None:
        """Something has come to a log."""
        self._rung = True
        self.actor.wake()

    def obey(self, orders: Orders) -> None:
        """The coordinator has answered a sign of life."""
        self.draining = self.draining or orders.drain
        self.order(orders.cut)
        self.restarts = orders.restart
        if orders.slots:
            self._directions = orders.slots
            self.heard()

    def heard(self) -> None:
        """Something has come that doesn't wake a container that sleeps."""
        self._probed = None

    def order(self, cut: Cut | None) -> None:
        """Have all tasks take part in a cut."""
        if cut != self._cut:
            self._cut = cut
            self._probed = None
            self.ring()

    def holds(self, cut: Cut) -> bool:
        """It has learned of this cut."""
        return self._cut == cut

    def die(self) -> None:
        """Stop at once; what is in flight is left to chance."""
        self.actor.kill()
        for channel in self._channels.values():
            channel.die()
        self.release()

    def lose_what_is_sent(self) -> None:
        """The machine has lost its power: nothing of what is in flight lands any more."""
        for channel in self._channels.values():
            channel.vanish()

    def release(self) -> None:
        """Give back what the operating system takes from the dead: locks, and calls under way."""
        for host in self.hosts:
            host.state.close()
            host.attempt.close()
        self._calls.close()
        if self._depot is not None:
            self._depot.close()

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self.world.tell(self.name, what)

    # -- what its tasks reach

    def channel(self, ssp: SSP) -> Channel:
        """The way to a log."""
        if ssp not in self._channels:
            log = self.cluster.partitions[ssp]
            assert isinstance(log, SimLog)
            self._channels[ssp] = Channel(self.world, log, self.cluster.settings.retry)
        return self._channels[ssp]

    def sends(self, ssp: SSP, payload: bytes) -> None:
        """A frame leaves."""
        self._acts("a frame")
        header = decode_header(payload)
        journal = self.journals[header.producer]
        if ssp in self.cluster.logs:
            journal.sends(ssp, header, payload)
        else:
            journal.records(header, payload)

    def disk_error(self) -> HeadraceError | None:
        """What a flush raises now."""
        if not self.disk_fails:
            return None
        self.disk_fails = False
        committing = any(host.machine.phase is Phase.COMMITTING for host in self.hosts)
        what = "doesn't know whether its commit was written" if committing else "can't write"
        self.tell(what)
        return IndeterminateWriteError(f"{self.name} {what}")

    def _next_generation(self, task: TaskName) -> Grant:
        return self._granted.pop(task)

    def _report(self, task: TaskName, outcomes: Sequence[Outcome]) -> None:
        """The request has reached the coordinator by now; its answer is under way."""
        self.tell(f"{task}: " + "; ".join(f"{o.state} {o.order.startpoint} at {o.offset}" for o in outcomes))
        self.cluster.coordinator.take(self, task, outcomes)
        self._reported = True

    # -- the life

    def run(self) -> Steps:
        """Live until all tasks are over, or until somebody else has the right to them."""
        try:
            yield from self._live()
        except (FencedError, InfrastructureError, DeploymentError) as error:
            self._end(error)
        except ProtocolError as error:
            if not self._is_of_a_version_before():
                raise
            self._end(error)

    def _is_of_a_version_before(self) -> bool:
        """The app has changed, and a stale copy may not know what to do with what the new version writes."""
        scopes = self.cluster.scopes
        return any(scopes.get(host.name) is not host.scope for host in self.hosts)

    def _end(self, error: HeadraceError) -> None:
        """Only one that was replaced may be stopped, or one of an app that another one's failures have ended.

        A stale copy of the version before stops at what a task writes that it doesn't know.

        Trouble that passes kills anybody, and a new attempt follows.
        """
        coordinator = self.cluster.coordinator
        over = coordinator.up and coordinator.ledger.state == "failed"
        moves = self.cluster.oracle.moves
        by_right = moves is not None and moves.stops(map(str, self.tasks), error)
        if not isinstance(error, _PASSING) and not over and not by_right and coordinator.is_current(self):
            self.cluster.oracle.fail(self.name, f"the current incarnation was stopped: {error.message}")
        self.tell(f"stops: {error.message}")
        self.cluster.coordinator.report_failure(self, error)
        self.actor.alive = False
        for channel in self._channels.values():
            channel.die()
        self.release()

    def _live(self) -> Steps:
        self._granted = yield from self.cluster.coordinator.register(self)
        if not self._granted:
            return
        loop = self._begin(list(self._granted))
        yield from self._drive(loop.starting())
        while True:
            if self._summoned or self._probed is not None or self.gives_up or self.restarts or self._directions:
                loop.everyone()  # a task that is probed must have nothing to do, asked or not
            self._rung = self._summoned = False
            if self.gives_up:
                self.gives_up, self._probed = False, None
                self.world.chance.choice(self.hosts).machine.abandon()
            for host in self.hosts:
                host.keeper.order(self._cut)
            directions, self._directions = self._directions, {}
            for host in self.hosts if directions else ():
                if (directed := directions.get(str(host.name))) is not None:
                    host.slots.direct(directed.generation, directed.number, directed.slots)
            for host in self.hosts if self.restarts else ():
                if str(host.name) in self.restarts:
                    self._restart(host, self.restarts[str(host.name)])
            skew = self.skew
            sleep = yield from self._drive(loop.turning())
            self._tell_what_waits()
            if all(host.finished for host in self.hosts):
                break
            if self.draining:
                self._probed = None
                yield from self._drain(loop)
                break
            self._probed = None
            if sleep <= 0 or self._rung:
                yield 0.2 + self.world.chance.random()
            else:
                yield from self._sleep(sleep, skew)
        self.tell("is over")
        yield from self.cluster.coordinator.report_finished(self, self.tasks)
        self.actor.alive = False
        self.release()

    def _restart(self, host: TaskHost, generation: int) -> None:
        """Have a task start over. At times it doesn't wait for its next commit: it has waited too long."""
        moves = self.cluster.oracle.moves
        assert moves is not None
        self._probed = None
        if host.generation == generation:
            moves.told(str(host.name), generation)
        host.restart_beyond(generation)
        if host.generation <= generation and self.world.chance.random() < _IMPATIENT:
            host.machine.abandon()

    def _sleep(self, ms: float, skew: float) -> Steps:
        """Sleep so long, or until something rings. At times it wakes before, for nothing: then nothing may happen.

        ``skew`` is the clock's error when the turn began: a container doesn't notice when its clock jumps.
        """
        until, probing = self.world.now + min(ms, OBSERVE_MS), self.world.chance.random() < PROBED
        part = self.world.chance.random() if probing else 1.0
        self.actor.asleep = True
        yield (until - self.world.now) * part
        if probing and not self._rung and self.skew == skew and self.world.now < until - 1:  # clocks show whole ms
            self._probed = until

    def _acts(self, what: do.Instruction | str) -> None:
        """Something happens: not while it could still be asleep, or it would sometimes have come too late."""
        if self._probed is not None:
            what = what if isinstance(what, str) else brief(what)
            self.cluster.oracle.fail(self.name, f"sleeps until {self._probed:.1f}, and would have missed: {what}")

    def _drain(self, loop: RunLoop) -> Steps:
        targets = [(host, host.machine.label) for host in self.hosts if not host.finished]
        began = self.world.now
        yield from self._drive(loop.draining())
        if self.world.now < began + _DRAIN_MS_MAX:
            for host, label in targets:
                if not (host.finished or (host.machine.version >= label and host.publishing.idle)):
                    self.cluster.oracle.fail(host.name, f"was left by a drain before it had committed {label}")
        self.tell("is drained")

    def _begin(self, tasks: Sequence[TaskName]) -> RunLoop:
        cluster, parts = self.cluster, self.cluster.parts
        chance = self.world.chance
        scopes = [cluster.scopes[task] for task in tasks]
        pressures = backpressures(scopes, self._connections, self.world.now)
        trim_step = chance.choice(_TRIM_STEPS) if cluster.settings.trims else _NEVER_TRIM
        for scope in scopes:
            journal = Journal(self, cluster.shape_of(scope.name), exactly_once=scope.machine.exactly_once)
            self.journals[scope.producer] = journal
            machine = parts.machine(scope.machine, self.incarnation, journal)
            shared = cluster.shared_with(self.host)
            disk = SimDisk(cluster.disks[self.host], shared, cluster.stored, cluster.files)
            disk.fetched = partial(_tell_of, journal)
            disk.forgets = cluster.power is not None
            if cluster.objects is not None:
                disk.compacts = cluster.objects.compacts
            assert scope.folders is not None
            limit = chance.choice(_SNAPSHOT_AFTER_BYTES)
            state = parts.state(scope, disk, limit, journal.tell, self._depot)
            ports = Ports(
                self._connections,
                self.clock,
                partial(self._next_generation, scope.name),
                cluster.factories(scope, journal, machine, self._connections),
                state,
                machine,
                by_system(scope, self._connections),
                partial(self._report, scope.name),
                jitter=chance,
                trim_step=trim_step,
                early_bytes_max=self.world.limits.choice(cluster.settings.early_bytes),
                patience_ms=cluster.settings.patience_ms,
            )
            self.hosts.append(parts.host(scope, ports, pressures[scope.name.stage]))
        loop = parts.loop(self.hosts, self._connections, self.clock)
        loop.steps_per_turn = chance.choice((1, 2, 8))
        loop.drain_ms_max = _DRAIN_MS_MAX
        loop.whole = len(tasks) == len(cluster.scopes)
        return loop

    def _drive(self, steps: pauses.Steps[T]) -> Generator[float, None, T]:
        """Do the work of a host, and let what has to happen at its pauses happen."""
        chance = self.world.chance
        try:
            while True:
                pause = next(steps)
                if self._reported:
                    self._reported = False
                    yield from self.cluster.coordinator.answer(self)
                match pause:
                    case Pause.INSTRUCTION:
                        yield from self._before_instruction()
                    case Pause.PROGRESS:
                        yield chance.random() * 0.3
                    case Pause.ACKNOWLEDGED:
                        journal, instruction = self.next_instruction
                        if isinstance(instruction, do.AppendCommit):
                            self.cluster.commits(self, journal.shape.name)
                        while any(channel.flying for channel in self._channels.values()):
                            yield 0.5 + chance.random()
                    case Pause.DISK:
                        yield chance.random() * 1.5
                    case Pause.GENERATION:
                        yield from self._ask_coordinator()
                    case Pause.REST:
                        yield 2.0
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _before_instruction(self) -> Steps:
        journal, instruction = self.next_instruction
        self._acts(instruction)
        yield self.world.chance.random() * 0.6
        if self.world.story is not None:
            journal.tell(brief(instruction))
        doomed, task = self.cluster.doomed, journal.shape.name
        if self.cluster.power is not None and self.cluster.power.fails_before(task, instruction):
            self.world.after(0.0, self.cluster.power.cut)
            yield 1.0
        if doomed.get(task) is type(instruction):
            del doomed[task]
            journal.tell("is killed before that")
            self.world.after(0.0, self.die)
            yield 1.0

        if isinstance(instruction, do.Resume) and instruction.orders:
            yield from self.cluster.coordinator.reach(self)

    def _ask_coordinator(self) -> Steps:
        """Get a generation, or be about to report."""
        journal, instruction = self.next_instruction
        task = journal.shape.name
        if isinstance(instruction, do.ReleaseOrders):
            yield from self.cluster.coordinator.reach(self)
            return
        if task not in self._granted:
            self._granted[task] = yield from self.cluster.coordinator.generation(self, task)

    def _tell_what_waits(self) -> None:
        if self.world.story is None:
            return
        for host in self.hosts:
            journal = self.journals[host.scope.producer]
            if host.task.chain.full is not None:
                journal.tell(f"is full: {host.task.chain.full}")
            if not host.attempt.settling:
                self._was_settling.discard(host.name)
            elif host.name not in self._was_settling:
                self._was_settling.add(host.name)
                instruction = host.machine.next_step()
                assert instruction is not None
                journal.tell(f"{brief(instruction)} has to wait for {host.task.chain.held_by}")


def _tell_of(journal: Journal, snapshot: Path) -> None:
    journal.tell(f"has fetched snapshot {snapshot.name}")

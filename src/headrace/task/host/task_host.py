"""Host one task: perform the protocol's instructions, with the I/O, buffers and time around them.

Everything runs on the run-loop thread. ``performing`` carries out the instructions, and pauses wherever it would block;
``step`` processes one envelope and doesn't block. The host reaches the outside only through its ports; the simulator
runs it with other ones.

**Rest.** When the tasks of an idle app stop committing. Leaving out a commit is always safe, because any commit may be
late. The question is only who waits for it: readers for sent frames, targets for the outbox, downstream tasks for the
version of an idle task when another task has something new, and the coordinator for a cut. So tasks rest together or
not at all: only if all tasks of the app are in one container, none reads from a system that must be polled (``RunLoop``
checks both), nothing has happened in any task since its last commit, and all have committed the highest version with
news. Polled systems need commits, too: dealers rely on them, and Kafka's tools show a commit only when the next one
follows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, assert_never

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import FencedError, HeadraceError, TrimmedOffsetError
from headrace.core.frame import encode_control
from headrace.core.ids import SSP, Offset, TaskName
from headrace.core.log import logger
from headrace.protocol import instructions as do
from headrace.protocol.protocol import Phase
from headrace.protocol.record import CommitRecord, LocalCheckpoint, encode_record
from headrace.systems.startpoints import Order
from headrace.task.event_time import decode_times
from headrace.task.host.attempt import Attempt, Beginning, CatchingUp, Patience
from headrace.task.host.commits import Commits, Keeper, Landmarks, Survival, taken_over
from headrace.task.host.orders import Slots, TaskStartpoints
from headrace.task.host.ports import Ports
from headrace.task.inputs.chooser import VersionBuffer, shard_of
from headrace.task.inputs.consumers import InputConsumers
from headrace.task.inputs.frame_receiver import FrameReceiver
from headrace.task.metrics import TaskMetrics
from headrace.task.outputs.outlet import Backpressure, PublishedPositions
from headrace.task.outputs.publisher import Publisher
from headrace.task.scope import Pause, Steps, TaskScope, Ticks, run
from headrace.task.state.changelog import ChangelogPartition, Replay
from headrace.task.task import Task

if TYPE_CHECKING:
    from headrace.task.task import Chain

REST_MS = 60_000.0  # how often a resting task is visited: the run loop notices when the wall clock jumps


class Rest:
    """Whether all tasks of a container rest."""

    def __init__(self) -> None:
        self.on = False


class Doings:
    """The activity of one task since its last commit."""

    def __init__(self) -> None:
        self.said = -1  # the highest version of a commit that said anything new
        self._stirred = True
        self._rows = (0, 0)
        self._sealed = (0, 0)
        self._generation = -1
        self._news = False

    def stir(self) -> None:
        self._stirred = True

    def by_clock(self, chain: Chain, clock_ms: int) -> None:
        due_ms = chain.due_ms()
        if due_ms is not None and due_ms <= clock_ms:
            self.stir()

    def sealed(self, host: TaskHost) -> None:
        self._news = self.has_news(host)
        self._stirred, self._sealed = False, _rows(host)

    def committed(self, host: TaskHost) -> None:
        if self._news:
            self.said = host.machine.version
        self._rows, self._generation = self._sealed, host.generation

    def has_news(self, host: TaskHost) -> bool:
        """Whether a commit would record news. The first one of each generation does, because others wait for it."""
        started = self._generation != host.generation
        return self._stirred or started or self._rows != _rows(host) or host.publishing.doubtful


def _rows(host: TaskHost) -> tuple[int, int]:
    return host.metrics.rows_in, host.metrics.rows_out


def settled(host: TaskHost) -> bool:
    if host.finished:
        return True
    return (
        host.machine.phase is Phase.RUNNING
        and not host.doings.has_news(host)
        and not (host.keeper.state is not None or host.restart_at is not None or host.catching_up.silent)
        and not host.owes
        and not host.attempt.settling
        and not host.task.chain.holding
        and not host.attempt.chooser
        and not host.inputs.hungry
        and host.receiver.buffer.empty
        and host.publishing.idle
    )


def can_rest(hosts: Collection[TaskHost]) -> bool:
    """Whether all are settled at the highest version with news; never with at-least-once, which needs more."""
    open_ = [host for host in hosts if not host.finished]
    if not all(host.machine.config.exactly_once and settled(host) for host in open_):
        return False
    said = max((host.doings.said for host in hosts), default=-1)
    return all(host.machine.version >= said for host in open_)


_log = logger(__name__)

_PARTS: dict[type[do.Instruction], str] = {
    do.FlushOutputs: "flush",
    do.AppendChanges: "changes",
    do.AppendCommit: "changelog",
    do.WriteLocal: "store",
}


def timed(part: str | None, steps: Steps[None], metrics: TaskMetrics, clock: Clock) -> Steps[None]:
    if part is None:
        yield from steps
        return
    began_ms = clock.monotonic_ms()
    yield from steps
    ended_ms = clock.monotonic_ms()
    metrics.commit_parts[part].observe((ended_ms - began_ms) / 1000)
    metrics.commit_times.took(part, began_ms, ended_ms)


def wants_to_work(host: TaskHost) -> bool:
    return not host.finished and (host.attempt.settling or host.attempt.chooser.ready or host.blocked_by is not None)


def committed(task: TaskName, version: int, metrics: TaskMetrics, took_ms: float, now_ms: float) -> None:
    _log.debug("committed", task=str(task), version=version, took_ms=round(took_ms, 1))
    metrics.commits += 1
    metrics.commit_times.committed(version)
    metrics.commit_parts["whole"].observe(took_ms / 1000)
    metrics.latency.commit(now_ms)


class Detours:
    """Leads a task back from the end of a past range that it read again. Nothing is written for that."""

    def __init__(self, task: TaskName, inputs: InputConsumers, doings: Doings) -> None:
        self._task = task
        self._inputs = inputs
        self._doings = doings

    def look(self, attempt: Attempt) -> None:
        for ssp, detour in [*attempt.receiver.detours.items()]:
            at = attempt.receiver.positions[ssp]
            if not attempt.chooser.waits(ssp):  # what follows may be a gap, of which nothing is handed out
                at = max(at, self._inputs.position(ssp))
            if at < detour.until:
                continue
            if not attempt.receiver.detoured(ssp):
                self._inputs.go_past(ssp)
                continue
            attempt.chooser.drop(ssp)
            try:
                self._inputs.go_back(ssp, detour)
            except HeadraceError as error:
                error.message = f"task {self._task}: {error.message}"
                raise
            attempt.receiver.rejoin(ssp)
            self._doings.stir()  # a commit has to say so, even if nothing follows
            attempt.bootstrap.note(ssp, detour.offset)
            _log.info(
                "a range was read again; reading goes on where it was before",
                task=str(self._task),
                input=str(ssp),
                until=detour.until,
                offset=detour.offset,
            )


RESTART_PATIENCE_MS = 10_000.0  # the wait for a commit before starting over, so that readers needn't roll back
SETTLING_MS = 1000.0  # a warning reports a commit that waits longer than this for calls


class TaskHost:
    """One task with everything around it."""

    def __init__(self, scope: TaskScope, ports: Ports, backpressure: Backpressure) -> None:
        now_ms = ports.clock.monotonic_ms()
        self.scope = scope
        self.name: TaskName = scope.name
        self.metrics = ports.metrics
        self.backpressure = backpressure
        self.finished = False
        self.started_ms = now_ms
        self.rest = Rest()  # all tasks of a container share it, once they have a run loop
        self.doings = Doings()
        self.turns = 0  # how many turns of the run loop have visited the task
        self._committed_ms: float | None = None
        self.commit_took_ms = 0.0
        self.machine = ports.machine
        self.state = ports.state
        self._over = False
        self._ports = ports
        self._clock = ports.clock
        self._connections = connections = ports.connections
        self._systems = {stream.spec.stream: stream.spec.system for stream in scope.outputs.values()}
        self._changelog = ChangelogPartition(*scope.changelog, connections)
        self.inputs = InputConsumers(scope.specs, connections)
        self.survival = Survival(scope.settings.durability, connections, self.inputs)
        self._landmarks = Landmarks(scope, self.inputs, connections)
        self._commits = Commits(scope.name, ports.machine, ports.state, self._changelog, self.survival, self._landmarks)
        self._startpoints = TaskStartpoints(scope, ports.resolve, ports.report_outcomes)
        self._detours = Detours(scope.name, self.inputs, self.doings)
        self.keeper = Keeper(scope.name, ports.machine, ports.state)
        self.restart_at: float | None = None
        self.beginning = Beginning(ports.state)
        self.replay = Replay(str(scope.name), self._changelog, self.state, ports.pulse)
        self.slots = Slots(self.inputs)
        self._progress = PublishedPositions(scope, connections, now_ms, ports.trim_step)
        self._ticks = Ticks(scope.interval_ms, now_ms)
        self._commit_began = 0.0
        self.catching_up = CatchingUp(scope)
        self._patience = Patience(scope, ports.machine, self.inputs, ports.patience_ms)
        self.attempt = self._new_attempt()

    def _new_attempt(self) -> Attempt:
        ports, now_ms = self._ports, self._clock.monotonic_ms()
        early = VersionBuffer(self.inputs.read_again, ports.early_bytes_max)
        return Attempt(
            self.scope, ports.make, self.machine, self._connections, self.metrics, ports.jitter, now_ms, early
        )

    def _start_over(self) -> None:
        if self.attempt.used:
            self.attempt.close()
            self.attempt = self._new_attempt()

    def start(self) -> None:
        run(self.starting())

    def starting(self) -> Steps[None]:
        self.machine.tick(self._clock.now_ms())
        yield from self.performing()

    def close(self) -> None:
        with ExitStack() as stack:  # close the rest even if the user's part fails
            stack.callback(self.state.close)
            stack.callback(self.attempt.close)
            self.inputs.close()
            self._changelog.close()

    @property
    def task(self) -> Task:
        return self.attempt.task

    @property
    def publishing(self) -> Publisher:
        return self.attempt.publisher

    @property
    def receiver(self) -> FrameReceiver:
        return self.attempt.receiver

    @property
    def generation(self) -> int:
        return self.machine.generation

    @property
    def positions(self) -> dict[SSP, Offset]:
        return self.receiver.positions

    @property
    def committed_ms(self) -> float | None:
        """When everything was last committed. For a resting task that is now."""
        return self._clock.monotonic_ms() if self.rest.on and self._committed_ms is not None else self._committed_ms

    def lag(self, ssp: SSP) -> int | None:
        return self.inputs.lag(ssp, self.positions.get(ssp))

    def poll(self) -> None:
        if not self._resting:
            self.inputs.poll(self.attempt.chooser, self._clock.monotonic_ms())
            self._detours.look(self.attempt)

    @property
    def _resting(self) -> bool:
        return self._over or self.keeper.holds or self.beginning.fetching

    @property
    def blocked_by(self) -> str | None:
        blocked_by = self.backpressure.blocked_by or self.publishing.blocked_by or self.task.chain.full
        since = self.attempt.settling_ms
        if blocked_by is None and since is not None and self._clock.monotonic_ms() - since > SETTLING_MS:
            return self.task.chain.held_by
        return blocked_by

    @property
    def busy(self) -> bool:
        if self._resting or self.attempt.settling or self.blocked_by is not None:
            return False
        return self.attempt.chooser.ready or self.inputs.hungry

    @property
    def owes(self) -> bool:
        """Whether something wasn't announced downstream yet, because a watermark waits for its interval."""
        # A task whose inputs have ended finishes after its upstream tasks, which may have other readers to serve.
        ending = self.task.ended and (not self.machine.end_of_stream_sent or self.machine.final_due())
        return not self._over and (self._has_news() or ending)

    @property
    def due(self) -> bool:
        """Whether the protocol may have an instruction, so that ``performing`` must run before the next ``step``."""
        return self.machine.due and not self._over

    def step(self, now_ms: float) -> bool:
        """False: there is nothing, or it has to wait. Nothing may be ``due`` but instructions that wait for answers."""
        attempt = self.attempt
        if self._resting or attempt.settling or self.backpressure.check(now_ms) or self.blocked_by is not None:
            return False
        envelope = attempt.chooser.choose()
        if envelope is None:
            return False
        attempt.idleness.heard(envelope.ssp, now_ms, shard_of(envelope))
        attempt.take(envelope, self._clock.now_ms())
        self._detours.look(attempt)
        self._advance()
        return True

    def collect(self) -> None:
        if self.task.chain.holding:
            self.doings.stir()
        if self.machine.phase is Phase.RUNNING:  # a task that must roll back drops them
            self.task.chain.collect()

    def on_time(self, now_ms: float) -> Steps[float]:
        self.turns += 1
        # Publish a turn after the commit, so that readers downstream learn of the commit first.
        self.publish(now_ms)
        if not self._over:
            if not self.rest.on:
                self._tick(now_ms)
            if self.restart_at is not None and now_ms >= self.restart_at:  # it can't commit now
                self.machine.abandon()
            yield from self.performing()
        due = REST_MS if self.rest.on else self.beginning.ask_ms
        if not self._over and not self.beginning.fetching:
            yield from self._commits.trim_what_was_sent()
            self._do_due(now_ms)
            yield from self.performing()
            now_ms = self._clock.monotonic_ms()  # a commit has taken time
            due = self._report(now_ms)
        return min(due, self.publishing.pause(now_ms))

    def _tick(self, now_ms: float) -> None:
        if self._ticks.due(clock_ms := self._clock.now_ms(), now_ms):
            self.machine.tick(clock_ms)

    def publish(self, now_ms: float) -> None:
        if not self.beginning.fetching:  # otherwise the outboxes may belong to a state that doesn't match the changelog
            self.publishing.advance(now_ms)
        self.finished = self._over and self.publishing.idle

    def _do_due(self, now_ms: float) -> None:
        if self.keeper.holds:
            return
        self.task.chain.collect()
        self.attempt.idleness.notice(self.attempt.chooser, now_ms)
        if not self.attempt.settling:  # otherwise work that is due by the clock could hold up the commit forever
            self.doings.by_clock(self.task.chain, self._clock.now_ms())
            self.task.chain.on_time(self._clock.now_ms())
        self._advance()
        if not self.machine.due and not self.attempt.settling:
            self._patience.look(self.positions, now_ms, self.metrics, resting=self.rest.on)

    def _report(self, now_ms: float) -> float:
        if not self.task.finished:
            self.attempt.announcer.announce(self.task.outputs, now_ms)
        self._progress.report(self.receiver.published(), now_ms)
        return self._until_due(now_ms)

    def ask_for_commit(self, beyond: int = 0) -> None:
        if not self._over:
            self.machine.tick(max(self.machine.label, beyond) + self.scope.interval_ms)

    def has_committed(self, label: int) -> bool:
        return self.machine.version >= label and self.publishing.idle

    def restart_beyond(self, generation: int) -> None:
        """Start over with new orders, after the next commit or a while, unless a newer generation has."""
        if self.generation <= generation and self.restart_at is None and not self._over:
            self.restart_at = self._clock.monotonic_ms() + RESTART_PATIENCE_MS
            self.machine.restart_soon()

    def _advance(self) -> None:
        if self.machine.phase is Phase.RUNNING:
            if self.task.advance():
                self.doings.stir()
            if self.task.ended and not self.task.finished and not self.attempt.settling:
                self.machine.inputs_ended()
        # Follow a step's request for a commit once per version, because readers wait for the versions of other tasks.
        if self.task.chain.wants_commit and self.machine.label <= self._clock.now_ms():
            self.ask_for_commit()

    def performing(self) -> Steps[None]:
        while not self._over and (instruction := self.machine.next_step()) is not None:
            if not self.attempt.ready(instruction, self._clock.now_ms(), self._clock.monotonic_ms()):
                return
            if not self.beginning.ready(instruction):
                return
            yield Pause.INSTRUCTION
            yield from timed(_PARTS.get(type(instruction)), self._perform(instruction), self.metrics, self._clock)

    def _perform(self, instruction: do.Instruction) -> Steps[None]:
        match instruction:
            case do.TakeGeneration():
                self._start_over()
                yield Pause.GENERATION
                self.restart_at = None
                grant = self._ports.next_generation()
                self.catching_up.granted(silent=grant.silent)
                self.slots.taken_over(grant.generation)
                self.machine.start(grant.generation, self.beginning.begin(self.attempt.stores()), grant.orders)
                return
            case do.AppendAbort(header=header, record=abort):
                yield from self._commits.append(header, encode_record(abort))
                return
            case do.AppendCommit():
                yield from self._append_commit()
                return
            case do.ReadChangelog(start=start, end=end):
                if self.machine.phase is not Phase.REPLAYING:
                    yield from self._check_changelog(start, end)
                elif self.beginning.again:
                    self._start_over()  # begins with empty stores
                    self.machine.rebase(self.beginning.begin(self.attempt.stores()))
                    return
                elif not (yield from self.replay.steps(self.machine, start, end)):
                    self.beginning.misfit()
                    return
            case do.End():
                self._over = True
                self.keeper.ended()
                _log.info("the task has ended", task=str(self.name), version=self.machine.version)
                self.finished = self.publishing.idle
                return
            case do.Stop(error=error):
                raise error
            case _:
                yield from self._carry_out(instruction)
        self.machine.performed()

    def _carry_out(self, instruction: do.Plain) -> Steps[None]:
        match instruction:
            case do.Found():
                changes = taken_over(self.scope.founding, self.name, self.state, self._new_attempt)
                yield from self._commits.take_over(changes, self._ports.pulse)
            case do.Resume(record=record, inputs=positions, orders=orders):
                self._resume(record, dict(positions), orders)
            case do.SendControl(frames=frames):
                for frame in frames:
                    producer = self._connections.record_producer(self._systems[frame.stream])
                    producer.send(frame.stream.name, frame.partition, encode_control(frame.header, frame.message))
                    yield Pause.PROGRESS
            case do.ScanAhead(inputs=positions):
                for records in self.inputs.scan(dict(positions)):
                    self.receiver.learn(records)
                    yield Pause.PROGRESS
            case do.Feed(label=label, held=held):
                self.task.chain.tell_time(self._clock.now_ms())
                self.receiver.feed(label, held)
            case do.Finish():
                self.attempt.announcer.end()
            case do.FlushOutputs():
                self._commit_began = self._clock.monotonic_ms()
                yield Pause.ACKNOWLEDGED
                yield from self.survival.of_what_is_there(self._landmarks.flushed)
            case do.AppendChanges(version=version):
                self._append_changes(version)
            case do.WriteLocal(local=local):
                yield from self._write_local(local)
            case do.Report(inputs=needed):
                self._committed(dict(needed))
            case do.ReleaseOrders(orders=orders):
                yield Pause.GENERATION
                self._startpoints.release(orders, self.generation, self.machine.version)
            case do.Keep():
                yield Pause.PROGRESS
                self.keeper.keep()
            case _:
                assert_never(instruction)

    def _check_changelog(self, start: Offset | None, end: Offset) -> Steps[None]:
        yield from self._commits.check(start, end)

    def _append_changes(self, version: int) -> None:
        self._commits.append_changes(version)

    def _append_commit(self) -> Steps[None]:
        self.doings.sealed(self)
        self.slots.sealed(self.receiver.shards)
        self._progress.sealed(self.positions)
        times = msgspec.json.encode(self.attempt.save())
        yield from self._commits.append_record(self.attempt.source_entries(), times)

    def _write_local(self, local: LocalCheckpoint) -> Steps[None]:
        self.state.persist(local)
        self.publishing.committed()
        yield from timed("snapshot", self._commits.snapshot_if_due(local), self.metrics, self._clock)

    def _resume(
        self, record: CommitRecord | None, intermediate: Mapping[SSP, Offset | None], orders: Sequence[Order]
    ) -> None:
        times = None if record is None else decode_times(record.bookkeeping)
        positions = self.attempt.restore(record, times, intermediate)
        for ssp, place in self._startpoints.applied(orders, self.generation, self.task.ended_inputs).items():
            positions[ssp] = self.attempt.move(ssp, place)
        try:
            begun = self.inputs.begin(positions)
            self._landmarks.check(record, positions)
        except (FencedError, TrimmedOffsetError) as error:
            error.message = f"task {self.name}: {error.message}"
            raise
        ends = self.inputs.ends(self.task.side_inputs)
        limits = self.catching_up.limits(begun)
        self.attempt.outlet.silent = self.catching_up.silent
        self.inputs.stop_at(limits, self.attempt.detours())
        if self.catching_up.goals is None:
            self.catching_up.goals = self.inputs.ends(self.catching_up.sources) | limits
        self.catching_up.version = None  # it may have to reach them again
        slots = self.inputs.take(self.attempt.shards)
        self.slots.resumed(self.attempt.shards, -1 if record is None else record.version)
        self.attempt.begin(begun, slots, ends, self._clock.now_ms(), self._clock.monotonic_ms())
        self.state.begun()
        _log.info(
            "the task has its state and reads on",
            task=str(self.name),
            generation=self.generation,
            version=None if record is None else self.machine.version,
            records=self.replay.records,
        )

    def _committed(self, needed: Mapping[SSP, Offset | None]) -> None:
        now = self._clock.monotonic_ms()
        self._progress.committed(needed)
        self.task.chain.committed()
        self.slots.committed(self.machine.version)
        self._committed_ms = now
        self.doings.committed(self)
        whole, detoured = self.machine.whole, bool(self.receiver.detours)
        self.catching_up.committed(self.machine.version, self.positions, self.lag, whole=whole, detoured=detoured)
        self.commit_took_ms = now - self._commit_began
        committed(self.name, self.machine.version, self.metrics, self.commit_took_ms, now)

    def _has_news(self) -> bool:
        return not self.task.finished and self.attempt.announcer.news(self.task.outputs)

    def _until_due(self, now_ms: float) -> float:
        clock_ms = self._clock.now_ms()
        due = [now_ms + REST_MS]
        if not self.rest.on:
            due.append(now_ms + self._ticks.left_ms(clock_ms))
        if not self.attempt.settling and (by_clock := self.task.chain.due_ms()) is not None:
            due.append(now_ms + by_clock - clock_ms)
        if self._has_news():
            due.append(self.attempt.announcer.every.next_ms)
        if self._progress.news(self.receiver.published()):
            due.append(self._progress.every.next_ms)
        if self.backpressure.blocked_by is not None:
            due.append(now_ms + 5)
        due += [ms for ms in (self.attempt.idleness.due_ms(), self._patience.due_ms) if ms is not None]
        return max(0.0, min(due) - now_ms)

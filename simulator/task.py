"""The host of one simulated task: performs the real protocol's instructions, and yields around each of them.

A yield is a place where the task may crash, be paused or be overtaken by its replacement.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec
from typing_extensions import override

from headrace.checkpoint import instructions as do
from headrace.checkpoint.changelog import ReplayStep
from headrace.checkpoint.protocol import Phase
from headrace.checkpoint.record import Change, CommitRecord, LocalCheckpoint, SourceEntry, encode_record
from headrace.core.errors import FencedError, FrameError, TrimmedOffsetError
from headrace.core.frame import (
    Bytes,
    Checkpoint,
    EndOfStream,
    Header,
    Kind,
    Restore,
    body_of,
    decode_control,
    decode_header,
    encode,
    encode_control,
)
from headrace.core.ids import SSP, Offset, StreamId
from simulator.cluster import Cluster
from simulator.oracle import Account
from simulator.shapes import TaskShape
from simulator.storage import STEP, SimSnapshot
from simulator.story import brief
from simulator.work import Worker
from simulator.world import Steps

_ACCOUNT = msgspec.json.Decoder(Account)

Held = dict[str, int | None]
"""Changes that wait for their commit."""


class SimTask(Worker):
    """An incarnation of a task."""

    def __init__(self, cluster: Cluster, shape: TaskShape, number: int, host: int) -> None:
        super().__init__(cluster, shape, number, host)
        self.changelog = cluster.changelogs[shape.name]
        self._appended = 0
        self._read_to: Offset = 0

    # -- the life ----------------------------------------------------------------------------------------

    @override
    def run(self) -> Steps:
        """Live until the task is over, or until somebody else has the right to it."""
        try:
            yield from self._live()
        except FencedError as error:
            if self.cluster.metadata.read(self.shape.name).incarnation == self.number:
                self.cluster.oracle.fail(self.name, f"the current incarnation was stopped: {error.message}")
            self._retire(error.message)
        except TrimmedOffsetError as error:
            if self.cluster.metadata.read(self.shape.name).incarnation == self.number:
                self.cluster.oracle.fail(self.name, f"the current incarnation met a trimmed offset: {error.message}")
            self._retire(error.message)

    def _retire(self, why: str) -> None:
        self.world.tell(self.name, f"stops: {why}")
        self.actor.alive = False
        for channel in self.channels.values():
            channel.die()
        self.release()

    def _live(self) -> Steps:
        machine, chance = self.machine, self.world.chance
        while True:
            machine.tick(int(self.world.now + self.skew))
            if machine.phase is Phase.RUNNING and self.ended():
                machine.inputs_ended()
            while (step := machine.next_step()) is not None:
                yield chance.random() * 0.6
                if isinstance(step, do.End):
                    yield from self.leave()
                    self.world.tell(self.name, "is over")
                    self.cluster.over(self.shape.name)
                    self.release()
                    return
                if isinstance(step, do.Stop):
                    raise step.error
                if not self.prepared(step):
                    break
                if self.world.story is not None:
                    self.world.tell(self.name, brief(step))
                yield from self.perform(step)
            if self.work():
                yield 0.2 + chance.random()
            else:
                yield 2 + chance.random() * 6

    @override
    def status(self) -> str:
        machine = self.machine
        waits = ", ".join(f"{ssp} p{producer}" for ssp, producer in machine.waiting_for())
        return (
            f"{self.name} g{machine.generation} {machine.phase.value}, C={machine.version}, label {machine.label}, "
            f"alive {self.alive}, {machine.rollbacks} rollbacks, waits for [{waits}]"
        )

    # -- instructions ------------------------------------------------------------------------------------

    def prepared(self, step: do.Instruction) -> bool:
        """False when something has to happen before this instruction is performed."""
        del step  # a task without operators never waits
        return True

    def perform(self, step: do.Instruction) -> Steps:
        """Do what the protocol asks for."""
        machine, end = self.machine, None
        match step:
            case do.TakeGeneration():
                yield from self._begin()
                return
            case do.AppendAbort(header=header, record=abort):
                self.append(header, encode_record(abort))
                end = yield from self._acknowledged()
            case do.ReadChangelog(start=start, end=stop):
                if not (yield from self.read_changelog(start, stop)):
                    return
            case do.Resume(record=record, inputs=inputs):
                self.resume(record, inputs)
            case do.SendControl(frames=frames):
                yield from self.send_control(frames)
            case do.ScanAhead(inputs=inputs):
                yield from self.scan_ahead(inputs)
            case do.Feed(label=label):
                yield from self.feed(label)
            case do.Finish():
                self.finish()
            case do.FlushOutputs():
                if not (yield from self.flush_outputs()):
                    return
            case do.AppendChanges(version=version):
                self.append_changes(version)
            case do.AppendCommit():
                yield from self.append_commit()
                return
            case do.WriteLocal(local=local):
                self.write_local(local)
            case do.Report(inputs=inputs):
                self.cluster.report(self.shape.name, inputs)
                yield from self._snapshot()
        machine.performed(end)

    def _begin(self) -> Steps:
        self.drop_uncommitted()
        generation = yield from self.cluster.generation(self)
        if generation is None:
            raise FencedError(f"{self.name} was refused a generation: another incarnation is current")
        self.machine.start(generation, self.base())

    def base(self) -> LocalCheckpoint | None:
        """The furthest state that the changelog can bring up to date: the folder's, or a snapshot's."""
        assert self.folder is not None
        local = None
        if self.folder.local is not None:
            try:
                local = LocalCheckpoint.decode(self.folder.local)
            except FrameError:
                self.folder.wipe()
        snapshots = self.cluster.snapshots[self.shape.name]
        if local is not None and local.offset >= self.changelog.oldest:
            return local
        self.folder.wipe()
        if not snapshots:
            return None
        newest = max(snapshots, key=lambda snapshot: snapshot.local.offset)
        self.folder.state.update(newest.state)
        self.folder.local = newest.local.encode()
        self.world.tell(self.name, f"restores the snapshot of {newest.local}")
        return newest.local

    def read_changelog(self, start: Offset | None, stop: Offset) -> Generator[float, None, bool]:
        """Read a range; False when the local state didn't fit and the reading begins again."""
        machine, changelog = self.machine, self.changelog
        offset = self._next_record(0, stop) if start is None else start
        checking = machine.phase is Phase.CHECKING
        alone = offset == self._read_to and stop - offset == STEP * self._appended
        if checking and alone and self.world.chance.random() < 0.7:
            # Exactly as much came as this incarnation has appended: nobody else wrote.
            machine.confirm_own_commit(stop - STEP)
            offset = stop
        held: Held = {}
        if checking:
            offset = self._next_record(offset, stop)
        elif not self._readable(offset, stop):
            self.rebase()
            return False
        while offset < stop:
            if not checking and not self._readable(offset, stop):
                self.rebase()
                return False
            payload = changelog.read(offset)
            entry = machine.changelog(offset, decode_header(payload), body_of(payload))
            if entry is ReplayStep.MISFIT:
                self.rebase()
                return False
            if not checking:
                self.replay(entry, payload, held)
            offset = self._next_record(offset + STEP, stop)
            if entry is ReplayStep.APPLY:
                yield 0.2
        self._read_to, self._appended = stop, 0
        if not checking:
            self.replayed()
        return True

    def _next_record(self, offset: Offset, stop: Offset) -> Offset:
        """Where the first record from an offset on stands, or ``stop``: a torn append may lie in between."""
        found = self.changelog.first(offset)
        return stop if found is None else min(found, stop)

    def _readable(self, offset: Offset, stop: Offset) -> bool:
        return self.changelog.oldest <= offset < stop and self.changelog.whole(offset)

    def rebase(self) -> None:
        """The folder isn't of this changelog, or lies below what is kept of it: use a snapshot."""
        assert self.folder is not None
        self.world.tell(self.name, "finds that its local state doesn't fit the changelog")
        self.folder.wipe()
        base = self.base()
        if base is None and self.changelog.oldest:
            self.cluster.oracle.fail(self.name, "the changelog is trimmed, and there is no snapshot")
        self.machine.rebase(base)

    def replay(self, entry: ReplayStep, payload: bytes, held: Held) -> None:
        """Do what a record of the changelog says; ``held`` is what waits for its commit."""
        if entry is ReplayStep.HOLD:
            key, value = msgspec.msgpack.decode(Change.decode(body_of(payload)).change)
            held[key] = value
        elif entry is ReplayStep.FORGET:
            held.clear()
        elif entry is ReplayStep.APPLY and self.machine.local is not None:
            self.write_local(self.machine.local, held)
            held.clear()

    def ended(self) -> bool:
        """All inputs have ended."""
        return self.times.ended

    def leave(self) -> Steps:
        """The protocol is over: what is there to do yet?"""
        yield from ()

    def feed(self, label: int) -> Steps:
        """Process early arrivals of a label."""
        for ssp, _, header, payload in self.early.pop(label, ()):
            self.process(ssp, header, payload)
            yield 0.1

    def replayed(self) -> None:
        """The changelog has been read to its end."""

    def resume(self, record: CommitRecord | None, inputs: tuple[tuple[SSP, Offset | None], ...]) -> None:
        """Take up bookkeeping and positions."""
        self.positions = {ssp: 0 if offset is None else offset for ssp, offset in inputs}
        self.source_positions = dict.fromkeys(self.shape.sources, 0)
        self.times = self.new_times()
        if record is not None:
            for entry in record.sources:
                self.source_positions[SSP(StreamId.parse(entry.stream), entry.partition)] = entry.offset or 0
            self.load_bookkeeping(bytes(record.bookkeeping))

    def load_bookkeeping(self, data: bytes) -> None:
        """Watermarks and ends, as the last commit left them."""
        account = _ACCOUNT.decode(data)
        if account.times is not None:
            self.times.load(account.times)

    def send_control(self, frames: tuple[do.ControlFrame, ...]) -> Steps:
        """Send control frames, in order, one by one."""
        for frame in frames[:1]:
            assert isinstance(frame.message, Restore | Checkpoint)
            generation, label = frame.header.generation, frame.message.next_version
            restore = isinstance(frame.message, Restore)
            self.cluster.oracle.labelled(self.shape, generation, label, restore=restore)
        for frame in frames:
            log = self.cluster.logs[SSP(frame.stream, frame.partition)]
            self.channel(log).send(encode_control(frame.header, frame.message))
            yield self.world.chance.random() * 0.3

    def scan_ahead(self, inputs: tuple[tuple[SSP, Offset | None], ...]) -> Steps:
        """Read headers to the ends."""
        for ssp, start in inputs:
            log = self.cluster.logs[ssp]
            end = log.end
            for offset in log.offsets(start or 0, end):
                payload = log.read(offset)
                if payload[0] == Kind.RESTORE:
                    message = decode_control(Kind.RESTORE, body_of(payload))
                    assert isinstance(message, Restore)
                    self.machine.learn(ssp, decode_header(payload), message)
            self.scanned[ssp] = end
            yield 0.2

    def finish(self) -> None:
        """Fire what is open, send end-of-stream."""
        self.finished = True
        self.processor.end()
        for stream, count in self.shape.outputs.items():
            message = EndOfStream(
                task_name=str(self.shape.name), task_count=self.shape.stage.tasks, stream_id=str(stream)
            )
            self.broadcast(stream, count, message)

    def flush_outputs(self) -> Generator[float, None, bool]:
        """Wait for every stream; False when that failed, and the task gave up."""
        while any(c.flying for log, c in self.channels.items() if log is not self.changelog):
            yield 1.0 + self.world.chance.random()
        if self.disk_fails:
            self.disk_fails = False
            self.world.tell(self.name, "can't write: gives up what isn't committed")
            self.machine.abandon()
            return False
        return True

    def append_changes(self, version: int) -> None:
        """One frame a change."""
        del version  # these changes are the same in whichever commit they become true
        for change in self.changes:
            body = Change("sim", msgspec.msgpack.encode(change)).encode()
            self.append(self.machine.stamp_change(), body)
        self.changes = []

    def append_commit(self) -> Steps:
        """Seal, append, wait; a failing disk leaves it open whether the commit was written."""
        header, record = self.machine.seal(sources=self.source_entries(), bookkeeping=self.bookkeeping())
        self.append(header, encode_record(record))
        if self.disk_fails:
            self.disk_fails = False
            self.world.tell(self.name, "doesn't know whether its commit was written")
            self.machine.abandon()
            return
        end = yield from self._acknowledged()
        self.machine.performed(end)

    def source_entries(self) -> tuple[SourceEntry, ...]:
        """Where the sources are."""
        return tuple(
            SourceEntry(stream=str(ssp.stream), partition=ssp.partition, offset=position)
            for ssp, position in self.source_positions.items()
        )

    def bookkeeping(self) -> bytes:
        """The host's part of the record."""
        account = Account(self.times.save(), tuple(self.consumed), tuple(self.emitted), self.label, self.finished)
        return msgspec.json.encode(account)

    def write_local(self, local: LocalCheckpoint, changes: Held | None = None) -> None:
        """The batch; without ``changes`` the overlay, which is empty again afterwards."""
        assert self.folder is not None
        own = changes is None
        self.folder.apply(self.overlay if own else changes or {}, local)
        self.cluster.oracle.stored(self.shape, local)
        if own:
            self.overlay = {}
            self.consumed, self.emitted, self.label, self.finished = [], [], -1, False
            self.done.clear()

    def _snapshot(self) -> Steps:
        if self.world.chance.random() > 0.12 or self.folder is None or self.folder.local is None:
            return
        taken = LocalCheckpoint.decode(self.folder.local)
        snapshots = self.cluster.snapshots[self.shape.name]
        snapshot = SimSnapshot(taken, dict(self.folder.state))
        yield 1.0
        snapshots.append(snapshot)
        self.world.tell(self.name, f"takes a snapshot of {taken}")
        yield 1.0
        self.changelog.trim(taken.offset)
        yield 1.0
        for older in [s for s in snapshots if s.local.offset < taken.offset]:
            snapshots.remove(older)

    def append(self, header: Header, body: Bytes) -> None:
        """Send a record to the changelog."""
        self._appended += 1
        self.channel(self.changelog).send(encode(header, body))

    def _acknowledged(self) -> Generator[float, None, Offset]:
        channel = self.channel(self.changelog)
        while channel.flying:
            yield 0.5 + self.world.chance.random()
        return channel.acknowledged

"""Other ways to get it wrong: in the protocol, in its host, in readers and sinks."""

from __future__ import annotations

import msgspec
from mutant_kit import host, mutant, no, node, reader, receiving, sending, slow, yes
from mutants_known import InMemory

from headrace.core.frame import Kind, encode_control
from headrace.protocol import instructions as do
from headrace.protocol.changelog import Changelog
from headrace.protocol.frame_judge import FrameJudge
from headrace.protocol.frame_stamper import FrameStamper
from headrace.protocol.read_committed import ReadCommitted
from headrace.protocol.record import LocalCheckpoint, encode_record
from headrace.task.host.attempt import Attempt
from headrace.task.host.task_host import TaskHost
from headrace.task.inputs.chooser import BufferedFrame, VersionBuffer
from headrace.task.inputs.frame_receiver import FrameReceiver
from headrace.task.scope import Pause
from simulator.journal import WatchedMachine
from simulator.readers import Publisher
from simulator.run import Parts
from simulator.storage import STEP, Target

# -- others ------------------------------------------------------------------------------------------------

mutant("no fence check", "a commit goes on although a newer generation stands before it", node(fenced=no), first_seed=3)


def generation_only(self, parent, header, control):
    return header.generation < parent.generation


mutant(
    "no seq check", "duplicates and gaps are not noticed", receiving(duplicate=generation_only, gap=no), first_seed=6
)


class ReadPosition(FrameJudge):
    def save(self, version):
        at = dict(self.positions())
        entries = super().save(version)
        return tuple(msgspec.structs.replace(e, offset=at[ssp]) for e, ssp in zip(entries, self._inputs, strict=True))


mutant("resumes at the read position", "buffered frames are not read again", node(judge_class=ReadPosition))


def send(self, frames):
    for frame in frames:
        producer = self._connections.record_producer(self._systems[frame.stream])
        producer.send(frame.stream.name, frame.partition, encode_control(frame.header, frame.message))
        yield Pause.PROGRESS


class Hasty(TaskHost):
    early_frames = ()

    def _perform(self, instruction):
        if isinstance(instruction, do.AppendCommit):
            self.early_frames = self.machine._stamper.checkpoints(instruction.version, instruction.next_version)
            yield from send(self, self.early_frames)
        if isinstance(instruction, do.SendControl) and self.early_frames:
            self.early_frames = ()
            self.machine.performed()
            return
        yield from super()._perform(instruction)


mutant("checkpoint before commit", "downstream hears of a commit before it is one", Parts(host=Hasty))

RESTORE = Attempt.restore


def without_times(self, record, times, inputs):
    return RESTORE(self, record, None, inputs)


mutant(
    "no bookkeeping",
    "watermarks and ends are not restored",
    Parts(),
    patches=((Attempt, "restore", without_times),),
    first_seed=25,
)


def without(kind):
    """A host that skips an instruction."""

    class Skipping(TaskHost):
        def _perform(self, instruction):
            if isinstance(instruction, kind):
                self.machine.performed()
                return
            yield from super()._perform(instruction)

    return Parts(host=Skipping)


mutant("outputs not flushed", "a commit doesn't wait for its outputs", without(do.FlushOutputs))


class LocalFirst(TaskHost):
    def _append_commit(self):
        header, record = self.machine.seal(
            sources=self.receiver.source_entries(), bookkeeping=msgspec.json.encode(self.task.save())
        )
        self._changelog.append(header, encode_record(record))
        yield Pause.ACKNOWLEDGED
        end = self._changelog.flush()
        self.state.persist(LocalCheckpoint(end - STEP, record.generation, record.version))
        self.machine.performed(end)


mutant(
    "local state before the check",
    "RocksDB is written before the commit is known to count",
    Parts(host=LocalFirst),
    first_seed=2,
)


def keeps_buffered(self, parent, header, control, offset):
    kept = list(parent.buffered)
    verdict = FrameJudge.take_restore(self, parent, header, control, offset)
    parent.buffered.extend(kept[len(parent.buffered) :])
    return verdict


mutant(
    "void stays buffered",
    "a restore doesn't empty the message buffers of what is void",
    receiving(take_restore=keeps_buffered),
    first_seed=403,
)
mutant(
    "early is on time",
    "labels above T are processed at once",
    receiving(timely=yes, receive=slow),
)


class KeepsOverlay(TaskHost):
    def _start_over(self):
        store = self.task.store
        super()._start_over()
        self.task.store = store


mutant("overlay survives", "a rollback keeps uncommitted state", Parts(host=KeepsOverlay))


class KeepsSources(TaskHost):
    def _start_over(self):
        before = {ssp: at for ssp, at in self.positions.items() if ssp not in self.scope.producers}
        super()._start_over()
        restore = self.attempt.restore
        self.attempt.restore = lambda *restored: restore(*restored) | before


mutant(
    "sources don't go back",
    "a rollback keeps source positions",
    Parts(host=KeepsSources),
    "mixed",
    "shuffle",
    "direct",
    first_seed=54,
)


def reports_reading(self, needed):
    TaskHost._committed(self, {ssp: self.positions[ssp] for ssp in needed})


mutant("reports the read position", "what isn't covered is trimmed", host(_committed=reports_reading), first_seed=2)


class CountsControls(WatchedMachine):
    def seal(self, **own):
        header, record = super().seal(**own)
        ahead = tuple(msgspec.structs.replace(o, seq=o.seq + 1) for o in record.outputs)
        self._sealed = header, msgspec.structs.replace(record, outputs=ahead)
        return self._sealed


mutant(
    "seq after the checkpoint",
    "the record's output seqs include the checkpoint frames",
    Parts(machine=CountsControls),
    first_seed=6,
)


class CountsAll(Changelog):
    def _counts(self, offset, header):
        return header.kind is Kind.COMMIT or super()._counts(offset, header)

    def _adopt(self, offset, record):
        self.record = record
        self.local = LocalCheckpoint(offset, record.generation, record.version)

    def take(self, offset, header, body):
        known = self.generation, self.seq
        entry = super().take(offset, header, body)
        self.generation, self.seq = max(known, (self.generation, self.seq))
        return entry


mutant(
    "all commits count", "a zombie's commit behind the fence is adopted", node(changelog_class=CountsAll), first_seed=5
)
mutant("no restore", "a new generation isn't announced", sending(restores=lambda self, *a: ()))


class Uncommitted(ReadCommitted):
    def receive(self, offset, after, header, control, frame):
        seen = self.held
        released = super().receive(offset, after, header, control, frame)
        if self.held > seen:
            return [writer.held.pop() for writer in self._producers.values() if writer.held]
        return released


mutant(
    "reads uncommitted", "the reader holds nothing", Parts(reader=lambda p, w: Uncommitted(p, whole=w)), first_seed=9
)


def skips_held(self):
    return msgspec.structs.replace(ReadCommitted.position(self), offset=self._after)


mutant("position behind what is held", "held frames are not read again", reader(position=skips_held), first_seed=6)


class TrustsCopies(ReadCommitted):
    def _restore(self, offset, writer, header, restore):
        return super()._restore(offset, writer, header, msgspec.structs.replace(restore, committed_by=0))


class Anchored(ReadCommitted):
    def _restore(self, offset, writer, header, restore):
        self.__dict__.setdefault("seen", []).append(writer)
        return super()._restore(offset, writer, header, restore)

    def _in_turn(self, offset, writer, header):
        whole, self._whole = self._whole, writer in getattr(self, "seen", [])
        in_turn = super()._in_turn(offset, writer, header)
        self._whole = whole
        return in_turn


mutant(
    "whole by a restore",
    "a reader in mid-stream takes the first restore it sees for the latest",
    Parts(reader=lambda p, w: Anchored(p, whole=w)),
    "direct",
    first_seed=88,
)


class KeepsOlder(ReadCommitted):
    def receive(self, offset, after, header, control, frame):
        writer = self._producers.get(header.producer)
        older = [one for one in writer.held if one.header.generation < header.generation] if writer else []
        released = super().receive(offset, after, header, control, frame)
        return [*older, *released] if header.kind is Kind.CHECKPOINT else released


class DropsOlder(ReadCommitted):
    def _in_turn(self, offset, writer, header):
        if header.generation > writer.generation and not self._whole:
            writer.held.clear()
        return super()._in_turn(offset, writer, header)


mutant(
    "late copies are trusted",
    "a reader in mid-stream releases late copies at a restore",
    Parts(reader=lambda p, w: TrustsCopies(p, whole=w)),
    "fanout",
    first_seed=86,
)
mutant(
    "late copies are kept",
    "a reader in mid-stream releases what it holds of older generations",
    Parts(reader=lambda p, w: KeepsOlder(p, whole=w)),
    first_seed=136,
)
mutant(
    "a lost restore voids",
    "a reader in mid-stream drops what it holds when a power cut has taken the restore of the next generation",
    Parts(reader=lambda p, w: DropsOlder(p, whole=w)),
    "app-outer+power",
    first_seed=1710,
)


class Reseated(FrameStamper):
    def load(self, saved):
        return None


mutant("seqs go on", "a new generation goes on behind its void frames", node(stamper_class=Reseated))


class Trusting(WatchedMachine):
    def fenced(self):
        return False

    def check_commit(self):
        self._read_from = self._read_to


mutant("no fence, no check", "a commit is taken for granted", Parts(machine=Trusting), first_seed=3)


class Unsigned(Changelog):
    def _detect_second_writer(self, header, body):
        return None


mutant(
    "F13 no writer in the abort",
    "two incarnations of one generation don't find out",
    Parts(machine=node(changelog_class=Unsigned).machine, coordinator=InMemory),
    first_seed=2,
)


class UserOnly(FrameJudge):
    def receive(self, ssp, offset, after, header, control):
        parent = self._inputs[ssp].parents[header.producer]
        before = parent.done
        verdict = super().receive(ssp, offset, after, header, control)
        if verdict is do.Verdict.PROCESS and header.kind is not Kind.USER:
            parent.done = before
        return verdict


mutant(
    "only user frames are done",
    "void watermarks and ends don't roll back",
    node(judge_class=UserOnly),
    "deep",
    first_seed=175,
)


class TrimsFirst(TaskHost):
    def _write_local(self, local):
        self._changelog.trim(local.offset)
        yield from super()._write_local(local)


mutant("trims before the snapshot", "the changelog is trimmed before the snapshot is there", Parts(host=TrimsFirst))


class KeepsEarly(TaskHost):
    def _start_over(self):
        early, self.receiver.buffer = self.receiver.buffer, VersionBuffer(self.inputs.read_again)
        super()._start_over()
        self.receiver.buffer = early


mutant(
    "message buffers survive",
    "a rollback keeps early arrivals, which are read again",
    Parts(host=KeepsEarly),
    first_seed=18,
)


def whole_range(self, ssp, absent):
    for records in self._reread(ssp, min(early.offset for early in absent), max(early.after for early in absent)):
        for offset, payload in zip(records.offsets, records.payloads, strict=True):
            yield BufferedFrame(ssp, offset, records.next, payload)


mutant(
    "reads again whatever is there",
    "what is between the early frames of a label is processed with them",
    Parts(),
    patches=((VersionBuffer, "_read", whole_range),),
)


def what_is_in_memory(self, ssp, producer, seq):
    for entries in self._labels.values():
        entries[:] = [e for e in entries if not (e.payload and (e.ssp, e.producer) == (ssp, producer) and e.seq > seq)]


mutant(
    "void early frames are read again",
    "a restore forgets only the early frames in memory",
    Parts(),
    patches=((VersionBuffer, "forget", what_is_in_memory),),
    first_seed=33,
)


def turns_away(name):
    """A full buffer doesn't take more of a partition that has early frames."""
    receive = getattr(FrameReceiver, name)

    def turned_away(self, envelope):
        if self.buffer.stream_bytes and envelope.ssp in self._machine.early():
            self._chooser.put_back(envelope)
            self.positions[envelope.ssp] = self._machine.early()[envelope.ssp]
        else:
            receive(self, envelope)

    return turned_away


mutant(
    "a full buffer pauses its partitions",
    "behind early frames there is the checkpoint that they wait for",
    Parts(),
    "merge",
    patches=tuple((FrameReceiver, name, turns_away(name)) for name in ("frames", "control")),
)


class Unfenced(Target):
    def store(self, expected, position, rows):
        return super().store(self.transactions, position, rows)


class LooseRun(Publisher):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.target = Unfenced()


mutant(
    "sinks don't compare positions", "two sinks publish the same rows", Parts(reader_at_edge=LooseRun), first_seed=29
)

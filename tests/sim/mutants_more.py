"""Other ways to get it wrong: in the protocol, in its host, in readers and sinks."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from mutant_kit import mutant, no, node, nothing, reader, receiving, sending, slow, task, yes
from mutants_known import InMemory

from headrace.checkpoint import instructions as do
from headrace.checkpoint.changelog import Changelog
from headrace.checkpoint.frame_judge import FrameJudge
from headrace.checkpoint.frame_stamper import FrameStamper
from headrace.checkpoint.machine import ProtocolMachine
from headrace.checkpoint.read_committed import ReadCommitted
from headrace.checkpoint.record import LocalCheckpoint, encode_record
from headrace.core.frame import Kind
from simulator.readers import Publisher
from simulator.run import Parts
from simulator.storage import STEP, Target
from simulator.task import SimTask

# -- others ------------------------------------------------------------------------------------------------

mutant("no fence check", "a commit goes on although a newer generation stands before it", node(fenced=no))


def generation_only(self, parent, header, control):
    return header.generation < parent.generation


mutant("no seq check", "duplicates and gaps are not noticed", receiving(duplicate=generation_only, gap=no))


class ReadPosition(FrameJudge):
    def save(self, version):
        at = dict(self.positions())
        entries = super().save(version)
        return tuple(msgspec.structs.replace(e, offset=at[ssp]) for e, ssp in zip(entries, self._inputs, strict=True))


mutant("resumes at the read position", "buffered frames are not read again", node(judge_class=ReadPosition))


def checkpoint_first() -> Parts:
    class Hasty(SimTask):
        def perform(self, step):
            if isinstance(step, do.AppendCommit):
                self._early_frames = self.machine._stamper.checkpoints(step.version, step.next_version)
                yield from self.send_control(self._early_frames)
            if isinstance(step, do.SendControl) and getattr(self, "_early_frames", None):
                self._early_frames = None
                self.machine.performed()
                return
            yield from super().perform(step)

    return Parts(task=Hasty)


mutant("checkpoint before commit", "downstream hears of a commit before it is one", checkpoint_first())
mutant("no bookkeeping", "watermarks and ends are not restored", task(load_bookkeeping=nothing))


def no_wait(self):
    return True
    yield


mutant("outputs not flushed", "a commit doesn't wait for its outputs", task(flush_outputs=no_wait))


class LocalFirst(SimTask):
    def append_commit(self):
        header, record = self.machine.seal(sources=self.source_entries(), bookkeeping=self.bookkeeping())
        self.append(header, encode_record(record))
        end = yield from self._acknowledged()
        self.write_local(LocalCheckpoint(end - STEP, record.generation, record.version))
        self.machine.performed(end)


mutant("local state before the check", "RocksDB is written before the commit is known to count", Parts(task=LocalFirst))


def keeps_buffered(self, parent, header, control, offset):
    kept = list(parent.buffered)
    verdict = FrameJudge.take_restore(self, parent, header, control, offset)
    parent.buffered.extend(kept[len(parent.buffered) :])
    return verdict


mutant(
    "void stays buffered",
    "a restore doesn't empty the message buffers of what is void",
    receiving(take_restore=keeps_buffered),
)
mutant(
    "early is on time",
    "labels above T are processed at once",
    receiving(timely=yes, receive=slow),
)


class KeepsOverlay(SimTask):
    def drop_uncommitted(self):
        overlay, changes = getattr(self, "overlay", {}), getattr(self, "changes", [])
        super().drop_uncommitted()
        self.overlay, self.changes = overlay, changes


mutant("overlay survives", "a rollback keeps uncommitted state", Parts(task=KeepsOverlay))


class KeepsSources(SimTask):
    def resume(self, record, inputs):
        before = self.source_positions
        super().resume(record, inputs)
        self.source_positions.update({ssp: at for ssp, at in before.items() if at})


mutant(
    "sources don't go back", "a rollback keeps source positions", Parts(task=KeepsSources), "mixed", "shuffle", "direct"
)


class ReportsReading(SimTask):
    def perform(self, step):
        if isinstance(step, do.Report):
            step = replace(step, inputs=tuple(self.positions.items()))
        yield from super().perform(step)


mutant("reports the read position", "what isn't covered is trimmed", Parts(task=ReportsReading))


class CountsControls(ProtocolMachine):
    def seal(self, **own):
        header, record = super().seal(**own)
        ahead = tuple(msgspec.structs.replace(o, seq=o.seq + 1) for o in record.outputs)
        self._sealed = header, msgspec.structs.replace(record, outputs=ahead)
        return self._sealed


mutant(
    "seq after the checkpoint",
    "the record's output seqs include the checkpoint frames",
    task(node_class=CountsControls),
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


mutant("all commits count", "a zombie's commit behind the fence is adopted", node(changelog_class=CountsAll))
mutant("no restore", "a new generation isn't announced", sending(restores=lambda self, *a: ()))


class Uncommitted(ReadCommitted):
    def receive(self, offset, after, header, control, frame):
        seen = self.held
        released = super().receive(offset, after, header, control, frame)
        if self.held > seen:
            return [writer.held.pop() for writer in self._producers.values() if writer.held]
        return released


mutant("reads uncommitted", "the reader holds nothing", Parts(reader=lambda p, w: Uncommitted(p, whole=w)))


def skips_held(self):
    return msgspec.structs.replace(ReadCommitted.position(self), offset=self._after)


mutant("position behind what is held", "held frames are not read again", reader(position=skips_held))


class TrustsCopies(ReadCommitted):
    def _restore(self, offset, writer, header, restore):
        return super()._restore(offset, writer, header, msgspec.structs.replace(restore, committed_by=0))


class Anchored(ReadCommitted):
    def _restore(self, offset, writer, header, restore):
        self.__dict__.setdefault("seen", []).append(writer)
        return super()._restore(offset, writer, header, restore)

    def _check_turn(self, offset, writer, header):
        whole, self._whole = self._whole, writer in getattr(self, "seen", [])
        super()._check_turn(offset, writer, header)
        self._whole = whole


mutant(
    "whole by a restore",
    "a reader in mid-stream takes the first restore it sees for the latest",
    Parts(reader=lambda p, w: Anchored(p, whole=w)),
    "direct",
    first_seed=35,
)


class KeepsOlder(ReadCommitted):
    def _check_turn(self, offset, writer, header):
        held = list(writer.held)
        super()._check_turn(offset, writer, header)
        if not writer.held:
            writer.held.extend(held)


mutant(
    "late copies are trusted",
    "a reader in mid-stream releases late copies at a restore",
    Parts(reader=lambda p, w: TrustsCopies(p, whole=w)),
    "fanout",
    first_seed=195,
)
mutant(
    "late copies are kept",
    "a reader in mid-stream keeps what it holds of older generations",
    Parts(reader=lambda p, w: KeepsOlder(p, whole=w)),
)


class Reseated(FrameStamper):
    def load(self, saved):
        return None


mutant("seqs go on", "a new generation goes on behind its void frames", node(stamper_class=Reseated))


class Trusting(ProtocolMachine):
    def fenced(self):
        return False

    def check_commit(self):
        self._read_from = self._read_to


mutant("no fence, no check", "a commit is taken for granted", task(node_class=Trusting))


class Unsigned(Changelog):
    def _detect_second_writer(self, header, body):
        return None


mutant(
    "F13 no writer in the abort",
    "two incarnations of one generation don't find out",
    Parts(task=node(changelog_class=Unsigned).task, cluster=InMemory),
)


class UserOnly(FrameJudge):
    def receive(self, ssp, offset, after, header, control):
        parent = self._inputs[ssp].parents[header.producer]
        before = parent.done
        verdict = super().receive(ssp, offset, after, header, control)
        if verdict is do.Verdict.PROCESS and header.kind is not Kind.USER:
            parent.done = before
        return verdict


mutant("only user frames are done", "void watermarks and ends don't roll back", node(judge_class=UserOnly), "deep")


class TrimsFirst(SimTask):
    def _snapshot(self):
        if self.folder is not None and self.folder.local is not None:
            self.changelog.trim(LocalCheckpoint.decode(self.folder.local).offset)
            yield 1.0
        yield from super()._snapshot()


mutant("trims before the snapshot", "the changelog is trimmed before the snapshot is there", Parts(task=TrimsFirst))


class KeepsEarly(SimTask):
    def drop_uncommitted(self):
        early = getattr(self, "early", None)
        super().drop_uncommitted()
        self.early = early or self.early


mutant("message buffers survive", "a rollback keeps early arrivals, which are read again", Parts(task=KeepsEarly))


class Unfenced(Target):
    def store(self, expected, position, rows):
        return super().store(self.transactions, position, rows)


class LooseRun(Publisher):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.target = Unfenced()


mutant("sinks don't compare positions", "two sinks publish the same rows", Parts(publisher=LooseRun))

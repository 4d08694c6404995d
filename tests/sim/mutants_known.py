"""The mistakes of the first wording, F1 to F15, each as a mutant."""

from __future__ import annotations

import msgspec
from mutant_kit import changelog, mutant, no, node, nothing, receiving, slow

from headrace.core.frame import END_VERSION, Kind
from headrace.life.metadata import MemoryMetadata
from headrace.protocol import instructions as do
from headrace.protocol.changelog import Changelog
from headrace.protocol.frame_judge import FrameJudge
from headrace.protocol.machine import ProtocolMachine
from headrace.protocol.read_committed import ReadCommitted
from headrace.systems.base import Edge
from simulator.coordinator import Coordinator
from simulator.journal import WatchedMachine
from simulator.run import Parts
from simulator.systems import SimConsumer

# -- F1 to F15 -------------------------------------------------------------------------------------------


def latest_abort_wins(self, offset, header):
    if header.kind is Kind.ABORT and header.generation < self.generation:
        self.generation, self.seq = header.generation, 0
    return Changelog._counts(self, offset, header)


mutant(
    "F1 latest abort wins",
    "the last abort in the log fences, whatever its generation",
    changelog(_counts=latest_abort_wins),
    first_seed=67,
)


class Stopped(Changelog):
    """Notes records of other generations, older ones too."""

    def take(self, offset, header, body):
        entry = super().take(offset, header, body)
        if self.generation == self._own_generation and header.generation < self.generation:
            self.second_writer = "an older one"
        return entry


mutant(
    "F1 older generations stop",
    "a late record of a zombie stops the rightful owner",
    node(changelog_class=Stopped),
    first_seed=3,
)


def anything_older_is_void(self, parent, header, control):
    return any(header.generation < fence for fence in parent.fences)


mutant(
    "F2 older is void",
    "a known newer generation voids all of the older, committed or not",
    receiving(void=anything_older_is_void, receive=slow),
    first_seed=2,
)


def forgetful_roll_back(self, parent, header, control, offset):
    return do.Verdict.ROLLBACK


mutant(
    "F2 fences are forgotten",
    "a rollback forgets why it came, and comes again",
    receiving(roll_back=forgetful_roll_back, learn=nothing),
)

mutant(
    "F3 seq alone",
    "a duplicate is known by its seq alone",
    receiving(duplicate=lambda self, parent, header, control: header.seq <= parent.seq, unannounced=no),
)


class PerProducer(FrameJudge):
    """What one partition says of a producer is applied to all."""

    def take_restore(self, parent, header, control, offset):
        verdict = super().take_restore(parent, header, control, offset)
        for other in self._parents:
            if other.producer == parent.producer and other is not parent and other.generation < header.generation:
                other.fences[header.generation] = 0
                other.limit = 0
        return verdict


mutant(
    "F3 per producer",
    "a generation known from one partition voids frames of another",
    node(judge_class=PerProducer),
    "mixed",
    "diamond",
    "fanout",
    first_seed=5,
)


class ReleasesAll(ReadCommitted):
    def _restore(self, offset, writer, header, restore):
        held = list(writer.held)
        super()._restore(offset, writer, header, restore)
        return held


mutant(
    "F4 restore without S",
    "a reader releases all it holds at a restore",
    Parts(reader=lambda p, w: ReleasesAll(p, whole=w)),
    first_seed=9,
)


class NoS(FrameJudge):
    def overtakes(self, parent, header, control):
        return False

    def undoes(self, parent, header, control):
        return False


mutant("F4 restore undoes nothing", "a task notes a restore without rolling back", node(judge_class=NoS), first_seed=18)


def counting_checkpoint(self, parent, header, control, offset):
    verdict = FrameJudge.take_checkpoint(self, parent, header, control, offset)
    parent.done = header.seq
    return verdict


def covered_is_done(self, entries, version, parents_version):
    FrameJudge.load(self, entries, version, parents_version)
    for parent in self._parents:
        parent.done = parent.seq


mutant(
    "F5 checkpoint is processed",
    "a checkpoint frame counts as processed",
    receiving(take_checkpoint=counting_checkpoint),
    first_seed=9,
)
mutant("F5 covered is processed", "what the record covers counts as processed", receiving(load=covered_is_done))


def only_up(self, parent, header, control, offset):
    before = parent.closed
    verdict = FrameJudge.take_restore(self, parent, header, control, offset)
    self.close(parent, max(before, parent.closed))
    return verdict


def closes_its_commit(self, parent, header, control, offset):
    verdict = FrameJudge.take_restore(self, parent, header, control, offset)
    if control.next_version != END_VERSION:
        self.close(parent, header.version)
    return verdict


mutant(
    "F6 restore never lowers",
    "closed := max(closed, next - 1) at a restore",
    receiving(take_restore=only_up),
    "merge",
    first_seed=442,
)
mutant(
    "F6 restore closes C",
    "closed := C at a restore: versions that were skipped never close",
    receiving(take_restore=closes_its_commit),
    first_seed=7,
)


def final_without_end(self):
    ProtocolMachine.decide_final(self)
    self._next_version = self._commit_version + 1


mutant("F7 no END", "the final checkpoint closes its own version only", node(decide_final=final_without_end))


def last_taken(self, parent, version):
    entry = FrameJudge.covered(self, parent, version)
    return msgspec.structs.replace(entry, generation=parent.generation, seq=parent.seq)


def own_version(self, parent, version):
    return msgspec.structs.replace(FrameJudge.covered(self, parent, version), version=version)


mutant(
    "F8 covers what is buffered",
    "a parent's entry names the last frame taken, buffered or not",
    receiving(covered=last_taken),
)
mutant("F8 own version", "a parent's entry closes the own version only", receiving(covered=own_version), first_seed=265)


class FollowsClock(WatchedMachine):
    def tick(self, now_ms):
        super().tick(now_ms)
        if not self.ended():
            self._stamper.label = max(self._stamper.label, self._cadence.clock)


mutant("F9 label follows the clock", "frames of one commit carry labels above it", Parts(machine=FollowsClock))


def only_next(self):
    lowest = self._judge.lowest_buffered
    return lowest is not None and lowest <= self._judge.threshold


mutant(
    "F10 commit, then feed",
    "when M jumps, buffers are fed after the commit",
    node(buffer_due=only_next),
    first_seed=114,
)


class HeardOnly(FrameJudge):
    @property
    def closed_through(self):
        heard = [parent.closed for parent in self._parents if parent.generation]
        return min(heard, default=END_VERSION if not self._parents else -1)

    committable = closed_through

    def _set_threshold(self):
        super()._set_threshold()
        self.due = True


mutant(
    "F11 heard so far", "a parent that has not spoken yet is not waited for", node(judge_class=HeardOnly), first_seed=3
)


def sources_only(self):
    return not self.config.inputs and ProtocolMachine.clock_passed(self)


class Silent(WatchedMachine):
    idleness: object = None

    def clock_passed(self):
        return super().clock_passed() and self._stamper.save() != self.idleness

    def committed(self):
        super().committed()
        self.idleness = self._stamper.save()


mutant(
    "F12 command-driven for ever",
    "a mixed task waits for parents that have ended",
    node(clock_passed=sources_only),
    "mixed",
    first_seed=11,
)
mutant(
    "F12 idle tasks are silent",
    "a source task that wrote nothing doesn't commit",
    Parts(machine=Silent),
    "join",
    "shuffle",
    "wide",
    first_seed=15,
)


class InMemory(Coordinator):
    """Generations from the coordinator's memory, which a crash takes."""

    def begin(self):
        self._metadata = MemoryMetadata()
        super().begin()


class ToAnyone(Coordinator):
    """Generations for whoever asks, zombies too."""

    def issue(self, container, task):
        return self.generations.issue([task])[task]


mutant("F13 from memory", "a restarted coordinator issues generations again", Parts(coordinator=InMemory), first_seed=2)
mutant(
    "F13 to anyone",
    "a zombie gets a new generation, and fences its replacement",
    Parts(coordinator=ToAnyone),
    first_seed=101,
)
mutant("F14 no scan", "a task processes what restores ahead of it void", receiving(learn=nothing), first_seed=2)


REGISTER, READ = SimConsumer.register, SimConsumer._read


class ToOldest:
    def register(self, ssp, position):
        oldest = self._logs[ssp].oldest
        REGISTER(self, ssp, position if isinstance(position, Edge) else max(position, oldest))

    def _read(self, ssp, max_bytes):
        self._positions[ssp] = max(self._positions[ssp], self._logs[ssp].oldest)
        return READ(self, ssp, max_bytes)


mutant(
    "F15 reset to oldest",
    "a trimmed offset is answered by jumping to the oldest",
    Parts(),
    patches=((SimConsumer, "register", ToOldest.register), (SimConsumer, "_read", ToOldest._read)),
    first_seed=3,
)

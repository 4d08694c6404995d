"""What a task reads: the judgement on every frame of its intermediate inputs, as pure state and a table.

State is kept for each (input partition, upstream task), never for an upstream task as a whole: its frames
reach different partitions at different times, and what one partition says of it must not be applied to
another. It is

- ``(generation, seq)``, the last frame taken. The pair is a frame's identity, and pairs only rise;
- ``closed``, the version through which the upstream task is complete here. Its checkpoint frame closes; a frame
  labelled L closes L - 1, since labels within a generation don't fall; a restore sets it, also downward;
- ``done`` and ``label``, the highest seq and label processed since the own last commit: what a rollback would
  have to take back, and what the next commit's version may not be below;
- ``fences``, one (generation, S) for each restore seen: *what generations below it sent above S is void*.
  They are facts about the stream, so they survive a rollback of this task; after a crash they are learned
  again by scanning ahead;
- ``buffered``, the early arrivals: frames with a label above T.

For the task as a whole: C is its own last committed version; M = min(closed), or END when no upstream task
lives; T = C + 1, or END when M is. Frames labelled up to T are processed at once, later ones are buffered
(SEP-10's solution 3), so that no effect of a version above V is part of commit V.

``RULES`` is the judgement: the first row whose kinds and guard fit decides. Most frames are the next ones of
a generation that is known, in turn and not void: the last but one row. ``receive`` tests for that first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from typing_extensions import override

from headrace.checkpoint.instructions import Forget, Verdict
from headrace.checkpoint.record import InputEntry, ParentEntry
from headrace.core.errors import ProtocolError
from headrace.core.frame import END_VERSION, UNVERSIONED, Checkpoint, ControlMessage, Header, Kind, Restore
from headrace.core.ids import SSP, Offset

DATA = frozenset({Kind.USER, Kind.WATERMARK, Kind.END_OF_STREAM})
RESTORE = frozenset({Kind.RESTORE})
CHECKPOINT = frozenset({Kind.CHECKPOINT})
ANY = DATA | RESTORE | CHECKPOINT
ORDINARY = DATA | CHECKPOINT


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: for frames of ``kinds`` for which the method ``when`` says yes, the method ``then`` decides."""

    kinds: frozenset[Kind]
    when: str
    then: str
    says: str


RULES = (
    Rule(ANY, "duplicate", "drop", "(generation, seq) <= last: drop"),
    Rule(ANY, "void", "drop", "void by a fence: drop, last unchanged"),
    Rule(RESTORE, "overtakes", "refuse_gap", "S > last seq: error, frames are missing"),
    Rule(RESTORE, "undoes", "roll_back", "done > S: add the fence, roll back"),
    Rule(RESTORE, "always", "take_restore", "add the fence; forget buffered above S; last := this; closed := next - 1"),
    Rule(ORDINARY, "unannounced", "refuse_unannounced", "generation > last: error, no restore came before it"),
    Rule(ORDINARY, "gap", "refuse_gap", "seq != last + 1: error, frames are missing"),
    Rule(CHECKPOINT, "always", "take_checkpoint", "closed := max(closed, next - 1)"),
    Rule(DATA, "timely", "process", "label L <= T: closed := max(closed, L - 1); process; done := seq"),
    Rule(DATA, "always", "buffer", "label L > T: closed := max(closed, L - 1); buffer under L"),
)

_NO_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class EarlyArrival:
    """A frame in the message buffer of its label."""

    label: int
    generation: int
    seq: int
    offset: Offset


class Parent:
    """One upstream task as seen from one input partition."""

    __slots__ = (
        "buffered",
        "closed",
        "done",
        "fences",
        "generation",
        "label",
        "limit",
        "partition",
        "producer",
        "seq",
    )

    def __init__(self, partition: InputPartition, producer: int, closed: int) -> None:
        self.partition = partition
        self.producer = producer
        self.fences: dict[int, int] = {}
        self.buffered: deque[EarlyArrival] = deque()
        self.take(0, 0)
        self.closed = closed
        self.done = 0
        self.label = -1

    def take(self, generation: int, seq: int) -> None:
        """Set the last frame; ``limit`` is the seq above which frames of that generation are void."""
        self.generation, self.seq = generation, seq
        self.limit = self.limit_of(generation)

    def limit_of(self, generation: int) -> int:
        """The lowest S of the fences above a generation."""
        return min((seq for fence, seq in self.fences.items() if fence > generation), default=_NO_LIMIT)

    def fence(self, generation: int, seq: int) -> None:
        """Remember a restore; the same again changes nothing."""
        known = self.fences.setdefault(generation, seq)
        if known != seq:
            raise ProtocolError(
                f"{self.partition.ssp}: producer {self.producer} sent two restores of generation {generation}, "
                f"one to seq {known}, one to {seq}",
                hint="two incarnations were given one generation; the metadata store broke its promise",
            )
        self.limit = self.limit_of(self.generation)

    @override
    def __str__(self) -> str:
        return f"{self.partition.ssp}, producer {self.producer}: after ({self.generation}, #{self.seq})"


class InputPartition:
    """One intermediate input partition. ``position`` is the next offset to receive; None is the oldest."""

    __slots__ = ("parents", "position", "ssp")

    def __init__(self, ssp: SSP, producers: Collection[int], closed: int) -> None:
        self.ssp = ssp
        self.position: Offset | None = None
        self.parents = {producer: Parent(self, producer, closed) for producer in producers}


class FrameJudge:
    """Judges frames. ``barriers`` off (at-least-once): nothing is held back, nothing rolls back."""

    def __init__(self, inputs: Mapping[SSP, Collection[int]], barriers: bool) -> None:
        self._barriers = barriers
        self._unheard = -1 if barriers else END_VERSION
        self._inputs = {ssp: InputPartition(ssp, producers, self._unheard) for ssp, producers in inputs.items()}
        self._parents = [parent for partition in self._inputs.values() for parent in partition.parents.values()]
        self._table = _compile(self, RULES)
        self.due = False
        self.load((), -1, -1)

    # -- events ----------------------------------------------------------------------------------------

    def receive(
        self, ssp: SSP, offset: Offset, after: Offset, header: Header, control: ControlMessage | None
    ) -> Verdict | Forget:
        """Judge the frame at ``offset``; ``after`` is where to go on behind it."""
        partition = self._inputs[ssp]
        parent = partition.parents.get(header.producer)
        if parent is None:
            raise ProtocolError(
                f"{ssp} at offset {offset}: a frame of producer {header.producer}, which the plan doesn't name",
                hint="something else writes this intermediate stream, or its writers run another plan",
            )
        partition.position = after
        label, seq = header.version, header.seq
        if (
            header.generation == parent.generation
            and seq == parent.seq + 1
            and seq <= parent.limit
            and label <= self.threshold
            and header.kind <= Kind.END_OF_STREAM
            and not parent.buffered
        ):
            parent.seq = parent.done = seq
            parent.label = label
            if label - 1 > parent.closed:
                self.close(parent, label - 1)
            return Verdict.PROCESS
        for when, then in self._table[header.kind]:
            if when(parent, header, control):
                return then(parent, header, control, offset)
        raise ProtocolError(f"{ssp} at offset {offset}: a {header.kind.name} frame doesn't belong in a stream")

    def learn(self, ssp: SSP, header: Header, restore: Restore) -> None:
        """Take the fence of a restore frame that lies ahead."""
        parent = self._inputs[ssp].parents.get(header.producer)
        if parent is not None and header.generation > parent.generation and self._retracts(restore):
            parent.fence(header.generation, restore.seq)

    def feed(self, label: int) -> None:
        """The buffer of ``label`` was processed."""
        for parent in self._parents:
            buffered = parent.buffered
            while buffered and buffered[0].label == label:
                parent.done = max(parent.done, buffered.popleft().seq)
                parent.label = label

    def commit(self, version: int) -> None:
        """The task has committed ``version``."""
        self.version = version
        for parent in self._parents:
            parent.done, parent.label = 0, -1
            covered = parent.buffered[0].generation if parent.buffered else parent.generation
            parent.fences = {fence: seq for fence, seq in parent.fences.items() if fence > covered}
        self._recount()

    # -- what follows from the state -------------------------------------------------------------------

    @property
    def closed_through(self) -> int:
        """M: the version through which all upstream tasks are complete; END when none lives."""
        return min((parent.closed for parent in self._parents), default=END_VERSION)

    @property
    def highest_label(self) -> int:
        """The highest label processed since the last commit; -1 when there is none."""
        return max((parent.label for parent in self._parents), default=-1)

    @property
    def lowest_buffered(self) -> int | None:
        """The lowest label that has a message buffer."""
        return min((parent.buffered[0].label for parent in self._parents if parent.buffered), default=None)

    def holding_up(self) -> list[tuple[SSP, int]]:
        """The (input partition, producer) pairs that have not closed the next version yet."""
        return [(p.partition.ssp, p.producer) for p in self._parents if p.closed <= self.version]

    def positions(self) -> tuple[tuple[SSP, Offset | None], ...]:
        """Where to receive on."""
        return tuple((ssp, partition.position) for ssp, partition in self._inputs.items())

    # -- durable form ----------------------------------------------------------------------------------

    def save(self, version: int) -> tuple[InputEntry, ...]:
        """The entries of a commit record: what the commit of ``version`` covers of each upstream task."""
        entries = []
        for ssp, partition in self._inputs.items():
            parents = tuple(self.covered(parent, version) for parent in partition.parents.values())
            offset = partition.position
            for entry in parents:
                if offset is not None and entry.resume_offset is not None:
                    offset = min(offset, entry.resume_offset)
            entries.append(InputEntry(stream=str(ssp.stream), partition=ssp.partition, offset=offset, parents=parents))
        return tuple(entries)

    def covered(self, parent: Parent, version: int) -> ParentEntry:
        """One parent's entry: the prefix before its first early arrival, else all that was taken of it."""
        if not parent.buffered:
            generation, seq, closed, resume = parent.generation, parent.seq, parent.closed, parent.partition.position
        else:
            first = parent.buffered[0]
            generation, seq, closed, resume = first.generation, first.seq - 1, version, first.offset
        return ParentEntry(
            producer=parent.producer, generation=generation, version=closed, seq=seq, resume_offset=resume
        )

    def load(self, entries: Iterable[InputEntry], version: int, parents_version: int) -> None:
        """Go back to a commit record; what it doesn't name begins at the oldest frame. Fences are kept."""
        self.version = version
        self.parents_version = parents_version
        saved = {(entry.stream, entry.partition): entry for entry in entries}
        for ssp, partition in self._inputs.items():
            entry = saved.get((str(ssp.stream), ssp.partition))
            partition.position = entry.offset if entry else None
            covered = {parent.producer: parent for parent in entry.parents} if entry else {}
            for producer, parent in partition.parents.items():
                known = covered.get(producer)
                parent.buffered.clear()
                parent.done, parent.label = 0, -1
                parent.closed = known.version if known else self._unheard
                parent.take(known.generation if known else 0, known.seq if known else 0)
        self._recount()

    # -- guards ----------------------------------------------------------------------------------------

    def always(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """The last row of a kind."""
        return True

    def duplicate(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """Taken before: pairs are compared as pairs, since a newer generation uses numbers again."""
        return (header.generation, header.seq) <= (parent.generation, parent.seq)

    def void(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """A newer generation is known to have begun below this frame."""
        return header.seq > parent.limit_of(header.generation)

    def overtakes(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """The restore says that more was committed than has come."""
        restore = _restore(control)
        return restore.seq > parent.seq or header.seq != restore.seq + 1

    def undoes(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """Something that the restore voids was processed since the last commit."""
        restore = _restore(control)
        return self._retracts(restore) and parent.done > restore.seq

    def unannounced(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """A new generation that doesn't begin with its restore."""
        return header.generation > parent.generation

    def gap(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """Not the next one."""
        return header.seq != parent.seq + 1

    def timely(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """Its version is the one being made, or an older one."""
        return header.version <= self.threshold

    # -- actions ---------------------------------------------------------------------------------------

    def drop(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        """Nothing changes."""
        return Verdict.DROP

    def refuse_gap(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        """Frames are missing: going on would lose them."""
        what = f"{header.kind.name} ({header.generation}, #{header.seq})"
        if isinstance(control, Restore):
            what += f", committed through #{control.seq},"
        raise ProtocolError(
            f"{parent} comes {what} at offset {offset}",
            hint="the stream lost frames, or its retention is shorter than its readers' lag",
        )

    def refuse_unannounced(
        self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset
    ) -> Verdict:
        """Nobody said what of the older generation is void."""
        raise ProtocolError(
            f"{parent} comes {header.kind.name} ({header.generation}, #{header.seq}) at offset {offset}, "
            "without the restore frame that begins a generation",
            hint="the stream lost frames, or something else writes it",
        )

    def roll_back(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        """What was processed has become void; the fence remembers it for the next reading."""
        parent.fence(header.generation, _restore(control).seq)
        return Verdict.ROLLBACK

    def take_restore(
        self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset
    ) -> Verdict | Forget:
        """Go on with the new generation. It closes what it says, no more: that may be less than before."""
        restore = _restore(control)
        parent.take(header.generation, header.seq)
        if not self._barriers:
            return Verdict.TAKEN
        if not self._retracts(restore):
            self.close(parent, END_VERSION)
            return Verdict.TAKEN
        parent.fence(header.generation, restore.seq)
        self.parents_version = max(self.parents_version, header.version)
        self.close(parent, _closes(restore.next_version))
        forgotten = False
        while parent.buffered and parent.buffered[-1].seq > restore.seq:
            parent.buffered.pop()
            forgotten = True
        return Forget(parent.partition.ssp, parent.producer, restore.seq) if forgotten else Verdict.TAKEN

    def take_checkpoint(
        self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset
    ) -> Verdict:
        """The upstream task has committed a version."""
        if not isinstance(control, Checkpoint):
            raise ProtocolError(f"{parent} comes a CHECKPOINT frame at offset {offset} without its message")
        parent.seq = header.seq
        if self._barriers:
            self.parents_version = max(self.parents_version, header.version)
            self.close(parent, max(parent.closed, _closes(control.next_version)))
        return Verdict.TAKEN

    def process(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        """Its turn has come. (``receive`` does the same without the detour.)"""
        if parent.buffered:
            self._refuse_falling_label(parent, header, offset)
        parent.seq = header.seq
        parent.done = max(parent.done, header.seq)
        parent.label = header.version
        self.close(parent, max(parent.closed, header.version - 1))
        return Verdict.PROCESS

    def buffer(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        """Its turn comes with its version."""
        if parent.buffered and parent.buffered[-1].label > header.version:
            self._refuse_falling_label(parent, header, offset)
        parent.seq = header.seq
        parent.buffered.append(EarlyArrival(header.version, header.generation, header.seq, offset))
        self.close(parent, max(parent.closed, header.version - 1))
        return Verdict.BUFFER

    # -- closing ---------------------------------------------------------------------------------------

    def close(self, parent: Parent, version: int) -> None:
        """Set through which version a parent is complete, and see whether that lets the task commit."""
        was_open, parent.closed = parent.closed <= self.version, version
        self._open += (version <= self.version) - was_open
        if self._open == 0 or self.threshold == END_VERSION:
            self._set_threshold()

    def _recount(self) -> None:
        self._open = sum(parent.closed <= self.version for parent in self._parents)
        self._set_threshold()

    def _set_threshold(self) -> None:
        ended = self._open == 0 and self.closed_through == END_VERSION
        self.threshold = END_VERSION if ended else self.version + 1
        self.due = self._open == 0 or any(parent.buffered for parent in self._parents)

    def _retracts(self, restore: Restore) -> bool:
        return self._barriers and restore.next_version != UNVERSIONED

    def _refuse_falling_label(self, parent: Parent, header: Header, offset: Offset) -> None:
        raise ProtocolError(
            f"{parent} comes a frame of version {header.version} at offset {offset}, "
            f"behind one of version {parent.buffered[-1].label}",
            hint="labels don't fall within a generation; its writer breaks the protocol",
        )


def _closes(next_version: int) -> int:
    return next_version if next_version == END_VERSION else next_version - 1


def _restore(control: ControlMessage | None) -> Restore:
    if not isinstance(control, Restore):
        raise ProtocolError("a RESTORE frame was received without its message")
    return control


Guard = Callable[[Parent, Header, ControlMessage | None], bool]
Action = Callable[[Parent, Header, ControlMessage | None, Offset], Verdict | Forget]


def _compile(receiving: FrameJudge, rules: Iterable[Rule]) -> dict[Kind, tuple[tuple[Guard, Action], ...]]:
    """The rows that concern each kind, their names looked up once."""
    rows = [(rule.kinds, getattr(receiving, rule.when), getattr(receiving, rule.then)) for rule in rules]
    return {kind: tuple((when, then) for kinds, when, then in rows if kind in kinds) for kind in Kind}

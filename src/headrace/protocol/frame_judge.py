"""Judge every frame that a task receives on its intermediate inputs, by pure state and a table.

State is kept for each (input partition, upstream task), never for an upstream task as a whole. Its frames reach
different partitions at different times, so facts about it from one partition must not be applied to another. The state
of one such pair is

- ``(generation, seq)`` of the last frame taken. The pair identifies a frame, and pairs only rise;
- ``closed``, the version through which the upstream task is complete in this partition. A checkpoint frame closes its
  version. A frame labelled L closes L - 1, since labels don't fall within a generation. A restore frame sets
  ``closed``, also downward;
- ``done`` and ``label``, the highest seq and the highest label processed since this task's last commit. ``done`` says
  what a rollback would have to undo; the next commit's version must not be below ``label``;
- ``covered``, the highest seq that this task's last commit covers. The upstream task had committed that, but for its
  last frame, which may be a checkpoint or restore frame;
- ``fences``, one (generation, S) for each restore seen: *what older generations sent above S is void*. Fences are facts
  about the stream, so they survive a rollback of this task. After a crash, scanning ahead learns them again;
- ``buffered``, the early frames: those with a label above T, and all of an upstream task that is set aside;
- ``aside``, set while this task doesn't wait for the upstream task: the version that others had closed by then.

For the task as a whole, C is its last committed version; M = min(closed) of the upstream tasks that aren't set aside,
or END when no upstream task is alive; T = C + 1, or END when M is. Frames labelled up to T are processed at once. Later
ones are buffered (SEP-10's solution 3), so that commit V contains no effect of a version above V.

An upstream task may be late: down, slow or cut off, while others have closed versions above C. After a while the host
has it *set aside*, and this task commits the others' versions without it. A commit must not contain what the upstream
task hasn't committed, so from then on only its frames labelled up to ``closed`` are processed, later ones are buffered,
and if one above ``closed`` has been processed since C, this task rolls back and leaves it out (SEP-10: "skip, seek back
and reconsume", for one producer). The upstream task is waited for again when a checkpoint or restore of it closes what
the others had closed by then, and C. A label alone isn't enough: after the rollback, the same frames come again, and
the same wait would follow, forever.

Frames that no commit covers may be missing after a power cut, and later ones may be there. So what comes after a gap is
dropped, and only a checkpoint or restore frame that says that the missing frames were committed is an error. Until then
``closed`` doesn't rise, so this task commits nothing that lacks them.

``RULES`` is the judgement: the first row whose kinds and guard match decides. Most frames are the next of a known
generation, in turn, not void and not early: the last row but one. ``receive`` tests for that case first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.core.errors import DeploymentError, ProtocolError
from headrace.core.frame import END_VERSION, UNVERSIONED, Checkpoint, ControlMessage, Header, Kind, Restore
from headrace.core.ids import SSP, Offset
from headrace.protocol.instructions import EarlyFrame, Forget, InputPartition, Parent, Verdict
from headrace.protocol.record import InputEntry, ParentEntry

DATA = frozenset({Kind.USER, Kind.WATERMARK, Kind.END_OF_STREAM})
RESTORE = frozenset({Kind.RESTORE})
CHECKPOINT = frozenset({Kind.CHECKPOINT})
ANY = DATA | RESTORE | CHECKPOINT
ORDINARY = DATA | CHECKPOINT


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: a frame of one of ``kinds`` for which the guard ``when`` holds is handled by the method ``then``."""

    kinds: frozenset[Kind]
    when: str
    then: str
    summary: str


RULES = (
    Rule(ANY, "duplicate", "drop", "(generation, seq) <= last: drop"),
    Rule(ANY, "void", "drop", "void by a fence: drop, last unchanged"),
    Rule(RESTORE, "overtakes", "refuse_gap", "S > last seq: error, frames are missing"),
    Rule(RESTORE, "forgets", "refuse_loss", "S < what this task's commit covers: error, commits are missing"),
    Rule(RESTORE, "undoes", "roll_back", "done > S: add the fence, roll back"),
    Rule(RESTORE, "always", "take_restore", "add the fence; forget buffered above S; last := this; closed := next - 1"),
    Rule(DATA, "unproven", "drop", "generation > last, or seq != last + 1, and has a label: drop, last unchanged"),
    Rule(ORDINARY, "unannounced", "refuse_unannounced", "generation > last: error, no restore came before it"),
    Rule(ORDINARY, "gap", "refuse_gap", "seq != last + 1: error, frames are missing"),
    Rule(CHECKPOINT, "always", "take_checkpoint", "closed := max(closed, next - 1)"),
    Rule(DATA, "timely", "process", "label L <= T, not aside: closed := max(closed, L - 1); process; done := seq"),
    Rule(DATA, "always", "buffer", "label L > T, or aside: closed := max(closed, L - 1); buffer under L"),
)


class FrameJudge:
    """Judges the frames of a task's intermediate inputs. Without ``barriers``, none is buffered or rolls it back."""

    def __init__(self, inputs: Mapping[SSP, Collection[int]], barriers: bool) -> None:
        self._barriers = barriers
        self._initially_closed = -1 if barriers else END_VERSION
        self._inputs = {
            ssp: InputPartition(ssp, producers, self._initially_closed) for ssp, producers in inputs.items()
        }
        self._parents = [parent for partition in self._inputs.values() for parent in partition.parents.values()]
        self._table = _compile(self, RULES)
        self.due = False
        self.load((), -1, -1)

    def receive(
        self, ssp: SSP, offset: Offset, after: Offset, header: Header, control: ControlMessage | None
    ) -> Verdict | Forget:
        partition = self._inputs[ssp]
        parent = partition.parents.get(header.producer)
        if parent is None:
            raise DeploymentError(
                f"{ssp} at offset {offset}: this was written by task number {header.producer}, which isn't among the "
                f"{len(partition.parents)} tasks that write this stream in the version of the app that runs here",
                hint="another version of the app writes to this stream: stop the deployment that does, or "
                "deploy the stages that read the stream from that version (`headrace status` lists what runs)",
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
            and parent.aside is None
        ):
            parent.seq = parent.done = seq
            parent.label = label
            if label - 1 > parent.closed:
                self.close(parent, label - 1)
            return Verdict.PROCESS
        for when, then in self._table[header.kind]:
            if when(parent, header, control):
                return then(parent, header, control, offset)
        raise ProtocolError(f"{ssp} at offset {offset}: a {header.kind.name} frame belongs only in a changelog")

    def learn(self, ssp: SSP, header: Header, restore: Restore) -> None:
        """Add the fence of a restore frame that was found by scanning ahead."""
        parent = self._inputs[ssp].parents.get(header.producer)
        if parent is not None and header.generation > parent.generation and self._voids(restore):
            parent.fence(header.generation, restore.seq)

    def feed(self, label: int) -> None:
        for parent in self._parents:
            if parent.holds(label):
                continue
            buffered = parent.buffered
            while buffered and buffered[0].label == label:
                parent.done = max(parent.done, buffered.popleft().seq)
                parent.label = label

    def commit(self, version: int) -> None:
        self.version = version
        for parent in self._parents:
            parent.done, parent.label = 0, -1
            first = parent.buffered[0] if parent.buffered else None
            covered = first.generation if first else parent.generation
            parent.fences = {fence: seq for fence, seq in parent.fences.items() if fence > covered}
            self._set_covered(parent, first.seq - 1 if first else parent.seq)
        self._recount()

    def set_aside(self) -> tuple[bool, bool]:
        """Set late upstream tasks aside, if that helps. Return whether it did, and whether that needs a rollback."""
        late = [parent for parent in self._awaited if parent.closed <= self.version]
        ahead = self._committable([parent for parent in self._awaited if parent.closed > self.version])
        if not self.lagging or ahead <= self.version:
            return False, False
        for parent in late:
            parent.aside = ahead
        self._recount()
        return True, any(parent.label > parent.closed for parent in late)

    # -- derived from the state ------------------------------------------------------------------------
    @property
    def closed_through(self) -> int:
        """The version through which all upstream tasks are complete; END when none is alive."""
        return min((parent.closed for parent in self._parents), default=END_VERSION)

    @property
    def committable(self) -> int:
        """M; if only tasks that are set aside are alive, the last version that any upstream task has announced."""
        return self._committable(self._awaited)

    @property
    def waits_for_all(self) -> bool:
        return len(self._awaited) == len(self._parents)

    @property
    def lagging(self) -> bool:
        """Whether some upstream tasks are late with a version that others have closed."""
        return 0 < self._open < len(self._awaited)

    def held(self, label: int) -> frozenset[tuple[SSP, int]]:
        """Return the (input partition, producer) pairs whose buffered frames of ``label`` must wait."""
        return frozenset((p.partition.ssp, p.producer) for p in self._parents if p.holds(label))

    @property
    def highest_label(self) -> int:
        return max((parent.label for parent in self._parents), default=-1)

    @property
    def lowest_buffered(self) -> int | None:
        """The lowest label in the version buffer that isn't held; None if there is none."""
        firsts = ((parent, parent.buffered[0].label) for parent in self._parents if parent.buffered)
        return min((label for parent, label in firsts if not parent.holds(label)), default=None)

    def late(self) -> list[tuple[SSP, int]]:
        return [(p.partition.ssp, p.producer) for p in self._awaited if p.closed <= self.version]

    def waiting_for(self) -> list[tuple[SSP, int]]:
        return [(p.partition.ssp, p.producer) for p in self._parents if p.closed <= self.version]

    def early(self) -> dict[SSP, Offset]:
        """Return the offset of the first buffered frame from an awaited task, of each partition that has any."""
        found: dict[SSP, Offset] = {}
        for parent in self._awaited:
            if parent.buffered:
                first = parent.buffered[0].offset
                found[parent.partition.ssp] = min(first, found.get(parent.partition.ssp, first))
        return found

    def positions(self) -> tuple[tuple[SSP, Offset | None], ...]:
        return tuple((ssp, partition.position) for ssp, partition in self._inputs.items())

    def save(self, version: int) -> tuple[InputEntry, ...]:
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
        """Return one parent's entry: the frames before its first buffered one, or all frames taken if none is."""
        if not parent.buffered:
            generation, seq, closed, resume = parent.generation, parent.seq, parent.closed, parent.partition.position
        else:
            first = parent.buffered[0]
            generation, seq, resume = first.generation, first.seq - 1, first.offset
            closed = min(version, first.label - 1)  # lower than the commit's only if the upstream task is set aside
        return ParentEntry(
            producer=parent.producer, generation=generation, version=closed, seq=seq, resume_offset=resume
        )

    def load(self, entries: Iterable[InputEntry], version: int, parents_version: int) -> None:
        """Reset to a commit record, but keep fences, and who is set aside. Inputs not in it start at the oldest."""
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
                # Without barriers, no frame says when a version is complete, though a commit with barriers waited for
                # that.
                parent.closed = known.version if known and self._barriers else self._initially_closed
                parent.set_last(known.generation if known else 0, known.seq if known else 0)
                self._set_covered(parent, parent.seq)
                if known and self._barriers and known.version < version:
                    parent.aside = version if parent.aside is None else max(version, parent.aside)
        self._recount()

    def _set_covered(self, parent: Parent, seq: int) -> None:
        # A parent that was at-least-once counts as closed forever. It may go back to before the frames taken here.
        parent.covered = 0 if parent.closed == END_VERSION else seq

    # -- guards ----------------------------------------------------------------------------------------
    def always(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        return True

    def duplicate(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """Whether the frame was taken before. Pairs are compared as pairs, because a newer generation reuses seqs."""
        return (header.generation, header.seq) <= (parent.generation, parent.seq)

    def void(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """Whether a newer generation is known to have restarted from a seq below this frame's."""
        return header.seq > parent.limit_of(header.generation)

    def overtakes(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        restore = _restore(control)
        return restore.seq > parent.seq or header.seq != restore.seq + 1

    def forgets(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """Whether the restore goes back to before frames that the upstream task committed and this task has covered."""
        restore = _restore(control)
        return self._voids(restore) and restore.seq + 1 < parent.covered

    def undoes(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        restore = _restore(control)
        return self._voids(restore) and parent.done > restore.seq

    def unproven(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        """Whether frames are missing before this one that may not have been committed, because this one wasn't yet."""
        return header.version != UNVERSIONED and (header.generation > parent.generation or header.seq != parent.seq + 1)

    def unannounced(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        return header.generation > parent.generation

    def gap(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        return header.seq != parent.seq + 1

    def timely(self, parent: Parent, header: Header, control: ControlMessage | None) -> bool:
        return header.version <= self.threshold and parent.aside is None

    # -- actions ---------------------------------------------------------------------------------------
    def drop(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        return Verdict.DROP

    def refuse_gap(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        what = f"{header.kind.name} ({header.generation}, #{header.seq})"
        if isinstance(control, Restore):
            what += f", committed through #{control.seq},"
        raise ProtocolError(
            f"{parent}: received {what} at offset {offset} after {parent.last}: frames are missing",
            hint="the stream lost frames, or its retention is shorter than its readers' lag",
        )

    def refuse_loss(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        raise ProtocolError(
            f"{parent}: generation {header.generation} goes back to #{_restore(control).seq} at offset "
            f"{offset}, but this task has committed input up to #{parent.covered - 1}: commits of the sending "
            "task are missing",
            hint="its changelog lost its end in a machine crash, or comes from an older backup: put a backup of "
            'the whole home back, or start the app under another name. durability="commit" survives a crash',
        )

    def refuse_unannounced(
        self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset
    ) -> Verdict:
        """Fail: without its restore frame, the void frames of the older generation aren't known."""
        raise ProtocolError(
            f"{parent}: received {header.kind.name} ({header.generation}, #{header.seq}) at offset {offset} after "
            f"{parent.last}, without the restore frame that starts a generation",
            hint="the stream lost frames, or another program writes to it",
        )

    def roll_back(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        """Roll back, because processed frames have become void. The fence drops them when they are read again."""
        parent.fence(header.generation, _restore(control).seq)
        return Verdict.ROLLBACK

    def take_restore(
        self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset
    ) -> Verdict | Forget:
        """Continue with the new generation. ``closed`` becomes exactly the restore's value, even if that is lower."""
        restore = _restore(control)
        parent.set_last(header.generation, header.seq)
        if not self._barriers:
            return Verdict.TAKEN
        if not self._voids(restore):
            self._announced(parent, END_VERSION)
            return Verdict.TAKEN
        parent.fence(header.generation, restore.seq)
        self.parents_version = max(self.parents_version, header.version)
        self._announced(parent, _closed_before(restore.next_version))
        forgotten = False
        while parent.buffered and parent.buffered[-1].seq > restore.seq:
            parent.buffered.pop()
            forgotten = True
        return Forget(parent.partition.ssp, parent.producer, restore.seq) if forgotten else Verdict.TAKEN

    def take_checkpoint(
        self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset
    ) -> Verdict:
        if not isinstance(control, Checkpoint):
            raise ProtocolError(f"{parent}: the CHECKPOINT frame at offset {offset} came without its message")
        parent.seq = header.seq
        if self._barriers:
            self.parents_version = max(self.parents_version, header.version)
            self._announced(parent, max(parent.closed, _closed_before(control.next_version)))
        return Verdict.TAKEN

    def process(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        """Process the frame now. (``receive`` does the same for most frames, without consulting the table.)"""
        if parent.buffered:
            self._refuse_falling_label(parent, header, offset)
        parent.seq = header.seq
        parent.done = max(parent.done, header.seq)
        parent.label = header.version
        self.close(parent, max(parent.closed, header.version - 1))
        return Verdict.PROCESS

    def buffer(self, parent: Parent, header: Header, control: ControlMessage | None, offset: Offset) -> Verdict:
        if parent.buffered and parent.buffered[-1].label > header.version:
            self._refuse_falling_label(parent, header, offset)
        parent.seq = header.seq
        parent.buffered.append(EarlyFrame(header.version, header.generation, header.seq, offset))
        self.close(parent, max(parent.closed, header.version - 1))
        return Verdict.BUFFER

    def close(self, parent: Parent, version: int) -> None:
        """Set the version through which a parent is complete, and ``due`` if the task may now commit."""
        before, parent.closed = parent.closed, version
        if parent.aside is None:
            self._open += (version <= self.version) - (before <= self.version)
        elif version > before and parent.buffered:
            self.due = True  # what was held may be processed
        if self._open == 0 or self.threshold == END_VERSION:
            self._set_threshold()

    def _announced(self, parent: Parent, version: int) -> None:
        """``close`` on the parent's own word: one that has caught up is awaited again."""
        self.close(parent, version)
        if parent.aside is not None and version >= max(parent.aside, self.version):
            parent.aside = None
            self._recount()

    def _committable(self, parents: Iterable[Parent]) -> int:
        closed = min((parent.closed for parent in parents), default=END_VERSION)
        return closed if closed != END_VERSION or self.closed_through == END_VERSION else self.parents_version

    def _recount(self) -> None:
        self._awaited = [parent for parent in self._parents if parent.aside is None]
        self._open = sum(parent.closed <= self.version for parent in self._awaited)
        self._set_threshold()

    def _set_threshold(self) -> None:
        ended = self._open == 0 and self.closed_through == END_VERSION
        self.threshold = END_VERSION if ended else self.version + 1
        self.due = self._open == 0 or any(parent.buffered for parent in self._parents)

    def _voids(self, restore: Restore) -> bool:
        """Return whether this restore can void frames, which restores of at-least-once writers don't."""
        return self._barriers and restore.next_version != UNVERSIONED

    def _refuse_falling_label(self, parent: Parent, header: Header, offset: Offset) -> None:
        raise ProtocolError(
            f"{parent}: the frame at offset {offset} is labelled {header.version}, "
            f"but an earlier frame is labelled {parent.buffered[-1].label}",
            hint="labels must not fall within a generation: this is a bug in the writer of the frame",
        )


def _closed_before(next_version: int) -> int:
    return next_version if next_version == END_VERSION else next_version - 1


def _restore(control: ControlMessage | None) -> Restore:
    if not isinstance(control, Restore):
        raise ProtocolError("a RESTORE frame came without its message")
    return control


Guard = Callable[[Parent, Header, ControlMessage | None], bool]
Action = Callable[[Parent, Header, ControlMessage | None, Offset], Verdict | Forget]


def _compile(judge: FrameJudge, rules: Iterable[Rule]) -> dict[Kind, tuple[tuple[Guard, Action], ...]]:
    rows = [(rule.kinds, getattr(judge, rule.when), getattr(judge, rule.then)) for rule in rules]
    return {kind: tuple((when, then) for kinds, when, then in rows if kind in kinds) for kind in Kind}

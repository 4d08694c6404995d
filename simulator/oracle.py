"""The judge: knows every message and every commit, and says so at the moment something is wrong.

It believes nothing that the protocol says of itself. Which commits count it works out from the changelogs; what went
into a commit, and out of the task by then, it has from the task's journal (``journal``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import msgspec
import polars as pl

from headrace.core.frame import END_VERSION, Header, Kind, Restore, body_of, decode_control, decode_header
from headrace.core.ids import SSP, Offset, TaskName
from headrace.life.folder import Misfit
from headrace.protocol.record import Change, CommitRecord, LocalCheckpoint, decode_commit
from simulator.bare_store import values_in
from simulator.message import decode_message
from simulator.moves import Moves
from simulator.one_at_a_time import Heard
from simulator.processors import PROCESSORS
from simulator.shapes import Shape, TaskShape
from simulator.storage import SimLog
from simulator.world import SimFailure, World


@dataclass(frozen=True)
class Account:
    """What a task has done for a commit: taken down by its journal when the commit left."""

    consumed: tuple[int, ...]
    emitted: tuple[int, ...]
    label: int
    ended: frozenset[SSP] = frozenset()
    """The partitions to which it has written an end."""
    told: tuple[tuple[int, int, int, int, int], ...] = ()
    """Of each of ``consumed``: as ``Arrival`` in ``lives`` has it."""
    latest: int = 0
    """The latest that the task's clock has shown by the commit."""
    exactly_once: bool = True
    """The guarantee of the version that has made it."""
    heard: tuple[Heard, ...] = field(default=(), repr=False)
    """What its operators were given, in order."""
    written: tuple[tuple[str, pl.DataFrame], ...] = field(default=(), repr=False)
    """The rows that they have written, by stream."""


@dataclass(frozen=True)
class Mark:
    """How much of its history a task had behind it at a commit."""

    consumed: int = 0
    emitted: int = 0
    changes: int = 0


@dataclass
class TaskHistory:
    """What the oracle knows of one task: the history of its changelog."""

    shape: TaskShape
    generation: int = 0
    seq: int = 0
    commits: dict[Offset, CommitRecord] = field(default_factory=dict)
    consumed: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    changes: list[Any] = field(default_factory=list)
    marks: dict[Offset, Mark] = field(default_factory=dict)
    pending: list[Any] = field(default_factory=list)
    state: dict[str, int] = field(default_factory=dict)
    ended: set[SSP] = field(default_factory=set)
    covered: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of each partition that it has ever written the last seq that is committed."""

    @cached_property
    def inputs(self) -> dict[tuple[str, int], SSP]:
        """Its intermediate inputs, as commits name them."""
        return {(str(ssp.stream), ssp.partition): ssp for ssp in self.shape.inputs}

    @property
    def last(self) -> CommitRecord | None:
        """The last commit that counts."""
        return next(reversed(self.commits.values()), None)


class Oracle:
    """Judges one run. ``exactly_once`` off: some of its tasks, or all, are at-least-once, so that work is repeated."""

    def __init__(self, world: World, shape: Shape, tasks: list[TaskShape], exactly_once: bool) -> None:
        self.world = world
        self.shape = shape
        self.exactly_once = exactly_once
        self.ledgers = {task.name: TaskHistory(task) for task in tasks}
        self.logs: dict[SSP, SimLog] = {}
        self.accounts: dict[bytes, Account] = {}
        """By the frame of each commit that any incarnation has sent."""
        self.committed: set[int] = set()
        self.given: set[int] = set()
        """The messages of sources."""
        self.impatient = False
        """Tasks don't wait for upstream tasks that are late: what those send comes into later versions."""
        self.loose: set[int] = set()
        """Messages that at-least-once tasks have made: readers outside get them though they may not be committed."""
        self.rollbacks = 0
        self.moves: Moves | None = None
        """Judges sources if users move positions in them: their messages may be read again, or never."""
        self._by_producer = {task.producer: self.ledgers[task.name] for task in tasks}
        self._landings: list[tuple[float, SimLog, Offset, bytes, Callable[[Offset, bytes], None]]] = []
        self._at = 0.0
        self.blind = False
        """What is in the logs doesn't fit together, so nothing is judged by it."""
        self._again = False
        """What landed long ago is judged again."""
        self._messages: dict[int, tuple[str, int]] = {}
        self._landed: dict[int, tuple[SSP, Offset]] = {}
        self._consumed: dict[str, set[int]] = defaultdict(set)
        self._restores: dict[tuple[SSP, int, int], tuple[bytes, Offset]] = {}
        self._highest: dict[int, dict[int, int]] = defaultdict(dict)
        self._begun: dict[int, dict[int, int]] = defaultdict(dict)
        self._lowered: set[int] = set()
        self._makers: dict[int, tuple[int, int]] = {}
        """The producer of each message, and its generation."""
        self._repeating: dict[int, int] = {}
        """By producer the last generation that was at-least-once: what wasn't committed by then is made again."""
        self._rolled_back: set[tuple[str, int, SSP, int, int]] = set()
        self.first_generations: dict[int, int] = {}
        """By producer the first generation of this timeline: what older ones write doesn't concern it."""
        self.later_generations: dict[int, int] | None = None
        """Those of the timeline after it, if there is one."""

    def fail(self, who: object, what: str) -> NoReturn:
        """The run is over."""
        self.world.tell(str(who), f"!! {what}")
        raise SimFailure(f"{who}: {what}")

    # -- what tasks tell as it happens -----------------------------------------------------------------

    def source(self, stage: str, message: int, key: int) -> None:
        """A source message exists."""
        self._messages[message] = (f"source.{stage}", key)
        self.committed.add(message)
        self.given.add(message)

    def unmade(self, messages: Iterable[int]) -> None:
        """These messages of a source are lost, as if they had never been."""
        lost = set(messages)
        self.given -= lost
        self.committed -= lost

    def emitted(self, message: int, stream: str, payload: bytes) -> None:
        """A task has made a message, and the frame for it."""
        self._messages[message] = (stream, decode_message(body_of(payload))[1])

    def sent(self, message: int | None, header: Header, *, exactly_once: bool) -> None:
        """A task has sent a frame, with a message or without."""
        writer = header.producer, header.generation
        if message is not None:
            self._makers[message] = writer
        if not exactly_once:
            self._repeating[writer[0]] = max(writer[1], self._repeating.get(writer[0], 0))
            if message is not None:
                self.loose.add(message)

    def _is_repeated(self, writer: tuple[int, int] | None) -> bool:
        """What a generation of a producer hasn't committed is made again by a later one, and doesn't become void."""
        return writer is not None and writer[1] <= self._repeating.get(writer[0], 0)

    def labelled(self, task: TaskShape, generation: int, label: int, *, restore: bool = False) -> None:
        """A task will label what follows; a restore may go below what it announced before.

        An older incarnation may announce more after its replacement has begun: what it sends comes late, or first.
        """
        highest, begun = self._highest[task.producer], self._begun[task.producer]
        if restore:
            begun[generation] = label
        elif label <= highest.get(generation, -1):
            return
        highest[generation] = max(label, highest.get(generation, -1))
        if any(before < after and high > at for before, high in highest.items() for after, at in begun.items()):
            self._lowered.add(task.producer)

    def late(self, task: TaskShape, producer: int, label: int, version: int) -> None:
        """A frame of a version already committed was processed: only after a restore that lowered a label.

        Or the commit didn't wait for this producer: it is new, or was at-least-once then.
        """
        if not self.blind and producer not in self._lowered and self._waited(task, producer, version):
            self.fail(task.name, f"late effect: label {label} of producer {producer} after commit {version}")

    def judge_misfit(self, misfit: Misfit) -> None:
        """A cut is given up because a task has sent something too late for it: only one that lowered a label does."""
        if self.ledgers[misfit.writer].shape.producer not in self._lowered:
            self.fail("savepoints", f"{misfit}, though no label was lowered")

    def _waited(self, task: TaskShape, producer: int, version: int) -> bool:
        """Whether a commit was made when a producer had closed its version."""
        record = next(r for r in self.ledgers[task.name].commits.values() if r.version == version)
        parents = [parent for entry in record.inputs for parent in entry.parents if parent.producer == producer]
        return any(parent.version != END_VERSION for parent in parents)

    def rolled_back(self, task: TaskShape, incarnation: int, ssp: SSP, key: tuple[int, int], scanned: Offset) -> None:
        """A task rolls back: at most once a restore, and never for one that its scan could see."""
        self.rollbacks += 1
        if self.blind:
            return
        name = (str(task.name), incarnation, ssp, *key)
        if name in self._rolled_back:
            self.fail(task.name, f"rolled back twice for the restore {key} in {ssp}")
        self._rolled_back.add(name)
        if self._restores[ssp, *key][1] < scanned:
            self.fail(task.name, f"rolled back for the restore {key} in {ssp}, which its scan had seen")

    def stored(self, task: TaskShape, local: LocalCheckpoint) -> None:
        """Local state was written: it has to point at a commit that counts."""
        if self.blind:
            return
        record = self.ledgers[task.name].commits.get(local.offset)
        if record is None or (record.generation, record.version) != (local.generation, local.version):
            self.fail(task.name, f"local state points at {local}, which is no commit that counts")

    # -- what messages and state look like -------------------------------------------------------------

    def message_of(self, ssp: SSP, payload: bytes) -> int:
        """The id of the message that a user frame is."""
        return decode_message(body_of(payload))[0]

    def consumed_of(self, ssp: SSP, offset: Offset, payload: bytes) -> int | None:
        """The id of a message that is being processed; None for one that isn't accounted for."""
        del offset
        return self.message_of(ssp, payload)

    def rows_of(self, ssp: SSP, rows: Sequence[int]) -> list[int]:
        """The messages that rows of a source are, by their ids."""
        raise AssertionError(f"{ssp} holds frames, not {rows}")

    def read_change(self, body: memoryview) -> object:
        """The body of a change frame, as ``settle`` wants it."""
        return msgspec.msgpack.decode(Change.decode(body).change, type=tuple)

    def lived(self, ledger: TaskHistory, record: CommitRecord, account: Account) -> None:
        """A commit counts: this is what its task did since the last."""

    def settle(self, ledger: TaskHistory) -> None:
        """A commit counts: the changes before it are state now."""
        for key, more in ledger.pending:
            ledger.state[key] = ledger.state.get(key, 0) + more
            if not ledger.state[key]:
                del ledger.state[key]

    # -- what lands ------------------------------------------------------------------------------------

    def watch_stream(self, ssp: SSP, log: SimLog) -> None:
        """Look at every append to a stream."""
        self.logs[ssp] = log
        self._watch(log, lambda offset, payload: self._landing(ssp, offset, payload))

    def watch_changelog(self, task: TaskName, log: SimLog) -> None:
        """Look at every append to a changelog."""
        self._watch(log, lambda offset, payload: self._recorded(self.ledgers[task], offset, payload))

    def _watch(self, log: SimLog, judge: Callable[[Offset, bytes], None]) -> None:
        def landed(offset: Offset, payload: bytes) -> None:
            self._landings.append((self.world.now, log, offset, payload, judge))
            self._at = self.world.now
            if not self.blind:
                judge(offset, payload)

        log.watchers.append(landed)

    def recover(self, lost: Mapping[SimLog, Collection[Offset]]) -> None:
        """Logs have lost these records: what is left is judged again, as if they had never landed."""
        if self.blind:
            return
        self._landings = [landing for landing in self._landings if landing[2] not in lost.get(landing[1], ())]
        self._forget()
        self._again = True
        for at, _, offset, payload, judge in self._landings:
            self._at = at
            judge(offset, payload)
        self._again = False

    def _forget(self) -> None:
        self.ledgers = {name: TaskHistory(ledger.shape) for name, ledger in self.ledgers.items()}
        self._by_producer = {ledger.shape.producer: ledger for ledger in self.ledgers.values()}
        self.committed = set(self.given)
        self._landed.clear()
        self._consumed.clear()
        self._restores.clear()

    def _landing(self, ssp: SSP, offset: Offset, payload: bytes) -> None:
        kind = payload[0]
        if kind == Kind.USER:
            self._landed.setdefault(self.message_of(ssp, payload), (ssp, offset))
        elif not self._is_mine(header := decode_header(payload)):
            return
        elif kind == Kind.RESTORE:
            key = (ssp, header.producer, header.generation)
            if key not in self._restores:
                self._judge_restore(ssp, header, payload)
            if self._restores.setdefault(key, (payload, offset))[0] != payload:
                self.fail(ssp, f"two different restores of producer {header.producer}, {header.generation}")
        elif kind == Kind.CHECKPOINT:
            last = self._by_producer[header.producer].last
            if last is None or last.version < header.version:
                self.fail(ssp, f"checkpoint {header.version} of producer {header.producer} before its commit")

    def _is_mine(self, header: Header) -> bool:
        """Whether a frame was written in this timeline: others may share its outputs."""
        if header.generation < self.first_generations.get(header.producer, 0):
            return False
        if self.later_generations is None:
            return True
        return header.generation < self.later_generations.get(header.producer, 0)

    def _judge_restore(self, ssp: SSP, header: Header, payload: bytes) -> None:
        """A restore of the current generation goes back to what is committed."""
        ledger, restore = self._by_producer[header.producer], decode_control(header.kind, body_of(payload))
        covered = ledger.covered.get((str(ssp.stream), ssp.partition), 0)
        if isinstance(restore, Restore) and header.generation == ledger.generation and restore.seq != covered:
            self.fail(ssp, f"{ledger.shape.name} goes back to #{restore.seq}, and has committed #{covered}")

    def _recorded(self, ledger: TaskHistory, offset: Offset, payload: bytes) -> None:
        header = decode_header(payload)
        if (header.generation, header.seq) <= (ledger.generation, ledger.seq):
            return
        if header.generation == ledger.generation and header.seq != ledger.seq + 1:
            return  # what was before it is lost
        ledger.generation, ledger.seq = header.generation, header.seq
        if header.kind is Kind.ABORT:
            ledger.pending.clear()
        elif header.kind is Kind.CHANGE:
            ledger.pending.append(self.read_change(body_of(payload)))
        else:
            self._judge(ledger, offset, decode_commit(body_of(payload)), self.accounts[payload])

    def _judge(self, ledger: TaskHistory, offset: Offset, record: CommitRecord, account: Account) -> None:
        task, last = ledger.shape, ledger.last
        world = self.world
        if world.story is not None:
            world.tell(str(task.name), f"** commit {record.version} of g{record.generation} counts: {account}")
        if last is not None and record.version <= last.version:
            self.fail(task.name, f"commit {record.version} after commit {last.version}")
        for message in account.emitted:
            if message not in self._landed:
                self.fail(task.name, f"commit {record.version} emits {message}, which is not in its stream yet")
        for message in account.emitted:
            if self._landed[message][0] in ledger.ended:
                self.fail(task.name, f"commit {record.version} emits {message} behind the end of its stream")
        if again := account.ended & ledger.ended:
            self.fail(task.name, f"commit {record.version} sends the end of {sorted(again)}, which was sent before")
        ledger.ended |= account.ended
        self._judge_consumed(ledger, record, account)
        self._judge_positions(ledger, record, account)
        self.committed.update(account.emitted)
        self.lived(ledger, record, account)
        ledger.consumed += account.consumed
        ledger.emitted += account.emitted
        ledger.changes += ledger.pending
        ledger.commits[offset] = record
        ledger.marks[offset] = Mark(len(ledger.consumed), len(ledger.emitted), len(ledger.changes))
        for output in record.outputs:
            at = output.stream, output.partition
            ledger.covered[at] = max(output.seq, ledger.covered.get(at, 0))
        self.settle(ledger)
        ledger.pending.clear()

    def _judge_consumed(self, ledger: TaskHistory, record: CommitRecord, account: Account) -> None:
        task = ledger.shape
        done = self._consumed[task.stage.name]
        if account.exactly_once:
            if account.label > record.version:
                self.fail(task.name, f"commit {record.version} holds effects of version {account.label}")
            for message in account.consumed:
                if message not in self.committed and not self._is_repeated(self._makers.get(message)):
                    self.fail(task.name, f"commit {record.version} consumes {message}, which nobody has committed")
        if self.moves is not None:
            self.moves.committed(task.name, record, account.consumed)
        for message in account.consumed:
            if message in done and not self._is_moved(message):
                self.fail(task.name, f"commit {record.version} consumes {message}, which was consumed before")
            done.add(message)

    def _is_moved(self, message: int) -> bool:
        return self.moves is not None and self.moves.is_source(message)

    def _judge_positions(self, ledger: TaskHistory, record: CommitRecord, account: Account) -> None:
        task = ledger.shape
        for entry in record.inputs:
            ssp = ledger.inputs[entry.stream, entry.partition]
            log = self.logs[ssp]
            oldest = 0 if self._again else log.oldest
            if entry.offset is not None and not oldest <= entry.offset <= log.end:
                self.fail(task.name, f"commit {record.version} resumes {ssp} at {entry.offset}, kept {log.oldest}")
            if not account.exactly_once:
                continue
            for parent in entry.parents:
                if parent.version < record.version and not self.impatient:
                    self.fail(task.name, f"commit {record.version}, but {parent.producer} closed {parent.version}")
                last = self._by_producer[parent.producer].last
                outputs = last.outputs if last else ()
                covered = next(
                    (o.seq for o in outputs if (o.stream, o.partition) == (entry.stream, entry.partition)), 0
                )
                if parent.seq > covered + 1 and not self._is_repeated((parent.producer, parent.generation)):
                    self.fail(
                        task.name,
                        f"commit {record.version} covers {ssp} of producer {parent.producer} through "
                        f"#{parent.seq}, which has committed #{covered}",
                    )

    # -- the end ---------------------------------------------------------------------------------------

    def missing(self) -> str | None:
        """What was committed, but not consumed by everybody who should; None: nothing."""
        for stage in self.shape.stages:
            done = self._consumed[stage.name]
            for message in sorted(self.committed - done):
                if self._is_moved(message):
                    continue
                if self._messages[message][0] in stage.takes and not self._too_late(stage.name, message):
                    return f"stage {stage.name} has not consumed message {message}"
        return None if self.moves is None else self.moves.missing(self._is_over)

    def _is_over(self, task: str) -> bool:
        last = self.ledgers[TaskName.parse(task)].last
        return last is not None and last.ended

    def _too_late(self, stage: str, message: int) -> bool:
        """Without barriers a reader may end on an attempt of its parent that is then repeated: it had it all."""
        if self.exactly_once or message not in self._landed:
            return False
        ssp, offset = self._landed[message]
        for ledger in self.ledgers.values():
            if ledger.shape.stage.name == stage and ssp in ledger.shape.inputs and ledger.last and ledger.last.ended:
                at = {(entry.stream, entry.partition): entry.offset or 0 for entry in ledger.last.inputs}
                return offset >= at[str(ssp.stream), ssp.partition]
        return False

    def check_ends(self) -> None:
        """Every task that is over has written its end to each partition that other tasks read."""
        read = {name for stage in self.shape.stages for name in stage.reads}
        for ledger in self.ledgers.values():
            written = ledger.shape.outputs.items()
            wanted = {SSP(stream, p) for stream, count in written if stream.name in read for p in range(count)}
            if ledger.last is not None and ledger.last.ended and ledger.ended != wanted:
                self.fail(ledger.shape.name, f"is over, and has not ended {sorted(wanted - ledger.ended)}")

    def check_state(self) -> None:
        """Every task's state, as its changelog has it, is what its committed input makes of it."""
        for ledger in self.ledgers.values():
            consumed = [self._messages[message] for message in ledger.consumed]
            processor = PROCESSORS[ledger.shape.stage.does]
            wrong = processor.check(ledger.state, consumed) if self.exactly_once else None
            if wrong:
                self.fail(ledger.shape.name, wrong)

    def check_copy(self, task: TaskName, what: str, state: dict[Any, Any], local: LocalCheckpoint) -> None:
        """A copy of a task's state (folder, snapshot) that claims to be at the last commit is equal to it."""
        ledger = self.ledgers[task]
        if next(reversed(ledger.commits), None) == local.offset and (found := values_in(state)) != ledger.state:
            self.fail(task, f"{what}: {found}, changelog: {ledger.state}")

    def stream_of(self, message: int) -> str:
        """The name of the stream that a message is in."""
        return self._messages[message][0]

    def differs_at(self, task: TaskName, mark: Mark, state: dict[Any, Any]) -> str | None:
        """How a copy of a task's state differs from what its changelog made of it by a commit."""
        wanted: dict[str, int] = {}
        for key, more in self.ledgers[task].changes[: mark.changes]:
            wanted[key] = wanted.get(key, 0) + more
        wanted = {key: value for key, value in wanted.items() if value}
        return None if (found := values_in(state)) == wanted else f"{found}, in the changelog: {wanted}"

    def expected_rows(self, ssp: SSP, start: Offset) -> set[int]:
        """The committed messages of an output partition that first landed at or behind an offset."""
        return {
            m for m in self.committed if m in self._landed and self._landed[m][0] == ssp and self._landed[m][1] >= start
        }

    def judge_rows(self, ssp: SSP, published: list[int], start: Offset) -> None:
        """What a reader that began at an offset has published: all that is committed, nothing else, nothing twice."""
        rows = set(published)
        if len(rows) != len(published):
            self.fail(ssp, f"published twice: {sorted(m for m in rows if published.count(m) > 1)}")
        if void := rows - self.committed - self.loose:
            self.fail(ssp, f"published, but not committed: {sorted(void)}")
        lost = self.expected_rows(ssp, start) - rows
        if lost:
            self.fail(ssp, f"committed, but not published: {sorted(lost)}")

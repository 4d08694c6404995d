"""Commits of a task: written, checked, durable, and kept for savepoints.

Runs on the run-loop thread, and pauses where it would wait for acknowledgements or the disk, or read for long.

**Durability.** With ``durability="commit"``, a commit survives a power cut, after which a file may lack everything that
wasn't synced. Three rules keep the remaining files consistent:

1. Before a commit record is appended, the task's writes are on the disk, or it could survive without its results.
2. So is everything that the task has read, whoever wrote it: or the record could name a position that its input no
   longer reaches, and the task would skip records written there later.
3. Before a commit has any consequence (its checkpoint is sent, a version is published, the log is trimmed), its record
   is on the disk. A starting task may find a record that another incarnation hasn't synced: so everything before its
   own abort is on the disk before it reads the abort.

**Landmarks.** A stream may have been replaced by another one of its name, or may have lost its end in a crash and grown
again. The commit's position may then still be valid, but mean other records. So commits keep landmarks. (An
intermediate stream needs none of its writer: its readers keep theirs.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET

from headrace.api.specs import Durability, Role
from headrace.core.errors import FencedError, InfrastructureError, ProtocolError, TrimmedOffsetError
from headrace.core.frame import Header
from headrace.core.ids import SSP, Offset, TaskName
from headrace.core.log import logger
from headrace.protocol.machine import ProtocolMachine
from headrace.protocol.protocol import Phase
from headrace.protocol.record import (
    COMMIT_FILE,
    DATABASE_FOLDER,
    Change,
    CommitRecord,
    Cut,
    Founding,
    InputEntry,
    KeptCommit,
    LocalCheckpoint,
    SourceEntry,
    encode_record,
)
from headrace.stores.base import Share
from headrace.stores.database import KeySpace
from headrace.stores.outbox import Outbox, timeline_begun
from headrace.systems.base import Edge, Position, Unsynced
from headrace.systems.registry import SystemSpec
from headrace.task.connections import Connections
from headrace.task.host.attempt import Attempt
from headrace.task.inputs.consumers import InputConsumers, not_what_was_read
from headrace.task.naming import task_folder
from headrace.task.scope import Pause, Steps, TaskScope
from headrace.task.state.changelog import ChangelogPartition
from headrace.task.state.task_state import TaskState

TASKS_AT_ONCE = 512  # how many tasks wait together at most: until then, the files that they have written stay open
T = TypeVar("T")


class Survival:
    """Waits for one task, if its app's durability requires it."""

    def __init__(self, durability: Durability, connections: Connections, inputs: InputConsumers) -> None:
        self._wanted = durability == "commit"
        self._connections = connections
        self._inputs = inputs
        self._waiting = self._reads = False

    def of_what_is_there(self, flushed: Callable[[], None]) -> Steps[None]:
        self._connections.flush_records()
        flushed()
        yield from self._wait(reads=True)

    def of_the_record(self) -> Steps[None]:
        yield from self._wait(reads=False)

    def _wait(self, *, reads: bool) -> Steps[None]:
        if not self._wanted:
            self._connections.waive_sync(self._inputs.unsynced() if reads else ())
            return
        self._waiting, self._reads = True, reads
        yield Pause.DISK
        if self._waiting:  # ``Together`` hasn't synced for several tasks
            self._connections.sync_records(self.unsynced())
            self.synced()

    def unsynced(self) -> Iterable[Unsynced]:
        return self._inputs.unsynced() if self._reads else ()

    def synced(self) -> None:
        self._waiting = False


class Together:
    """Does the work of several tasks one after the other, but makes them wait for the disk together."""

    def __init__(self, connections: Connections, at_once: int = TASKS_AT_ONCE) -> None:
        self._connections = connections
        self._at_once = at_once
        self._waiting: list[tuple[Survival, Steps[Any], Callable[[Any], None]]] = []

    def go_on(self, survival: Survival, work: Steps[T], done: Callable[[T], None] = lambda result: None) -> Steps[bool]:
        """Work for a task until it is ``done``. Return False if it waits for the disk; ``wait`` then continues it."""
        while True:
            try:
                pause = next(work)
            except StopIteration as stop:
                done(stop.value)
                return True
            if pause is Pause.DISK:
                self._waiting.append((survival, work, done))
                if len(self._waiting) >= self._at_once:
                    yield from self.wait()
                return False
            yield pause

    def wait(self) -> Steps[None]:
        while self._waiting:
            yield Pause.DISK
            waiting, self._waiting = self._waiting, []
            self._connections.sync_records(each for survival, _, _ in waiting for each in survival.unsynced())
            for survival, _, _ in waiting:
                survival.synced()
            for survival, work, done in waiting:
                yield from self.go_on(survival, work, done)


Entry = TypeVar("Entry", InputEntry, SourceEntry)
_log = logger(__name__)


class Landmarks:
    """The landmarks of one task's inputs, and of the outputs of the app that it writes."""

    def __init__(self, scope: TaskScope, inputs: InputConsumers, connections: Connections) -> None:
        self._task = scope.name
        self._inputs = inputs
        self._ssps = {(scope.position_name(ssp), ssp.partition): ssp for ssp in scope.specs}
        self._ssps |= {(str(ssp.stream), ssp.partition): ssp for ssp in scope.inputs}
        self._connections = connections
        self._accepts_losses = scope.settings.lost_results == "accept"
        self._outputs: dict[SSP, SystemSpec] = {}
        machine = scope.machine
        for stream in scope.outputs.values():
            name = stream.spec.stream
            if stream.spec.role is not Role.INTERMEDIATE and name in machine.outputs:
                ssps = [SSP(name, machine.own[name])] if name in machine.own else stream.ssps()
                self._outputs |= dict.fromkeys(ssps, stream.spec.system)
        self._written: dict[SSP, str] = {}  # by output partition the landmark for the next commit

    def flushed(self) -> None:
        for ssp, system in self._outputs.items():
            found = self._connections.record_producer(system).landmark(ssp.stream.name, ssp.partition)
            if found:
                self._written[ssp] = found

    def put_into(self, record: CommitRecord) -> CommitRecord:
        outputs = []
        for entry in record.outputs:
            found = self._written.get(SSP.of(entry.stream, entry.partition))
            outputs.append(entry if found is None else msgspec.structs.replace(entry, landmark=found))
        inputs, sources = map(self._with_landmark, record.inputs), map(self._with_landmark, record.sources)
        return msgspec.structs.replace(record, outputs=tuple(outputs), inputs=tuple(inputs), sources=tuple(sources))

    def _with_landmark(self, entry: Entry) -> Entry:
        ssp = self._ssps.get((entry.stream, entry.partition))
        if ssp is None or entry.offset is None or not (found := self._inputs.landmark(ssp, entry.offset)):
            return entry
        return msgspec.structs.replace(entry, landmark=found)

    def check(self, record: CommitRecord | None, positions: Mapping[SSP, Position]) -> None:
        """Raise ``StreamNotFoundError`` if an input has other records before the commit's position, and
        ``InfrastructureError`` if an output lacks what was written, unless the app accepts that."""
        entries: list[InputEntry | SourceEntry] = [] if record is None else [*record.inputs, *record.sources]
        for entry in entries:
            ssp = self._ssps.get((entry.stream, entry.partition))
            if ssp is None or entry.landmark is UNSET or positions.get(ssp) != entry.offset:
                continue
            if not self._inputs.has_landmark(ssp, entry.landmark):
                raise not_what_was_read(f"{ssp}: the record before offset {entry.offset} is missing")
        self._written = {}
        for written in () if record is None else record.outputs:
            ssp = SSP.of(written.stream, written.partition)
            if written.landmark is not UNSET and ssp in self._outputs:
                self._written[ssp] = written.landmark
        for ssp, landmark in [*self._written.items()]:
            if not self._has(ssp, landmark):
                self._note_loss(ssp)

    def _has(self, ssp: SSP, landmark: str) -> bool:
        with closing(self._connections.reader(self._outputs[ssp])) as reader:
            reader.register(ssp, Edge.OLDEST)
            return reader.has_landmark(ssp, landmark)

    def _note_loss(self, ssp: SSP) -> None:
        what = f"task {self._task}: the output {ssp} lacks results that this task has committed"
        if not self._accepts_losses:
            raise InfrastructureError(
                what,
                hint="the stream was replaced by another of its name, or lost its end in a crash of the machine: put "
                'the old one back. To continue without them, start the app with lost_results="accept" once',
            )
        _log.warning(f"{what}, which lost_results accepts")
        del self._written[ssp]


@dataclass(eq=False)
class Commits:
    """Writes and checks one task's commits, and takes the snapshots that keep its changelog short."""

    _task: TaskName
    _machine: ProtocolMachine
    _state: TaskState
    _changelog: ChangelogPartition
    _survival: Survival
    _landmarks: Landmarks

    def take_over(self, changes: Iterable[Change], pulse: Callable[[], None]) -> Steps[None]:
        for change in changes:
            self._state.adopt(change)
            self._changelog.append(self._machine.stamp_change(), change.encode())
            pulse()
            yield Pause.PROGRESS

    def append_changes(self, version: int) -> None:
        for change in self._state.changes(version):
            self._changelog.append(self._machine.stamp_change(), change.encode())

    def append_record(self, sources: tuple[SourceEntry, ...], times: bytes) -> Steps[None]:
        header, record = self._machine.seal(sources=sources, bookkeeping=times)
        data = encode_record(self._landmarks.put_into(record))
        self._state.grown(len(data))
        yield from self.append(header, data)

    def append(self, header: Header, data: bytes) -> Steps[None]:
        self._changelog.append(header, data)
        yield Pause.ACKNOWLEDGED
        end = self._changelog.flush()
        yield from self._survival.of_the_record()
        self._machine.performed(end)

    def check(self, start: Offset | None, end: Offset) -> Steps[None]:
        try:
            for offset, header, body in self._changelog.read(start, end):
                self._machine.changelog(offset, header, body)
                yield Pause.PROGRESS
        except TrimmedOffsetError as error:
            raise FencedError(
                f"task {self._task}: the changelog was trimmed past its last commit: {error.message}",
                hint="this is a stale copy of the task; its replacement has taken a snapshot since",
            ) from error

    def snapshot_if_due(self, local: LocalCheckpoint) -> Steps[None]:
        yield Pause.PROGRESS
        trim = self._state.snapshot_if_due(local)
        if trim is not None:
            yield Pause.PROGRESS
            self._changelog.trim(trim)

    def trim_what_was_sent(self) -> Steps[None]:
        trim = self._state.learned()
        if trim is not None:
            yield Pause.PROGRESS
            self._changelog.trim(trim)


CutState = Literal["waiting", "kept", "missed"]


class Keeper:
    """Keeps the state of one task at the cut that the coordinator orders."""

    def __init__(self, task: TaskName, machine: ProtocolMachine, state: TaskState) -> None:
        self._task = task
        self._machine = machine
        self._state = state
        self._cut: Cut | None = None

    def order(self, cut: Cut | None) -> None:
        """Take part in this cut; None cancels it. Repeating an order changes nothing."""
        if cut == self._cut:
            return
        self._cut = cut
        self._machine.cut(None if cut is None else cut.version)
        if self._machine.phase is Phase.OVER:
            self.ended()

    def ended(self) -> None:
        """Keep the final state, which is the task's only one, unless its version is above the cut's."""
        cut = self._cut
        if cut is not None and self._machine.version <= cut.version and not self._machine.cut_kept:
            self.keep()

    @property
    def state(self) -> tuple[str, CutState] | None:
        if self._cut is None:
            return None
        if self._machine.cut_missed:
            return self._cut.id, "missed"
        return self._cut.id, "kept" if self._machine.cut_kept else "waiting"

    @property
    def holds(self) -> bool:
        return self._cut is not None and self._cut.last and self._machine.cut_kept

    def keep(self) -> None:
        cut, local, record = self._cut, self._machine.local, self._machine.record
        if cut is None or local is None or record is None:
            raise ProtocolError(f"task {self._task}: no commit to keep")
        folder = Path(cut.folder) / task_folder(self._task)
        kept = KeptCommit(task=str(self._task), offset=local.offset, record=record)
        self._state.keep(folder / DATABASE_FOLDER, folder / COMMIT_FILE, kept.encode())
        self._machine.kept()
        _log.info("kept the state for a savepoint", task=str(self._task), version=record.version, folder=str(folder))


def columns_for(store: str, shares: Mapping[str, Sequence[str]]) -> Sequence[str]:
    while store and store not in shares:
        store = store.rpartition(".")[0]
    return shares.get(store, ())


def taken_over(
    founding: Founding | None, task: TaskName, state: TaskState, new_attempt: Callable[[], Attempt]
) -> Iterator[Change]:
    """The task's share of the donors' state; its outboxes begin another timeline."""
    if founding is None:
        raise ProtocolError(f"task {task}: no state to take over", hint="this is a bug in the planning")
    for donor in founding.donors:
        share = None
        if founding.shares is not None:
            # State without a key stays with its task, because a target knows its writers by their numbers.
            share = Share(task.number, founding.tasks, first=donor.number == task.number)
        with state.donated(donor.folder / DATABASE_FOLDER) as database, closing(new_attempt()) as attempt:
            for name, store in attempt.stores().items():
                if name in founding.copied and donor != founding.donors[0]:
                    continue
                store.attach(KeySpace(database, name))
                mine = None
                if share is not None and founding.shares is not None and name not in founding.copied:
                    mine = share.by(columns_for(name, founding.shares))
                for change in store.whole(mine):
                    yield Change(name, change)
    with closing(new_attempt()) as attempt:
        for name, store in attempt.stores().items():
            if isinstance(store, Outbox):
                yield Change(name, timeline_begun(founding.record.version))

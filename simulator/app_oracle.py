"""The judge of an app with real operators.

Frames take the place of messages: each is known by who wrote it and as which, and must be committed, consumed and
published as in the shapes without operators. Also, the state in each changelog is rebuilt in new stores at the end
and compared with every copy of it, and what the outputs hold with what the messages make of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

import polars as pl
from msgspec import UNSET
from typing_extensions import override

from headrace.api.specs import Role
from headrace.core.frame import END_VERSION, HEADER_SIZE, body_of
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.plan.chain_plan import chain_plan
from headrace.plan.model import StreamPlan
from headrace.protocol.record import Change, CommitRecord, LocalCheckpoint
from headrace.rows.ipc import decode_rows
from headrace.stores.base import StateStore
from headrace.stores.database import KeySpace
from headrace.stores.keyed import KeyedRows
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.outbox import Outbox
from headrace.stores.runs import Runs
from headrace.stores.table import RowReader
from headrace.systems.registry import keeps_rows
from headrace.task.calls import Calls
from headrace.task.event_time import decode_times
from headrace.task.metrics import TaskMetrics
from headrace.task.task import Chain
from simulator.disks import SimDatabase
from simulator.expected import Message, Row
from simulator.lives import Arrival, Lives, Version
from simulator.one_at_a_time import heard_again, together, waits_for_answers
from simulator.oracle import Account, Mark, Oracle, TaskHistory
from simulator.planned import AppShape
from simulator.shapes import TaskShape
from simulator.shard_judge import ShardJudge
from simulator.storage import STEP, Folder
from simulator.sums import CHANGE, WrongChangeError, added_up
from simulator.world import World

_LAYOUTS_KEY = b"\xff"
"""Where tables keep what their rows are like."""

_UNREAD = TaskMetrics()

COPIES_CHECKED = 0.5
"""How many copies are compared with the changelog: it costs as much as a task's whole life."""


@dataclass(frozen=True)
class Inherited:
    """What a timeline has from those before it: what its savepoint covers, and what it doesn't.

    ``spans`` are the versions that count, each range from above the first to the second.
    """

    consumed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    emitted: frozenset[int] = frozenset()
    outdated: frozenset[int] = frozenset()
    """What is in outputs, and is made again in this timeline."""
    spans: tuple[tuple[int, int], ...] = ((-1, END_VERSION),)

    def has(self, version: int) -> bool:
        """Whether what belongs to a version counts."""
        return any(low < version <= high for low, high in self.spans)


class AppOracle(Oracle):
    """Judges one run of an app."""

    shape: AppShape

    def __init__(self, world: World, shape: AppShape, tasks: list[TaskShape]) -> None:
        super().__init__(world, shape, tasks, exactly_once=not shape.case.repeats_work)
        self.inputs: dict[str, list[Message]] = {}
        self._ids: dict[tuple[str, int, bytes, bytes], int] = {}
        self._of_source: dict[tuple[SSP, Offset], int] = {}
        self._of_row: dict[tuple[StreamId, int], int] = {}
        self._read_as: dict[int, tuple[str, Sequence[Message]]] = {}
        """Of each frame or row of a source the input and what is in it."""
        self.shards: dict[StreamId, ShardJudge] = {}
        """The judges of the streams with shards."""
        self._bodies: dict[int, bytes] = {}
        self._ends: dict[TaskName, Mapping[str, object]] = {}
        self._rows: dict[int, Sequence[Row]] = {}
        self._lives: dict[TaskName, list[Version]] = {task.name: [] for task in tasks}
        self._accounts: dict[TaskName, list[Account]] = {task.name: [] for task in tasks}
        """What each task has done for the commits that count."""
        self._streams = {s.spec.stream.name: s.spec.id for v in shape.versions for s in v.plan.streams.values()}
        self._numbers = count(1)
        self.inherited = Inherited()

    # -- frames ------------------------------------------------------------------------------------------

    def source_frame(self, stream: StreamPlan, ssp: SSP, offset: Offset, messages: Sequence[Message]) -> None:
        """A frame of a source exists, and is to be read. Side inputs may be read by many."""
        self.inputs[stream.spec.id] += messages
        if stream.spec.role is Role.SOURCE:
            known = next(self._numbers)
            self._rows[known] = [asdict(message) for message in messages] if self.shape.case.asks else []
            self._of_source[ssp, offset] = known
            self._read_as[known] = stream.spec.id, messages
            self._messages[known] = (ssp.stream.name, 0)
            self.committed.add(known)
            self.given.add(known)

    def source_row(self, stream: StreamPlan, message: Message) -> int:
        """A row of a source exists, and is to be read."""
        known = next(self._numbers)
        self.inputs[stream.spec.id].append(message)
        self._rows[known] = [asdict(message)] if self.shape.case.asks else []
        self._of_row[stream.spec.stream, message.id] = known
        self._read_as[known] = stream.spec.id, [message]
        self._messages[known] = (stream.spec.stream.name, 0)
        self.committed.add(known)
        self.given.add(known)
        return known

    def source_lost(self, stream: StreamPlan, ssp: SSP, offsets: Collection[Offset]) -> None:
        """These frames of a source are gone, and those behind them come in their place."""
        lost = [self._of_source.pop((ssp, offset)) for offset in offsets if (ssp, offset) in self._of_source]
        for frame in lost:
            gone = {message.id for message in self._read_as[frame][1]}
            messages = self.inputs[stream.spec.id]
            self.inputs[stream.spec.id] = [message for message in messages if message.id not in gone]
        behind = sorted(at for of, at in self._of_source if of == ssp and at > max(offsets))
        for at in behind:
            self._of_source[ssp, at - STEP * len(offsets)] = self._of_source.pop((ssp, at))
        self.unmade(lost)

    @override
    def _forget(self) -> None:
        super()._forget()
        self._lives = {name: [] for name in self.ledgers}
        self._accounts = {name: [] for name in self.ledgers}

    @override
    def rows_of(self, ssp: SSP, rows: Sequence[int]) -> list[int]:
        if unknown := [row for row in rows if (ssp.stream, row) not in self._of_row]:
            self.fail(ssp, f"the rows {unknown} are read, and are from before the app's time")
        return [self._of_row[ssp.stream, row] for row in rows]

    def source_message(self, ssp: SSP, offset: Offset) -> int:
        """The id of a frame of a source."""
        return self._of_source[ssp, offset]

    def _read_inputs(self) -> Mapping[str, Sequence[Message]]:
        """What the app has read: all there is, but if positions move, what the commits say, as often as they do."""
        if self.moves is None:
            return self.inputs
        moved = {id_ for id_, _ in self._read_as.values()}
        found = {id_: [] if id_ in moved else messages for id_, messages in self.inputs.items()}
        for ledger in self.ledgers.values():
            for frame in ledger.consumed:
                if frame in self._read_as:
                    id_, messages = self._read_as[frame]
                    found[id_] += messages
        return found

    @override
    def consumed_of(self, ssp: SSP, offset: Offset, payload: bytes) -> int | None:
        """See ``Oracle``; frames of side inputs aren't accounted for."""
        return self.message_of(ssp, payload) if ssp in self.logs else self._of_source.get((ssp, offset))

    @override
    def emitted(self, message: int, stream: str, payload: bytes) -> None:
        self._messages[message] = (stream, 0)

    @override
    def message_of(self, ssp: SSP, payload: bytes) -> int:
        """A frame is known by producer, generation and seq: the label may differ, and says nothing."""
        name = (ssp.stream.name, ssp.partition, payload[1:9], payload[17:HEADER_SIZE])
        known = self._ids.get(name)
        if known is None:
            self._ids[name] = known = next(self._numbers)
            self._bodies[known] = payload
        return known

    @override
    def lived(self, ledger: TaskHistory, record: CommitRecord, account: Account) -> None:
        self._judge_shards(ledger.shape, record, account)
        self._accounts[ledger.shape.name].append(account)
        if not self.shape.case.asks:
            return
        arrivals = []
        for frame, told in zip(account.consumed, account.told, strict=True):
            if frame not in self._rows:
                self._rows[frame] = decode_rows(body_of(self._bodies[frame])).to_dicts()
            arrivals.append(Arrival(self._streams[self._messages[frame][0]], self._rows[frame], *told))
        time = decode_times(record.bookkeeping).watermark
        self._lives[ledger.shape.name].append(Version(int(self._at), tuple(arrivals), time, account.latest))

    def _judge_shards(self, task: TaskShape, record: CommitRecord, account: Account) -> None:
        if not self.shards:
            return
        scope = self.shape.scopes[task.name]
        entries = {(entry.stream, entry.partition): entry for entry in record.sources}
        for stream, judge in self.shards.items():
            slots = {}
            for ssp in task.sources:
                entry = entries.get((scope.position_name(ssp), ssp.partition))
                if ssp.stream == stream and entry is not None:
                    slots[ssp.partition] = {} if entry.shards is UNSET else entry.shards
            if slots:
                judge.committed(task.name, slots, account.consumed)

    @property
    def lives(self) -> Lives:
        """What the tasks of each stage have committed so far."""
        lives: dict[str, list[list[Version]]] = {}
        for name, versions in self._lives.items():
            lives.setdefault(name.stage, []).append(versions)
        return lives

    def follow(
        self, before: AppOracle, inherited: Inherited, generations: Mapping[int, int], finished: Collection[TaskName]
    ) -> None:
        """Judge the timeline that comes after that of ``before``: frames keep their numbers.

        ``finished`` are the tasks that have written all their ends by the savepoint.
        """
        self.inputs, self._numbers, self.accounts = before.inputs, before._numbers, before.accounts
        self._ids, self._bodies, self._of_source = before._ids, before._bodies, before._of_source
        self._messages, self._landed, self._makers, self._rows = (
            before._messages,
            before._landed,
            before._makers,
            before._rows,
        )
        self._streams = {**before._streams, **self._streams}
        self.inherited = inherited
        sources = set(self._of_source.values())
        self.committed = {m for m in before.committed if m in sources or self._messages[m][0] in self.shape.outputs}
        for stage, messages in inherited.consumed.items():
            self._consumed[stage] |= messages
        self.first_generations = dict(generations)
        before.later_generations = dict(generations)
        for name, ledger in self.ledgers.items():
            known = before.ledgers.get(name)
            outputs = {str(self.shape.id_of(output)) for output in self.shape.outputs}
            if known is not None:
                ledger.covered = {at: seq for at, seq in known.covered.items() if at[0] in outputs}
            if name in finished:
                ledger.ended |= {SSP(s, p) for s, n in ledger.shape.outputs.items() for p in range(n)} & self._read()

    def _read(self) -> set[SSP]:
        """The partitions that some stage reads."""
        return {ssp for ledger in self.ledgers.values() for ssp in ledger.shape.inputs}

    # -- state -------------------------------------------------------------------------------------------

    @override
    def read_change(self, body: memoryview) -> object:
        return bytes(body)

    @override
    def settle(self, ledger: TaskHistory) -> None:
        """What changes make of state is worked out when it is asked for."""

    @override
    def check_state(self) -> None:
        """The tables that the changelogs make hold what the messages say, and stores that forget are empty."""
        for name in self.ledgers if self.shape.case.forgets else ():
            for id_, kept in self._wanted(name).items():
                if id_ in self.shape.case.forgets and _left(kept):
                    self.fail(name, f"store {id_} still holds {kept}")
        for table, wanted in self.shape.case.tables(self._read_inputs()).items():
            held: set[int] = set()
            for name in self.ledgers:
                store = self.rebuilt(name).get(table)
                if store is not None:
                    held |= self._check_table(name, table, store, wanted)
            if held != wanted.keys():
                self.fail("run", f"table {table} has the keys {sorted(held)}, not {sorted(wanted)}")

        self._check_order()

    def _check_order(self) -> None:
        """Each task has written what it would have written one message at a time, in that order."""
        whole = self.inherited == Inherited() and not self.shape.case.before and not self.shape.case.repeats_work
        for task, accounts in self._accounts.items() if whole else ():
            if self.world.mishaps.random() > self.shape.case.orders:
                continue
            operators = chain_plan(self.shape.plan, self.shape.plan.stage(task.stage))
            if waits_for_answers(operators):
                continue
            heard = [event for account in accounts for event in account.heard]
            found = together(rows for account in accounts for rows in account.written)
            wanted = heard_again(operators, heard)
            for stream in (found.keys() | wanted.keys()) - self.shape.plan.combined.keys():
                have, want = (self._comparable(task, stream, rows.get(stream, [])) for rows in (found, wanted))
                if have != want:
                    self.fail(task, f"writes {have} to {stream}, one at a time {want}")

    def _comparable(self, who: object, stream: str, rows: Sequence[tuple[Any, ...]]) -> object:
        """Rows that were written, so that they are equal whenever they are right."""
        schema = self.shape.plan.streams[stream].spec.schema
        if schema is None or CHANGE not in schema.columns:
            return rows
        return self._sum(who, stream, (dict(zip(sorted(schema.columns), row, strict=True)) for row in rows))

    def _sum(self, who: object, stream: str, changes: Iterable[Row]) -> list[Row]:
        try:
            return [*added_up(changes, self.shape.case.keys.get(stream, ()))]
        except WrongChangeError as error:
            self.fail(who, f"{stream}: {error}")

    @override
    def check_copy(self, task: TaskName, what: str, state: dict[Any, Any], local: LocalCheckpoint) -> None:
        """See ``Oracle``: stores find in a copy what they find in the changelog."""
        last = next(reversed(self.ledgers[task].commits), None)
        keeps = task in self.shape.scopes and _stores_of(self.shape, task)[0]
        if not keeps or last != local.offset or self.world.mishaps.random() > COPIES_CHECKED:
            return
        stores = self._empty_stores(task)
        wanted = self._wanted(task)
        database = SimDatabase(Folder(state))
        for id_, store in stores.items():
            store.attach(KeySpace(database, id_))
            if (found := contents(store)) != wanted[id_]:
                self.fail(task, f"store {id_} in the {what}: {found}, in the changelog: {wanted[id_]}")

    def _wanted(self, task: TaskName) -> Mapping[str, object]:
        """What the task's stores hold at the end, by its changelog; those of windows and joins nothing."""
        if task not in self._ends:
            stores = self.rebuilt(task)
            self._ends[task] = {id_: contents(store) for id_, store in stores.items()}
            for id_, store in stores.items():
                if isinstance(store, Runs | KeyedRows) and id_ not in self.shape.case.lasting and height(store):
                    self.fail(task, f"store {id_} still holds {self._ends[task][id_]}")
        return self._ends[task]

    @override
    def differs_at(self, task: TaskName, mark: Mark, state: dict[Any, Any]) -> str | None:
        database = SimDatabase(Folder(state))
        copies = self._empty_stores(task)
        for id_, store in self.rebuilt(task, mark.changes).items():
            copies[id_].attach(KeySpace(database, id_))
            if (found := contents(copies[id_])) != (wanted := contents(store)):
                return f"store {id_}: {found}, in the changelog: {wanted}"
        return None

    def rebuilt(self, task: TaskName, most: int | None = None) -> dict[str, StateStore]:
        """The task's stores, filled from all that counts in its changelog, or from so many changes."""
        stores = self._empty_stores(task)
        if task not in self.shape.scopes:
            return stores
        dropped = self.shape.plan.stage(task.stage).dropped
        for body in self.ledgers[task].changes[:most]:
            change = Change.decode(body)
            if change.store in stores:
                stores[change.store].apply(bytes(change.change))
            elif change.store not in dropped:
                self.fail(task, f"its changelog holds changes of {change.store}, which it doesn't have")
        return stores

    def _empty_stores(self, task: TaskName) -> dict[str, StateStore]:
        """New stores of the task's kinds."""
        if task not in self.shape.scopes:
            return {}
        stores, shared = _stores_of(self.shape, task)
        return {id_: deepcopy(store, dict(shared)) for id_, store in stores.items()}

    def _check_table(self, task: TaskName, table: str, store: StateStore, wanted: Mapping[int, set[int]]) -> set[int]:
        spec = self.shape.plan.graph.tables[table]
        if not isinstance(store, KeyValueStore) or spec.schema is None:
            self.fail(task, f"table {table} isn't kept by key")
        held = set()
        for rows in RowReader(store, spec.schema.columns, spec.key).scan():
            for row in rows.to_dicts():
                key, value = row["k"], row[self.shape.case.table_column]
                held.add(key)
                if value not in wanted.get(key, ()):
                    self.fail(task, f"table {table} ends with {value} for key {key}, not with one of {wanted.get(key)}")
        return held

    # -- results -----------------------------------------------------------------------------------------

    def judge_results(self, published: Mapping[str, Sequence[int]], targets: Mapping[str, Sequence[Row]]) -> None:
        """The rows of all outputs are those that the messages make: ``published`` frames, and rows in ``targets``."""
        outputs: dict[str, list[Row]] = {name: list(rows) for name, rows in targets.items()}
        for name, frames in published.items():
            outputs[name] = self._decoded(frame for frame in frames if frame not in self.inherited.outdated)
        case, inputs = self.shape.case, self._read_inputs()
        if case.repeats_work:
            outputs |= self._committed_rows(lambda name: True)
        outputs |= {name: self._sum("run", name, rows) for name, rows in outputs.items() if rows and CHANGE in rows[0]}
        wrong = case.wrong(inputs, outputs)
        if wrong is None and case.wrong_by_lives is not None:
            wrong = case.wrong_by_lives(inputs, outputs, self.lives)
        if wrong:
            self.fail("run", wrong)

    def judge_due(self) -> None:
        """The sources are about to end: what has to be there by now, is."""
        if self.shape.case.due is None:
            return
        outputs = self._committed_rows(self.shape.outputs.__contains__)
        wrong = self.shape.case.due(self._read_inputs(), outputs, self.lives)
        if wrong:
            self.fail("run", f"before the sources end: {wrong}")

    def _committed_rows(self, of: Callable[[str], bool]) -> dict[str, list[Row]]:
        """What is committed in the streams with certain names, by their ids."""
        rows: dict[str, list[Row]] = {}
        for ssp in self.logs:
            if of(ssp.stream.name):
                rows.setdefault(self._streams[ssp.stream.name], []).extend(
                    self._decoded(sorted(self.expected_rows(ssp, 0)))
                )
        return rows

    def _decoded(self, frames: Iterable[int]) -> list[Row]:
        return [row for id_ in frames for row in decode_rows(body_of(self._bodies[id_])).to_dicts()]


_Stores = tuple[dict[str, StateStore], dict[int, object]]

_STORES: dict[tuple[object, ...], _Stores] = {}
"""To copy while they are empty: making a task takes longer than filling its stores.

With what the copies share, by its id: what stores count is no part of their state, and operators only tell them how to
merge.
"""


def _stores_of(shape: AppShape, task: TaskName) -> _Stores:
    key = (*shape.key, shape.heritage, task)
    if key not in _STORES:
        _STORES[key] = _new_stores(shape, task)
    return _STORES[key]


def _new_stores(shape: AppShape, task: TaskName) -> _Stores:
    scope = shape.scopes[task]
    operators = chain_plan(shape.plan, shape.plan.stage(task.stage))
    chain = Chain(operators, _Nowhere(), _UNREAD, Calls(lambda: None))
    kept_as = shape.plan.stage(task.stage).kept_as
    stores = {kept_as.get(id_, id_): store for id_, store in chain.stores().items()}
    specs = [stream.spec for stream in scope.outputs.values()]
    stores |= {spec.id: Outbox(spec.id) for spec in specs if keeps_rows(spec.system)}
    return stores, {id(part): part for part in (_UNREAD, *chain)}


class _Nowhere:
    """A port for tasks that only lend their stores."""

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        """See ``Port``."""
        raise AssertionError(f"a task that nobody feeds writes to {stream}")


def height(store: Runs | KeyedRows) -> int:
    """How many rows a store holds."""
    rows = store.scan()
    return 0 if rows is None else rows.height


def _left(entries: object) -> bool:
    """There are entries but for the one that says what the others are like."""
    return isinstance(entries, list) and any(key != _LAYOUTS_KEY for key, _ in entries)


def contents(store: StateStore) -> object:
    """What a store holds, in a form that doesn't depend on how it came there."""
    match store:
        case Runs():
            return _rows(store.scan()), store.taken
        case KeyedRows():
            return _rows(store.scan())
        case KeyValueStore():
            return list(store.range(b"", None))
        case Outbox():
            return store.pending_bytes, store.entries(), store.timelines
        case _:
            raise AssertionError(f"a store of an unknown kind: {store.id}")


def _rows(frame: pl.DataFrame | None) -> list[tuple[Any, ...]]:
    return [] if frame is None else sorted(frame.select(sorted(frame.columns)).rows(), key=repr)

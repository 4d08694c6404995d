"""The tables of a task: filled, looked up, remote, expired, and queried from outside.

Committed tables are for threads other than the run loop's. The local database holds only committed state and is pinned
for each answer, which is bounded in rows and bytes, so an answer shows exactly one commit. Reads wait for the disk. All
else is on the run loop's thread. Each table of a task is a store under the table's id, shared by the steps that fill it
and those that join it. The wall clock decides what has expired; it is set before anything is read or written.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

import numpy as np
import polars as pl

from headrace.api.operators.join import SendToTable
from headrace.api.operators.spec import EventTime
from headrace.api.remote import Remote
from headrace.api.specs import StreamSpec, TableSpec
from headrace.core.calls import TokenBucket
from headrace.core.clock import format_ms
from headrace.core.errors import DataError, PlanError, UsageError
from headrace.plan.chain_plan import TablesPlan
from headrace.plan.passes import Queryable
from headrace.protocol.record import LOCAL_KEY, LocalCheckpoint
from headrace.rows.dtypes import Columns
from headrace.rows.given import as_polars
from headrace.rows.ipc import encode_rows
from headrace.rows.schema import Schema
from headrace.stores.base import GONE, SINCE, StateStore
from headrace.stores.database import KeySpace, Pin
from headrace.stores.encoding import KeyEncoding
from headrace.stores.keyvalue import CommittedKeyValues, KeyValueStore
from headrace.stores.records import RecordStore
from headrace.stores.table import ROWS_END, MemoryTable, RowReader, RowTable, TableStore
from headrace.stores.versions import VERSION_COLUMNS, VersionedTable, Versions
from headrace.systems.base import KeyedSystem, Lookup
from headrace.systems.registry import SystemSpec, open_row_system
from headrace.task.calls import Calls, Lane
from headrace.task.event_time import NEVER, time_ms
from headrace.task.metrics import TaskMetrics
from headrace.task.state.task_state import TaskState

# -- committed rows ----------------------------------------------------------------------------------
ROW_BYTES_MAX = 2 << 20
_FOUND = "__found"


class RowPage(NamedTuple):
    """Rows in the order of keys. ``more``: the bounds left some out, after the key ``last``."""

    rows: pl.DataFrame
    more: bool
    last: bytes


def committed_rows(table: Queryable, pin: Pin, now_ms: int) -> _OnDisk | _InMemory:
    """The rows that haven't expired at ``now_ms``. Of versions only the newest, with ``VERSION_COLUMNS``."""
    columns = {**table.columns, **({} if table.versions_ms is None else VERSION_COLUMNS)}
    if table.storage == "memory":
        return _InMemory(table, columns, pin, now_ms)
    return _OnDisk(table, columns, pin, now_ms)


class _OnDisk:
    def __init__(self, table: Queryable, columns: Columns, pin: Pin, now_ms: int) -> None:
        self._reads = CommittedKeyValues(table.id, KeySpace(pin, table.kept_as), ttl_ms=table.ttl_ms)
        self._reads.advance(now_ms)
        self.rows = RowReader(self._reads, columns, table.key)

    def get(self, keys: Sequence[bytes], bytes_max: int) -> RowPage:  # of existing keys; these ascend
        there = ((key, value) for key, value in zip(keys, self._reads.get_many(keys), strict=True) if value is not None)
        return self._bounded(there, len(keys), bytes_max)

    def scan(self, low: bytes, high: bytes, rows_max: int, bytes_max: int) -> RowPage:
        return self._bounded(self._reads.range(low, high) if low < high else (), rows_max, bytes_max)

    def _bounded(self, entries: Iterable[tuple[bytes, bytes]], rows_max: int, bytes_max: int) -> RowPage:
        taken: list[tuple[bytes, bytes]] = []
        size = 0
        more = False
        for entry in entries:
            weight = len(entry[0]) + len(entry[1])
            more = bool(taken) and (len(taken) >= rows_max or size + weight > bytes_max)
            if more:
                break
            _check_size(weight)
            taken.append(entry)
            size += weight
        if not taken:
            return RowPage(pl.DataFrame(schema={**self.rows.key, **self.rows.values}), False, b"")
        return RowPage(self.rows.rows_of(taken), more, taken[-1][0] if more else b"")


class _InMemory:
    def __init__(self, table: Queryable, columns: Columns, pin: Pin, now_ms: int) -> None:
        self.rows = MemoryTable(table.id, columns, table.key, ttl_ms=table.ttl_ms, in_memory=False)
        self.rows.store.attach(KeySpace(pin, table.kept_as))
        self.rows.advance(now_ms)
        self._keys = KeyEncoding(self.rows.key)

    def get(self, keys: Sequence[bytes], bytes_max: int) -> RowPage:
        asked = self._keys.decode(keys)
        rows = pl.concat([asked, self.rows.get_rows(asked, found=_FOUND)], how="horizontal")
        there = rows.get_column(_FOUND)
        return self._bounded(rows.filter(there).drop(_FOUND), list(pl.Series(keys).filter(there)), False, bytes_max)

    def scan(self, low: bytes, high: bytes, rows_max: int, bytes_max: int) -> RowPage:
        if low >= high:
            return RowPage(pl.DataFrame(schema={**self.rows.key, **self.rows.values}), False, b"")
        rows, keys = self.rows.between(low, high, rows_max + 1)
        return self._bounded(rows.head(rows_max), keys[:rows_max], rows.height > rows_max, bytes_max)

    def _bounded(self, rows: pl.DataFrame, keys: Sequence[bytes], more: bool, bytes_max: int) -> RowPage:
        page = rows
        while page.height and (size := len(encode_rows(page))) > bytes_max and page.height > 1:
            page = page.head(max(1, min(page.height * bytes_max // size, page.height - 1)))
        if page.height == 1:
            _check_size(size)
        more = more or page.height < rows.height
        return RowPage(page, more, keys[page.height - 1] if more else b"")


def _check_size(size: int) -> None:
    if size > ROW_BYTES_MAX:
        raise DataError(f"a row of {size} bytes is too large for an answer; a row may have {ROW_BYTES_MAX} bytes")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Page:
    """A ``RowPage`` as of the commit of this version (None: nothing has been committed yet)."""

    version: int | None
    rows: pl.DataFrame
    more: bool
    last: bytes


@dataclass(eq=False)
class CommittedTables:
    """The tables and stores of one task. Any thread may call."""

    _state: TaskState
    _tables: Mapping[str, Queryable]
    _now_ms: Callable[[], int]  # decides what has expired
    _bound_of: Callable[[str], int] = lambda table: NEVER  # from when on a table has all versions

    def get(self, table: str, keys: Sequence[bytes], bytes_max: int, *, at_ms: int | None = None) -> Page:
        if not all(b"\x00" <= key < ROWS_END for key in keys):
            raise UsageError(f"one of {len(keys)} keys isn't a key of table {table!r}")
        ordered = sorted(set(keys))
        return self._page(table, lambda rows: rows.get(ordered, bytes_max), at_ms)

    def scan(
        self, table: str, low: bytes, high: bytes, rows_max: int, bytes_max: int, *, at_ms: int | None = None
    ) -> Page:
        end = min(high or ROWS_END, ROWS_END)
        return self._page(table, lambda rows: rows.scan(low, end, rows_max, bytes_max), at_ms)

    def _page(self, table: str, look: Callable[[_OnDisk | _InMemory], RowPage], at_ms: int | None) -> Page:
        known = self._known(table, at_ms)
        # Ask before and after pinning: if the task restarts meanwhile, one of the bounds is of this commit or later.
        bound = NEVER if at_ms is None else self._bound_of(table)
        with self._state.committed() as pin:
            newest = committed_rows(known, pin, self._now_ms())
            found = look(newest)
            rows = found.rows
            if at_ms is not None:
                bound = max(bound, self._bound_of(table))
                rows = _as_of(known, newest, found.rows, pin, at_ms, bound)
            elif known.versions_ms is not None:
                # The newest version of each row, unless it is a deletion.
                rows = rows.filter(~pl.col(GONE).fill_null(False)).drop(VERSION_COLUMNS)
            commit = pin.get(LOCAL_KEY)
        version = None if commit is None else LocalCheckpoint.decode(commit).version
        return Page(version, rows, found.more, found.last)

    def _known(self, table: str, at_ms: int | None) -> Queryable:
        known = self._tables.get(table)
        if known is None:
            raise UsageError(
                f"this app has no table {table!r}", hint=f"its tables: {', '.join(self._tables) or 'none'}"
            )
        if known.kind == "remote":
            raise UsageError(
                f"table {table!r} is remote: its task has none of its rows", hint="query the system that keeps them"
            )
        if at_ms is not None and known.versions_ms is None:
            raise UsageError(
                f"table {table!r} has no versions: its rows are as they are now", hint="ask without a time"
            )
        return known


def _as_of(
    table: Queryable, newest: _OnDisk | _InMemory, rows: pl.DataFrame, pin: Pin, at_ms: int, bound: int
) -> pl.DataFrame:
    versions = Versions(table.id, newest.rows)
    versions.attach_history(KeySpace(pin, f"{table.kept_as}.history"))
    bound = max(bound, NEVER if versions.dropped_through is None else versions.dropped_through)
    if at_ms < bound:
        raise UsageError(
            f"table {table.id!r} no longer has all rows as of {_time(at_ms)}: "
            f"versions are kept until they are {format_ms(table.versions_ms or 0)} older than the watermark",
            hint=f"ask for {_time(bound)} or later, or keep versions= for longer",
        )
    keys = rows.select(table.key)
    if not keys.height:
        return rows.drop(VERSION_COLUMNS)
    values = versions.as_of(keys, np.full(keys.height, at_ms, np.int64), found=_FOUND)
    return pl.concat([keys, values], how="horizontal").filter(_FOUND).drop(_FOUND)


def _time(ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{ms} ms"


SWEEP_INTERVAL_MS = 250
SWEEP_ROWS = 4096  # the number of rows that a step examines: a few milliseconds of work


class Sweeper:
    """Sets the clock of stores, and removes their expired rows in small steps, a few times a second."""

    def __init__(self, stores: Iterable[KeyValueStore | RowTable]) -> None:
        self._stores = tuple(stores)
        self._at = 0

    def tell_time(self, now_ms: int) -> None:
        for store in self._stores:
            store.advance(now_ms)

    def due_ms(self) -> int | None:
        return self._at if self._stores else None

    def on_time(self, now_ms: int) -> None:
        if not self._stores or now_ms < self._at <= now_ms + SWEEP_INTERVAL_MS:
            return
        self._at = now_ms + SWEEP_INTERVAL_MS
        for store in self._stores:
            store.sweep(now_ms, SWEEP_ROWS)


Key = tuple[Any, ...]
Row = tuple[Any, ...]


class RowCache:
    """The least recently used key is evicted. Tuples: a dict finds a few keys faster than any columnar look-up."""

    def __init__(self, rows: int, ttl_ms: int) -> None:
        self._most = rows
        self._ttl_ms = ttl_ms
        self._entries: OrderedDict[Key, tuple[int, Row | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, keys: Sequence[Key], now_ms: int) -> tuple[list[Row], list[int]]:
        found: list[Row] = []
        unknown: list[int] = []
        entries = self._entries
        for index, key in enumerate(keys):
            entry = entries.get(key)
            if entry is None or not entry[0] - self._ttl_ms <= now_ms < entry[0]:  # a clock may jump back
                unknown.append(index)
                continue
            entries.move_to_end(key)
            if entry[1] is not None:
                found.append(entry[1])
        return found, unknown

    def put(self, key: Key, row: Row | None, now_ms: int) -> None:
        self._entries[key] = (now_ms + self._ttl_ms, row)
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def renew(self, rows: Iterable[tuple[Key, Row | None]], now_ms: int) -> None:
        for key, row in rows:
            if key in self._entries:
                self.put(key, row, now_ms)

    def forget(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._entries.pop(key, None)


@dataclass(slots=True, eq=False)
class PendingLookup:
    """Keys that are being read, and those that the task has written meanwhile."""

    keys: pl.DataFrame
    written: set[Key] = field(default_factory=set)


class RemoteTable:
    """The cache and the rate of one remote table, shared by the steps of a task that join it."""

    def __init__(self, spec: TableSpec, readers: int, counters: TaskMetrics, calls: Calls) -> None:
        if spec.remote is None or spec.schema is None:
            raise PlanError(f"table {spec.id!r} ({spec.location}) isn't remote, or its columns aren't known")
        self.id = spec.id
        self.key = spec.key
        self.schema: Schema = spec.schema
        self.remote: Remote = spec.remote
        self.cache = None
        if self.remote.cache is not None:
            self.cache = RowCache(self.remote.cache.rows, self.remote.cache.ttl_ms)
        self._system = spec.system
        self._counters = counters
        self._calls = calls
        rate = self.remote.reads_per_s
        self._limit = None if rate is None else TokenBucket(rate / readers)
        self._lookups: list[_ThreadedLookup] = []
        self._open: list[PendingLookup] = []

    def lane(self) -> Lane[pl.DataFrame]:
        function: Callable[[pl.DataFrame], Any] | None = self.remote.read
        if function is None and self._system is not None:
            lookups = _ThreadedLookup(self._system, self.schema.columns)
            self._lookups.append(lookups)
            function = lookups
        if function is None:
            raise PlanError(f"table {self.id!r} can't be read")
        return Lane(self._calls, function, self.remote.calling, self._limit, lambda keys: keys.height)

    def close(self) -> None:
        for lookups in self._lookups:
            lookups.close()

    def known(self, keys: pl.DataFrame, now_ms: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        if self.cache is None:
            return self.schema.empty(), keys
        rows, unknown = self.cache.get(keys.rows(), now_ms)
        self._counters.count("cache_hits", keys.height - len(unknown))
        self._counters.count("cache_misses", len(unknown))
        return self._table(rows), keys[unknown] if len(unknown) < keys.height else keys

    def ask(self, keys: pl.DataFrame) -> PendingLookup:
        question = PendingLookup(keys)
        if self.cache is not None:
            self._open.append(question)
        return question

    def learn(self, question: PendingLookup, rows: pl.DataFrame, now_ms: int) -> None:
        """Cache the answer to a read, except keys that the task has written meanwhile: it may be older."""
        if self.cache is None:
            return
        self._open.remove(question)
        found = self._by_key(rows)
        for key in question.keys.rows():
            if key not in question.written:
                self.cache.put(key, found.get(key), now_ms)

    def written(self, rows: pl.DataFrame, gone: pl.DataFrame | None, now_ms: int) -> None:
        if self.cache is None or self.remote.cache is None:
            return
        deleted = [] if gone is None else gone.select(self.key).rows()
        for question in self._open:
            question.written.update(self._by_key(rows), deleted)
        if self.remote.cache.write == "around":
            self.cache.forget([*self._by_key(rows), *deleted])
            return
        self.cache.renew([*self._by_key(rows).items(), *((key, None) for key in deleted)], now_ms)

    def fitted(self, answer: object, keys: pl.DataFrame) -> pl.DataFrame:
        answer = as_polars(answer)
        if isinstance(answer, pl.DataFrame):
            fitting, mismatch = self.schema.conform(answer)
            if mismatch is not None:
                raise mismatch.error()
        elif answer is None or isinstance(answer, str | bytes | Mapping) or not hasattr(answer, "__iter__"):
            raise DataError(
                f"it returned {type(answer).__name__} {answer!r:.100}, not rows",
                hint="return a polars DataFrame or a list of dicts, including the keys; an empty one if no row is "
                "found",
            )
        else:
            fitting = self.schema.from_records(list(answer))
        return fitting.join(keys, on=self.key, how="semi").unique(subset=self.key, keep="last", maintain_order=True)

    def _by_key(self, rows: pl.DataFrame) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        return dict(zip(rows.select(self.key).rows(), rows.select(list(self.schema.columns)).rows(), strict=True))

    def _table(self, rows: list[tuple[Any, ...]]) -> pl.DataFrame:
        return pl.DataFrame(rows, schema=self.schema.columns, orient="row") if rows else self.schema.empty()


class _ThreadedLookup:
    """Called with keys, in any thread; closed on the run loop's thread, when no answers are needed any more."""

    def __init__(self, system: SystemSpec, columns: Mapping[str, pl.DataType]) -> None:
        self._system = system
        self._columns = columns
        self._mine = threading.local()
        self._all: list[Lookup] = []
        self._opening = threading.Lock()
        self._closed = False

    def __call__(self, keys: pl.DataFrame) -> pl.DataFrame:
        lookup: Lookup | None = getattr(self._mine, "lookup", None)
        if lookup is None:
            with self._opening:
                if self._closed:
                    return keys.clear()
                lookup = cast("KeyedSystem", open_row_system(self._system)).lookup(self._columns)
                self._all.append(lookup)
            self._mine.lookup = lookup
        return lookup.read(keys)

    def close(self) -> None:
        """Threads that are reading get an error, which is dropped."""
        with self._opening:
            self._closed = True
            for lookup in self._all:
                lookup.close()
            self._all.clear()


LocalTable = RowTable | VersionedTable


class TableFeed:
    """Writes the rows of one flow, or of one side input, into a table."""

    def __init__(
        self, spec: TableSpec, table: LocalTable, fed: Schema, time: EventTime | None = None, *, deletes: bool = False
    ) -> None:
        self._table = table
        self._keys = list(spec.key)
        self._gone = pl.lit(True) if deletes else None
        if not deletes and spec.deleted is not None:  # null counts as false
            self._gone = (pl.col(spec.deleted) if isinstance(spec.deleted, str) else spec.deleted).fill_null(False)
        self._since = pl.lit(None, pl.Int64) if time is None else time_ms(time, fed.columns[time.column])
        columns = {**table.key, **table.values}
        self._columns = [pl.col(n) if n in fed.columns else pl.lit(None, t).alias(n) for n, t in columns.items()]

    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Put and delete rows. Return them as they were written; for versions with ``SINCE`` and ``GONE``."""
        written = rows
        if isinstance(self._table, VersionedTable):
            gone = pl.lit(False) if self._gone is None else self._gone
            written = rows.select(*self._columns, self._since.alias(SINCE), gone.alias(GONE))
            self._table.put_versions(written)
        elif self._gone is None:
            self._table.put_rows(rows)
        else:
            # The last row of a key wins, whether it is a put or a deletion.
            written = rows.with_columns(self._gone.alias(GONE)).unique(self._keys, keep="last", maintain_order=True)
            self._table.put_rows(written.filter(~pl.col(GONE)).select(self._columns))
            self._table.delete_rows(written.filter(GONE))
        return written


class TaskTables:
    """All tables of a stage, as one task keeps them."""

    def __init__(self, plan: TablesPlan, counters: TaskMetrics, calls: Calls) -> None:
        self.remote = {
            spec.id: RemoteTable(spec, plan.readers[spec.id], counters, calls)
            for spec in plan.tables
            if spec.remote is not None
        }
        specs = [spec for spec in plan.tables if spec.remote is None]
        self.local = {spec.id: _opened(spec, plan.by_record) for spec in specs}  # tables that are kept in this task
        self._now_ms = 0
        self._specs = {spec.id: spec for spec in specs}
        self._kept_by = {
            id_: {spec.id: self._side_feed(spec, side) for spec in specs if id_ in spec.side_inputs}
            for id_, side in plan.side_inputs.items()
        }
        expiring = (self.local[spec.id] for spec in specs if spec.ttl_ms is not None)
        self.sweeper = Sweeper(table for table in expiring if not isinstance(table, VersionedTable))

    def __getitem__(self, id_: str) -> LocalTable:
        return self.local[id_]

    def feed(self, send: SendToTable, columns: Schema) -> TableFeed:
        return TableFeed(self._specs[send.table], self.local[send.table], columns, send.time, deletes=send.deletes)

    def records(self, id_: str) -> RecordStore:
        table = self.local[id_]
        if not isinstance(table, RecordStore):
            raise PlanError(f"table {id_!r} isn't one that tasks can use record by record")
        return table

    def filled_by_flows(self, id_: str) -> bool:
        return not self._specs[id_].side_inputs

    def used(self, id_: str, user: str) -> None:
        table = self.local[id_]
        if isinstance(table, VersionedTable):
            table.used_by(user)

    def pass_by(self, id_: str, user: str, watermark: int) -> None:
        table = self.local[id_]
        if isinstance(table, VersionedTable):
            table.pass_by(user, watermark)

    def _side_feed(self, spec: TableSpec, side: StreamSpec) -> TableFeed:
        columns = spec.feed if side.schema is None else side.schema
        time = None if spec.versions_ms is None else side.event_time
        return TableFeed(spec, self.local[spec.id], columns or Schema.of({}), time)

    def written(self, id_: str, rows: pl.DataFrame, gone: pl.DataFrame | None) -> None:
        if id_ in self.remote:
            self.remote[id_].written(rows, gone, self._now_ms)

    def begin(self) -> None:
        for table in self.local.values():
            table.check()

    def close(self) -> None:
        for table in self.remote.values():
            table.close()

    def stores(self) -> Iterator[StateStore]:
        for table in self.local.values():
            yield from table.stores() if isinstance(table, VersionedTable) else (table.store,)

    def sizes(self) -> dict[str, int]:
        return {id_: table.entries() for id_, table in self.local.items()}

    def keys_of(self, stream: str) -> Sequence[str]:
        return list(dict.fromkeys(name for id_ in self._kept_by.get(stream, ()) for name in self.local[id_].key))

    def update(self, stream: str, rows: pl.DataFrame) -> None:
        for feed in self._kept_by[stream].values():
            feed.take(rows)

    def tell_time(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.sweeper.tell_time(now_ms)


def _opened(spec: TableSpec, by_record: Container[str]) -> LocalTable:
    if spec.schema is None:
        raise PlanError(
            f"the columns of table {spec.id!r} ({spec.location}) aren't known", hint="give the table a schema="
        )
    columns = dict(spec.schema.columns)
    if spec.id in by_record:
        key = {name: columns.pop(name) for name in spec.key}
        return RecordStore(KeyValueStore(spec.id, ttl_ms=spec.ttl_ms), key, Schema.of(columns))
    if spec.versions_ms is None:
        return _rows(spec, columns)
    return VersionedTable(spec.id, _rows(spec, {**columns, **VERSION_COLUMNS}), spec.versions_ms)


def _rows(spec: TableSpec, columns: Columns) -> RowTable:
    if spec.storage == "memory":
        return MemoryTable(spec.id, columns, spec.key, ttl_ms=spec.ttl_ms)
    return TableStore(KeyValueStore(spec.id, ttl_ms=spec.ttl_ms), columns, spec.key)

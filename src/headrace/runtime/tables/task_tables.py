"""The tables of one task: each is kept once, and shared by the steps that fill it and those that join it.

A table is a store under the table's id, so it is checkpointed like any other state. Side inputs reach it as rows of
their stream. Whatever fills it, rows are written as puts, deletions or versions, whole batches at a time. The wall
clock decides what has expired: it is set before anything is read or written, and expired rows are removed in small
steps. On the run loop's thread; reads may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import polars as pl

from headrace.api.operators.spec import EventTime
from headrace.api.operators.table import SendToTable
from headrace.api.specs import StreamSpec, TableSpec
from headrace.core.errors import PlanError
from headrace.plan.chain_plan import TablesPlan
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.event_time.columns import time_ms
from headrace.runtime.metrics import Counters
from headrace.runtime.tables.expiry import Sweeper
from headrace.runtime.tables.remote_table import RemoteTable
from headrace.serdes.dtypes import Columns
from headrace.serdes.schema import Schema
from headrace.stores.base import StateStore
from headrace.stores.conform import GONE, SINCE
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.memory_table import MemoryTable
from headrace.stores.records import RecordStore
from headrace.stores.table import RowTable, TableStore
from headrace.stores.versions import VERSION_COLUMNS, VersionedTable

LocalTable = RowTable | VersionedTable


class TableFeed:
    """Writes the rows of one flow, or of one side input, into a table."""

    def __init__(
        self, spec: TableSpec, table: LocalTable, fed: Schema, time: EventTime | None = None, *, deletes: bool = False
    ) -> None:
        """``fed`` is the schema of the rows; ``deletes``: all of them are deletions."""
        self._table = table
        self._keys = list(spec.key)
        self._gone = pl.lit(True) if deletes else _gone(spec)
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


def _gone(spec: TableSpec) -> pl.Expr | None:
    """True for rows that are deletions; null counts as false."""
    if spec.deleted is None:
        return None
    return (pl.col(spec.deleted) if isinstance(spec.deleted, str) else spec.deleted).fill_null(False)


class TaskTables:
    """All tables of a stage, as one task keeps them."""

    def __init__(self, plan: TablesPlan, counters: Counters, calls: Calls) -> None:
        self.remote = {
            spec.id: RemoteTable(spec, plan.readers[spec.id], counters, calls)
            for spec in plan.tables
            if spec.remote is not None
        }
        """Tables that are kept elsewhere."""
        specs = [spec for spec in plan.tables if spec.remote is None]
        self.local = {spec.id: _opened(spec, plan.by_record) for spec in specs}
        """Tables that are kept in this task."""
        self._now_ms = 0
        self._specs = {spec.id: spec for spec in specs}
        self._kept_by = {
            id_: {spec.id: self._side_feed(spec, side) for spec in specs if id_ in spec.side_inputs}
            for id_, side in plan.side_inputs.items()
        }
        expiring = (self.local[spec.id] for spec in specs if spec.ttl_ms is not None)
        self._sweeper = Sweeper(table for table in expiring if not isinstance(table, VersionedTable))

    def __getitem__(self, id_: str) -> LocalTable:
        return self.local[id_]

    def feed(self, send: SendToTable, columns: Schema) -> TableFeed:
        """What writes a flow of these columns into a table."""
        return TableFeed(self._specs[send.table], self.local[send.table], columns, send.time, deletes=send.deletes)

    def records(self, id_: str) -> RecordStore:
        """A table that low-level tasks of the stage use."""
        table = self.local[id_]
        if not isinstance(table, RecordStore):
            raise PlanError(f"table {id_!r} isn't one that tasks can use record by record")
        return table

    def filled_by_flows(self, id_: str) -> bool:
        """Whether flows of this stage fill a table, and not side inputs."""
        return not self._specs[id_].side_inputs

    def used(self, id_: str, user: str) -> None:
        """Keep the versions of a table's rows until this user has passed them."""
        table = self.local[id_]
        if isinstance(table, VersionedTable):
            table.used_by(user)

    def pass_by(self, id_: str, user: str, watermark: int) -> None:
        """This user of a table of versions has reached a watermark."""
        table = self.local[id_]
        if isinstance(table, VersionedTable):
            table.pass_by(user, watermark)

    def _side_feed(self, spec: TableSpec, side: StreamSpec) -> TableFeed:
        columns = spec.feed if side.schema is None else side.schema
        time = None if spec.versions_ms is None else side.event_time
        return TableFeed(spec, self.local[spec.id], columns or Schema.of({}), time)

    def written(self, id_: str, rows: pl.DataFrame, gone: pl.DataFrame | None) -> None:
        """Rows of a remote table have been written, and keys deleted, by this task."""
        if id_ in self.remote:
            self.remote[id_].written(rows, gone, self._now_ms)

    def begin(self) -> None:
        """The state has been restored: raise if a table was written with another key or types than declared now."""
        for table in self.local.values():
            table.check()

    def close(self) -> None:
        """Close the connections to remote tables."""
        for table in self.remote.values():
            table.close()

    def stores(self) -> Iterator[StateStore]:
        """The state, for checkpoints."""
        for table in self.local.values():
            yield from table.stores() if isinstance(table, VersionedTable) else (table.store,)

    def sizes(self) -> dict[str, int]:
        """The approximate number of rows of each table; for status."""
        return {id_: table.entries() for id_, table in self.local.items()}

    # -- side inputs

    def keys_of(self, stream: str) -> Sequence[str]:
        """The key columns of the tables that a side input fills: none may be null. Empty for other streams."""
        return list(dict.fromkeys(name for id_ in self._kept_by.get(stream, ()) for name in self.local[id_].key))

    def update(self, stream: str, rows: pl.DataFrame) -> None:
        """Put rows of a side input into the tables that it fills."""
        for feed in self._kept_by[stream].values():
            feed.take(rows)

    # -- time to live

    def tell_time(self, now_ms: int) -> None:
        """Set the wall clock."""
        self._now_ms = now_ms
        self._sweeper.tell_time(now_ms)

    def due_ms(self) -> int | None:
        """When (wall clock) to look for expired rows again; None: rows never expire."""
        return self._sweeper.due_ms()

    def on_time(self, now_ms: int) -> None:
        """Remove some expired rows, if it is time."""
        self._sweeper.on_time(now_ms)


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

"""The tables of one task: each kept once, shared by the steps that fill it and all that look something up in it.

A table is a store under the table's id, so it is checkpointed as any other state. Side inputs reach it as rows of
their stream. The wall clock decides what has expired: it is told before anything is read or written, and a walk in
small steps removes what nobody reads any more. On the run-loop thread; reads may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from headrace.api.specs import StreamSpec, TableSpec
from headrace.api.steps import SendToTable
from headrace.core.errors import PlanError
from headrace.plan.model import Plan, StagePlan
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.operators.base import Counters
from headrace.runtime.tables.expiry import Sweeper
from headrace.runtime.tables.remote_table import RemoteTable
from headrace.runtime.tables.table_feed import LocalTable, TableFeed
from headrace.serdes.schema import Schema
from headrace.stores.base import StateStore
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.memory_table import MemoryTable
from headrace.stores.table import Columns, RowTable, TableStore
from headrace.stores.versions import VERSION_COLUMNS, VersionedTable


class TaskTables:
    """All tables of a stage, as one task has them."""

    def __init__(self, plan: Plan, stage: StagePlan, counters: Counters, calls: Calls) -> None:
        all_ = [plan.graph.tables[id_] for id_ in stage.tables]
        self.remote = {spec.id: RemoteTable(plan, spec, counters, calls) for spec in all_ if spec.remote is not None}
        """Tables that live elsewhere."""
        specs = [spec for spec in all_ if spec.remote is None]
        self._tables = {spec.id: _opened(spec) for spec in specs}
        self._now_ms = 0
        self._specs = {spec.id: spec for spec in specs}
        streams = plan.graph.streams
        self._kept_by = {
            side: {spec.id: self._side_feed(spec, streams[side]) for spec in specs if side in spec.side_inputs}
            for side in stage.side_inputs
        }
        expiring = (self._tables[spec.id] for spec in specs if spec.ttl_ms is not None)
        self._sweeper = Sweeper(table for table in expiring if not isinstance(table, VersionedTable))

    def __getitem__(self, id_: str) -> LocalTable:
        return self._tables[id_]

    def feed(self, send: SendToTable, columns: Schema) -> TableFeed:
        """A way into a table for a flow of these columns."""
        return TableFeed(self._specs[send.table], self._tables[send.table], columns, send.time, deletes=send.deletes)

    def _side_feed(self, spec: TableSpec, side: StreamSpec) -> TableFeed:
        columns = spec.feed if side.schema is None else side.schema
        time = None if spec.versions_ms is None else side.event_time
        return TableFeed(spec, self._tables[spec.id], columns or Schema.of({}), time)

    def written(self, id_: str, rows: pl.DataFrame, gone: pl.DataFrame | None) -> None:
        """Rows of a remote table have been written, and keys deleted, by this task."""
        if id_ in self.remote:
            self.remote[id_].written(rows, gone, self._now_ms)

    def begin(self) -> None:
        """The state is there: raise if it was kept with another key, or other types, than are declared now."""
        for table in self._tables.values():
            table.check()

    def close(self) -> None:
        """Let go what is held of remote tables."""
        for table in self.remote.values():
            table.close()

    def stores(self) -> Iterator[StateStore]:
        """What a checkpoint has to hold."""
        for table in self._tables.values():
            yield from table.stores() if isinstance(table, VersionedTable) else (table.store,)

    def sizes(self) -> dict[str, int]:
        """About how many rows each table holds; for status."""
        return {id_: table.entries() for id_, table in self._tables.items()}

    # -- side inputs

    def keys_of(self, stream: str) -> Sequence[str]:
        """The columns by which a side input's rows are found: none of them may be null. Of other streams none."""
        return list(dict.fromkeys(name for id_ in self._kept_by.get(stream, ()) for name in self._tables[id_].key))

    def update(self, stream: str, rows: pl.DataFrame) -> None:
        """Put rows of a side input into the tables that it keeps."""
        for feed in self._kept_by[stream].values():
            feed.take(rows)

    # -- time to live

    def tell_time(self, now_ms: int) -> None:
        """Say what the wall clock shows."""
        self._now_ms = now_ms
        self._sweeper.tell_time(now_ms)

    def due_ms(self) -> int | None:
        """When (wall clock) to look for expired rows again; None: none ever expires."""
        return self._sweeper.due_ms()

    def on_time(self, now_ms: int) -> None:
        """Remove some of what has expired, if it is time."""
        self._sweeper.on_time(now_ms)


def _opened(spec: TableSpec) -> LocalTable:
    if spec.schema is None:
        raise PlanError(
            f"the columns of table {spec.id!r} ({spec.location}) aren't known", hint="give the table a schema="
        )
    columns = dict(spec.schema.columns)
    if spec.versions_ms is None:
        return _rows(spec, columns)
    return VersionedTable(spec.id, _rows(spec, {**columns, **VERSION_COLUMNS}), spec.versions_ms)


def _rows(spec: TableSpec, columns: Columns) -> RowTable:
    if spec.storage == "memory":
        return MemoryTable(spec.id, columns, spec.key, ttl_ms=spec.ttl_ms)
    return TableStore(KeyValueStore(spec.id, ttl_ms=spec.ttl_ms), columns, spec.key)

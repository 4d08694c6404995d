"""Joins with tables and with latest messages.

**Table.** Steps see a table as it is when a batch reaches them; there is no other order between a flow that fills a
table and one that joins it.

**As of.** In a table of versions each message finds the row as it was at the message's time. If flows of this stage
fill it, messages wait in the task's state until the watermark has passed their times. If side inputs fill it, nothing
says that all versions have arrived, so messages are looked up at once. A message that is older than the versions that
are kept is counted as late and dropped; one that is older than the watermark, but not by so much, is looked up at once.

**Latest.** By the wall clock: event time plays no part. A batch looks up its keys in the other side's table, and is
then put into its own side's. Null keys have no partners and aren't kept.

**Remote.** Each batch waits for the rows of its keys, and batches leave in the order in which they arrived. A null key
finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.operators.join import LatestJoin, SendToTable, TableJoin
from headrace.api.specs import Node
from headrace.core.errors import DataError, HeadraceError, UsageError
from headrace.rows.given import concat_rows
from headrace.rows.schema import Schema
from headrace.stores.base import SINCE, StateStore, conformed
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.runs import Runs
from headrace.stores.table import RowTable, TableStore
from headrace.stores.tiers import in_lots
from headrace.stores.versions import VersionedTable
from headrace.task.calls import Done
from headrace.task.event_time import FOREVER, NEVER, StepTime
from headrace.task.operators.base import BuildContext, Numbers, Operator
from headrace.task.operators.functions import LaneCounts, WaitingOperator, users_line
from headrace.task.operators.steps import require_keys
from headrace.task.tables import PendingLookup, Sweeper

FOUND = "__found"


def look_up(table: RowTable, keys: pl.DataFrame) -> pl.DataFrame:
    distinct = keys.unique()
    found = pl.concat([distinct, table.get_rows(distinct, found=FOUND)], how="horizontal")
    return keys.join(found, on=keys.columns, how="left", maintain_order="left", nulls_equal=True)


def result_names(right: Iterable[str], left: Schema, suffix: str) -> dict[str, str]:
    return {name: f"{name}{suffix}" if name in left.columns else name for name in right}


class _LookupColumns:
    def __init__(self, spec: TableJoin, left: Schema, key: Iterable[str], values: Iterable[str]) -> None:
        self.keys = [pl.col(ours).alias(theirs) for ours, theirs in zip(spec.keys, key, strict=True)]
        self._values = [pl.col(old).alias(new) for old, new in result_names(values, left, spec.suffix).items()]
        self._inner = spec.how == "inner"

    def joined(self, rows: pl.DataFrame, found: pl.DataFrame) -> tuple[pl.DataFrame, Numbers]:
        joined = pl.concat([rows, found.select(self._values)], how="horizontal") if self._values else rows
        there = found.get_column(FOUND)
        if self._inner and not there.all():
            return joined.filter(there), there.arg_true()
        return joined, range(joined.height)


_TIME = "__time"
_EMITTED_ROWS_MAX = 1 << 17


class _TableAsOf(Operator):
    def __init__(self, node: Node, spec: TableJoin, table: VersionedTable, context: BuildContext) -> None:
        super().__init__(node)
        assert spec.time is not None, "a table of versions is read as of a time"
        (left,) = context.inputs
        self._table = table
        self._counters = context.counters
        self._waits = context.tables.filled_by_flows(spec.table)
        self._time = StepTime(f"join {node.id!r}", spec.time, left.columns[spec.time.column])
        self._left = list(left.columns)
        self._columns = _LookupColumns(spec, left, table.key, table.values)
        held = f"{node.id}.held"
        kept: dict[str, pl.DataType] = {**left.columns, _TIME: pl.Int64()}
        self._held = Runs(
            held,
            _TIME,
            lambda run: run.sort(_TIME, maintain_order=True),
            list(spec.keys),
            lambda rows: conformed(held, rows, kept, {*spec.keys, _TIME}),
            form=spec.state_forms(node.id, context.inputs)[held],
        )
        self._watermark = NEVER
        table.used_by(node.id)

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._held,) if self._waits else ()

    @property
    @override
    def owes(self) -> bool:
        return self._held.earliest is not None

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        timed = self._time.added(rows, _TIME)
        times = timed.get_column(_TIME)
        numbers: Numbers = range(timed.height)
        lowest = times.min()
        late = isinstance(lowest, int) and lowest < self._table.bound
        if late or self._waits:
            now = times >= self._table.bound if late else pl.repeat(True, timed.height, eager=True)
            self._counters.count("late", timed.height - int(now.sum()))
            if self._waits:
                self._held.add(timed.filter(now & (times >= self._watermark)))
                now &= times < self._watermark
            timed, numbers = timed.filter(now), now.arg_true()
        self._join(timed, numbers)

    @override
    def on_watermark(self, watermark: int) -> None:
        self._release(watermark)
        self._watermark = watermark
        self._table.pass_by(self.node.id, watermark)

    @override
    def on_end(self) -> None:
        self._release(FOREVER)

    @override
    def resume(self, watermark: int) -> None:
        self._watermark = watermark
        self._table.pass_by(self.node.id, watermark)

    def _release(self, watermark: int) -> None:
        if watermark == NEVER or not self._waits:
            return
        for stop in (*self._held.crowd(NEVER, watermark - 1).stops(), watermark - 1):
            for part in in_lots(self._held.take_parts(stop)):
                for rows in part.sort(_TIME, maintain_order=True).iter_slices(_EMITTED_ROWS_MAX):
                    self._join(rows)

    def _join(self, timed: pl.DataFrame, numbers: Numbers | None = None) -> None:
        if not timed.height:
            return
        keys, times = timed.select(self._columns.keys), timed.get_column(_TIME).to_numpy()
        joined, kept = self._columns.joined(timed.select(self._left), self._table.as_of(keys, times, found=FOUND))
        if numbers is not None:
            self.provenance.became(lambda: np.asarray(numbers)[np.asarray(kept)])
        self.emit(joined)


class LatestJoinOperator(Operator):
    """A join of latest messages, in one task."""

    def __init__(self, node: Node, spec: LatestJoin, context: BuildContext) -> None:
        super().__init__(node)
        assert node.schema is not None, "a join has an output schema"
        self._columns = list(node.schema.columns)
        left, right = context.inputs
        keys = list(spec.keys)
        names = result_names(right.columns, left, spec.suffix) | {key: key for key in keys}
        self._left = _LatestSide(self, "left", left, spec, {}, spec.how != "inner")
        self._right = _LatestSide(self, "right", right, spec, names, spec.how == "full")
        self._sweeper = Sweeper(side.table.store for side in (self._left, self._right))

    @override
    def side(self, number: int) -> Operator:
        return self._right if number else self._left

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._left.table.store, self._right.table.store)

    @override
    def due_ms(self) -> int | None:
        return self._sweeper.due_ms()

    @override
    def on_time(self, now_ms: int) -> None:
        self._sweeper.on_time(now_ms)

    def meet(self, side: _LatestSide, rows: pl.DataFrame) -> None:
        if self.now_ms is None:
            raise UsageError(f"join {self.node.id!r} got messages before the wall clock was set")
        self._sweeper.tell_time(self.now_ms)
        other = self._left if side is self._right else self._right
        found = look_up(other.table, rows.select(side.keys))
        joined = pl.concat([side.named(rows), other.named(found.drop(side.keys))], how="horizontal")
        if side.alone:
            self.provenance.became(lambda: range(rows.height))
        else:
            there = joined.get_column(FOUND)
            joined = joined.filter(there)
            self.provenance.became(there.arg_true)
        self.emit(joined.select(self._columns))
        side.table.put_rows(rows.drop_nulls(side.keys))


class _LatestSide(Operator):
    def __init__(
        self, join: LatestJoinOperator, name: str, schema: Schema, spec: LatestJoin, names: dict[str, str], alone: bool
    ) -> None:
        super().__init__(join.node)
        self._join = join
        self._names = names
        self.keys = list(spec.keys)
        self.alone = alone
        self.table = TableStore(KeyValueStore(f"{join.node.id}.{name}", ttl_ms=spec.ttl_ms), schema.columns, self.keys)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        self._join.meet(self, rows)

    def named(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.rename(self._names, strict=False)


@dataclass(slots=True, eq=False)
class _Batch:
    place: int
    rows: pl.DataFrame
    keys: pl.DataFrame
    found: list[pl.DataFrame]
    missing: int = 0


class _RemoteLookup(WaitingOperator[_Batch]):
    def __init__(self, node: Node, spec: TableJoin, context: BuildContext) -> None:
        table = context.tables.remote[spec.table]
        (left,) = context.inputs
        super().__init__(node, ordered=True, most=2 * table.remote.calling.concurrency)
        self._table = table
        self._lane = table.lane()
        self._counts = LaneCounts(self._lane, context.counters)
        values = [name for name in table.schema.columns if name not in table.key]
        self._columns = _LookupColumns(spec, left, table.key, values)
        self._asked: dict[int, tuple[_Batch, PendingLookup]] = {}
        self._next = 0

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        keys = rows.select(self._columns.keys)
        known, unknown = self._table.known(keys.drop_nulls().unique(maintain_order=True), self.now_ms or 0)
        if not unknown.height and not self.holding:
            joined, numbers = self._joined(rows, keys, known)
            self.provenance.became(lambda: numbers)
            self.emit(joined)
            return
        (place,) = self._queue.take_places(1)
        batch = _Batch(place, rows, keys, [known])
        for piece in unknown.iter_slices(self._table.remote.batch):
            if piece.height:
                self._asked[self._next] = batch, self._table.ask(piece)
                batch.missing += 1
                self._lane.put([(self._next, piece)])
                self._next += 1
        if not batch.missing:
            self._queue.put(place, batch)
        self._counts.update()

    @override
    def settle(self) -> None:
        for done in self._lane.take():
            batch, question = self._asked.pop(done.place)
            rows = self._answer(done, question.keys)
            self._table.learn(question, rows, self.now_ms or 0)
            batch.found.append(rows)
            batch.missing -= 1
            if not batch.missing:
                self._queue.put(batch.place, batch)
        self._counts.update()

    @override
    def release(self, results: list[_Batch]) -> None:
        for batch in results:
            self.emit(self._joined(batch.rows, batch.keys, concat_rows(batch.found))[0])

    @property
    @override
    def trouble(self) -> str | None:
        trouble = self._lane.trouble
        return None if trouble is None else f"table {self._table.id} can't be read: {trouble}"

    @override
    def close(self) -> None:
        self._lane.close()
        self._counts.update()

    def _joined(self, rows: pl.DataFrame, keys: pl.DataFrame, found: pl.DataFrame) -> tuple[pl.DataFrame, Numbers]:
        columns = found.with_columns(pl.lit(value=True).alias(FOUND))
        looked_up = keys.join(columns, on=self._table.key, how="left", maintain_order="left")
        return self._columns.joined(rows, looked_up.with_columns(pl.col(FOUND).fill_null(value=False)))

    def _answer(self, done: Done, keys: pl.DataFrame) -> pl.DataFrame:
        what = f"the read function of table {self._table.id!r}"
        if isinstance(done.error, HeadraceError):
            done.error.message = f"table {self._table.id!r} can't be read: {done.error.message}"
            raise done.error
        if done.error is not None:
            error = done.error if isinstance(done.error, Exception) else RuntimeError(repr(done.error))
            tries = "" if done.attempts == 1 else f" in the last of {done.attempts} attempts"
            raise self.failed(error, what, f"{users_line(error)}{tries}") from error
        try:
            return self._table.fitted(done.result, keys)
        except DataError as error:
            raise self.misfitted(error, f"what {what} returned") from error


def build_table_join(node: Node, spec: TableJoin, context: BuildContext) -> Operator:
    if spec.table in context.tables.remote:
        return _RemoteLookup(node, spec, context)
    table = context.tables[spec.table]
    if isinstance(table, VersionedTable):
        return _TableAsOf(node, spec, table, context)
    return _TableLookup(node, spec, context.inputs[0], table)


class TableWriter(Operator):
    """The last row of a key wins. A version older than the watermark counts as late; later look-ups find it."""

    def __init__(self, node: Node, spec: SendToTable, context: BuildContext) -> None:
        super().__init__(node)
        table = context.tables[spec.table]
        (columns,) = context.inputs
        self._id = spec.table
        self._key = list(table.key)
        self._feed = context.tables.feed(spec, columns)
        self._counters = context.counters
        self._versioned = isinstance(table, VersionedTable)
        who = f"step {node.id!r} ({node.location}), which sends them to table {spec.table!r},"
        self._time = None if spec.time is None else StepTime(who, spec.time, columns.columns[spec.time.column])
        self._watermark = NEVER

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        require_keys(self.node, self._id, self._key, rows)
        if self._time is not None:
            self._time.check(rows)
        taken = self._feed.take(rows)
        if self._versioned:
            self._counters.count("late", int(np.count_nonzero(taken.get_column(SINCE).to_numpy() < self._watermark)))

    @override
    def on_watermark(self, watermark: int) -> None:
        self._watermark = watermark

    @override
    def resume(self, watermark: int) -> None:
        self.on_watermark(watermark)


class _TableLookup(Operator):
    def __init__(self, node: Node, spec: TableJoin, left: Schema, table: RowTable) -> None:
        super().__init__(node)
        self._table = table
        self._columns = _LookupColumns(spec, left, table.key, table.values)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        joined, numbers = self._columns.joined(rows, look_up(self._table, rows.select(self._columns.keys)))
        self.provenance.became(lambda: numbers)
        self.emit(joined)

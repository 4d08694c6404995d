"""A join with a remote table: each batch waits for the rows of its keys, while the stream continues.

Batches leave in the order in which they arrived. Each distinct key of a batch is read once, in requests of the table's
batch size; keys that are in the cache aren't read. A null key finds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from typing_extensions import override

from headrace.api.operators.table import TableJoin
from headrace.api.specs import Node
from headrace.core.errors import DataError, HeadraceError
from headrace.runtime.calls.lanes import Done
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.joins.key_lookup import FOUND, LookupColumns
from headrace.runtime.operators.provenance import Numbers
from headrace.runtime.operators.user_code.source_line import users_line
from headrace.runtime.operators.user_code.waiting import LaneCounts, WaitingOperator
from headrace.runtime.tables.remote_table import PendingLookup
from headrace.serdes.rows import concat_rows


@dataclass(slots=True, eq=False)
class _Batch:
    """Rows that wait for the rows of their keys."""

    place: int
    rows: pl.DataFrame
    keys: pl.DataFrame
    found: list[pl.DataFrame]
    missing: int = 0


class RemoteLookup(WaitingOperator[_Batch]):
    """Adds the columns of the remote row with a message's key."""

    def __init__(self, node: Node, spec: TableJoin, context: BuildContext) -> None:
        table = context.tables.remote[spec.table]
        (left,) = context.inputs
        super().__init__(node, ordered=True, most=2 * table.remote.calling.concurrency)
        self._table = table
        self._lane = table.lane()
        self._counts = LaneCounts(self._lane, context.counters)
        values = [name for name in table.schema.columns if name not in table.key]
        self._columns = LookupColumns(spec, left, table.key, values)
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
            found = concat_rows(batch.found)
            self.emit(self._joined(batch.rows, batch.keys, found)[0])

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

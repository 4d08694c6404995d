"""The join of latest messages: each message is joined with the latest one of its key from the other side.

A side is a table with one row per key, the latest message, which expires by the wall clock. A batch looks up its keys
in the other side's table, and is then put into its own side's. Event time plays no part. Null keys have no partners and
aren't kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from typing_extensions import override

from headrace.api.operators.join import LatestJoin
from headrace.api.specs import Node
from headrace.core.errors import UsageError
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.joins.key_lookup import FOUND, look_up, result_names
from headrace.runtime.tables.expiry import Sweeper
from headrace.serdes.schema import Schema
from headrace.stores.base import StateStore
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.table import TableStore


class LatestJoinOperator(Operator):
    """A join of latest messages, in one task."""

    def __init__(self, node: Node, spec: LatestJoin, context: BuildContext) -> None:
        super().__init__(node)
        if node.schema is None:
            raise ValueError("a join has an output schema")
        self._columns = list(node.schema.columns)
        left, right = context.inputs
        keys = list(spec.keys)
        names = result_names(right.columns, left, spec.suffix) | {key: key for key in keys}
        self._left = LatestSide(self, "left", left, spec, {}, alone=spec.how != "inner")
        self._right = LatestSide(self, "right", right, spec, names, alone=spec.how == "full")
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

    def meet(self, side: LatestSide, rows: pl.DataFrame) -> None:
        """Join messages of one side with those that the other side has kept, then keep them."""
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


class LatestSide(Operator):
    """One input of a join, with the latest message of each of its keys."""

    def __init__(
        self,
        join: LatestJoinOperator,
        name: str,
        schema: Schema,
        spec: LatestJoin,
        names: dict[str, str],
        *,
        alone: bool,
    ) -> None:
        """``names``: what its columns are called in the results. ``alone``: messages without a partner leave, too."""
        super().__init__(join.node)
        self._join = join
        self._names = names
        self.keys = list(spec.keys)
        self.alone = alone
        store = KeyValueStore(f"{join.node.id}.{name}", ttl_ms=spec.ttl_ms)
        self.table = TableStore(store, schema.columns, self.keys)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        self._join.meet(self, rows)

    def named(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of this side with the names of the results."""
        return rows.rename(self._names, strict=False)

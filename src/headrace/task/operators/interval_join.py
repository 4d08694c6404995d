"""The interval join: pairs of messages of two flows with equal keys and times within a bound, columnar.

Each side keeps its messages as long as the other side may still bring a partner; the message that arrives later finds
the pair. Messages are kept by their millisecond, but the bound is exact in the units of both columns. Null keys have no
partners. A message older than the watermark is late. The event time of a pair is that of the left message, so the
operator delays the watermark after it by the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.operators.join import IntervalJoin
from headrace.api.operators.spec import EventTime
from headrace.api.specs import Node
from headrace.rows.given import concat_rows
from headrace.rows.hashing import Hashes, hash_rows
from headrace.rows.schema import Schema
from headrace.stores.base import StateStore, conformed
from headrace.stores.matching import HASH, PAIRS_MAX, TIME, Indexes, Rests, RunIndex
from headrace.stores.runs import Runs
from headrace.task.event_time import FOREVER, NEVER, StepTime, is_whole_ms, rest_ns
from headrace.task.operators.base import BuildContext, Operator
from headrace.task.operators.joins import result_names

_ID = "__id"  # counts messages as they arrive; those of other keys may have the same, from other tasks
_SLACK_MIN_MS = 1000


class IntervalJoinOperator(Operator):
    """A join of two streams within a bound of event time, in one task."""

    def __init__(self, node: Node, spec: IntervalJoin, context: BuildContext) -> None:
        super().__init__(node)
        assert node.schema is not None, "a join has an output schema"
        left, right = context.inputs
        self.spec = spec
        self.counters = context.counters
        self.columns = list(node.schema.columns)
        self.delay_ms = max(0, spec.after_ms)
        values = [name for name in right.columns if name not in spec.keys]
        self._right_names = result_names(values, left, spec.suffix)
        self._right_only = [pl.lit(None, dtype=t).alias(n) for n, t in left.columns.items() if n not in spec.keys]
        self._left_only = [pl.lit(None, dtype=right.columns[old]).alias(new) for old, new in self._right_names.items()]
        self.forms = spec.state_forms(node.id, context.inputs)
        self.left = JoinSide(self, "left", left, spec.left_time, spec.after_ms, alone=spec.how != "inner")
        self.right = JoinSide(self, "right", right, spec.right_time, spec.before_ms, alone=spec.how == "full")

    @override
    def side(self, number: int) -> Operator:
        return self.right if number else self.left

    @override
    def stores(self) -> Sequence[StateStore]:
        return (*self.left.stores(), *self.right.stores())

    @property
    @override
    def owes(self) -> bool:
        return self.left.owes or self.right.owes

    @override
    def on_watermark(self, watermark: int) -> None:
        for side in (self.left, self.right):
            side.pass_by(watermark)

    @override
    def resume(self, watermark: int) -> None:
        for side in (self.left, self.right):
            side.resume(watermark)

    @override
    def on_end(self) -> None:
        for side in (self.left, self.right):
            side.pass_by(FOREVER)

    def meet(self, side: JoinSide, batch: pl.DataFrame) -> None:
        spec = self.spec
        other = self.right if side is self.left else self.left
        # The range of the partners' times, relative to the batch's.
        low, high = (-spec.before_ms, spec.after_ms) if side is self.left else (-spec.after_ms, spec.before_ms)
        wanted = np.unique(batch.get_column(HASH).to_numpy())
        runs = list(other.buffered(wanted, side.lowest(batch) + low, side.highest(batch) + high))
        by_hash = batch.get_column(HASH).arg_sort().to_numpy()
        my_times = batch.get_column(side.time_column)
        found = [
            (number, pairs)
            for number, run in enumerate(runs)
            for rests in (_rests(my_times, run.get_column(other.time_column)),)
            for pairs in RunIndex(run).pairs(batch, spec.keys, low, high, by_hash, rests)
        ]
        if not found:
            return
        of_batch = np.concatenate([pairs.batch for _, pairs in found])
        of_run = np.concatenate([pairs.run for _, pairs in found])
        run_of = np.repeat([number for number, _ in found], [len(pairs.batch) for _, pairs in found])
        # A pair comes from the later of its messages. The pairs of one are in the order in which the others arrived.
        later, earlier = of_batch, _gathered_ids(runs, run_of, of_run)
        if side.ranks is not None:
            mine_ids = batch.get_column(_ID).to_numpy().astype(np.int64)
            ranks, theirs_ranks = side.ranks_of(mine_ids)[of_batch], other.ranks_of(earlier)
            earlier = np.where(theirs_ranks > ranks, mine_ids[of_batch], earlier)
            later = np.maximum(ranks, theirs_ranks)
        order = _ordered(later, earlier)
        for first in range(0, len(order), PAIRS_MAX):
            some = order[first : first + PAIRS_MAX]
            mine = batch[of_batch[some]]
            theirs = _gathered_rows(runs, run_of[some], of_run[some])
            side.matched(mine)
            other.matched(theirs)
            left, right = (mine, theirs) if side is self.left else (theirs, mine)
            self.provenance.became(lambda some=some: later[some])  # type: ignore[misc]
            self.emit(self._paired(left, right))

    def alone(self, side: JoinSide, rows: pl.DataFrame) -> None:
        if side is self.left:
            self.emit(rows.with_columns(self._left_only).select(self.columns))
        else:
            self.emit(rows.rename(self._right_names).with_columns(self._right_only).select(self.columns))

    def _paired(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        of_right = right.select(pl.col(old).alias(new) for old, new in self._right_names.items())
        return pl.concat([left.drop(HASH, TIME, _ID, strict=False), of_right], how="horizontal").select(self.columns)


def _ordered(later: Indexes, earlier: Indexes) -> Indexes:
    """The order by ``later``, then by ``earlier``. Runs come oldest first, so mostly the first one decides all."""
    narrow = later.astype(np.uint16) if len(later) and int(later.max()) < 1 << 16 else later  # sorted ten times as fast
    order = np.argsort(narrow, kind="stable")
    by_later, by_earlier = later[order], earlier[order]
    wrong = (by_later[1:] == by_later[:-1]) & (by_earlier[1:] < by_earlier[:-1])
    return np.lexsort((earlier, later)) if wrong.any() else order


def _gathered_ids(runs: Sequence[pl.DataFrame], run_of: Indexes, of_run: Indexes) -> Indexes:
    values = np.empty(len(of_run), np.int64)
    for number in np.unique(run_of):
        there = run_of == number
        values[there] = runs[number].get_column(_ID).to_numpy()[of_run[there]].astype(np.int64)
    return values


def _gathered_rows(runs: Sequence[pl.DataFrame], run_of: Indexes, of_run: Indexes) -> pl.DataFrame:
    numbers = np.unique(run_of)
    if len(numbers) == 1:
        return runs[int(numbers[0])][of_run]
    starts = np.cumsum([0, *(run.height for run in runs)])
    if starts[-1] <= len(of_run):
        together: pl.DataFrame = concat_rows([run.select(runs[0].columns) for run in runs])
        return together[starts[run_of] + of_run]
    wheres = [np.flatnonzero(run_of == number) for number in numbers]
    parts = [runs[number][of_run[where]] for number, where in zip(numbers, wheres, strict=True)]
    back = np.empty(len(of_run), np.int64)
    back[np.concatenate(wheres)] = np.arange(len(of_run))
    together = concat_rows([part.select(parts[0].columns) for part in parts])
    return together[back]


class JoinSide(Operator):
    """One input of a join: its buffer, and which of its messages have had a partner."""

    def __init__(
        self, join: IntervalJoinOperator, name: str, schema: Schema, time: EventTime, reach_ms: int, *, alone: bool
    ) -> None:
        """``reach_ms``: how much later than a message its last partner can be. ``alone``: unmatched ones leave, too."""
        super().__init__(join.node)
        self._join = join
        self._name = name
        self._time = StepTime(f"the {name} side of join {join.node.id!r}", time, schema.columns[time.column])
        self.time_column = time.column
        self._reach_ms = reach_ms
        self._alone = alone
        self._slack_ms = max(_SLACK_MIN_MS, (join.spec.before_ms + join.spec.after_ms) // 8)
        buffer, matched = f"{join.node.id}.{name}", f"{join.node.id}.{name}-matched"
        own: dict[str, pl.DataType] = {TIME: pl.Int64(), HASH: pl.UInt64(), _ID: pl.UInt64()}
        kept = {**schema.columns, **own}
        needed = {*join.spec.keys, *own}
        self._buffer = Runs(
            buffer,
            TIME,
            lambda run: run.sort(HASH, maintain_order=True),
            conform=lambda rows: conformed(buffer, rows, kept, needed),
            hashed=HASH,
            form=join.forms[buffer],
        )
        self._matched = Runs(matched, TIME, lambda run: run.unique(), keys=[_ID], form=join.forms.get(matched))
        self._watermark = self._passed = NEVER
        self._next_id = 0
        self._latest = 0, np.empty(0, np.int64)  # the first id of the latest batch, and its ranks in the order of ids

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._buffer, self._matched) if self._alone else (self._buffer,)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        ranks = np.arange(rows.height) if self.ranks is None else self.ranks
        batch = self._time.added(rows, TIME)
        if self.lowest(batch) < self._watermark:
            kept = batch.get_column(TIME) >= self._watermark
            timely, ranks = batch.filter(kept), ranks[kept.to_numpy()]
            self._join.counters.count("late", batch.height - timely.height)
            batch = timely
            if not batch.height:
                return
        hashes = hash_rows(batch, self._join.spec.keys)
        self._latest = self._next_id, ranks
        ids = pl.Series(_ID, self._ids(batch.height), dtype=pl.UInt64)
        batch = batch.with_columns(pl.Series(HASH, hashes, dtype=pl.UInt64), ids)
        self._join.meet(self, batch)
        self._buffer.add(batch.sort(HASH, maintain_order=True))
        if self.ranks is None:
            self.rank(None)

    @property
    @override
    def owes(self) -> bool:
        if not self._alone and not (self._name == "left" and self._reach_ms > 0):
            return False
        latest = self._buffer.latest
        return latest is not None and latest > self._passed

    @override
    def resume(self, watermark: int) -> None:
        self._watermark = watermark
        self._passed = self._bound(watermark)
        highest = [frame.get_column(_ID).max() for frame in self._buffer.held(NEVER, FOREVER)]
        self._next_id = max((number + 1 for number in highest if isinstance(number, int)), default=0)

    def pass_by(self, watermark: int) -> None:
        self._watermark = watermark
        bound = self._bound(watermark)
        if bound <= self._passed:
            return
        if self._alone:
            self._leave(self._passed, bound)
        self._passed = bound
        earliest = self._buffer.earliest
        if earliest is not None and earliest + self._slack_ms <= bound:
            self._buffer.drop(bound)
            self._matched.drop(bound)

    def buffered(self, wanted: Hashes, low: int, high: int) -> Iterator[pl.DataFrame]:
        return self._buffer.matching(wanted, low, high)

    def matched(self, rows: pl.DataFrame) -> None:
        if self._alone and rows.height:
            self._matched.add(rows.select(TIME, *self._join.spec.keys, _ID).unique())

    @override
    def rank(self, ranks: Indexes | None) -> None:
        super().rank(ranks)
        self._latest = self._next_id, np.empty(0, np.int64)

    def ranks_of(self, ids: Indexes) -> Indexes:
        first, ranks = self._latest
        if not len(ranks):
            return np.full(len(ids), -1)
        number = ids.astype(np.int64) - first
        return np.where(number >= 0, ranks[np.maximum(number, 0)], -1)

    @staticmethod
    def lowest(batch: pl.DataFrame) -> int:
        low = batch.get_column(TIME).min()
        return low if isinstance(low, int) else FOREVER

    @staticmethod
    def highest(batch: pl.DataFrame) -> int:
        high = batch.get_column(TIME).max()
        return high if isinstance(high, int) else NEVER

    def _bound(self, watermark: int) -> int:
        return watermark if watermark in (NEVER, FOREVER) else max(NEVER, watermark - 1 - self._reach_ms)

    def _leave(self, low: int, high: int) -> None:
        rows = [part for part in self._buffer.between(low + 1, high) if part.height]
        if not rows:
            return
        within = pl.col(TIME).is_between(low + 1, high)
        same = [*self._join.spec.keys, _ID]
        matched = [frame.filter(within).select(same) for frame in self._matched.held(low + 1, high)]
        leaving = concat_rows(rows)
        if matched:
            leaving = leaving.join(concat_rows(matched), on=same, how="anti")
        self._join.alone(self, leaving.sort(TIME, _ID))

    def _ids(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        first = self._next_id
        self._next_id += count
        return np.arange(first, first + count, dtype=np.uint64)


def _rests(batch: pl.Series, run: pl.Series) -> Rests | None:
    if is_whole_ms(batch.dtype) and is_whole_ms(run.dtype):
        return None
    return lambda of_batch, of_run: rest_ns(run.gather(of_run)) - rest_ns(batch.gather(of_batch))

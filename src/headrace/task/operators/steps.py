"""Operators without state of their own, those that pass rows on, and ``deduplicate`` and ``drop_late``.

**Spacing.** The rows that are far enough apart in time, as if rows were visited one by one, and one chosen unless an
earlier chosen row of its group is too near. Example: with distance 10, the times 0, 4, 11, 15, 21 keep 0, 11 and 21. If
the times of a group never decrease, the chosen rows are a walk: the walks of all such groups are done at once, by
doubling the steps (``_walked``). Other groups need one round for each row that they choose (``_by_rounds``).

**Deduplicate.** A message is let through unless one of its key that was let through has a time less than ``within``
away, before or after. A message older than the watermark is late: it is counted and dropped. A null key is a key like
any other; a null time is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.api.operators.join import TaskTable
from headrace.api.operators.steps import LATE, Broadcast, Filter, Input, Merge, PartitionBy, Project, SendTo, SideOutput
from headrace.api.operators.window import Deduplicate, DropLate, Window
from headrace.api.specs import Node
from headrace.core.errors import DataError
from headrace.rows.casting import is_bounded
from headrace.rows.changes import CHANGE, halves_apart
from headrace.rows.given import concat_rows, rows_where
from headrace.rows.hashing import hash_rows
from headrace.stores.base import StateStore
from headrace.stores.runs import Runs
from headrace.task.event_time import FOREVER, NEVER, StepTime
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.base import UNCOMPUTABLE, BuildContext, Numbers, Operator
from headrace.task.operators.keyed_windows import window_operator


class FilterOperator(Operator):
    """Keeps the rows for which the predicate is true (null is not true)."""

    def __init__(self, node: Node, spec: Filter, context: BuildContext) -> None:
        super().__init__(node)
        self._predicate = spec.predicate
        # A constant is one value, not one for each row: leave it to Polars to broadcast it.
        constant = not spec.predicate.meta.root_names()
        self._columns = None if context.needed is None or constant else list(context.needed)
        self._changes = node.schema is not None and CHANGE in node.schema.columns

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        try:
            if self._columns is None:
                kept = rows.filter(self._predicate)
            else:
                kept = _where(_taken(rows, self._columns), rows.select(self._predicate).to_series())
        except UNCOMPUTABLE as error:
            raise self.failed(error, "the predicate") from error
        self.provenance.became(lambda: self._places(rows))
        if self._changes and CHANGE in kept.columns:  # it may have dropped one half of an update
            kept = kept.with_columns(halves_apart())
        self.emit(kept)

    def _places(self, rows: pl.DataFrame) -> Sequence[int] | pl.Series:
        mask = rows.select(self._predicate).to_series()
        return mask.arg_true() if mask.len() == rows.height else range(rows.height)


class ProjectOperator(Operator):
    """Computes columns, which are added to the others or replace them."""

    def __init__(self, node: Node, spec: Project, context: BuildContext) -> None:
        super().__init__(node)
        self._exprs = spec.exprs
        self._keep = spec.keep
        plain = not spec.keep and all(expression.meta.is_column() for expression in spec.exprs)
        self._taken = [expression.meta.output_name() for expression in spec.exprs] if plain else None
        self._bounded: list[str] | None = None  # what it computes and can hold too much, by ``is_bounded``

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        if self._taken is not None:  # a query of Polars takes ten times as long, which is felt with a few rows
            self.provenance.became(lambda: range(rows.height))
            self.emit(_taken(rows, self._taken))
            return
        try:
            result = rows.with_columns(self._exprs) if self._keep else rows.select(self._exprs)
        except UNCOMPUTABLE as error:
            raise self.failed(error, "an expression") from error
        if self._bounded is None:
            computed = rows.clear().select(self._exprs).columns
            self._bounded = [name for name in computed if is_bounded(result.schema[name])]
        self.check_bounds(result, self._bounded, "an expression")
        self.provenance.became(lambda: range(rows.height))
        self.emit(result)


def _taken(rows: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    return rows if rows.columns == columns else rows[columns]


def _where(rows: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    if mask.all(ignore_nulls=False):
        return rows
    return rows_where(rows, mask) if mask.any() else rows.clear()


class PassOnOperator(Operator):
    """Hands rows on; everything else is decided by who is connected to it."""

    def __init__(self, node: Node, spec: Input | Merge | SideOutput | TaskTable, context: BuildContext) -> None:
        super().__init__(node)


class SendOperator(Operator):
    """Writes rows to a stream: to the partitions of their keys, or to the task's own, as a broadcast does."""

    def __init__(self, node: Node, spec: PartitionBy | SendTo | Broadcast, context: BuildContext) -> None:
        super().__init__(node)
        self._stream = spec.stream
        self._keys = () if isinstance(spec, Broadcast) else spec.keys
        self._port = context.port
        self._target_key = context.target_key
        self._entry: Operator = self
        if context.partials_of is not None:
            self._entry = _CombineOperator(context.partials_of, context.counters)
            self._entry.after.append(self)

    @override
    def side(self, number: int) -> Operator:
        return self._entry

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        require_keys(self.node, self._stream, self._target_key, rows)
        self._port.write(self._stream, rows, self._keys)


class _CombineOperator(Operator):
    """Turns messages into partial results of a window, before the ``partition_by`` that writes them."""

    def __init__(self, window: Node, counters: TaskMetrics) -> None:
        super().__init__(window)
        assert isinstance(window.operator, Window), f"step {window.id!r} isn't a window"
        self._window = window_operator(window, window.operator, counters)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        self.emit(self._window.combine(rows))


def require_keys(node: Node, target: str, key: Sequence[str], rows: pl.DataFrame) -> None:
    """Raise if a row for a target that replaces rows by key has a null in it. To a database no null equals another."""
    for name in key:
        if missing := rows.get_column(name).null_count():
            raise DataError(
                f"step {node.id!r} ({node.location}) sends rows without a key to {target!r}: "
                f"{name!r} is null in {missing} of {rows.height}",
                hint=f"leave them out before it: .filter(pl.col({name!r}).is_not_null())",
            )


Indexes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_WIDEST = 1 << 62


def chosen_apart(groups: Indexes, times: Indexes, distance: int) -> Mask:
    """A mask of the chosen rows. Each is at least ``distance`` away from all rows of its group chosen before it."""
    chosen = np.zeros(len(groups), np.bool_)
    order = np.argsort(groups, kind="stable")
    group, time = groups[order], times[order]
    begins = np.ones(len(group), np.bool_)
    begins[1:] = group[1:] != group[:-1]
    number = np.cumsum(begins) - 1
    falls = np.zeros(len(group), np.bool_)
    falls[1:] = (time[1:] < time[:-1]) & ~begins[1:]
    rising = ~np.isin(number, number[falls])
    span = int(time.max()) - int(time.min()) + distance + 1 if len(time) else 0
    if span * (len(group) + 1) > _WIDEST:  # group and time don't fit into one number
        rising[:] = False
    chosen[order[rising]] = _walked(number[rising], time[rising], begins[rising], distance, span)
    rest = ~rising
    chosen[order[rest][_by_rounds(number[rest], time[rest], distance)]] = True
    return chosen


def _walked(number: Indexes, time: Indexes, begins: Mask, distance: int, span: int) -> Mask:
    """``line`` holds group and time as one ascending number, with more than ``distance`` between groups. ``step[i]`` is
    the row that the walk visits after row i. After n rounds the first 2^n rows of every walk are ``reached``."""
    count = len(number)
    if not count:
        return begins
    line = number * span + (time - time.min())
    step = np.append(np.searchsorted(line, line + distance), count)
    reached = np.append(begins, True)
    while True:
        further = step[np.flatnonzero(reached)]
        if reached[further].all():
            return reached[:count]
        reached[further] = True
        step = step[step]


def _by_rounds(number: Indexes, time: Indexes, distance: int) -> Indexes:
    rounds = [np.empty(0, np.int64)]
    left = np.arange(len(number))
    while len(left):
        first = np.ones(len(left), np.bool_)
        first[1:] = number[left[1:]] != number[left[:-1]]
        firsts = left[first]
        rounds.append(firsts)
        near = np.abs(time[left] - time[firsts[np.cumsum(first) - 1]]) < distance
        left = left[~near]
    return np.concatenate(rounds)


_TIME, _HASH, _GROUP = "__time", "__hash", "__group"
_SLACK_MIN_MS = 1000


class DropLateOperator(Operator):
    """Drops and counts messages that are older than the watermark."""

    def __init__(self, node: Node, spec: DropLate | Deduplicate, context: BuildContext) -> None:
        super().__init__(node)
        assert node.schema is not None, "a step that passes messages on has an output schema"
        self.watermark = NEVER
        self._counters = context.counters
        self._time = StepTime(f"operator {node.id!r}", spec.event_time, node.schema.columns[spec.event_time.column])

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        timely, _, numbers = self.timely(rows)
        self.provenance.became(lambda: numbers)
        self.emit(timely)

    @override
    def on_watermark(self, watermark: int) -> None:
        self.watermark = watermark

    @override
    def resume(self, watermark: int) -> None:
        self.watermark = watermark

    def timely(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series, Numbers]:
        times = self._time.of(rows).alias(_TIME)
        earliest = times.min()
        if not isinstance(earliest, int) or earliest >= self.watermark:
            return rows, times, range(rows.height)
        late = times < self.watermark
        too_late = rows.filter(late)
        self._counters.count("late", too_late.height)
        self.provenance.became(late.arg_true)
        self.emit_aside(LATE, too_late)
        return rows.filter(~late), times.filter(~late), (~late).arg_true()


class DeduplicateOperator(DropLateOperator):
    """Passes the first message of a key, and drops messages of the key less than ``within`` away from it."""

    def __init__(self, node: Node, spec: Deduplicate, context: BuildContext) -> None:
        super().__init__(node, spec, context)
        self._keys = list(spec.keys)
        self._within = spec.within_ms
        self._slack_ms = max(_SLACK_MIN_MS, spec.within_ms // 8)
        form = spec.state_forms(node.id, context.inputs)[node.id]
        self._known = Runs(node.id, _TIME, lambda run: run.sort(_HASH), hashed=_HASH, form=form)

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._known,)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        rows, times, numbers = self.timely(rows)
        if not rows.height:
            return
        hashes = pl.Series(_HASH, hash_rows(rows, self._keys), dtype=pl.UInt64)
        seen = rows.select(self._keys).with_columns(times, hashes)
        before = self._near(seen)
        # The known rows come first, so they are all chosen again: they are far enough apart already.
        together = seen if before is None else concat_rows([before.select(seen.columns), seen])
        numbered = together.with_row_index(_GROUP)
        groups = numbered.select(pl.col(_GROUP).cast(pl.Int64).first().over(self._keys)).to_series()
        chosen = chosen_apart(groups.to_numpy(), together[_TIME].to_numpy(), self._within)
        new = pl.Series(chosen[together.height - seen.height :])
        self._known.add(rows_where(seen, new).sort(_HASH))
        self.provenance.became(lambda: np.asarray(numbers)[new.arg_true().to_numpy()])
        self.emit(rows_where(rows, new))

    @override
    def on_watermark(self, watermark: int) -> None:
        super().on_watermark(watermark)
        if watermark in (NEVER, FOREVER):
            return
        # No timely message can be near a time before the bound. Entries are dropped in large steps.
        bound = watermark - self._within
        earliest = self._known.earliest
        if earliest is not None and earliest + self._slack_ms <= bound:
            self._known.drop(bound)

    @override
    def on_end(self) -> None:
        self._known.drop(FOREVER)

    def _near(self, seen: pl.DataFrame) -> pl.DataFrame | None:
        low, high = seen[_TIME].min(), seen[_TIME].max()
        assert isinstance(low, int) and isinstance(high, int), "times are integers"
        low, high = low - self._within + 1, high + self._within - 1
        wanted = np.unique(seen[_HASH].to_numpy())
        near = pl.col(_TIME).is_between(low, high)
        found = [rows.filter(near) for rows in self._known.matching(wanted, low, high)]
        return concat_rows(found).sort(_TIME) if found else None

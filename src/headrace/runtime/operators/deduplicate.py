"""Operators that drop messages by their event time: repeated ones (``deduplicate``) and late ones (``drop_late``).

A message is let through unless one of its key that was let through has a time less than ``within`` away, before or
after. The state is the time and key of each message let through, columnar, in runs sorted by the hash of the key. A
batch looks up its keys and decides for all its messages at once. Entries that no timely message can be near any more
are dropped.

A message older than the watermark is late: it is counted and dropped. A null key is a key like any other; a null time
is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.operators.deduplicate import Deduplicate, DropLate
from headrace.api.operators.streams import LATE
from headrace.api.specs import Node
from headrace.runtime.event_time.limits import StepTime
from headrace.runtime.event_time.watermark import FOREVER, NEVER
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.provenance import Numbers
from headrace.runtime.operators.spacing import chosen_apart
from headrace.serdes.hashing import hash_rows
from headrace.serdes.rows import concat_rows, rows_where
from headrace.stores.base import StateStore
from headrace.stores.runs import Runs

_TIME, _HASH, _GROUP = "__time", "__hash", "__group"
_SLACK_MIN_MS = 1000


class DropLateOperator(Operator):
    """Drops and counts messages that are older than the watermark."""

    def __init__(self, node: Node, spec: DropLate | Deduplicate, context: BuildContext) -> None:
        super().__init__(node)
        if node.schema is None:
            raise ValueError("a step that passes messages on has an output schema")
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
        """The messages that aren't late, their times in ms, and their numbers.

        Late ones are counted, and emitted as a side output.
        """
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
        groups = (
            together.with_row_index(_GROUP).select(pl.col(_GROUP).cast(pl.Int64).first().over(self._keys)).to_series()
        )
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
        """The known rows with the hashes of a batch, around its times; perhaps with rows of other keys."""
        low, high = seen[_TIME].min(), seen[_TIME].max()
        if not isinstance(low, int) or not isinstance(high, int):
            raise TypeError("times are integers")
        low, high = low - self._within + 1, high + self._within - 1
        wanted = np.unique(seen[_HASH].to_numpy())
        near = pl.col(_TIME).is_between(low, high)
        found = [rows.filter(near) for rows in self._known.matching(wanted, low, high)]
        return concat_rows(found).sort(_TIME) if found else None

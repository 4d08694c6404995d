"""Panes: when a window emits results, as columns beside its partial results.

For each window and key the state holds the number of messages since the last pane, the times of the first and the last
of them (if a trigger needs these), the number of panes so far, and the time at which a pane is due: ``DUE`` on the
window's own axis, ``WAKE`` by the wall clock. So one comparison finds all panes that are due when time advances.

A window is *open* until time reaches its end. Then its on-time pane is emitted; later panes are late ones. The window
is over, and its state is dropped, when the allowed lateness has passed as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from headrace.api.operators.window import Window
from headrace.api.shapes import Alternative, Deadline, Trigger
from headrace.runtime.event_time.watermark import FOREVER, NEVER
from headrace.runtime.operators.windows.aggregation import TIME
from headrace.runtime.operators.windows.base import END

NOW = "__now"
"""The wall clock when a message arrived."""

NUMBER, INDEX = "__n", "__panes"
DUE, WAKE = "__due", "__wake"
PLACE, TOTAL = "__place", "__total"
PANE, FULL = "__pane", "__full"
_FIRST, _LAST = "__first", "__last"
_FIRST_NOW, _LAST_NOW = "__first_now", "__last_now"

Limits = tuple[int | None, int | None]
"""The number of messages for the first pane, and for each later one; None: never."""


class Panes:
    """The columns that a window's triggers need, and the panes that follow from them."""

    def __init__(self, spec: Window) -> None:
        self._lateness = spec.lateness_ms
        self._early = _alternatives(spec.early, clock=spec.axis == "processing")
        self._late = _alternatives(spec.late, clock=spec.axis == "processing")
        waits = [d for a in (*self._early, *self._late) for d in a.deadlines]
        self.clocked = any(deadline.processing for deadline in waits)
        """A trigger uses the wall clock, in a window over event time."""
        self.soonest = min((d.ms for d in waits if not d.processing and d.since != "tick"), default=None)
        """How long after a message's time its pane can be due by event time."""
        self.early_limits, self.late_limits = _limits(self._early), _limits(self._late)
        self.counted = self.early_limits != (None, None) or self.late_limits != (None, None)
        """A trigger counts messages."""
        self.of: list[pl.Expr] = [pl.len().cast(pl.Int64).alias(NUMBER)]
        self.merge: list[pl.Expr] = [pl.col(NUMBER).sum()]
        self._reset: list[pl.Expr] = [pl.lit(0, pl.Int64).alias(NUMBER)]
        if any(not deadline.processing for deadline in waits):
            self._measure(TIME, _FIRST, _LAST)
        if self.clocked:
            self._measure(NOW, _FIRST_NOW, _LAST_NOW)
        self.dues = [DUE, WAKE] if self.clocked else [DUE]
        self.columns = [expr.meta.output_name() for expr in self.of]

    def _measure(self, time: str, first: str, last: str) -> None:
        self.of += [pl.col(time).min().alias(first), pl.col(time).max().alias(last)]
        self.merge += [pl.col(first).min(), pl.col(last).max()]
        self._reset += [pl.lit(None, pl.Int64).alias(first), pl.lit(None, pl.Int64).alias(last)]

    def reset(self, emitted: pl.Expr) -> list[pl.Expr]:
        """The columns after a pane, for rows where ``emitted`` is true."""
        columns = (expr.meta.output_name() for expr in self._reset)
        pairs = zip(columns, self._reset, strict=True)
        return [pl.when(emitted).then(expr).otherwise(pl.col(column)).alias(column) for column, expr in pairs]

    def due(self, time: int) -> list[pl.Expr]:
        """``DUE`` and ``WAKE`` as of ``time``."""
        is_open = pl.col(END) > time
        end = pl.when(is_open).then(pl.col(END)).otherwise(pl.col(END) + self._lateness)
        result = [pl.min_horizontal(end, self._deadline(is_open, time, processing=False)).alias(DUE)]
        if self.clocked:
            result.append(self._deadline(is_open, time, processing=True).alias(WAKE))
        return result

    def _deadline(self, is_open: pl.Expr, time: int, *, processing: bool) -> pl.Expr:
        early = _earliest((a for a in self._early if a.deadlines and a.processing == processing), time)
        late = _earliest((a for a in self._late if a.deadlines and a.processing == processing), time)
        return pl.when(is_open).then(early).otherwise(late)

    def over(self, time: int) -> pl.Expr:
        """Whether a window is over, including the allowed lateness."""
        return pl.col(END) <= time - self._lateness if time < FOREVER else pl.lit(value=True)

    def number(self, time: int) -> list[pl.Expr]:
        """For each message the number of its pane, counted from the next pane on; and how many panes will be full.

        Uses the columns ``PLACE`` (the number of messages of the batch before it in its window and key), ``TOTAL`` (the
        number of messages of the batch in that window and key), and ``NUMBER`` and ``INDEX`` of the state before.
        """
        is_open = pl.col(END) > time
        first, rest = (
            pl.when(is_open).then(pl.lit(early, pl.Int64)).otherwise(pl.lit(late, pl.Int64))
            for early, late in zip(self.early_limits, self.late_limits, strict=True)
        )
        first = pl.when(pl.col(INDEX) == 0).then(first).otherwise(rest)
        before = pl.min_horizontal(pl.col(NUMBER), first - 1)

        def full(messages: pl.Expr) -> pl.Expr:
            more = pl.when(rest.is_null()).then(0).otherwise((messages - first) // rest)
            return pl.when(first.is_null() | (messages < first)).then(0).otherwise(1 + more)

        return [
            full(before + pl.col(PLACE)).cast(pl.Int64).alias(PANE),
            full(before + pl.col(TOTAL)).cast(pl.Int64).alias(FULL),
        ]


def _alternatives(trigger: Trigger | None, *, clock: bool) -> tuple[Alternative, ...]:
    """A trigger's alternatives; a window over processing time has only that time."""
    if trigger is None or not clock:
        return () if trigger is None else trigger.alternatives
    return tuple(
        Alternative(a.repeats, a.count, tuple(Deadline(d.since, d.ms) for d in a.deadlines))
        for a in trigger.alternatives
    )


def _limits(alternatives: tuple[Alternative, ...]) -> Limits:
    counts = [a for a in alternatives if not a.deadlines]
    first = min((a.count for a in counts), default=None)
    return first, min((a.count for a in counts if a.repeats), default=None)


def _earliest(alternatives: Iterable[Alternative], time: int) -> pl.Expr:
    moments = [pl.lit(FOREVER, pl.Int64)]
    for alternative in alternatives:
        ready = pl.col(NUMBER) >= max(1, alternative.count)
        if not alternative.repeats:
            ready &= pl.col(INDEX) == 0
        last = pl.max_horizontal([_moment(deadline, time) for deadline in alternative.deadlines])
        moments.append(pl.when(ready).then(last).otherwise(FOREVER))
    return pl.min_horizontal(moments)


def _moment(deadline: Deadline, time: int) -> pl.Expr:
    first, last = (_FIRST_NOW, _LAST_NOW) if deadline.processing else (_FIRST, _LAST)
    match deadline.since:
        case "first":
            return pl.col(first) + deadline.ms
        case "last":
            return pl.col(last) + deadline.ms
        case "tick":
            # Messages out of order wait for the next tick, too, or each such batch would make a pane.
            now = NEVER if deadline.processing else time
            return (pl.max_horizontal(pl.col(first), pl.lit(now, pl.Int64)) // deadline.ms + 1) * deadline.ms

"""Panes: when a window speaks, as columns beside its partial results.

For each window and key the state says how many messages have come since the last pane, when the first and the last of
them were (if some trigger asks), how many panes there were, and from which moment on something has to be done: ``DUE``
in the window's own time, ``WAKE`` by the clock. So finding out who speaks when time moves is one comparison.

A window is *open* until time reaches its end. Then its on-time pane leaves; after that its panes are late ones. It is
over, and its state goes, when the allowed lateness has passed as well.
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
"""What the clock showed when a message came."""

NUMBER, INDEX = "__n", "__panes"
DUE, WAKE = "__due", "__wake"
PLACE, TOTAL = "__place", "__total"
PANE, FULL = "__pane", "__full"
_FIRST, _LAST = "__first", "__last"
_FIRST_NOW, _LAST_NOW = "__first_now", "__last_now"

Limits = tuple[int | None, int | None]
"""With how many messages the first pane comes, and each after it; None: never."""


class Panes:
    """What a window's triggers need to know, and what follows from it."""

    def __init__(self, spec: Window) -> None:
        self._lateness = spec.lateness_ms
        self._early = _alternatives(spec.early, clock=spec.axis == "processing")
        self._late = _alternatives(spec.late, clock=spec.axis == "processing")
        waits = [d for a in (*self._early, *self._late) for d in a.deadlines]
        self.clocked = any(deadline.processing for deadline in waits)
        """Some trigger goes by the clock, in a window that doesn't."""
        self.early_limits, self.late_limits = _limits(self._early), _limits(self._late)
        self.counted = self.early_limits != (None, None) or self.late_limits != (None, None)
        """Some trigger looks at each message."""
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

    def reset(self, spoken: pl.Expr) -> list[pl.Expr]:
        """The columns after a pane, where ``spoken`` is true."""
        columns = (expr.meta.output_name() for expr in self._reset)
        pairs = zip(columns, self._reset, strict=True)
        return [pl.when(spoken).then(expr).otherwise(pl.col(column)).alias(column) for column, expr in pairs]

    def due(self, time: int) -> list[pl.Expr]:
        """``DUE`` and ``WAKE``, now that time has come to ``time``."""
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
        """Whether a window is over, allowed lateness included."""
        return pl.col(END) <= time - self._lateness if time < FOREVER else pl.lit(value=True)

    def number(self, time: int) -> list[pl.Expr]:
        """For each message the number of its pane, counted from the next one on; and how many of those will be full.

        Looks at the columns ``PLACE`` (how many of the batch came before it in its window and key), ``TOTAL``
        (how many there are of those), ``NUMBER`` and ``INDEX`` of the state before.
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
    """A trigger's alternatives; in a window of the clock there is one time only."""
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
            # What comes out of order waits for the next tick too, or each such batch would make a pane.
            now = NEVER if deadline.processing else time
            return (pl.max_horizontal(pl.col(first), pl.lit(now, pl.Int64)) // deadline.ms + 1) * deadline.ms

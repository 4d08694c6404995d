"""The base of all window operators: their axis of time, late messages, and the columns of results.

Time is event time, read from the messages and moved by the watermark, or processing time. In processing time a message
belongs to the moment at which it is processed, and windows end by the clock. If the clock is set back, time doesn't
advance until the clock has caught up. Each family of shapes has its own module; ``choice`` picks the operator.

A null key is a key like any other, as in Polars; a null event time is an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import polars as pl
from typing_extensions import override

from headrace.api.operators.spec import EventTime
from headrace.api.operators.streams import LATE
from headrace.api.operators.window import Window
from headrace.api.specs import Node
from headrace.core.errors import DataError, DeclarationError
from headrace.runtime.event_time.columns import from_ms, is_whole_ms
from headrace.runtime.event_time.limits import StepTime
from headrace.runtime.event_time.watermark import FOREVER, NEVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.base import RAISED, UNCOMPUTABLE, Operator
from headrace.runtime.operators.user_code.results import WrongResult
from headrace.runtime.operators.user_code.source_line import users_line
from headrace.runtime.operators.windows.aggregation import TIME, Aggregation
from headrace.serdes.bounds import is_bounded
from headrace.serdes.sorting import sort_rows
from headrace.stores import pieces
from headrace.stores.readable import readable

START, END = "__start", "__end"
"""The bounds of a window, or of a part of one, in ms; the end is exclusive."""
ROW = "__row"
"""The number of the message of a batch that has completed a result."""
SLICE = "__slice"
"""The start of a part that belongs to several windows, where people see it."""


class WindowOperator(Operator):
    """A window step of one task. Subclasses take messages, and emit results when time advances."""

    order: ClassVar[Sequence[str]] = (START,)
    """Results in the order of these columns are in the order in which windows end."""

    def __init__(self, node: Node, spec: Window, counters: Counters) -> None:
        super().__init__(node)
        schema = node.schema
        if schema is None:
            raise ValueError("a window node has an output schema")
        self.spec = spec
        self.keys = list(spec.keys)
        self.time = NEVER
        """The time on the step's axis; ``NEVER`` before the first watermark."""
        time = spec.event_time
        dtype = None if time is None else spec.input.columns[time.column]
        self.aggregation = Aggregation(
            spec.aggregates,
            {name: schema.columns[name] for name, _ in spec.aggregates},
            spec.input,
            at=None if time is None or dtype is None else _exact_time(time, dtype),
            calling=self._calling,
        )
        self._output = schema.columns
        self._bounded = [name for name, _ in spec.aggregates if is_bounded(schema.columns[name])]
        self.form = spec.state_forms(node.id, (spec.input,))[node.id]
        self._counters = counters
        self._time = None if time is None or dtype is None else StepTime(f"operator {node.id!r}", time, dtype)

    # -- what a shape does

    def take_in(self, rows: pl.DataFrame) -> None:
        """Take messages; those with a time have it in the column ``TIME``."""
        raise NotImplementedError

    def advance(self, time: int) -> None:
        """Time (of the step's own axis) has reached ``time``; emit the windows that are over."""
        raise NotImplementedError

    def stops(self, time: int) -> Iterable[int]:
        """At which times to stop on the way to ``time``, ascending, so that what is due meanwhile is one lot.

        The next one is asked for when time has reached the one before. None, unless a shape says otherwise.
        """
        return ()

    def next_ms(self) -> int | None:
        """When the next window is over, on the step's axis; None or ``FOREVER`` if no time ends one."""
        raise NotImplementedError

    # -- the operator's hooks

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        if self.spec.axis == "processing":
            now = max(self.now(), self.time)  # no message is late because the clock was set back
            if now > self.time:
                self.on_time(now)
            rows = rows.with_columns(pl.lit(now, pl.Int64).alias(TIME))
        elif self._time is not None:
            rows = self._time.added(rows, TIME)
        self.take_in(rows)

    @override
    def on_watermark(self, watermark: int) -> None:
        if self.spec.axis == "event":
            self._advance_to(watermark)

    @override
    def on_time(self, now_ms: int) -> None:
        if self.spec.axis == "processing" and now_ms > self.time:
            self._advance_to(now_ms)

    @override
    def due_ms(self) -> int | None:
        return self.next_ms() if self.spec.axis == "processing" else None

    @override
    def on_end(self) -> None:
        self._advance_to(FOREVER)

    @override
    def resume(self, watermark: int) -> None:
        if self.spec.axis == "event":
            self.time = watermark

    @property
    @override
    def owes(self) -> bool:
        return self.spec.axis == "event" and self.next_ms() not in (None, FOREVER)

    # -- for the shapes

    def now(self) -> int:
        """The wall clock."""
        if self.now_ms is None:
            raise ValueError("the host sets the wall clock before it hands on messages")
        return self.now_ms

    def partial(self, rows: pl.DataFrame, keys: list[str], *more: pl.Expr) -> pl.DataFrame:
        """Partial results of messages."""
        try:
            return self.aggregation.partial(rows, keys, *more)
        except UNCOMPUTABLE as error:
            raise self.failed(error, "an aggregate") from error

    def conformed(self, rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        """Rows of the state that a version of the app with other aggregates has put there, with these columns."""
        if rows.columns == list(columns):
            return rows
        types = {**self.spec.input.columns, **self.aggregation.types}
        return self.aggregation.conformed(self.node.id, rows, {name: types.get(name, pl.Int64()) for name in columns})

    def partials(self, rows: pl.DataFrame, wanted: pl.Schema) -> pl.DataFrame:
        """Partial results as this version of the app writes them, from those of any version.

        Raises ``DataError`` if they aren't of this window.
        """
        if rows.schema == wanted:
            return rows
        try:
            return self.aggregation.conformed(self.node.id, rows, wanted)
        except DeclarationError as error:
            raise DataError(
                f"operator {self.node.id!r} got partial results with the columns {dict(rows.schema)}, "
                f"not {dict(wanted)}",
                hint="another version of the app wrote them: drain the app before changing a window, or give the "
                "partition_by before it a new id",
            ) from error

    def too_late(self, rows: pl.DataFrame) -> None:
        """Count messages whose windows are over, and emit them as a side output."""
        self.count_late(rows.height)
        if rows.height:
            plain = rows.select(list(self.spec.input.columns))
            self.emit_aside(LATE, plain)

    def count_late(self, messages: int) -> None:
        """Count messages whose windows are over."""
        self._counters.count("late", messages)

    def send(self, merged: pl.DataFrame, *more: str) -> None:
        """Finish merged partial results and emit them in the order of windows' ends and keys.

        ``merged`` has the columns ``START`` and ``END``; ``more`` names columns that are emitted as they are. With a
        column ``ROW`` each result is that of a message of the batch, and results leave in the order of these.
        """
        if not merged.height:
            return
        of_messages = [ROW] if ROW in merged.columns else []
        merged = sort_rows(merged, [*of_messages, *self.order, *self.keys])
        result = self.aggregation.final(merged, [START, END, *self.keys, *more])
        self._check_sums(result)
        self.check_bounds(result, self._bounded, "an aggregate")
        bounds = [
            from_ms(ours, self._output[public]).alias(public)
            for ours, public in ((START, "window_start"), (END, "window_end"))
            if public in self._output
        ]
        first = 0
        for part in result.with_columns(bounds).select(list(self._output)).iter_slices(pieces.PIECE_ROWS):
            if of_messages:
                messages = merged[ROW][first : first + part.height]
                self.provenance.became(lambda messages=messages: messages)  # type: ignore[misc]
            first += part.height
            self.emit(part)

    def _check_sums(self, results: pl.DataFrame) -> None:
        """Raise ``DataError`` if a sum is larger than its type can hold."""
        name = self.aggregation.overflown(results)
        if name is None:
            return
        missing = results.filter(pl.col(name).is_null())
        key = ", ".join(f"{column} = {missing.item(0, column)!r:.100}" for column in self.keys)
        dtype = self._output[name]
        wider = "" if isinstance(dtype, pl.Decimal) else ".cast(pl.Decimal(38, 0)), or of "
        raise DataError(
            f"{self.described(f'the sum {name!r}')} is too large for {dtype} "
            f"in {missing.height} of {results.height} results{key and f'; the first has {key}'}",
            hint=f"sum something wider: of the column{wider or ' '}.cast(pl.Float64), which rounds; "
            "or filter out the messages that are too large",
        )

    def shown(self, merged: pl.DataFrame, *bounds: str) -> pl.DataFrame:
        """Merged partial results for people: keys, these columns with bounds, and what the results are so far."""
        return readable(self.aggregation.final(merged, [*self.keys, *bounds]))

    def _advance_to(self, time: int) -> None:
        for stop in itertools.chain(self.stops(time), (time,)):
            now = max(stop, self.time)
            self.advance(now)
            self.time = now

    @contextmanager
    def _calling(self, what: str) -> Iterator[None]:
        try:
            with self.user_call():
                yield
        except WrongResult as error:
            raise error.told(self, what) from error
        except RAISED as error:
            raise self.failed(error, what, users_line(error)) from error


def _exact_time(time: EventTime, dtype: pl.DataType) -> pl.Expr:
    """A number by which the times of messages can be compared, in the unit of their column."""
    return pl.col(TIME) if is_whole_ms(dtype) else pl.col(time.column).to_physical()

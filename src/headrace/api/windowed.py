"""A stream grouped by key and window, between ``Stream.window`` and ``agg``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar, final

import polars as pl
from typing_extensions import override

from headrace.api.aggregates import named_aggregates
from headrace.api.flow import Flow
from headrace.api.handles import Output
from headrace.api.location import Declaring, Location
from headrace.api.operators.aggregate import Aggregate
from headrace.api.operators.streams import LATE, SideOutput
from headrace.api.operators.window import Window, result_time, window_columns, with_aggregates
from headrace.api.other_names import WINDOWED, missing
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema

S = TypeVar("S", bound=Flow)


@final
class WindowedStream(Generic[S]):
    """Messages grouped by key and window, from ``Stream.window``. Call ``agg`` on it.

    Examples
    --------
    >>> views.window(hr.tumbling("10s"), key="member", id="per-10s").agg(views=pl.len()).schema.columns["views"]
    Int64
    """

    __slots__ = ("_here", "_id", "_late_to", "_stream", "_window")

    def __init__(self, stream: S, id_: str, window: Window, late_to: Output | None, here: Location) -> None:
        self._stream = stream
        self._id = id_
        self._window = window
        self._late_to = late_to
        self._here = here

    def agg(self, *aggregates: pl.Expr, **named: Aggregate | pl.Expr) -> S:
        """Aggregate the messages of each key and window.

        Polars' aggregations are accepted if they can be merged from parts and give Polars' result: ``pl.len()``,
        and ``sum``, ``min``, ``max``, ``mean``, ``count``, ``len``, ``null_count``, ``implode``,
        ``drop_nulls().n_unique()``, ``drop_nulls().approx_n_unique()`` and ``drop_nulls().top_k(k)`` of an expression
        that looks at one row at a time, or of such a one's ``filter``. Counts and sums are 64 bits wide.

        Parameters
        ----------
        *aggregates
            Polars aggregations; each result has the name that Polars would give it.
        **named
            Polars aggregations, or ``hr.count``, ``hr.sum`` and those of ``hr.aggregates``, by the name of the result.

        Returns
        -------
        Stream

        Examples
        --------
        >>> windows = views.window(hr.tumbling("1m"), key="member", id="per-minute")
        >>> stats = windows.agg(
        ...     pl.col("ms").max().alias("slowest"),
        ...     views=pl.len(),
        ...     seconds=(pl.col("ms") / 1000).sum(),
        ...     first_url=hr.aggregates.first("url"),
        ... )
        >>> list(stats.schema.columns)
        ['member', 'window_start', 'window_end', 'slowest', 'views', 'seconds', 'first_url']
        """
        with Declaring("agg"):
            stream, here = self._stream, self._here
            if self._id not in stream.draft.windows_without_aggregates:
                raise DeclarationError(
                    f"the window {self._id!r} has its aggregates already", hint="name all of them in one agg(...)"
                )
            step = with_aggregates(self._window, named_aggregates(aggregates, named))
            schema = Schema.of(window_columns(step))
            del stream.draft.windows_without_aggregates[self._id]
            time = result_time(step, stream._time, here)
            result = stream._then("window", step, here, schema, time, id_=self._id)
            if self._late_to is not None:
                late = result._then("late", SideOutput(LATE), here, stream._schema, stream._time)
                late._send(self._late_to, None, here)
            return result

    @override
    def __repr__(self) -> str:
        keys = ", ".join(self._window.keys)
        return f"WindowedStream({self._id!r}: {self._window.shape} by {keys or 'task'}, without aggregates yet)"

    if not TYPE_CHECKING:  # type checkers must go on to report names that don't exist

        def __getattr__(self, name: str) -> NoReturn:
            raise missing("a window", name, WINDOWED, dir(type(self)))

"""The operators of ``Stream`` that look at one message or one batch at a time: functions and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import polars as pl
from typing_extensions import override

from headrace.api.call_settings import calling_of
from headrace.api.event_time import after_function
from headrace.api.expressions import as_expression, check_columns, check_predicate
from headrace.api.flow import Flow
from headrace.api.handles import Output
from headrace.api.location import Declaring
from headrace.api.operators.columns import Filter
from headrace.api.operators.functions import BatchFunction, MapAsync, RowFunction, Sink
from headrace.api.operators.spec import OnError
from headrace.api.rows import BATCH, SchemaLike, check_function, output_schema
from headrace.core.duration import Duration
from headrace.core.errors import DeclarationError
from headrace.core.retry import Retry
from headrace.serdes.schema import Schema


class MappedFlow(Flow):
    """A flow with the operators for single messages."""

    __slots__ = ()

    @override
    def filter(
        self,
        predicate: str | pl.Expr | Callable[[Any], bool],
        *,
        on_error: OnError = "fail",
        dead_letter: Output | None = None,
    ) -> Self:
        """Keep the messages for which a predicate is true. A null is not true.

        Parameters
        ----------
        predicate
            A Polars expression, the name of a Boolean column, or a function that is called once a row. The function
            gets a dict, or an instance of the dataclass that the schema was made from, and returns True or False.
        on_error
            What happens to a row on which the function raises, or whose result doesn't fit: ``"fail"`` stops the app,
            ``"skip"`` drops the row and counts it, ``"dead_letter"`` sends it with the error to ``dead_letter``.
        dead_letter
            The output for failed rows, with ``on_error="dead_letter"``. No flow may write it as well.

        Returns
        -------
        Stream

        Examples
        --------
        >>> slow = views.filter(pl.col("ms") > 100)
        >>> odd = views.filter(lambda row: row["ms"] % 2 == 1)
        """
        with Declaring("filter") as here:
            if not isinstance(predicate, str | pl.Expr):
                check_function(predicate, "the predicate")
                step = RowFunction("filter", predicate, self._schema, self._schema, on_error)
                return self._fallible("filter", step, here, self._schema, self._time, dead_letter)
            if on_error != "fail" or dead_letter is not None:
                raise DeclarationError("on_error= and dead_letter= are for functions, and the predicate isn't one")
            expr = as_expression(predicate, "the predicate")
            check_predicate(self._schema, expr)
            return self._then("filter", Filter(expr), here, self._schema, self._time)

    def map(
        self,
        function: Callable[[Any], Any],
        schema: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
        dead_letter: Output | None = None,
    ) -> Self:
        """Turn each row into another one with a function, called once per row.

        Parameters
        ----------
        function
            Gets a row: a dict, or an instance of the dataclass that the schema was made from. Returns a dict with
            exactly the new columns, or an instance of a dataclass.
        schema
            The new columns; by default those of the dataclass that the function is annotated to return.
        on_error
            What happens to a row on which the function raises, or whose result doesn't fit: ``"fail"`` stops the app,
            ``"skip"`` drops the row and counts it, ``"dead_letter"`` sends it with the error to ``dead_letter``.
        dead_letter
            The output for failed rows, with ``on_error="dead_letter"``. No flow may write it as well.

        Returns
        -------
        Stream

        Examples
        --------
        >>> paths = views.map(lambda row: {"path": row["url"].split("?")[0]}, schema={"path": pl.String})
        >>> pages = views.map(
        ...     lambda row: {"page": int(row["url"][1:])},
        ...     schema={"page": pl.Int64},
        ...     on_error="dead_letter",
        ...     dead_letter=app.output("no-pages"),
        ... )
        """
        with Declaring("map") as here:
            return self._by_rows("map", function, schema, here, on_error, dead_letter)

    def flat_map(
        self,
        function: Callable[[Any], Iterable[Any]],
        schema: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
        dead_letter: Output | None = None,
    ) -> Self:
        """Turn each row into any number of rows with a function, called once per row.

        Parameters
        ----------
        function
            Gets a row as in ``map``, and returns an iterable of rows. If it fails, all results of that row are dropped.
        schema
            The new columns; by default those of the dataclass that the function is annotated to return rows of.
        on_error
            What happens to a row on which the function raises, or whose result doesn't fit: ``"fail"`` stops the app,
            ``"skip"`` drops the row and counts it, ``"dead_letter"`` sends it with the error to ``dead_letter``.
        dead_letter
            The output for failed rows, with ``on_error="dead_letter"``. No flow may write it as well.

        Returns
        -------
        Stream

        Examples
        --------
        >>> words = views.flat_map(
        ...     lambda row: [{"word": word} for word in row["url"].split("/")], schema={"word": pl.String}
        ... )
        """
        with Declaring("flat_map") as here:
            return self._by_rows("flat_map", function, schema, here, on_error, dead_letter)

    @override
    def map_batches(
        self,
        function: Callable[[pl.DataFrame], pl.DataFrame],
        schema: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
        dead_letter: Output | None = None,
    ) -> Self:
        """Turn each batch into another one with a function from DataFrame to DataFrame.

        Parameters
        ----------
        function
            Gets a batch. Batches begin and end anywhere, so the result for a message must not depend on other messages.
        schema
            The new columns; by default they stay as they are.
        on_error
            What happens to a batch on which the function raises: ``"fail"`` stops the app, ``"skip"`` drops the batch
            and counts its rows, ``"dead_letter"`` sends it with the error to ``dead_letter``.
        dead_letter
            The output for failed batches, with ``on_error="dead_letter"``. No flow may write it as well.

        Returns
        -------
        Stream

        Examples
        --------
        >>> upper = views.map_batches(lambda df: df.with_columns(pl.col("url").str.to_uppercase()))
        """
        with Declaring("map_batches") as here:
            check_function(function, "its argument", BATCH)
            after = self._schema if schema is None else Schema.of(schema)
            time = after_function(self._time, after, "map_batches", here)
            step = BatchFunction(function, after, on_error)
            return self._fallible("map_batches", step, here, after, time, dead_letter)

    def map_async(
        self,
        function: Callable[[Any], Any],
        schema: SchemaLike | None = None,
        *,
        concurrency: int = 100,
        ordered: bool = True,
        timeout: Duration = "30s",
        retry: Retry | None = None,
        on_error: OnError = "fail",
        dead_letter: Output | None = None,
        id: str | None = None,
    ) -> Self:
        """Turn each row into another one with a slow function, many calls at once.

        After a restart, calls may be repeated; each result still counts once. A checkpoint waits for the calls in
        flight.

        Parameters
        ----------
        function
            Gets a row as in ``map``. An ``async`` function runs on an event loop, a plain one in threads.
        schema
            The new columns; by default those of the dataclass that the function is annotated to return.
        concurrency
            The number of calls that a task makes at once.
        ordered
            Whether results keep the order of their rows. Otherwise they are emitted as they arrive, but never after a
            watermark that came after their row.
        timeout
            How long one attempt may take.
        retry
            How often to repeat a failed call, see ``hr.calls.retry``; by default five attempts.
        on_error
            What happens to a row on which the function raises, or whose result doesn't fit: ``"fail"`` stops the app,
            ``"skip"`` drops the row and counts it, ``"dead_letter"`` sends it with the error to ``dead_letter``.
        dead_letter
            The output for failed rows, with ``on_error="dead_letter"``. No flow may write it as well. Both apply after
            the last attempt.
        id
            A name for the step in plans and counters.

        Returns
        -------
        Stream

        Examples
        --------
        >>> async def located(row):
        ...     return {"member": row["member"], "country": await look_up(row["member"])}
        >>> columns = {"member": pl.String, "country": pl.String}
        >>> countries = views.map_async(located, columns, timeout="2s", retry=hr.calls.retry(attempts=3))
        """
        with Declaring("map_async") as here:
            check_function(function, "its argument", may_be_async=True)
            after = output_schema(function, schema, many=False)
            calling = calling_of(concurrency=concurrency, timeout=timeout, retry=retry)
            time = after_function(self._time, after, "map_async", here)
            step = MapAsync(function, self._schema, after, calling, bool(ordered), on_error)
            name = None if id is None else self.draft.claim("map_async", id, here)
            return self._fallible("map_async", step, here, after, time, dead_letter, id_=name)

    def sink(
        self,
        function: Callable[[pl.DataFrame], None],
        *,
        on_error: OnError = "fail",
        dead_letter: Output | None = None,
    ) -> None:
        """Pass each batch to a function. After a failure, it may get messages again.

        Parameters
        ----------
        function
            Gets a batch as a DataFrame, and returns None. If it raises, its effects so far aren't undone.
        on_error
            What happens to a batch on which the function raises: ``"fail"`` stops the app, ``"skip"`` drops the batch
            and counts its rows, ``"dead_letter"`` sends it with the error to ``dead_letter``.
        dead_letter
            The output for failed batches, with ``on_error="dead_letter"``. No flow may write it as well.

        Examples
        --------
        >>> views.sink(lambda df: print(df))
        """
        with Declaring("sink") as here:
            check_function(function, "its argument", BATCH)
            letters = self._letters_to(on_error, dead_letter)
            node = self.draft.add("sink", Sink(function, on_error), (self.node,), here)
            self._send_letters(node.id, letters, here)

    # -- columns -------------------------------------------------------------------------------------

    def select(self, *exprs: str | pl.Expr, **named: object) -> Self:
        """Keep and compute columns, and drop the others.

        Parameters
        ----------
        *exprs
            Column names and expressions, each of which looks at one row at a time.
        **named
            Expressions, column names or plain values for columns of these names.

        Returns
        -------
        Stream

        Examples
        --------
        >>> views.select("url", seconds=pl.col("ms") / 1000).schema
        Schema(url: String, seconds: Float64)
        """
        with Declaring("select") as here:
            return self._project("select", exprs, named, here, keep=False)

    def with_columns(self, *exprs: str | pl.Expr, **named: object) -> Self:
        """Add or replace columns; the others stay.

        Parameters
        ----------
        *exprs
            Column names and expressions, each of which looks at one row at a time.
        **named
            Expressions, column names or plain values for columns of these names.

        Returns
        -------
        Stream

        Examples
        --------
        >>> domains = views.with_columns(domain=pl.col("url").str.split("/").list.first())
        """
        with Declaring("with_columns") as here:
            return self._project("with_columns", exprs, named, here, keep=True)

    def drop(self, *columns: str) -> Self:
        """Remove columns.

        Parameters
        ----------
        *columns
            The names of the columns.

        Returns
        -------
        Stream

        Examples
        --------
        >>> views.drop("ms", "ts").schema
        Schema(member: String, url: String)
        """
        with Declaring("drop") as here:
            gone = check_columns(columns, self._schema, "drop")
            return self._project("drop", [c for c in self._schema.columns if c not in gone], {}, here, keep=False)

    def rename(self, names: Mapping[str, str]) -> Self:
        """Rename columns.

        Parameters
        ----------
        names
            ``{old: new}``.

        Returns
        -------
        Stream

        Examples
        --------
        >>> views.select("url").rename({"url": "page"}).schema
        Schema(page: String)
        """
        with Declaring("rename") as here:
            check_columns(names, self._schema, "rename")
            exprs = [pl.col(c).alias(names[c]) if c in names else pl.col(c) for c in self._schema.columns]
            return self._project("rename", exprs, {}, here, keep=False)

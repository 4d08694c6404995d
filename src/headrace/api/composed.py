"""Operators that are made of others, by the public methods of a stream alone. Users could write them, too.

``Composed`` is what ``Stream`` inherits them from; the methods that they are made of are ``Stream``'s own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import polars as pl

from headrace.api.choosing import first_matches, sampler
from headrace.api.location import Declaring
from headrace.api.rows import SchemaLike
from headrace.serdes.given_rows import Rows
from headrace.serdes.schema import Schema

P = ParamSpec("P")
Result = TypeVar("Result")


class Composed:
    """What a stream can do because it can filter and be partitioned."""

    __slots__ = ()

    @property
    def schema(self) -> Schema:
        """As in ``Stream``."""
        raise NotImplementedError

    def filter(self, predicate: str | pl.Expr | Callable[[Any], bool]) -> Self:
        """As in ``Stream``."""
        raise NotImplementedError

    def map_batches(self, function: Callable[[pl.DataFrame], pl.DataFrame], schema: SchemaLike | None = None) -> Self:
        """As in ``Stream``."""
        raise NotImplementedError

    def partition_by(
        self, key: str | pl.Expr | Sequence[str | pl.Expr], *, id: str, partitions: int | None = None
    ) -> Self:
        """As in ``Stream``."""
        raise NotImplementedError

    def head(self, n: int = 5, *, sample: int | Mapping[str, Rows] = 1000) -> pl.DataFrame:
        """Return the first messages at this point: of a test run over the first rows of the inputs, which then end.

        The steps up to here run in memory, functions of yours too; nothing is written, and nothing is remembered. Of
        inputs in the log, in files and in DataFrames of Spark the rows are read; for others, give some.

        Parameters
        ----------
        n
            How many messages at most.
        sample
            How many rows of each input to read, or rows of yours by input: DataFrames or dicts.

        Returns
        -------
        polars.DataFrame

        Raises
        ------
        UsageError
            If the rows of an input can't be read for a sample.

        Examples
        --------
        >>> rows = [{"member": "ann", "url": "/", "ms": 120, "ts": "2026-01-01T12:00:00"}]
        >>> views.filter(pl.col("ms") > 100).select("member", "ms").head(sample={"page-views": rows}).rows()
        [('ann', 120)]
        """
        return self._head(n, sample)

    def _head(self, n: int, sample: int | Mapping[str, Rows]) -> pl.DataFrame:
        raise NotImplementedError

    def pipe(self, operator: Callable[Concatenate[Self, P], Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Call an operator of your own: ``stream.pipe(f, x)`` is ``f(stream, x)``.

        Parameters
        ----------
        operator
            A function that gets the stream first.
        *args
            More positional arguments for it.
        **kwargs
            Keyword arguments for it.

        Returns
        -------
        object
            What the function returns.

        Examples
        --------
        >>> def slower_than(stream, ms):
        ...     return stream.filter(pl.col("ms") > ms).drop("ms")
        >>> slow = views.pipe(slower_than, 100).select("url")
        """
        return operator(self, *args, **kwargs)

    def split(
        self, branches: Mapping[str, str | pl.Expr] | None = None, *, others: str | None = None
    ) -> dict[str, Self]:
        """Split into named streams: a message goes to the first one whose predicate is true for it, and to no other.

        Parameters
        ----------
        branches
            A predicate (an expression or a Boolean column) for each name. A null is not true.
        others
            The name of a stream for messages for which no predicate is true. By default they are dropped.

        Returns
        -------
        dict
            The streams by name.

        Examples
        --------
        >>> parts = views.split({"slow": pl.col("ms") > 1000, "home": pl.col("url") == "/"}, others="rest")
        >>> list(parts)
        ['slow', 'home', 'rest']
        """
        with Declaring("split"):
            predicates = first_matches(self.schema, branches or {}, others)
            return {name: self.filter(predicate) for name, predicate in predicates.items()}

    def sample(self, fraction: float, key: str | Sequence[str] | None = None, *, seed: int | None = None) -> Self:
        """Keep a fraction of all messages, or of all keys.

        Parameters
        ----------
        fraction
            0.01 keeps about one in a hundred.
        key
            One column or several. All messages of a key are kept, or none: the same keys in every run, task and app.
            By default chance decides for each message.
        seed
            Another seed chooses other keys.

        Returns
        -------
        Stream

        Examples
        --------
        >>> some = views.sample(0.1)
        >>> of_some_members = views.sample(0.1, key="member", seed=7)
        """
        with Declaring("sample"):
            return self.map_batches(sampler(self.schema, fraction, key, seed))

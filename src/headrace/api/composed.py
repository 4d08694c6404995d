"""Operators composed of others, using only public methods of a stream. Users could write them, too.

``Stream`` inherits them from ``Composed``; the methods that they use are ``Stream``'s own.
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
    """The methods that a stream has because it can be filtered and partitioned."""

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
        """Return the first messages at this point of the app, from a test run over the first rows of its inputs.

        The steps up to this point run in memory, including your functions; nothing is written or kept. Rows are read
        from inputs in the log, in files and in Spark DataFrames; for other inputs, pass some in ``sample``.

        Parameters
        ----------
        n
            The maximum number of messages.
        sample
            How many rows of each input to read, or your own rows by input: DataFrames or dicts.

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
        """Call your own operator: ``stream.pipe(f, x)`` is ``f(stream, x)``.

        Parameters
        ----------
        operator
            A function that takes the stream as its first argument.
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
        """Split into named streams: a message goes only to the first one whose predicate is true for it.

        Parameters
        ----------
        branches
            A predicate (an expression or a Boolean column) for each name. A null is not true.
        others
            The name of a stream for all other messages. By default they are dropped.

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
            One column or several. Either all messages of a key are kept or none; every run, task and app chooses the
            same keys. By default each message is chosen at random.
        seed
            Different seeds choose different keys.

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

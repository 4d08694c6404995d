"""Operators that are made of others, by the public methods of a stream alone: anybody could have written them.

``Composed`` is what ``Stream`` inherits them from; the methods that they are made of are ``Stream``'s own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import polars as pl

from headrace.api.choosing import first_matches, sampler
from headrace.api.expressions import named_expression
from headrace.api.location import Declaring
from headrace.api.rows import SchemaLike
from headrace.serdes.schema import Schema

P = ParamSpec("P")
Result = TypeVar("Result")


class Composed:
    """What a stream can do because it can filter and be partitioned."""

    __slots__ = ()

    @property
    def schema(self) -> Schema:
        """See ``Stream``."""
        raise NotImplementedError

    def filter(self, predicate: str | pl.Expr | Callable[[Any], bool]) -> Self:
        """See ``Stream``."""
        raise NotImplementedError

    def map_batches(self, function: Callable[[pl.DataFrame], pl.DataFrame], schema: SchemaLike | None = None) -> Self:
        """See ``Stream``."""
        raise NotImplementedError

    def partition_by(self, *keys: str | pl.Expr, id: str | None = None, partitions: int | None = None) -> Self:
        """See ``Stream``."""
        raise NotImplementedError

    def pipe(self, operator: Callable[Concatenate[Self, P], Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Call an operator of your own, a function of a stream: ``stream.pipe(f, x)`` is ``f(stream, x)``.

        >>> def slower_than(stream, ms):
        ...     return stream.filter(pl.col("ms") > ms).drop("ms")
        >>> slow = views.pipe(slower_than, 100).select("url")
        """
        return operator(self, *args, **kwargs)

    def split(
        self, branches: Mapping[str, str | pl.Expr] | None = None, *, others: str | None = None
    ) -> dict[str, Self]:
        """One stream for each named predicate; a message goes to the first that is true for it, and to no other.

        What none is true for goes to the stream called by ``others``, or, without it, nowhere. A null is not true.

        >>> parts = views.split({"slow": pl.col("ms") > 1000, "home": pl.col("url") == "/"}, others="rest")
        >>> list(parts)
        ['slow', 'home', 'rest']
        """
        with Declaring("split"):
            predicates = first_matches(self.schema, branches or {}, others)
            return {name: self.filter(predicate) for name, predicate in predicates.items()}

    def key_by(
        self, *keys: str | pl.Expr, id: str | None = None, partitions: int | None = None, **named: object
    ) -> Self:
        """Partition by columns and by keys that are computed here: ``partition_by`` for keys with names.

        >>> by_day = views.key_by("member", day=pl.col("ts") // 86_400_000, id="by-member-and-day")
        >>> by_day.schema
        Schema(member: String, url: String, ms: Int64, ts: Int64, day: Int64)
        """
        with Declaring("key_by"):
            computed = [named_expression(name, value) for name, value in named.items()]
            return self.partition_by(*keys, *computed, id=id, partitions=partitions)

    def sample(self, fraction: float, by: str | Sequence[str] | None = None, *, seed: int | None = None) -> Self:
        """Keep about so many of all messages: 0.01 is one in a hundred.

        With ``by`` it is so many of all keys, and all messages of them: the same ones in every run, task and app, until
        ``seed`` is another. Without it chance decides for each message.

        >>> some = views.sample(0.1)
        >>> of_some_members = views.sample(0.1, by="member", seed=7)
        """
        with Declaring("sample"):
            return self.map_batches(sampler(self.schema, fraction, by, seed))

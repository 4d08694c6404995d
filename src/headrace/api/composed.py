"""Operators composed of others by public methods of a stream, as users could write them, and those that sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.checks import Declaring, SchemaLike, as_expression, check_predicate, key_columns, key_parts
from headrace.core.errors import DeclarationError
from headrace.rows.given import Rows
from headrace.rows.hashing import hash_rows
from headrace.rows.schema import Schema


# -- choosing ----------------------------------------------------------------------------------------
def first_matches(
    schema: Schema, branches: Mapping[str, str | pl.Expr], others: str | None = None
) -> dict[str, pl.Expr]:
    """For each branch a predicate that is true if its own and no earlier one is; ``others`` takes the rest."""
    if not isinstance(branches, Mapping) or not branches:
        raise DeclarationError(
            "split() needs at least one predicate", hint='write split({"slow": pl.col("ms") > 1000}, others="rest")'
        )
    wrong = [name for name in (*branches, others) if name is not None and (not isinstance(name, str) or not name)]
    if wrong:
        raise DeclarationError(f"the name of a branch is a string, not {wrong[0]!r}", hint='write "slow"')
    if others in branches:
        raise DeclarationError(f"others={others!r} is already the name of a branch", hint="choose another name")
    found: dict[str, pl.Expr] = {}
    free = pl.lit(value=True)
    for name, predicate in branches.items():
        expr = as_expression(predicate, f"the predicate of {name!r}")
        check_predicate(schema, expr)
        true = expr.fill_null(value=False)
        found[name] = free & true if found else true
        free = free & ~true if len(found) > 1 else ~true
    return found if others is None else found | {others: free}


def sampler(schema: Schema, fraction: float, key: str | Sequence[str] | None, seed: int | None) -> Sampler:
    """A sampler that keeps a fraction of all keys, or of all messages."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise DeclarationError(
            f"fraction={fraction!r} is not in (0, 1]", hint="0.01 keeps one in a hundred, 1 keeps all"
        )
    if key is None:
        if seed is not None:
            raise DeclarationError(
                "seed= chooses by key, but without key= each message is chosen at random",
                hint="leave it out, or name key=",
            )
        return SomeMessages(fraction)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63):
        raise DeclarationError(f"seed={seed!r} is not a whole number of at least 0")
    if not key_parts(key):
        raise DeclarationError("key= names no column", hint='write key="member", or leave it out')
    return SomeKeys(fraction, key_columns(key, schema, "sample"), seed or 0)


# These are classes instead of expressions with a Python function inside, because plans show their names.


class Sampler:
    """Only leaves out messages; it reads the columns ``keys``."""

    __slots__ = ()

    keys: tuple[str, ...]

    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the messages of a batch that stay."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SomeKeys(Sampler):
    """Keeps the keys whose hash, mixed with the seed, is in the lower ``fraction`` of all hashes.

    The seed is always mixed in, because the hash of the keys alone chooses the partition: without a seed, a sample
    would keep all or nothing of each partition.
    """

    fraction: float
    keys: tuple[str, ...]
    seed: int

    @override
    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        bound = math.floor(self.fraction * 2**64)
        if bound == 2**64:
            return rows
        hashes = pl.DataFrame({"key": hash_rows(rows, self.keys)}).with_columns(seed=pl.lit(self.seed, pl.Int64))
        return rows.filter(pl.Series(hash_rows(hashes, ["seed", "key"]) < np.uint64(bound)))


@dataclass(frozen=True, slots=True)
class SomeMessages(Sampler):
    """Keeps each message at random. It holds no generator, because two tasks must not draw the same numbers."""

    fraction: float
    keys: tuple[str, ...] = ()

    @override
    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.filter(pl.Series(np.random.default_rng().random(rows.height) < self.fraction))


# -- composed ----------------------------------------------------------------------------------------
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
        *args, **kwargs
            More arguments for it.

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

        Examples
        --------
        >>> some = views.sample(0.1)
        >>> of_some_members = views.sample(0.1, key="member", seed=7)
        """
        with Declaring("sample"):
            return self.map_batches(sampler(self.schema, fraction, key, seed))

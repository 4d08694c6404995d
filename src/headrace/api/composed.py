"""Operators composed of others by public methods of a stream, as users could write them, and those that sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Self, TypeVar

import polars as pl

from headrace.api.checks import Declaring, as_condition, check_predicate, key_columns, key_parts
from headrace.api.flow import MappedFlow
from headrace.api.operators.steps import Sampler, SomeKeys, SomeMessages
from headrace.core.errors import DeclarationError
from headrace.rows.given import Rows
from headrace.rows.schema import Schema


def _first_matches(
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
        expr = as_condition(predicate, schema, f"the predicate of {name!r}")
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


P = ParamSpec("P")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Shown:
    """Prints batches; ``before`` is written before each line."""

    before: str

    def __call__(self, batch: pl.DataFrame) -> None:
        """Print the rows of a batch."""
        lines = batch.write_ndjson().splitlines()
        print(*(self.before + line for line in lines), sep="\n", flush=True)  # noqa: T201 - that's what it is for


class Composed(MappedFlow):
    """A flow with the operators that are composed of others."""

    __slots__ = ()

    def head(self, n: int = 5, *, sample: int | Mapping[str, Rows] = 1000) -> pl.DataFrame:
        """The first ``n`` messages at this point of the app, from a test run over the first rows of its inputs.

        The steps up to this point run in memory, including your functions; nothing is written or kept. Rows are read
        from inputs in the log, in files and in Spark DataFrames: ``sample`` of each input. For other inputs, pass your
        own rows by input: DataFrames or dicts. Raises ``UsageError`` if the rows of an input can't be read for a
        sample.

        Examples
        --------
        >>> rows = [{"member": "ann", "url": "/", "ms": 120, "ts": "2026-01-01T12:00:00"}]
        >>> views.filter(pl.col("ms") > 100).select("member", "ms").head(sample={"page-views": rows}).rows()
        [('ann', 120)]
        """
        return self.draft.preview(self.node, n, sample)

    def show(self, name: str = "") -> None:
        """Print messages as they are processed, as lines of JSON after ``name``: a ``sink`` to try things out with.

        They go to the standard output of the process that handles them: yours with ``--local``, a container's on Spark.
        After a failure, some may be printed again. ``head`` needs no run.

        Examples
        --------
        >>> views.filter(pl.col("ms") > 1000).show("slow")
        """
        with Declaring("show"):
            self.sink(Shown(f"{name} " if name else ""))

    def pipe(self, operator: Callable[Concatenate[Self, P], Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Call your own ``operator``: ``stream.pipe(f, x)`` is ``f(stream, x)``, for any other ``args`` and ``kwargs``.

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

        ``branches`` has a predicate (an expression or a Boolean column) for each name. A null is not true. ``others``
        names a stream for all other messages. By default they are dropped.

        Examples
        --------
        >>> parts = views.split({"slow": pl.col("ms") > 1000, "home": pl.col("url") == "/"}, others="rest")
        >>> list(parts)
        ['slow', 'home', 'rest']
        """
        with Declaring("split"):
            predicates = _first_matches(self.schema, branches or {}, others)
            return {name: self.filter(predicate) for name, predicate in predicates.items()}

    def sample(self, fraction: float, key: str | Sequence[str] | None = None, *, seed: int | None = None) -> Self:
        """Keep a ``fraction`` of all messages, or of all keys; 0.01 keeps about one in a hundred.

        With a ``key`` (one column or several), all messages of a key are kept or none; every run, task and app chooses
        the same keys, and another ``seed`` others. By default each message is chosen at random.

        Examples
        --------
        >>> some = views.sample(0.1)
        >>> of_some_members = views.sample(0.1, key="member", seed=7)
        """
        with Declaring("sample"):
            return self.map_batches(sampler(self.schema, fraction, key, seed))

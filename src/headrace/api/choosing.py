"""``split`` and ``sample``: choose messages by predicate, by key or at random."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.expressions import as_expression, check_predicate
from headrace.api.keys import key_columns, key_parts
from headrace.core.errors import DeclarationError
from headrace.serdes.hashing import hash_rows
from headrace.serdes.schema import Schema


def first_matches(
    schema: Schema, branches: Mapping[str, str | pl.Expr], others: str | None = None
) -> dict[str, pl.Expr]:
    """Return for each branch a predicate that is true if its own and no earlier one is; ``others`` takes the rest."""
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
    """Return a sampler that keeps a fraction of all keys, or of all messages."""
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

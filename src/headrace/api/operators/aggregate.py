"""The spec of an aggregate of a window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

AggregateKind = Literal[
    "count",
    "sum",
    "min",
    "max",
    "mean",
    "first",
    "last",
    "top_k",
    "n_unique",
    "approx_n_unique",
    "implode",
    "fold",
    "reduce",
]


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """An aggregate over a column or expression; ``count`` and ``fold`` need none.

    ``by`` and ``k`` belong to ``top_k``; ``function``, ``merge``, ``initial``, ``dtype`` to ``fold`` and ``reduce``.
    """

    kind: AggregateKind
    expr: pl.Expr | None = None
    by: pl.Expr | None = None
    k: int = 0
    function: Callable[[Any, Any], Any] | None = None
    merge: Callable[[Any, Any], Any] | None = None
    initial: Any = None
    dtype: pl.DataType | None = None

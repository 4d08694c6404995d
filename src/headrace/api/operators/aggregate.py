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
    A new ``version`` of these says that values of the earlier one are of no use to the function.
    """

    kind: AggregateKind
    expr: pl.Expr | None = None
    by: pl.Expr | None = None
    k: int = 0
    function: Callable[[Any, Any], Any] | None = None
    merge: Callable[[Any, Any], Any] | None = None
    initial: Any = None
    dtype: pl.DataType | None = None
    version: str = ""

    @property
    def definition(self) -> str:
        """What its partial results mean. Of a user's function only what is declared can be compared."""
        words: list[str] = [self.kind]
        words += [str(self.k)] if self.k else []
        words += [f"of {_text(self.expr)}"] if self.expr is not None else []
        words += [f"by {_text(self.by)}"] if self.by is not None else []
        words += [f"as {self.dtype}"] if self.dtype is not None else []
        words += [f"version {self.version}"] if self.version else []
        return " ".join(words)


def _text(expr: pl.Expr) -> str:
    return " ".join(str(expr).split())

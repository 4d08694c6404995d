"""Aggregates for ``window(...).agg(...)`` that Polars doesn't have, or that mean something else on a stream.

``hr.count`` and ``hr.sum`` are at the top.
"""

from headrace.api.aggregates import approx_n_unique, first, fold, implode, last, max, mean, min, n_unique, reduce, top_k
from headrace.api.operators.aggregate import Aggregate

__all__ = [
    "Aggregate",
    "approx_n_unique",
    "first",
    "fold",
    "implode",
    "last",
    "max",
    "mean",
    "min",
    "n_unique",
    "reduce",
    "top_k",
]

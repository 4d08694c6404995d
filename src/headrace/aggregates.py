"""Aggregates for ``window(...).agg(...)`` that Polars lacks, or that mean something else on a stream.

``hr.count``, ``hr.sum``, ``hr.min``, ``hr.max`` and ``hr.mean`` are at the top level.
"""

from headrace.api.aggregates import (
    Aggregate,
    approx_n_unique,
    first,
    fold,
    implode,
    last,
    n_unique,
    reduce,
    top_k,
)

__all__ = [
    "Aggregate",
    "approx_n_unique",
    "first",
    "fold",
    "implode",
    "last",
    "n_unique",
    "reduce",
    "top_k",
]

TYPE_CHECKING = False  # type checkers take it for true, and go on to report names that don't exist
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from headrace.api.other_names import AGGREGATES, missing

        raise missing("hr.aggregates", name, AGGREGATES, __all__)

"""What users' functions return, and the errors for what they shouldn't.

A slip, such as a forgotten ``return``, must not pass for a result: a filter would drop every message. Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import GeneratorType
from typing import Any

import numpy as np
import polars as pl

from headrace.api.rows import name_of, place_of
from headrace.core.errors import DataError, UserFunctionError
from headrace.runtime.operators.base import Operator
from headrace.serdes.schema import Schema

_YES_OR_NO = (bool, np.bool_)
_ROWS = (GeneratorType, list, tuple)
_NO_ROWS = (Mapping, str, bytes, pl.DataFrame, pl.LazyFrame, pl.Series)
"""What can be iterated over, or be empty, without being rows."""
_UNSEEN = (pl.DataFrame, pl.LazyFrame)


class WrongResult(TypeError):
    """A function returned what its step can't use. Reads on after the name of the step."""

    def __init__(self, function: object, result: object, wanted: str, hint: str) -> None:
        self.line = place_of(function)
        super().__init__(
            f"{name_of(function)}{self.line and ' at '}{self.line} returned {_shown(result)} instead of {wanted}"
        )
        self.hint = slip_in(result) or hint

    def told(self, operator: Operator, what: str) -> UserFunctionError:
        """Return the error that ends the task."""
        return UserFunctionError(f"{operator.described(what)}: {self}{operator.at_work_on()}", hint=self.hint)


def slip_in(result: object) -> str | None:
    """Return the likely reason for a result that can't be used; None if it is unknown. Coroutines are closed."""
    if result is None:
        return "write return before the result: a function that ends without it returns None"
    if inspect.iscoroutine(result):
        result.close()  # it won't be awaited
    if _is_async(result):
        return "the function is async, so the call didn't run it; write def without async, or use map_async(...)"
    if inspect.isgenerator(result):
        return "the function has a yield, so the call didn't run it; return the result instead"
    if isinstance(result, pl.LazyFrame):
        return "nothing has computed this LazyFrame; call .collect()"
    return None


def decided(function: object, results: list[Any]) -> tuple[list[bool], dict[int, WrongResult]]:
    """Return which messages a filter's function keeps, and an error for each result that doesn't say so, by index."""
    kinds = {*map(type, results)}
    if kinds <= {bool}:
        return results, {}
    wrong = {
        index: WrongResult(
            function, result, "True or False", "compare something, or write bool(...) if whatever isn't empty counts"
        )
        for index, result in enumerate(results)
        if not isinstance(result, _YES_OR_NO)
    }
    return [bool(result) for index, result in enumerate(results) if index not in wrong], wrong


def rows_in(function: object, result: Any) -> Iterable[Any]:
    """Return the rows that a call for ``flat_map`` returned."""
    if type(result) not in _ROWS and (isinstance(result, _NO_ROWS) or not isinstance(result, Iterable)):
        hint = "return a list of rows, [] for none"
        raise WrongResult(function, result, "rows", f"{hint}; .to_dicts() makes one of a DataFrame")
    rows: Iterable[Any] = result
    return rows


def sifted(schema: Schema, records: list[Any]) -> tuple[pl.DataFrame, list[tuple[int, DataError]]]:
    """Return the results that fit as a table, and an error for each other one, by index."""
    table, misfits = schema.sift(records)
    for index, error in misfits:
        error.hint = slip_in(records[index]) or error.hint
    return table, misfits


def check_nothing(function: object, result: object) -> None:
    """Raise if a sink's function has returned a result, or hasn't run."""
    if isinstance(result, _UNSEEN) or inspect.isgenerator(result) or _is_async(result):
        hint = "nothing takes the result of a sink; map_batches(...) passes results on"
        raise WrongResult(function, result, "None", hint)


def mean_nothing(method: Callable[..., object], result: object) -> WrongResult:
    """Return the error for a result of a method of a low-level task."""
    return WrongResult(method, result, "None", "nothing takes what it returns; out.send(output, row) does")


def _is_async(result: object) -> bool:
    return inspect.isawaitable(result) or inspect.isasyncgen(result)


def _shown(result: object) -> str:
    plain = isinstance(result, str | bytes | int | float | Mapping | list | tuple)
    return f"{result!r:.80}" if plain else "None" if result is None else f"a {type(result).__name__}"

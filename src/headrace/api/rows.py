"""Check the functions that users pass, and find the schema of their results: ``schema=`` or the return annotation."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from typing import Any, Protocol

import polars as pl

from headrace.core.calling import called_by, is_async
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema


class ForeignSchema(Protocol):
    """A schema of PyArrow or Spark."""

    @property
    def names(self) -> Any:
        """Return the names of its columns."""
        ...


SchemaLike = Schema | type | typing.Mapping[str, Any] | ForeignSchema
"""The types that the API accepts as a schema: a dict of columns and types, a class with fields, or a schema."""


ROW, BATCH = ("a row",), ("a batch",)
"""The arguments of most functions."""


def check_function(
    function: object, what: str, given: Sequence[str] = ROW, *, may_be_async: bool = False, may_yield: bool = False
) -> None:
    """Raise unless ``function`` can be called with the arguments ``given``, a description of each."""
    if isinstance(function, pl.Expr) or not callable(function):
        raise DeclarationError(
            f"{what} must be a function, not {type(function).__name__} {function!s:.80}",
            hint="for expressions there are select(...), with_columns(...) and filter(...)",
        )
    if inspect.isasyncgenfunction(called_by(function)) or (is_async(function) and not may_be_async):
        raise DeclarationError(
            f"{what} must be a plain function, and {name_of(function)} is async",
            hint="a function that waits for something is for map_async(...)",
        )
    if not may_yield and inspect.isgeneratorfunction(called_by(function)):
        raise DeclarationError(
            f"{what} must be a plain function, and {name_of(function)} has a yield, so a call doesn't run it",
            hint="write return instead of yield; flat_map(...) takes functions that yield rows",
        )
    _check_parameters(function, given)


def _check_parameters(function: Callable[..., Any], given: Sequence[str]) -> None:
    """Raise if ``function`` certainly can't take these arguments; the signatures of some callables are unknown."""
    try:
        # Headrace calls the wrapper, so the wrapped function's signature doesn't matter.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        arguments = "one argument" if len(given) == 1 else f"{len(given)} arguments"
        called = f"{name_of(function)} is called with {arguments} ({', '.join(given)})"
        raise DeclarationError(
            f"{called}, but takes {signature!s:.80}: {error}",
            hint="bind other arguments with functools.partial, or give them defaults",
        ) from None


def output_schema(function: Callable[..., Any], schema: SchemaLike | None, *, many: bool) -> Schema:
    """Return the schema of the rows that ``function`` returns; with ``many``, it returns an iterable of rows."""
    if schema is not None:
        return Schema.of(schema)
    row = _returned(function)
    if many:
        row = _element(row)
    if isinstance(row, type) and is_dataclass(row):
        return Schema.of(row)
    wanted = "an Iterable of a dataclass" if many else "a dataclass"
    found = "has no return annotation" if row is None else f"is annotated to return {_readable(row)}"
    raise DeclarationError(
        f"the columns of the result are unknown: {name_of(function)} {found}",
        hint=f'either give schema={{"url": pl.String, ...}}, or annotate the function to return {wanted}',
    )


def name_of(function: object) -> str:
    """Return a function's name for error messages."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return "the lambda" if name.endswith("<lambda>") else f"{name}()"


def place_of(function: object) -> str:
    """Return where a function is defined, ``file:line``; empty if that is unknown."""
    code = getattr(inspect.unwrap(called_by(function)), "__code__", None) if callable(function) else None
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _returned(function: Callable[..., Any]) -> Any:
    function = called_by(function)
    if isinstance(function, type):
        return function  # calling a class returns one of its instances
    try:
        return typing.get_type_hints(function).get("return")
    except NameError as error:
        raise DeclarationError(
            f"the return annotation of {name_of(function)} can't be read: {error}",
            hint="give schema=, or define the dataclass at the top level of the module",
        ) from None


def _element(row: Any) -> Any:
    origin = typing.get_origin(row)
    if isinstance(origin, type) and issubclass(origin, Iterable) and origin is not dict:
        return typing.get_args(row)[0]
    return row if row is None or not is_dataclass(row) else list


def _readable(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)

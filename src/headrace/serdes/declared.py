"""From declared columns and dataclasses to Polars types, and from columns back to dicts and dataclass instances."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import lru_cache
from typing import Any, TypeGuard

import polars as pl

from headrace.core.errors import DeclarationError
from headrace.serdes.dtypes import instantiate
from headrace.serdes.foreign_schemas import model_fields, type_of

_DTYPE_OF_PYTHON: Mapping[Any, pl.DataType] = {
    str: pl.String(),
    int: pl.Int64(),
    float: pl.Float64(),
    bool: pl.Boolean(),
    bytes: pl.Binary(),
    datetime: pl.Datetime("us"),
    date: pl.Date(),
}
_REFUSED = (pl.Object, pl.Unknown, pl.Int128, pl.UInt128)
_ALLOWED_DTYPES = "any Polars type but Object, Unknown, Int128 and UInt128"
_ALLOWED_HINTS = "use str, int, float, bool, bytes, datetime, date, list[...], Optional[...] or a dataclass of these"


def dtype_of(column: object, declared: object) -> pl.DataType:
    """Return the type that a dict schema declares for a column: one of Polars, Python, PyArrow or Spark.

    Raises ``DeclarationError`` for a type that a stream can't hold.
    """
    if not isinstance(column, str) or not column:
        raise DeclarationError(f"{column!r} isn't a column name", hint="use a string that isn't empty")
    dtype = type_of(declared, column)
    if dtype is None:
        dtype = _of_hint(declared, column, ()) if _is_hint(declared) else instantiate(declared, column)
    if not _holds_refused(dtype):
        return dtype
    raise DeclarationError(
        f"column {column!r}: a stream can't hold values of type {declared!r}", hint=f"use {_ALLOWED_DTYPES}"
    )


def columns_of_class(record: type) -> dict[str, pl.DataType]:
    """Return the columns of a dataclass, which are the fields that its constructor takes, or of a model of Pydantic."""
    return _columns(record, record.__name__, ())


def record_builder(names: list[str], record: type | None) -> Callable[[list[list[Any]]], list[Any]]:
    """Return a function from columns of values to a list of dicts, or of instances of ``record``."""
    if record is None:
        return _dict_builder(tuple(names))
    hints = typing.get_type_hints(record)
    converters = [_converter(hints[name]) for name in names]
    make = _maker(record, names)

    def build(columns: list[list[Any]]) -> list[Any]:
        ready = [
            values if convert is None else [convert(value) for value in values]
            for values, convert in zip(columns, converters, strict=True)
        ]
        return list(map(make, *ready))

    return build


@lru_cache(maxsize=1000)
def _dict_builder(names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[Any]]:
    # Source text is generated and compiled, as the standard library does for dataclasses: a dict display with
    # literal keys is twice as fast as dict(zip(...)). For names ["a", "b"] the source is
    # "lambda columns: [{'a': v0, 'b': v1} for (v0, v1,) in zip(*columns)]". Only repr() of the names enters it.
    slots = [f"v{index}" for index in range(len(names))]
    pairs = ", ".join(f"{name!r}: {slot}" for name, slot in zip(names, slots, strict=True))
    source = f"lambda columns: [{{{pairs}}} for ({', '.join(slots)},) in zip(*columns)]"
    built: Callable[[list[list[Any]]], list[Any]] = eval(source, {"zip": zip})  # noqa: S307
    return built


def record_maker(names: list[str], record: type | None) -> Callable[..., Any]:
    """Return a function from the values of one row to a dict, or to an instance of ``record``."""
    if record is None:
        return _dict_maker(tuple(names))
    hints = typing.get_type_hints(record)
    converters = [_converter(hints[name]) for name in names]
    make = _maker(record, names)
    if not any(converters):
        return make
    parts = [convert or _same for convert in converters]
    return lambda *values: make(*(part(value) for part, value in zip(parts, values, strict=True)))


@lru_cache(maxsize=1000)
def _dict_maker(names: tuple[str, ...]) -> Callable[..., Any]:
    # As in _dict_builder. For names ["a", "b"] the source is "lambda v0, v1: {'a': v0, 'b': v1}".
    slots = [f"v{index}" for index in range(len(names))]
    pairs = ", ".join(f"{name!r}: {slot}" for name, slot in zip(names, slots, strict=True))
    made: Callable[..., Any] = eval(f"lambda {', '.join(slots)}: {{{pairs}}}")  # noqa: S307
    return made


def _columns(record: type, where: str, outer: tuple[type, ...]) -> dict[str, pl.DataType]:
    if record in outer:
        raise DeclarationError(
            f"{where}: {record.__name__} contains itself", hint="a column can't have a recursive type"
        )
    try:
        hints = typing.get_type_hints(record)
    except NameError as error:
        raise DeclarationError(
            f"{where}: a type hint can't be resolved: {error}",
            hint="define or import the type at the top level of the dataclass's module",
        ) from error
    names = model_fields(record)
    if names is None:
        names = [field.name for field in dataclasses.fields(record) if field.init]
    columns = {name: _of_hint(hints[name], f"{where}.{name}", (*outer, record)) for name in names}
    if not columns:
        raise DeclarationError(f"{where} has no fields", hint="a schema needs at least one column")
    return columns


def _of_hint(hint: Any, where: str, outer: tuple[type, ...]) -> pl.DataType:
    hint = _without_none(hint)
    simple = _DTYPE_OF_PYTHON.get(hint) if isinstance(hint, type) else None
    if simple is not None:
        return simple
    if typing.get_origin(hint) is list:
        return pl.List(_of_hint(typing.get_args(hint)[0], where, outer))
    if is_record(hint):
        return pl.Struct(_columns(hint, where, outer))
    raise DeclarationError(f"column {where}: {hint!r} isn't a type that a column can have", hint=_ALLOWED_HINTS)


def is_record(declared: object) -> TypeGuard[type]:
    """Whether it is a class whose fields can be columns: a dataclass, or a model of Pydantic."""
    return isinstance(declared, type) and (dataclasses.is_dataclass(declared) or model_fields(declared) is not None)


def _is_hint(declared: object) -> bool:
    """Whether it is written as an annotation, and not as a Polars type."""
    simple = isinstance(declared, type) and declared in _DTYPE_OF_PYTHON
    return simple or is_record(declared) or typing.get_origin(declared) is not None


def _without_none(hint: Any) -> Any:
    """Return ``T`` for ``Optional[T]``, and any other hint unchanged."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [argument for argument in typing.get_args(hint) if argument is not type(None)]
        return rest[0] if len(rest) == 1 else hint
    return hint


def _holds_refused(dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(_holds_refused(instantiate(field.dtype, field.name)) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _holds_refused(instantiate(dtype.inner))
    return isinstance(dtype, _REFUSED)


def _maker(record: type, names: list[str]) -> Callable[..., Any]:
    """Return a function that makes an instance from values in the order of ``names``."""
    if any(field.kw_only for field in dataclasses.fields(record) if field.init):
        return lambda *values: record(**dict(zip(names, values, strict=True)))
    return record


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """Return a function from a value that Polars returns to one of the hinted type; None if they are the same."""
    hint = _without_none(hint)
    if typing.get_origin(hint) is list:
        inner = _converter(typing.get_args(hint)[0])
        if inner is None:
            return None
        return lambda value: None if value is None else [inner(item) for item in value]
    if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return None
    names = [field.name for field in dataclasses.fields(hint) if field.init]
    hints = typing.get_type_hints(hint)
    parts = [_converter(hints[name]) or _same for name in names]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        return hint(**{name: part(value[name]) for name, part in zip(names, parts, strict=True)})

    return convert


def _same(value: Any) -> Any:
    return value

"""Column types as durable JSON, and as a user writes them: ``"member:str,url:str,ts:datetime[ms]"``.

``stream.json`` and other files hold the JSON form, so new types may be added to it but nothing else may change. A type
without parameters is its name, ``"Int64"``; others are an object with one entry, ``{"List": "Int64"}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from headrace.core.errors import DataError, DeclarationError

Columns = Mapping[str, pl.DataType]  # the names and types of columns, in order

_PLAIN: dict[str, type[pl.DataType]] = {
    cls.__name__: cls
    for cls in (
        pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Int128,
        pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64,
        pl.Float32, pl.Float64,
        pl.Boolean, pl.String, pl.Binary, pl.Date, pl.Time, pl.Null,
    )
}  # fmt: skip

_SHORT: dict[str, pl.DataType] = {
    "i8": pl.Int8(), "i16": pl.Int16(), "i32": pl.Int32(), "i64": pl.Int64(), "int": pl.Int64(),
    "u8": pl.UInt8(), "u16": pl.UInt16(), "u32": pl.UInt32(), "u64": pl.UInt64(),
    "f32": pl.Float32(), "f64": pl.Float64(), "float": pl.Float64(),
    "str": pl.String(), "string": pl.String(), "bytes": pl.Binary(), "binary": pl.Binary(),
    "bool": pl.Boolean(), "date": pl.Date(), "time": pl.Time(),
    "datetime": pl.Datetime("us"), "duration": pl.Duration("us"),
}  # fmt: skip

_DECIMAL = re.compile(r"decimal\[(\d+),(\d+)\]")
_INSTANT = re.compile(r"(datetime|duration)\[(ms|us|ns)(?:,([\w/+-]+))?\]")


def columns_to_json(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Names and types (instances or classes) in the durable form; ``DeclarationError`` for one that has none."""
    return {name: dtype_to_json(dtype, name) for name, dtype in columns.items()}


def columns_from_json(data: Mapping[str, Any]) -> dict[str, pl.DataType]:
    """Read what ``columns_to_json`` wrote. Raises ``DataError``."""
    return {name: dtype_from_json(value) for name, value in data.items()}


def instantiate(dtype: Any, column: str = "?") -> pl.DataType:
    """``pl.Int64()`` for ``pl.Int64`` or ``pl.Int64()``. Raises ``DeclarationError`` for what is neither."""
    if isinstance(dtype, pl.DataType):
        return dtype
    if isinstance(dtype, type) and issubclass(dtype, pl.DataType):
        try:
            return dtype()
        except TypeError as error:
            raise DeclarationError(f"column {column!r}: {dtype.__name__} needs parameters ({error})") from error
    raise DeclarationError(
        f"column {column!r}: {dtype!r} isn't a Polars type", hint="write pl.Int64, pl.String, pl.List(pl.Int64), ..."
    )


def dtype_to_json(dtype: Any, column: str = "?") -> Any:
    dtype = instantiate(dtype, column)
    name = type(dtype).__name__
    if name in _PLAIN:
        return name
    match dtype:
        case pl.Datetime():
            return {"Datetime": {"unit": dtype.time_unit, "zone": dtype.time_zone}}
        case pl.Duration():
            return {"Duration": {"unit": dtype.time_unit}}
        case pl.Decimal():
            return {"Decimal": {"precision": dtype.precision, "scale": dtype.scale}}
        case pl.Enum():
            return {"Enum": dtype.categories.to_list()}
        case pl.List():
            return {"List": dtype_to_json(dtype.inner, column)}
        case pl.Array():
            return {"Array": {"inner": dtype_to_json(dtype.inner, column), "shape": list(dtype.shape)[:1]}}
        case pl.Struct():
            return {"Struct": [[f.name, dtype_to_json(f.dtype, f"{column}.{f.name}")] for f in dtype.fields]}
    raise DeclarationError(
        f"column {column!r}: a stream can't hold values of type {dtype}",
        hint="cast it: Categorical to String or Enum, Object to Binary",
    )


def dtype_from_json(value: Any) -> pl.DataType:
    if isinstance(value, str) and value in _PLAIN:
        return _PLAIN[value]()
    match value:
        case {"Datetime": {"unit": unit, "zone": zone}}:
            return pl.Datetime(unit, zone)
        case {"Duration": {"unit": unit}}:
            return pl.Duration(unit)
        case {"Decimal": {"precision": precision, "scale": scale}}:
            return pl.Decimal(precision, scale)
        case {"Enum": categories}:
            return pl.Enum(categories)
        case {"List": inner}:
            return pl.List(dtype_from_json(inner))
        case {"Array": {"inner": inner, "shape": [size]}}:
            return pl.Array(dtype_from_json(inner), size)
        case {"Struct": fields}:
            return pl.Struct([pl.Field(name, dtype_from_json(inner)) for name, inner in fields])
    raise DataError(f"unknown column type {value!r}", hint="a newer version of Headrace wrote it; upgrade this one")


def parse_dtype(text: str, column: str = "?") -> pl.DataType:
    """Read a type as users write it: ``i64``, ``str``, ``datetime[ms]``, ``datetime[us,UTC]``, ``list[f64]``."""
    plain = "".join(text.split())
    lower = plain.lower()
    if lower in _SHORT:
        return _SHORT[lower]
    if plain in _PLAIN and _PLAIN[plain] is not pl.Int128:  # which no stream can hold
        return _PLAIN[plain]()
    if lower.startswith("list[") and lower.endswith("]"):
        return pl.List(parse_dtype(plain[5:-1], column))
    if decimal := _DECIMAL.fullmatch(lower):
        return pl.Decimal(int(decimal[1]), int(decimal[2]))
    instant = _INSTANT.fullmatch(plain)
    if instant and instant[1] == "datetime":
        return pl.Datetime(instant[2], instant[3])  # type: ignore[arg-type]  # the pattern matches only units
    if instant and instant[3] is None:
        return pl.Duration(instant[2])  # type: ignore[arg-type]
    raise DeclarationError(
        f"column {column!r}: unknown type {text!r}",
        hint=f"known: {', '.join(_SHORT)}, datetime[ms,UTC], decimal[18,2], list[...]",
    )


def written(dtype: pl.DataType) -> str:
    """A type as users write it, see ``parse_dtype``; if it can't be written so, as Polars does."""
    for text, known in _SHORT.items():
        if known == dtype:
            return text
    match dtype:
        case pl.Datetime():
            return f"datetime[{dtype.time_unit}{',' + dtype.time_zone if dtype.time_zone else ''}]"
        case pl.Duration():
            return f"duration[{dtype.time_unit}]"
        case pl.Decimal() if dtype.precision is not None:
            return f"decimal[{dtype.precision},{dtype.scale}]"
        case pl.List():
            return f"list[{written(instantiate(dtype.inner))}]"
    return str(dtype)


def parse_columns(text: str) -> dict[str, pl.DataType]:
    """Read columns as users write them: comma-separated ``name:type`` pairs. Raises ``DeclarationError``."""
    columns: dict[str, pl.DataType] = {}
    for part in re.split(r",(?![^\[]*\])", text):
        name, colon, type_text = (piece.strip() for piece in part.partition(":"))
        if not (name and colon and type_text):
            raise DeclarationError(
                f"columns: {part.strip()!r} isn't of the form name:type", hint='write "member:str,ts:datetime[ms]"'
            )
        if name in columns:
            raise DeclarationError(f"columns: {name!r} appears twice", hint="each column needs its own name")
        columns[name] = parse_dtype(type_text, name)
    return columns

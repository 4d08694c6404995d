"""Columns from JSON lines, for a stream without declared columns."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from headrace.core.errors import DataError
from headrace.core.records import UNREADABLE
from headrace.serdes.dtypes import instantiate
from headrace.serdes.json_rows import readable
from headrace.serdes.row_pieces import BadRow


def infer_columns(data: bytes) -> tuple[dict[str, pl.DataType], list[BadRow]]:
    """Return the columns of these lines, in order of appearance, and the lines that aren't a JSON object.

    Raises ``DataError`` when a column holds values of different types, or nothing but nulls.
    """
    found: dict[str, pl.DataType] = {}
    bad: list[BadRow] = []
    decoder = msgspec.json.Decoder(dict[str, Any])
    for index, line in enumerate(data.split(b"\n")):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except UNREADABLE as error:
            bad.append(BadRow(index, readable(error), line))
            continue
        for name, value in row.items():
            dtype = _dtype_of(value, name)
            found[name] = _widen(found[name], dtype, name) if name in found else dtype
    unknown = [name for name, dtype in found.items() if _has_null(dtype)]
    if unknown:
        raise DataError(
            f"no value shows the type of {', '.join(unknown)}",
            hint=f'declare it: --schema "{unknown[0]}:str,..."',
        )
    return found, bad


def _dtype_of(value: Any, name: str) -> pl.DataType:
    match value:
        case None:
            return pl.Null()
        case bool():
            return pl.Boolean()
        case int():
            return pl.Int64()
        case float():
            return pl.Float64()
        case str():
            return pl.String()
        case list():
            inner: pl.DataType = pl.Null()
            for item in value:
                inner = _widen(inner, _dtype_of(item, name), name)
            return pl.List(inner)
        case _:
            return pl.Struct({key: _dtype_of(item, f"{name}.{key}") for key, item in value.items()})


def _widen(one: pl.DataType, other: pl.DataType, name: str) -> pl.DataType:
    """Return the type that holds values of both."""
    if one == other or isinstance(other, pl.Null):
        return one
    if isinstance(one, pl.Null):
        return other
    match one, other:
        case (pl.Int64() | pl.Float64(), pl.Int64() | pl.Float64()):
            return pl.Float64()
        case pl.List(), pl.List():
            return pl.List(_widen(instantiate(one.inner), instantiate(other.inner), name))
        case pl.Struct(), pl.Struct():
            fields = {field.name: instantiate(field.dtype) for field in one.fields}
            for field in other.fields:
                dtype = instantiate(field.dtype)
                known = fields.get(field.name)
                fields[field.name] = dtype if known is None else _widen(known, dtype, f"{name}.{field.name}")
            return pl.Struct(fields)
    raise DataError(
        f"the field {name!r} is sometimes {one}, sometimes {other}",
        hint="declare one of them with --schema, and leave the other lines out with --on-error skip",
    )


def _has_null(dtype: Any) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(_has_null(field.dtype) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _has_null(dtype.inner)
    return isinstance(dtype, pl.Null)

"""JSON lines to rows and back, many lines at a time.

A line is one object whose fields are columns. A field that is missing is null; one that the stream doesn't
have is refused, since it may be a slip of the pen. What JSON has no type for is text: binary as base64, times
as ISO 8601, decimals as their digits. Types are strict: 1.5 is no integer, "1" no number.

Lines are decoded in one go; only when that fails each line is looked at, to say which ones are wrong.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import polars as pl
from msgspec import Meta

from headrace.core.errors import DataError


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that can't become a row: its index among the lines given, how many rows come before it, and why."""

    index: int
    rows_before: int
    reason: str


class JsonRows:
    """Decodes lines for one set of columns."""

    def __init__(self, columns: Mapping[str, pl.DataType], *, drop_unknown: bool = False) -> None:
        self.columns = dict(columns)
        self._row = _struct(self.columns, not drop_unknown)
        self._decoder = msgspec.json.Decoder(self._row)
        self._fields = self._row.__struct_fields__

    def decode(self, data: bytes) -> tuple[pl.DataFrame, list[BadLine]]:
        """The rows of whole lines, and the lines that are none. Blank lines are neither."""
        try:
            rows = self._decoder.decode_lines(data)
            # The decoder takes values that run over lines, or share one; we don't.
            if len(rows) == _count_lines(data):
                return self._frame(rows), []
        except (
            msgspec.MsgspecError,
            UnicodeDecodeError,
            pl.exceptions.PolarsError,
            TypeError,
            ValueError,
            OverflowError,
        ):
            return self._one_by_one(data)
        return self._one_by_one(data)

    def _frame(self, rows: Sequence[Any]) -> pl.DataFrame:
        return pl.DataFrame(
            [
                pl.Series(name, _plain(list(map(attrgetter(field), rows)), dtype), dtype=dtype, strict=True)
                for (name, dtype), field in zip(self.columns.items(), self._fields, strict=True)
            ]
        )

    def _one_by_one(self, data: bytes) -> tuple[pl.DataFrame, list[BadLine]]:
        good: list[Any] = []
        bad: list[BadLine] = []
        for index, line in enumerate(data.split(b"\n")):
            if not line.strip():
                continue
            try:
                row = self._decoder.decode(line)
                self._frame([row])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                bad.append(BadLine(index, len(good), f"{_readable(error)}: {shown(line)}"))
            except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
                bad.append(BadLine(index, len(good), f"{str(error).splitlines()[0]}: {shown(line)}"))
            else:
                good.append(row)
        return self._frame(good), bad


def infer_columns(data: bytes) -> tuple[dict[str, pl.DataType], list[BadLine]]:
    """The columns that these lines have, in order of appearance, and the lines that are no JSON object.

    Raises ``DataError`` when a column holds values of different types, or nothing but nulls.
    """
    found: dict[str, pl.DataType] = {}
    bad: list[BadLine] = []
    decoder = msgspec.json.Decoder(dict[str, Any])
    for index, line in enumerate(data.split(b"\n")):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            bad.append(BadLine(index, index - len(bad), f"{_readable(error)}: {shown(line)}"))
            continue
        for name, value in row.items():
            dtype = _dtype_of(value, name)
            found[name] = _widen(found[name], dtype, name) if name in found else dtype
    unknown = [name for name, dtype in found.items() if _has_null(dtype)]
    if unknown:
        raise DataError(
            f"no value to know the type of {', '.join(unknown)} from",
            hint=f'say it: --schema "{unknown[0]}:str,..."',
        )
    return found, bad


def shown(line: bytes) -> str:
    """The beginning of a line, for an error; what a terminal would take for an order is left out."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in line[:500].strip().decode("utf-8", "replace"))
    return text if len(text) <= 120 else text[:117] + "..."


def _count_lines(data: bytes) -> int:
    lines = data.split(b"\n")
    return sum(1 for line in lines if line and not line.isspace())


def _readable(error: Exception) -> str:
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, msgspec.ValidationError):
        return text.replace("`", "").replace(" - at $.", ", in the field ").replace(" | null", "")
    return "not JSON (" + text.removeprefix("JSON is malformed: ").lower() + ")"


# -- a Polars type as the type that msgspec checks ------------------------------------------------------


def _struct(columns: Mapping[str, pl.DataType], strict: bool) -> type[msgspec.Struct]:
    fields = [
        (f"f{n}", _python_type(dtype, strict) | None, msgspec.field(name=name, default=None))
        for n, (name, dtype) in enumerate(columns.items())
    ]
    return msgspec.defstruct("Row", fields, forbid_unknown_fields=strict, gc=False)


_INTEGERS: dict[type[pl.DataType], tuple[int, int]] = {
    **{signed: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for signed, bits in
       ((pl.Int8, 8), (pl.Int16, 16), (pl.Int32, 32), (pl.Int64, 64))},
    **{unsigned: (0, 2**bits - 1) for unsigned, bits in ((pl.UInt8, 8), (pl.UInt16, 16), (pl.UInt32, 32))},
}  # fmt: skip

_PLAIN: dict[type[pl.DataType], Any] = {
    pl.UInt64: Annotated[int, Meta(ge=0)],
    pl.Float32: float,
    pl.Float64: float,
    pl.Boolean: bool,
    pl.String: str,
    pl.Binary: bytes,
    pl.Date: dt.date,
    pl.Time: dt.time,
    pl.Duration: dt.timedelta,
    pl.Decimal: Decimal,
    pl.Null: None,
}


def _python_type(dtype: Any, strict: bool) -> Any:
    kind = type(dtype)
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        return Annotated[int, Meta(ge=low, le=high)]
    if kind in _PLAIN:
        return _PLAIN[kind]
    match dtype:
        case pl.Datetime():
            return Annotated[dt.datetime, Meta(tz=dtype.time_zone is not None)]
        case pl.Enum():
            return Literal[tuple(dtype.categories.to_list())]
        case pl.List():
            return list[_python_type(_typed(dtype.inner), strict) | None]  # type: ignore[misc]  # a type made at run time
        case pl.Array():
            item = _python_type(_typed(dtype.inner), strict) | None
            return Annotated[list[item], Meta(min_length=dtype.size, max_length=dtype.size)]  # type: ignore[valid-type]
        case pl.Struct():
            return _struct({field.name: _typed(field.dtype) for field in dtype.fields}, strict)
    raise DataError(f"rows of type {dtype} can't be read from JSON", hint="write Parquet files instead")


def _typed(dtype: Any) -> pl.DataType:
    instance: pl.DataType = dtype if isinstance(dtype, pl.DataType) else dtype()
    return instance


def _plain(values: list[Any], dtype: pl.DataType) -> list[Any]:
    """Nested objects as dicts, which is what Polars takes."""
    return [msgspec.to_builtins(value, builtin_types=_KEPT) for value in values] if _has_struct(dtype) else values


_KEPT = (bytes, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal)


def _has_struct(dtype: Any) -> bool:
    if isinstance(dtype, pl.Struct):
        return True
    return isinstance(dtype, pl.List | pl.Array) and _has_struct(dtype.inner)


# -- types from values ----------------------------------------------------------------------------------


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
    """The type that holds both."""
    if one == other or isinstance(other, pl.Null):
        return one
    if isinstance(one, pl.Null):
        return other
    match one, other:
        case (pl.Int64() | pl.Float64(), pl.Int64() | pl.Float64()):
            return pl.Float64()
        case pl.List(), pl.List():
            return pl.List(_widen(_typed(one.inner), _typed(other.inner), name))
        case pl.Struct(), pl.Struct():
            fields = {field.name: _typed(field.dtype) for field in one.fields}
            for field in other.fields:
                dtype = _typed(field.dtype)
                known = fields.get(field.name)
                fields[field.name] = dtype if known is None else _widen(known, dtype, f"{name}.{field.name}")
            return pl.Struct(fields)
    raise DataError(
        f"the field {name!r} is sometimes {one}, sometimes {other}",
        hint="say which one it is with --schema, and leave the other lines out with --on-error skip",
    )


def _has_null(dtype: Any) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(_has_null(field.dtype) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _has_null(dtype.inner)
    return isinstance(dtype, pl.Null)

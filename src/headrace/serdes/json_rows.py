"""JSON lines to rows, strictly: what ``serdes.json_lines`` writes, and what people write by hand.

A line is one object whose fields are columns. A missing field is null. A field that the columns don't have is refused,
since it may be a typo. Types that JSON lacks are text: binary is base64, times are ISO 8601, decimals are their digits.
Types are strict: 1.5 isn't an integer, and "1" isn't a number.

Inputs of JSON, in files or brokers, are read with Polars instead (``serdes.formats.json``), which takes what other
programs write: numbers where text is wanted, fields that no column has, durations as integers.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import polars as pl
from msgspec import Meta

from headrace.core.errors import DataError
from headrace.core.records import UNREADABLE
from headrace.serdes.dtypes import instantiate
from headrace.serdes.row_pieces import RowsUnreadable
from headrace.serdes.values import column


class JsonRows:
    """Decodes lines for one set of columns."""

    def __init__(self, columns: Mapping[str, pl.DataType], *, drop_unknown: bool = False) -> None:
        self.columns = dict(columns)
        self._row = _struct(self.columns, not drop_unknown)
        self._decoder = msgspec.json.Decoder(self._row)
        self._fields = self._row.__struct_fields__

    def parse(self, data: bytes) -> pl.DataFrame:
        """The rows of whole lines. Raises ``RowsUnreadable`` if any can't be read."""
        lines = sum(1 for line in data.split(b"\n") if line and not line.isspace())
        try:
            # ``decode`` says more about what is wrong with a line.
            rows = [self._decoder.decode(data)] if lines == 1 else self._decoder.decode_lines(data)
            if len(rows) != lines:  # msgspec takes values that share a line, or that extend over several
                raise RowsUnreadable(f"{len(rows)} values in {lines} lines")
            return self._frame(rows)
        except UNREADABLE as error:
            raise RowsUnreadable(readable(error) + self._meant(error)) from error
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            raise RowsUnreadable(str(error).splitlines()[0]) from error

    def _meant(self, error: Exception) -> str:
        """The column that an unknown field may have been meant for."""
        unknown = re.search(r"unknown field `([^`]+)`", str(error))
        close = difflib.get_close_matches(unknown[1], self.columns, n=1) if unknown else []
        return f" (did you mean {close[0]}?)" if close else ""

    def _frame(self, rows: Sequence[Any]) -> pl.DataFrame:
        return pl.DataFrame(
            [
                column(name, _plain(list(map(attrgetter(field), rows)), dtype), dtype)
                for (name, dtype), field in zip(self.columns.items(), self._fields, strict=True)
            ]
        )


def shown(line: bytes) -> str:
    """The beginning of a line, for an error message, without terminal control characters."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in line[:500].strip().decode("utf-8", "replace"))
    return text if len(text) <= 120 else text[:117] + "..."


def readable(error: Exception) -> str:
    """Return why a line isn't a row, in plain words."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deeply"
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
            return list[_python_type(instantiate(dtype.inner), strict) | None]  # type: ignore[misc]  # a type made at run time
        case pl.Array():
            item = _python_type(instantiate(dtype.inner), strict) | None
            return Annotated[list[item], Meta(min_length=dtype.size, max_length=dtype.size)]  # type: ignore[valid-type]
        case pl.Struct():
            return _struct({field.name: instantiate(field.dtype) for field in dtype.fields}, strict)
    raise DataError(f"rows of type {dtype} can't be read from JSON", hint="write Parquet files instead")


def _plain(values: list[Any], dtype: pl.DataType) -> list[Any]:
    """Nested objects as dicts, which is what Polars takes."""
    return [msgspec.to_builtins(value, builtin_types=_KEPT) for value in values] if _has_struct(dtype) else values


_KEPT = (bytes, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal)


def _has_struct(dtype: Any) -> bool:
    if isinstance(dtype, pl.Struct):
        return True
    return isinstance(dtype, pl.List | pl.Array) and _has_struct(dtype.inner)

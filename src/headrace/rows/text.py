"""Rows as text: JSON lines and CSV, and the types that text parsers read reliably.

**Wire.** The parsers know few types (and Polars' JSON parser panics at some others), so narrow and rare types are read
as a wide type and cast, strictly: a number that doesn't fit makes its row a bad one. Binary values are base64, as in
all other text.

**Json lines.** What is written, for people and for other programs. Values that JSON has no type for become text: binary
as base64, times as ISO 8601, decimals as digits. NaN and the infinities become null.

**Json rows.** What is read, strictly: what ``encode_lines`` writes, and what people write by hand. A line is one object
whose fields are columns. A missing field is null. A field that the columns don't have is refused, since it may be a
typo. Types are strict: 1.5 isn't an integer, and "1" isn't a number. Inputs of JSON, in files or brokers, are read with
Polars instead (``rows.formats``), which takes what other programs write.
"""

from __future__ import annotations

import codecs
import datetime as dt
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from difflib import get_close_matches
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import polars as pl
from msgspec import Meta

from headrace.core.errors import DataError, DeclarationError
from headrace.core.files import UNREADABLE
from headrace.rows.casting import PER_SECOND, CastSafety, cast_safety, holds, with_exact_digits
from headrace.rows.dtypes import Columns, instantiate
from headrace.rows.pieces import RowsUnreadable
from headrace.rows.values import column

# -- wire --------------------------------------------------------------------------------------------
_WIDE: Sequence[tuple[tuple[type[pl.DataType], ...], pl.DataType]] = (
    ((pl.Int8, pl.Int16, pl.Int32), pl.Int64()),
    ((pl.UInt8, pl.UInt16, pl.UInt32), pl.UInt64()),
    ((pl.Float32,), pl.Float64()),
    ((pl.Int128, pl.Decimal, pl.Binary, pl.Enum, pl.Null, pl.Time, pl.Duration), pl.String()),
)


def wire_columns(columns: Columns) -> Columns:
    return {name: _wire(dtype) for name, dtype in columns.items()}


def _wire(dtype: pl.DataType) -> pl.DataType:
    for narrow, wide in _WIDE:
        if isinstance(dtype, narrow):
            return wide
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        return pl.Datetime(dtype.time_unit, "UTC")
    if isinstance(dtype, pl.List | pl.Array):
        return pl.List(_wire(dtype.inner))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return pl.Struct({field.name: _wire(field.dtype) for field in dtype.fields})  # type: ignore[arg-type]
    return dtype


def from_wire(frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """The frame with the declared types; raises a Polars error if a value doesn't fit."""
    found = frame.schema
    cast = [_from_wire(pl.col(name), dtype) for name, dtype in columns.items() if found[name] != dtype]
    return frame.with_columns(cast) if cast else frame


def _from_wire(values: pl.Expr, dtype: Any) -> pl.Expr:
    # A cast alone can't read these types from text, or reads them too generously.
    if not holds(dtype, (pl.Binary, pl.Time, pl.Decimal, pl.Duration)):
        return values.cast(dtype)
    match dtype:
        case pl.Decimal():
            exact = values.map_batches(lambda text: with_exact_digits(text, dtype), return_dtype=pl.String())
            return exact.cast(dtype)
        case pl.Binary():
            return values.str.decode("base64")
        case pl.Time():
            return values.str.to_time()
        case pl.Duration():
            return _durations(values, dtype)
        case pl.List() | pl.Array():
            return values.list.eval(_from_wire(pl.element(), dtype.inner)).cast(dtype)
        case pl.Struct():
            fields = [_from_wire(pl.field(field.name), field.dtype) for field in dtype.fields]
            return values.struct.with_fields(fields)
    raise TypeError(f"{dtype} isn't parsed")


_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DAYS, _HOURS, _MINUTES, _WHOLE = (rf"(?<{name}>\d{{1,18}})" for name in _SECONDS)
_DURATION = rf"^(?<sign>-?)P(?:{_DAYS}D)?(?:T(?:{_HOURS}H)?(?:{_MINUTES}M)?(?:{_WHOLE}(?:\.(?<f>\d{{1,9}}))?S)?)?$"
_NS = 1_000_000_000


def _durations(text: pl.Expr, dtype: pl.Duration) -> pl.Expr:
    """Of ISO 8601, or whole numbers in the unit of the type. The cast fails for all other text."""
    part = text.str.extract_groups(_DURATION).struct
    there = [part.field(name).cast(pl.Int128) for name in _SECONDS]
    whole = pl.sum_horizontal(count * seconds for count, seconds in zip(there, _SECONDS.values(), strict=True))
    nanoseconds = whole * _NS + part.field("f").str.pad_end(9, "0").cast(pl.Int128).fill_null(0)
    unit = _NS // PER_SECOND[dtype.time_unit]
    readable = pl.any_horizontal(count.is_not_null() for count in there) & (nanoseconds % unit == 0)
    number = part.field("sign") + (nanoseconds // unit).cast(pl.String)
    return pl.when(~readable).then(text).otherwise(number).cast(pl.Int64).cast(dtype)


def as_parsed(found: Columns, declared: Columns) -> Columns:
    """The columns of text that looks like the types ``found``, as declared wherever text of that look can be parsed."""
    fits = {name for name, dtype in declared.items() if name in found and _may_be(found[name], _wire(dtype))}
    return {name: declared[name] if name in fits else dtype for name, dtype in found.items()}


def _may_be(found: Any, wire: Any) -> bool:
    match found, wire:
        case pl.List(), pl.List():
            return _may_be(instantiate(found.inner), instantiate(wire.inner))
        case pl.Struct(), pl.Struct():
            types = {field.name: instantiate(field.dtype) for field in wire.fields}
            return all(_may_be(instantiate(f.dtype), types[f.name]) for f in found.fields if f.name in types)
    return wire == pl.String or cast_safety(found, wire) is not CastSafety.NEVER


def why_unreadable(error: pl.exceptions.PolarsError) -> str:
    """What a person needs of the error: its first line, without advice about Polars' parameters."""
    return str(error).splitlines()[0].partition("; try setting")[0]


def without_null_types(columns: Columns) -> Columns:
    return {name: pl.String() if dtype == pl.Null else dtype for name, dtype in columns.items()}


# -- csv format --------------------------------------------------------------------------------------
_SKIP_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """The options of CSV, checked. ``header``: True, False, or the names of the columns of a file without a header."""

    separator: str = ","
    header: bool | tuple[str, ...] = True
    quote: str | None = '"'
    null_values: tuple[str, ...] = ("",)
    encoding: str = "utf-8"
    skip_lines: int = 0

    def __post_init__(self) -> None:
        for what, value in (("separator", self.separator), ("quote", self.quote)):
            if value is None and what == "quote":
                continue
            if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n":
                raise DeclarationError(f"{what}={value!r} isn't a single ASCII character", hint='write "," or "\\t"')
        if self.separator == self.quote:
            raise DeclarationError(f"separator and quote are both {self.separator!r}")
        if not isinstance(self.header, bool):
            object.__setattr__(self, "header", _names(self.header))
        object.__setattr__(self, "null_values", _texts(self.null_values))
        object.__setattr__(self, "encoding", _encoding(self.encoding))
        if type(self.skip_lines) is not int or not 0 <= self.skip_lines <= _SKIP_MAX:
            raise DeclarationError(f"skip_lines={self.skip_lines!r} isn't a number of lines from 0 to {_SKIP_MAX}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CsvFormat:
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                close = get_close_matches(str(name), known, n=1)
                raise DeclarationError(
                    f"CSV has no option {name!r}; it has {', '.join(known)}",
                    hint=f"did you mean {close[0]!r}?" if close else None,
                )
        return cls(**options)

    def options(self) -> dict[str, Any]:
        usual = asdict(CsvFormat())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


def _texts(values: object) -> tuple[str, ...]:
    if isinstance(values, str):
        return (values,)
    if isinstance(values, list | tuple) and all(isinstance(value, str) for value in values):
        return tuple(values)
    raise DeclarationError(f"null_values={values!r}: expected a list of strings", hint='write ["", "NA"]')


def _names(names: object) -> tuple[str, ...]:
    whole = isinstance(names, list | tuple) and names and all(isinstance(name, str) and name for name in names)
    if not whole or not isinstance(names, list | tuple):
        raise DeclarationError(
            f"header={names!r} isn't a list of column names", hint='write header=False, or header=["member", "euros"]'
        )
    if len(set(names)) < len(names):
        raise DeclarationError(f"header names a column twice: {', '.join(names)}")
    return tuple(names)


def _encoding(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except (LookupError, TypeError) as error:
        raise DeclarationError(f"encoding={name!r} isn't known", hint='write "utf-8" or "latin-1"') from error


def encode_lines(df: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    df.with_columns(_spelled(pl.col(name), dtype) for name, dtype in df.schema.items()).write_ndjson(out)
    return out.getvalue()


def _spelled(values: pl.Expr, dtype: Any) -> pl.Expr:
    """The values, as text where Polars' own writer would write them differently or fail."""
    if not holds(dtype, (pl.Binary, pl.Datetime)):
        return values
    match dtype:
        case pl.Binary():
            return values.bin.encode("base64")
        case pl.Datetime():
            return values.dt.to_string("iso:strict")
        case pl.Array():
            return values.arr.to_list().list.eval(_spelled(pl.element(), dtype.inner))
        case pl.List():
            return values.list.eval(_spelled(pl.element(), dtype.inner))
    return values.struct.with_fields(_spelled(pl.field(field.name), field.dtype) for field in dtype.fields)


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
        unknown = re.search(r"unknown field `([^`]+)`", str(error))
        close = get_close_matches(unknown[1], self.columns, n=1) if unknown else []
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
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return text.replace("`", "").replace(" - at $.", ", in the field ").replace(" | null", "")
    return "not JSON (" + text.removeprefix("JSON is malformed: ").lower() + ")"


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
    pl.UInt64: Annotated[int, Meta(ge=0)], pl.Float32: float, pl.Float64: float, pl.Boolean: bool, pl.String: str,
    pl.Binary: bytes, pl.Date: dt.date, pl.Time: dt.time, pl.Duration: dt.timedelta, pl.Decimal: Decimal,
    pl.Null: None,
}  # fmt: skip


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
    return [msgspec.to_builtins(value, builtin_types=_KEPT) for value in values] if _has_struct(dtype) else values


_KEPT = (bytes, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal)


def _has_struct(dtype: Any) -> bool:
    if isinstance(dtype, pl.Struct):
        return True
    return isinstance(dtype, pl.List | pl.Array) and _has_struct(dtype.inner)

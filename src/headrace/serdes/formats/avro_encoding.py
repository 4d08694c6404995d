"""Rows as Avro datums, column by column: each field becomes an array of its bytes, and the arrays are joined. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import DataError
from headrace.serdes.casting import cast_column
from headrace.serdes.dtypes import written
from headrace.serdes.formats.avro_resolution import SchemasDisagree, default_of
from headrace.serdes.formats.avro_schema import ReadSchema

_BYTES = pa.large_binary()
_NOTHING = pa.scalar(b"", _BYTES)


class DatumWriter:
    """Writes rows by one schema."""

    def __init__(self, schema: ReadSchema) -> None:
        self._schema = schema

    def write(self, rows: pl.DataFrame) -> list[bytes]:
        """One datum for each row. A column that is missing has the default of its field, or else is null.

        Raises ``DataError`` for what the schema can't have.
        """
        unknown = [name for name in rows.columns if name not in self._schema.columns]
        if unknown:
            raise _wrong(f"the schema has no field {unknown[0]!r}; it has {', '.join(self._schema.columns)}")
        if not rows.height:
            return []
        parts = []
        for field in self._schema.record["fields"]:
            name, dtype = field["name"], self._schema.columns[field["name"]]
            column = rows[name] if name in rows.columns else self._missing(name, dtype, rows)
            parts.append(_Field(name).part(field["type"], _cast(column, dtype, name)))
        data = pl.from_arrow(_joined(parts))
        assert isinstance(data, pl.Series)
        return data.to_list()

    def _missing(self, name: str, dtype: pl.DataType, rows: pl.DataFrame) -> pl.Series:
        default = self._schema.notes[name].default
        try:
            value = default_of(default[0] if default else None, dtype, name)
        except SchemasDisagree as error:
            raise _wrong(str(error)) from error
        return rows.with_columns(value.alias(name))[name]


class _Field:
    """One field; ``path`` names it in errors. Its parts have nulls where its values are null."""

    def __init__(self, path: str) -> None:
        self._path = path

    def part(self, type_: Any, values: pl.Series, there: pl.Series | None = None) -> pa.Array:
        """The bytes of the values. Only where ``there`` says so has a value to be; by default everywhere."""
        if isinstance(type_, list):
            return self._optional(type_, values)
        missing = values.is_null() if there is None else values.is_null() & there
        if missing.any():
            raise _wrong(f"field {self._path!r} is null, which the schema doesn't allow")
        kind = type_ if isinstance(type_, str) else type_["type"]
        match kind:
            case "record":
                return self._record(type_["fields"], values)
            case "array":
                return self._array(type_["items"], values)
            case "enum":
                return self._enum(type_["symbols"], values)
            case "fixed":
                return self._fixed(type_["size"], values)
            case "bytes" if values.dtype == pl.Decimal:
                return _sized(pl.Series([_decimal(one) for one in values.to_list()], dtype=pl.Binary))
            case "bytes" | "string":
                return _sized(values)
            case "boolean":
                return _fixed_width(values.fill_null(False).cast(pl.UInt8).to_numpy(), values)
            case "float" | "double":
                code = "<f4" if kind == "float" else "<f8"
                return _fixed_width(values.fill_null(0).to_numpy().astype(code), values)
            case _:
                return varints(_ticks(type_, values), _valid(values))

    def _optional(self, union: Sequence[Any], values: pl.Series) -> pa.Array:
        """A union with null, in either order: the index of the present type, and the bytes of the value."""
        null = union.index("null")
        found = self.part(union[1 - null], values, values.is_not_null())
        number = pa.scalar(_varint(1 - null), _BYTES)
        return pc.fill_null(pc.binary_join_element_wise(number, found, _NOTHING), pa.scalar(_varint(null), _BYTES))

    def _record(self, fields: Sequence[Mapping[str, Any]], values: pl.Series) -> pa.Array:
        there = values.is_not_null()
        parts = [
            _Field(f"{self._path}.{one['name']}").part(one["type"], values.struct.field(one["name"]), there)
            for one in fields
        ]
        # A field of a record that is null may be null itself, and its union would have bytes for that.
        return pc.if_else(there.to_arrow(), _joined(parts), pa.scalar(None, _BYTES))

    def _array(self, items: Any, values: pl.Series) -> pa.Array:
        lists = values.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
        inner = pl.from_arrow(lists.values)
        assert isinstance(inner, pl.Series)
        inner = inner.cast(values.dtype.inner)  # type: ignore[attr-defined]
        parts = _Field(f"{self._path}[]").part(items, inner)
        offsets = np.asarray(lists.offsets)
        whole = pa.LargeListArray.from_arrays(pa.array(offsets), parts)
        joined = pc.binary_join(whole, _NOTHING)
        lengths = np.diff(offsets)
        block = pc.binary_join_element_wise(varints(lengths), joined, pa.scalar(b"\0", _BYTES), _NOTHING)
        ended = pc.if_else(pa.array(lengths == 0), pa.scalar(b"\0", _BYTES), block)
        return pc.if_else(values.is_not_null().to_arrow(), ended, pa.scalar(None, _BYTES))

    def _enum(self, symbols: Sequence[str], values: pl.Series) -> pa.Array:
        numbers = values.replace_strict(symbols, range(len(symbols)), default=-1, return_dtype=pl.Int64)
        unknown = values.filter((numbers == -1) & values.is_not_null())
        if len(unknown):
            raise _wrong(f"field {self._path!r} can't be {unknown[0]!r}; it is one of {', '.join(symbols)}")
        return varints(numbers.fill_null(0).to_numpy(), _valid(values))

    def _fixed(self, size: int, values: pl.Series) -> pa.Array:
        if (values.bin.size() != size).any():
            raise _wrong(f"field {self._path!r} must have exactly {size} bytes")
        return values.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(_BYTES)


def varints(numbers: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as Avro has them: zigzag, seven bits a byte, the lowest first. Null where they aren't ``valid``."""
    signed = numbers.astype(np.int64)
    zigzag = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    lengths = np.ones(len(zigzag), dtype=np.int64)
    width = 1
    while width < 10 and (longer := zigzag >= np.uint64(1 << 7 * width)).any():
        lengths += longer
        width += 1
    places = np.arange(width, dtype=np.uint64)
    groups = ((zigzag[:, None] >> (places * np.uint64(7))) & np.uint64(0x7F)).astype(np.uint8)
    more = places[None, :] < (lengths - 1).astype(np.uint64)[:, None]
    groups |= more.astype(np.uint8) << np.uint8(7)
    data = groups[places[None, :] < lengths.astype(np.uint64)[:, None]] if width > 1 else groups.ravel()
    return _array(lengths, data, valid)


def _ticks(type_: Any, values: pl.Series) -> npt.NDArray[np.int64]:
    """The numbers of a column whose type has some; 0 for null."""
    logical = type_.get("logicalType") if isinstance(type_, Mapping) else None
    if isinstance(values.dtype, pl.Time):
        unit = 1_000_000 if logical == "time-millis" else 1000
        return (values.to_physical() // unit).fill_null(0).to_numpy()
    return values.to_physical().cast(pl.Int64).fill_null(0).to_numpy()


def _sized(values: pl.Series) -> pa.Array:
    """Texts and bytes, each after its length."""
    data = values.cast(pl.Binary)
    sizes = varints(data.bin.size().cast(pl.Int64).fill_null(0).to_numpy())
    return pc.binary_join_element_wise(
        sizes, data.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(_BYTES), _NOTHING
    )


def _fixed_width(numbers: npt.NDArray[Any], values: pl.Series) -> pa.Array:
    lengths = np.full(len(numbers), numbers.itemsize, dtype=np.int64)
    return _array(lengths, np.ascontiguousarray(numbers).view(np.uint8), _valid(values))


def _array(
    lengths: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(_BYTES, len(lengths), buffers)


def _valid(values: pl.Series) -> npt.NDArray[np.bool_] | None:
    return values.is_not_null().to_numpy() if values.null_count() else None


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _varint(number: int) -> bytes:
    return bytes(varints(np.array([number], dtype=np.int64))[0].as_py())


def _decimal(value: Decimal | None) -> bytes | None:
    """The number without its point, as two's complement in as few bytes as it needs."""
    if value is None:
        return None
    sign, all_digits, _ = value.as_tuple()
    digits = int("".join(map(str, all_digits))) * (-1 if sign else 1)
    return digits.to_bytes((digits + (digits < 0)).bit_length() // 8 + 1, "big", signed=True)


def _cast(values: pl.Series, dtype: pl.DataType, path: str) -> pl.Series:
    if values.dtype == dtype:
        return values
    if isinstance(values.dtype, pl.Datetime) and isinstance(dtype, pl.Datetime):
        if values.dtype.time_zone is None:
            values = values.dt.replace_time_zone(dtype.time_zone)
        found = values.cast(dtype)
        wrong = found.cast(values.dtype).ne_missing(values).arg_true().to_list()
    else:
        found, wrong = cast_column(values, dtype)
    if wrong:
        raise _wrong(f"field {path!r} is of type {written(dtype)}, but the value is {values[wrong[0]]!r:.40}")
    return found


def _wrong(what: str) -> DataError:
    return DataError(
        f"a row can't be written as Avro: {what}",
        hint="make the rows fit the schema, for example with .with_columns(...) before send_to",
    )

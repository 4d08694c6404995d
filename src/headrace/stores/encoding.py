"""Rows as bytes: keys that sort as their columns do, and compact values; for batches and for single rows. Pure.

A column of a fixed width is one or two arrays of numbers, its *words*. A string or binary column is an Arrow array of
bytes. Any nested column is an Arrow array of MessagePack. A row is a chain of records of a fixed width with bytes
between them. All forms are durable: tests hold golden bytes.

A *key* is the encodings of its columns, one after the other, so the encoding of its first columns is a prefix of it.
Nulls come first. A column is one byte (0 for null, 1 for a value), and then:

- integers, dates, times, durations, enums (by their index): big-endian, with the sign bit flipped
- bools: one byte; decimals: 16 bytes, like an integer of that width
- floats: big-endian bits, flipped so that they sort as numbers; -0.0 is 0.0, and all NaNs are the same and the greatest
- strings, binaries: the bytes, with each 0 written as ``00 FF``, and a final 0. What follows a final 0 is at most 1, so
  a string sorts before those that continue it.

A null of fixed width has zeros for its value. Example, with columns (String, Int16): ``("ab", 1)`` is ``01 61 62 00 |
01 80 01``, and ``(None, -1)`` is ``00 00 | 01 7f ff``.

A *value* has the other columns, little-endian::

    format u8 (1) | layout u8 | one bit a column, 1: not null | columns of fixed width | lengths u32 | bytes

``layout`` is the number of the list of columns that the row was written with; ``table`` keeps these lists. Strings are
UTF-8, nested values MessagePack. A null has zeros, or no bytes, for its value. Example, with columns (Int16, String) as
layout 0: ``(5, "ab")`` is ``01 00 | 03 | 05 00 | 02 00 00 00 | 61 62``.

These encodings take about as long for one row as for thousands. User code that looks one key up for each message needs
a microsecond instead. So ``ScalarKeys``, ``ScalarValues`` and ``RowCodec`` make the same bytes of single rows with
``struct``, except for columns of types that it can't pack.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.core.errors import CorruptLogError, DataError, DeclarationError
from headrace.rows.casting import filled
from headrace.rows.dtypes import Columns
from headrace.rows.values import column, misfit

Words = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
DELETE_LOCAL_STATE = "delete the task's local state: it is rebuilt from the changelog"
_WORDS: dict[type[pl.DataType], tuple[str, ...]] = {
    pl.Int8: ("<i1",), pl.Int16: ("<i2",), pl.Int32: ("<i4",), pl.Int64: ("<i8",),
    pl.UInt8: ("<u1",), pl.UInt16: ("<u2",), pl.UInt32: ("<u4",), pl.UInt64: ("<u8",),
    pl.Float32: ("<f4",), pl.Float64: ("<f8",), pl.Boolean: ("<u1",),
    pl.Date: ("<i4",), pl.Datetime: ("<i8",), pl.Duration: ("<i8",), pl.Time: ("<i8",),
    pl.Enum: ("<u4",), pl.Decimal: ("<i8", "<u8"), pl.Null: (),
}  # fmt: skip
_PACK = msgspec.msgpack.Encoder().encode
_UNPACK = msgspec.msgpack.Decoder().decode


def words_of(dtype: pl.DataType) -> tuple[str, ...] | None:
    """The formats of a column's words, the highest first; None when its values have no fixed width."""
    return _WORDS.get(type(dtype))


def is_bytes(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Binary)


def to_words(series: pl.Series) -> list[Words]:
    """The values of a column of a fixed width; null is 0."""
    formats = _WORDS[type(series.dtype)]
    if isinstance(series.dtype, pl.Decimal):
        array = series.rechunk().to_arrow()
        array = array if array.offset == 0 else pa.concat_arrays([array])
        halves = np.frombuffer(array.buffers()[1], "<u8")[: 2 * len(series)]
        if series.null_count():
            halves = np.where(np.repeat(series.is_not_null().to_numpy(), 2), halves, np.uint64(0))
        return [halves[1::2].view("<i8"), halves[0::2]]
    if not formats:
        return []
    if series.dtype == pl.Boolean:
        series = series.cast(pl.UInt8)
    numbers = filled(series.to_physical(), 0)
    return [numbers.to_numpy().astype(formats[0], copy=False)]


def from_words(name: str, dtype: pl.DataType, words: Sequence[Words], valid: Mask | None) -> pl.Series:
    if isinstance(dtype, pl.Decimal):
        data = np.column_stack([words[1], words[0].view("<u8")]).tobytes()
        nulls = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        kind = pa.decimal128(dtype.precision or 38, dtype.scale)
        series = pl.Series(name, pa.Array.from_buffers(kind, len(words[0]), [nulls, pa.py_buffer(data)]))
        return series.cast(dtype)
    mask = None if valid is None else ~valid
    if isinstance(dtype, pl.Enum):
        return pl.Series(name, pa.array(words[0], mask=mask)).cat.to(dtype)
    series = pl.Series(name, pa.array(np.ascontiguousarray(words[0]), mask=mask))
    return series if series.dtype == dtype else series.cast(dtype)


def to_bytes(series: pl.Series) -> pa.LargeBinaryArray:
    """The values of any other column as bytes; null has no bytes."""
    if not is_bytes(series.dtype):
        try:
            packed = [None if value is None else _PACK(value) for value in series.to_physical().to_list()]
        except (OverflowError, TypeError) as error:
            what = f"column {series.name!r} of type {series.dtype} can't be kept in a state store: {error}"
            raise DataError(what, hint="store it as text: cast it to pl.String first") from error
        series = pl.Series(packed, dtype=pl.Binary)
    array = series.cast(pl.Binary).fill_null(b"").to_arrow(compat_level=pl.CompatLevel.oldest())
    return array.cast(pa.large_binary())


def from_bytes(name: str, dtype: pl.DataType, array: pa.LargeBinaryArray, valid: Mask | None) -> pl.Series:
    if not is_bytes(dtype):
        packed = array.to_pylist()
        alive = [True] * len(packed) if valid is None else valid.tolist()
        values = [_UNPACK(data) if there else None for data, there in zip(packed, alive, strict=True)]
        physical = pl.Series(name, [], dtype).to_physical()
        # Polars takes 5 us a list to make a column of Python's.
        return pl.Series(name, pa.array(values, physical.to_arrow().type), physical.dtype).cast(dtype)
    nulls = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    kind = pa.large_string() if dtype == pl.String else pa.large_binary()
    return pl.Series(name, pa.Array.from_buffers(kind, len(array), [nulls, *array.buffers()[1:]]))


def join_rows(parts: Sequence[Words | pa.LargeBinaryArray]) -> list[bytes]:
    """One ``bytes`` a row: its records of a fixed width (structured arrays) and its bytes, in turn."""
    if len(parts) == 1 and isinstance(parts[0], np.ndarray):
        rows: list[bytes] = parts[0].view(f"V{parts[0].itemsize}").tolist()
        return rows
    arrays = [_as_binary(part) if isinstance(part, np.ndarray) else part for part in parts]
    import pyarrow.compute as pc  # when first used: it takes a tenth of the start of every process

    joined = pc.binary_join_element_wise(*arrays, pa.scalar(b"", pa.large_binary()))
    return joined.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


class Rows:
    """Reads rows that ``join_rows`` made, from left to right."""

    def __init__(self, rows: Sequence[bytes]) -> None:
        self.data = np.frombuffer(b"".join(rows), np.uint8)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        self.ends = lengths.cumsum()
        self.at = self.ends - lengths

    def record(self, dtype: np.dtype[Any]) -> Words:
        width, count = dtype.itemsize, len(self.at)
        if count and int((self.ends - self.at).min()) < width:
            raise CorruptLogError("a stored row ends too early", hint=DELETE_LOCAL_STATE)
        if not width or not count:
            return np.zeros(count, dtype)
        if self.data.size == width * count:
            records = self.data.view(dtype)  # nothing else is in the rows
        else:
            every = np.ndarray((self.data.size - width + 1,), f"V{width}", self.data.data, strides=(1,))
            records = every[self.at].view(dtype)
        self.at = self.at + width
        return records

    def until(self, ends: Places) -> pa.LargeBinaryArray:
        if len(ends) and (np.any(ends < self.at) or np.any(ends > self.ends)):
            raise CorruptLogError("a stored row ends too early", hint=DELETE_LOCAL_STATE)
        offsets = np.zeros(len(ends) + 1, np.int64)
        np.cumsum(ends - self.at, out=offsets[1:])
        steps = np.zeros(self.data.size + 1, np.int8)
        # A string without bytes begins where it ends: both must count.
        np.add.at(steps, self.at, 1)
        np.subtract.at(steps, ends, 1)
        inside = steps[:-1].cumsum(dtype=np.int8).view(np.bool_)
        data = self.data[inside]
        self.at = ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)


def _as_binary(records: Words) -> pa.LargeBinaryArray:
    width, count = records.itemsize, len(records)
    offsets = np.arange(0, width * (count + 1), width, dtype=np.int64) if width else np.zeros(count + 1, np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(records.tobytes())]
    return pa.Array.from_buffers(pa.large_binary(), count, buffers)


_ESCAPED = b"\x00\xff"


class KeyEncoding:
    """Encodes keys of some columns. Raises ``DeclarationError`` for a type that can't be in a key."""

    def __init__(self, columns: Columns) -> None:
        if not columns:
            raise DeclarationError("a key needs at least one column")
        for name, dtype in columns.items():
            if not is_bytes(dtype) and not words_of(dtype):
                hint = "use a number, string, binary, bool, decimal, date, time or enum; for a struct, its fields"
                raise DeclarationError(f"column {name!r} of type {dtype} can't be part of a key", hint=hint)
        self.columns = dict(columns)
        self._records = _records(self.columns)

    def encode(self, keys: pl.DataFrame) -> list[bytes]:
        parts: list[Words | pa.LargeBinaryArray] = []
        record = np.zeros(keys.height, self._records[0])
        for place, (name, dtype) in enumerate(self.columns.items()):
            series = keys.get_column(name)
            present = series.is_not_null().to_numpy() if series.null_count() else None
            record[f"present {place}"] = 1 if present is None else present
            if is_bytes(dtype):
                parts += [record, _replaced(to_bytes(series), b"\x00", _ESCAPED)]
                record = np.zeros(keys.height, self._records[len(parts) // 2])
                continue
            for number, word in enumerate(to_words(series)):
                ordered = _to_ordered(word)
                record[f"{place}.{number}"] = ordered if present is None else ordered * present
        return join_rows([*parts, record])

    def decode(self, keys: Sequence[bytes]) -> pl.DataFrame:
        rows = Rows(keys)
        ends = _ends_of_strings(rows.data) if len(self._records) > 1 else None
        records = iter(self._records)
        record = rows.record(next(records))
        columns = []
        for place, (name, dtype) in enumerate(self.columns.items()):
            present = record[f"present {place}"] != 0
            valid = None if present.all() else present
            if ends is not None and is_bytes(dtype):
                text = _replaced(rows.until(_first_from(ends, rows.at)), _ESCAPED, b"\x00")
                column = from_bytes(name, dtype, text, valid)
                record = rows.record(next(records))
            else:
                formats = words_of(dtype) or ()
                words = [_from_ordered(record[f"{place}.{n}"], format_) for n, format_ in enumerate(formats)]
                column = from_words(name, dtype, words, valid)
            columns.append(column)
        return pl.DataFrame(columns)


def _records(columns: Columns) -> list[np.dtype[Any]]:
    records: list[list[tuple[str, str]]] = [[]]
    for place, dtype in enumerate(columns.values()):
        records[-1].append((f"present {place}", "u1"))
        if is_bytes(dtype):
            records.append([(f"end {place}", "u1")])
        else:
            formats = words_of(dtype) or ()
            records[-1] += [(f"{place}.{n}", f">u{np.dtype(f).itemsize}") for n, f in enumerate(formats)]
    return [np.dtype(fields) for fields in records]


def _to_ordered(words: Words) -> Words:
    """Unsigned numbers that sort as ``words`` do: Int8 [-1, 0, 1] becomes [0x7f, 0x80, 0x81]."""
    ordered = words
    unsigned, sign = _unsigned(words.dtype)
    if words.dtype.kind == "i":
        ordered = words.view(unsigned) ^ sign
    elif words.dtype.kind == "f":
        values = words + words.dtype.type(0)  # -0.0 + 0.0 is 0.0
        values[np.isnan(values)] = np.nan
        bits = values.view(unsigned)
        ordered = np.where(bits & sign, ~bits, bits ^ sign)
    return ordered


def _from_ordered(ordered: Words, format_: str) -> Words:
    wanted = np.dtype(format_)
    unsigned, sign = _unsigned(wanted)
    words = ordered.astype(unsigned)
    if wanted.kind == "i":
        words ^= sign
    elif wanted.kind == "f":
        words = np.where(words & sign, words ^ sign, ~words)
    return words.view(wanted)


def _unsigned(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], Any]:
    unsigned = np.dtype(f"<u{dtype.itemsize}")
    return unsigned, unsigned.type(1 << (8 * dtype.itemsize - 1))


def _replaced(array: pa.LargeBinaryArray, pattern: bytes, by: bytes) -> pa.LargeBinaryArray:
    data = array.buffers()[2]
    if data is None or np.frombuffer(data, np.uint8).all():
        return array
    import pyarrow.compute as pc  # when first used: it takes a tenth of the start of every process

    return pc.replace_substring(array, pattern=pattern, replacement=by)


def _ends_of_strings(data: npt.NDArray[np.uint8]) -> Places:
    """The position of every 0 that isn't escaped. None is inside a string, so a string ends at the next one."""
    zeros = np.flatnonzero(data == 0)
    after = data[np.minimum(zeros + 1, data.size - 1)]
    ends: Places = zeros[after != 0xFF]
    return ends


def _first_from(ends: Places, starts: Places) -> Places:
    found = np.searchsorted(ends, starts)
    if len(found) and int(found.max()) == len(ends):
        raise CorruptLogError("a string in a stored key has no final 0 byte", hint=DELETE_LOCAL_STATE)
    return ends[found]


FORMAT = 1
LAYOUTS_MAX = 256
_LENGTH_MAX = (1 << 32) - 1


class ValueEncoding:
    """Encodes values of some columns in a fixed order, which have the layout ``number``."""

    def __init__(self, columns: Columns, number: int) -> None:
        self.columns = dict(columns)
        self.number = number
        self._is_bytes = [words_of(dtype) is None for dtype in columns.values()]
        fields = [("format", "u1"), ("layout", "u1")]
        fields += [(f"nulls {n}", "u1") for n in range(-(-len(columns) // 8))]
        for place, dtype in enumerate(columns.values()):
            fields += [(f"{place}.{n}", format_) for n, format_ in enumerate(words_of(dtype) or ())]
        fields += [(f"length {place}", "<u4") for place, is_bytes in enumerate(self._is_bytes) if is_bytes]
        self._record = np.dtype(fields)

    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        record = np.zeros(rows.height, self._record)
        record["format"], record["layout"] = FORMAT, self.number
        parts: list[Words | pa.LargeBinaryArray] = [record]
        for place, name in enumerate(self.columns):
            series = rows.get_column(name)
            bit = np.uint8(1 << place % 8)
            record[f"nulls {place // 8}"] |= bit * series.is_not_null().to_numpy() if series.null_count() else bit
            if not self._is_bytes[place]:
                for number, word in enumerate(to_words(series)):
                    record[f"{place}.{number}"] = word
                continue
            array = to_bytes(series)
            lengths = np.diff(np.frombuffer(array.buffers()[1], np.int64)[: len(array) + 1])
            if lengths.max(initial=0) > _LENGTH_MAX:
                what = f"column {name!r}: a value has {lengths.max()} bytes; a state store takes at most 4 GiB"
                raise DataError(what, hint="store the value elsewhere, and keep only a reference here")
            record[f"length {place}"] = lengths
            parts.append(array)
        return join_rows(parts)

    def decode(self, values: Sequence[bytes]) -> pl.DataFrame:
        rows = Rows(values)
        record = rows.record(self._record)
        columns = []
        for place, (name, dtype) in enumerate(self.columns.items()):
            present = (record[f"nulls {place // 8}"] & np.uint8(1 << place % 8)) != 0
            valid = None if present.all() else present
            if self._is_bytes[place]:
                array = rows.until(rows.at + record[f"length {place}"].astype(np.int64))
                columns.append(from_bytes(name, dtype, array, valid))
            elif dtype == pl.Null:
                columns.append(pl.Series(name, [None] * len(values), pl.Null))
            else:
                words = [record[f"{place}.{number}"] for number in range(len(words_of(dtype) or ()))]
                columns.append(from_words(name, dtype, words, valid))
        return pl.DataFrame(columns) if columns else pl.DataFrame(height=len(values))


def layouts_of(values: Sequence[bytes]) -> Words:
    heads = np.frombuffer(b"".join([value[:2] for value in values]), np.uint8)
    if heads.size != 2 * len(values) or np.any(heads[0::2] != FORMAT):
        found = next(value[:2] for value in values if len(value) < 2 or value[0] != FORMAT)
        what = f"a stored row begins with {found!r}; this version of Headrace reads format {FORMAT}"
        raise CorruptLogError(what, hint="a newer version of Headrace wrote it; upgrade this one")
    return heads[1::2]


_STRUCT_CODES: dict[type[pl.DataType], str] = {
    pl.Int8: "b", pl.Int16: "h", pl.Int32: "i", pl.Int64: "q",
    pl.UInt8: "B", pl.UInt16: "H", pl.UInt32: "I", pl.UInt64: "Q",
    pl.Float32: "f", pl.Float64: "d", pl.Boolean: "?",
}  # fmt: skip
_Write = Callable[[Any], bytes]
_Read = Callable[[bytes, int], tuple[Any, int]]
"""``write(value)`` returns the bytes of a column of a key, ``read(key, start)`` the value and the position after it."""
MISFITS = (AttributeError, KeyError, OverflowError, TypeError, ValueError, struct.error)
_FLAGS = {True: True, False: False}


class ScalarKeys:
    """Encodes the key of one row."""

    def __init__(self, columns: Columns) -> None:
        self._columns = dict(columns)
        self._columnar = KeyEncoding(columns)
        codecs = [_key_codec(dtype) for dtype in columns.values()]
        self._codecs = [codec for codec in codecs if codec is not None]
        self._packed = len(self._codecs) == len(codecs)
        self._first: _Write = self._codecs[0][0] if self._packed else lambda value: self._by_columns((value,))

    def encode_one(self, value: Any) -> bytes:
        try:
            return self._first(value)
        except MISFITS:
            return self.encode((value,))  # this raises an error that says what is wrong

    def encode(self, values: Sequence[Any]) -> bytes:
        """The key, or the prefix that all keys with these values in their first columns share."""
        if not self._packed:
            return self._by_columns(values)
        try:
            return b"".join([write(value) for (write, _), value in zip(self._codecs, values, strict=False)])
        except MISFITS:
            for (write, _), (name, dtype), value in zip(self._codecs, self._columns.items(), values, strict=False):
                _check(write, value, name, dtype)
            raise

    def decode(self, key: bytes) -> tuple[Any, ...]:
        if not self._packed:
            return self._columnar.decode([key]).row(0)
        values = []
        position = 0
        try:
            for _, read in self._codecs:
                value, position = read(key, position)
                values.append(value)
        except (IndexError, struct.error) as error:
            raise CorruptLogError(f"the stored key {key!r} ends too early", hint=DELETE_LOCAL_STATE) from error
        return tuple(values)

    def _by_columns(self, values: Sequence[Any]) -> bytes:
        first = dict(list(self._columns.items())[: len(values)])
        return KeyEncoding(first).encode(one_row(first, values))[0]


class ScalarValues:
    """Encodes the value of one row in the same bytes as ``encoding``."""

    def __init__(self, encoding: ValueEncoding) -> None:
        # _words and _texts are the positions of fixed-width columns and of strings and binaries. _record packs what
        # precedes the texts' bytes: format, layout, null bits, words, lengths of texts. _full are the null bits of a
        # row without nulls.
        self._encoding = encoding
        self._columns = dict(encoding.columns)
        self._head = _head_of(encoding)
        self._full = self._head[2:]
        self._null_bytes = len(self._full)
        self._texts = [place for place, dtype in enumerate(self._columns.values()) if is_bytes(dtype)]
        self._words = [place for place, dtype in enumerate(self._columns.values()) if _is_word(dtype)]
        self._packed = len(self._texts) + len(self._words) == len(self._columns)
        dtypes = list(self._columns.values())
        codes = "".join(_STRUCT_CODES[type(dtypes[place])] for place in self._words) if self._packed else ""
        self._record = struct.Struct(f"<BB{'B' * self._null_bytes}{codes}{'I' * len(self._texts)}")
        self._to_text = {place: _to_utf8 if dtypes[place] == pl.String else _to_bytes for place in self._texts}
        self._strings = {place for place in self._texts if dtypes[place] == pl.String}

    def encode(self, values: Sequence[Any]) -> bytes:
        if not self._packed:
            return self._encoding.encode(one_row(self._columns, values))[0]
        try:
            return self._pack(values)
        except MISFITS:
            for value, (name, dtype) in zip(values, self._columns.items(), strict=True):
                _check(_writer(dtype), value, name, dtype)
            raise

    def decode(self, value: bytes) -> Sequence[Any]:
        if not self._packed:
            return self._encoding.decode([value]).row(0)
        try:
            fields = self._record.unpack_from(value)
        except struct.error as error:
            raise CorruptLogError("a stored row ends too early", hint=DELETE_LOCAL_STATE) from error
        first = 2 + self._null_bytes
        if not self._texts and fields[2:first] == self._full:
            return fields[first:]
        values: list[Any] = [None] * len(self._columns)
        for place, word in zip(self._words, fields[first:], strict=False):
            values[place] = word
        position = self._record.size
        for place, length in zip(self._texts, fields[first + len(self._words) :], strict=True):
            text = value[position : position + length]
            values[place] = text.decode() if place in self._strings else text
            position += length
        if fields[2:first] != self._full:
            for place in range(len(values)):
                if not fields[2 + place // 8] >> place % 8 & 1:
                    values[place] = None
        return values

    def _pack(self, values: Sequence[Any]) -> bytes:
        if None not in values:
            if not self._texts:
                return self._record.pack(*self._head, *values)
            head = self._head
        else:
            nulls = list(self._full)
            for place, value in enumerate(values):
                if value is None:
                    nulls[place // 8] &= ~(1 << place % 8)
            head = (FORMAT, self._encoding.number, *nulls)
        words = [0 if (value := values[place]) is None else value for place in self._words]
        texts = [b"" if (value := values[place]) is None else self._to_text[place](value) for place in self._texts]
        return self._record.pack(*head, *words, *map(len, texts)) + b"".join(texts)


class RowCodec:
    """As ``ScalarValues``, but quick, for rows without nulls of a layout that ``struct`` can pack.

    ``encode(row)`` raises one of ``MISFITS`` for any other row. ``decode(value)`` returns ``otherwise(value)`` if the
    value has another layout, or a null.
    """

    def __init__(self, encoding: ValueEncoding, otherwise: Callable[[bytes], tuple[Any, ...]]) -> None:
        # Source text is compiled, as for dataclasses. With the columns Int64 and String:
        #   lambda row: pack(1, 0, 3, row[0], len(t1 := utf8(row[1]))) + t1
        #   lambda data: rest(data, *unpack(data, 3)) if data[:3] == head else otherwise(data)
        #   lambda data, v0, l1: (v0, str(data[15:(e1 := 15 + l1)], 'utf-8'),)
        head = _head_of(encoding)
        dtypes = list(encoding.columns.values())
        words = [(at, _STRUCT_CODES[type(dtype)]) for at, dtype in enumerate(dtypes) if _is_word(dtype)]
        texts = [at for at, dtype in enumerate(dtypes) if is_bytes(dtype)]
        after = struct.Struct(f"<{''.join(code for _, code in words)}{'I' * len(texts)}")
        whole = struct.Struct(f"<{'B' * len(head)}{after.format[1:]}")
        reads = [f"flag(row[{at}])" if code == "?" else f"row[{at}]" for at, code in words]
        lengths = [f"len(t{at} := {'utf8' if dtypes[at] == pl.String else 'raw'}(row[{at}]))" for at in texts]
        packed = ", ".join([*map(str, head), *reads, *lengths])
        known: dict[str, Any] = {
            "pack": whole.pack, "flag": _FLAGS.__getitem__, "utf8": str.encode, "raw": _to_bytes,
            "unpack": after.unpack_from, "head": bytes(head), "otherwise": otherwise,
        }  # fmt: skip
        self.encode: Callable[[Sequence[Any]], bytes] = _compiled(
            f"lambda row: pack({packed})" + "".join(f" + t{at}" for at in texts), known
        )
        start, values = str(whole.size), [f"v{at}" for at in range(len(dtypes))]
        for at in texts:
            data = f"data[{start}:(e{at} := {start} + l{at})]"
            values[at] = f"str({data}, 'utf-8')" if dtypes[at] == pl.String else data
            start = f"e{at}"
        given = ", ".join(["data", *(f"v{at}" for at, _ in words), *(f"l{at}" for at in texts)])
        known["rest"] = _compiled(f"lambda {given}: ({', '.join(values)},)", known)
        self.decode: Callable[[bytes], tuple[Any, ...]] = _compiled(
            f"lambda data: rest(data, *unpack(data, {len(head)})) if data[:{len(head)}] == head else otherwise(data)",
            known,
        )


def is_packed(columns: Columns) -> bool:
    return all(_is_word(dtype) or is_bytes(dtype) for dtype in columns.values())


def _compiled(source: str, known: dict[str, Any]) -> Any:
    return eval(source, known)  # noqa: S307 - of our own text


def one_row(columns: Columns, values: Sequence[Any]) -> pl.DataFrame:
    series = []
    for (name, dtype), value in zip(columns.items(), values, strict=True):
        try:
            series.append(column(name, [value], dtype))
        except Exception as error:
            raise DataError(misfit(name, value, dtype, error)) from error
    return pl.DataFrame(series)


def _key_codec(dtype: pl.DataType) -> tuple[_Write, _Read] | None:
    if is_bytes(dtype):
        return _text_codec(dtype)
    kind = type(dtype)
    if kind not in _STRUCT_CODES:
        return None
    if kind in (pl.Float32, pl.Float64):
        return _float_codec(8 if kind is pl.Float64 else 4)
    if kind is pl.Boolean:
        return _bool_codec()
    return _integer_codec(struct.calcsize(f"<{_STRUCT_CODES[kind]}"), signed=dtype.is_signed_integer())


def _integer_codec(width: int, *, signed: bool) -> tuple[_Write, _Read]:
    offset = 1 << (8 * width - 1) if signed else 0
    null = bytes(1 + width)

    def write(value: Any) -> bytes:
        if value is None:
            return null
        return b"\x01" + (value + offset).to_bytes(width)  # type: ignore[no-any-return]

    def read(key: bytes, start: int) -> tuple[Any, int]:
        end = start + 1 + width
        if len(key) < end:
            raise IndexError
        return (int.from_bytes(key[start + 1 : end]) - offset if key[start] else None), end

    return write, read


def _float_codec(width: int) -> tuple[_Write, _Read]:
    number = struct.Struct(">d" if width == 8 else ">f")
    sign = 1 << (8 * width - 1)
    all_bits = (1 << 8 * width) - 1
    null = bytes(1 + width)

    def write(value: Any) -> bytes:
        if value is None:
            return null
        bits = int.from_bytes(number.pack(math.nan if value != value else value + 0.0))  # noqa: PLR0124 - NaN
        return b"\x01" + (bits ^ all_bits if bits & sign else bits ^ sign).to_bytes(width)

    def read(key: bytes, start: int) -> tuple[Any, int]:
        end = start + 1 + width
        if len(key) < end:
            raise IndexError
        bits = int.from_bytes(key[start + 1 : end])
        bits = bits ^ sign if bits & sign else bits ^ all_bits
        return (number.unpack(bits.to_bytes(width))[0] if key[start] else None), end

    return write, read


def _bool_codec() -> tuple[_Write, _Read]:
    def write(value: Any) -> bytes:
        if value is None:
            return b"\x00\x00"
        if not isinstance(value, bool):
            raise TypeError
        return b"\x01\x01" if value else b"\x01\x00"

    def read(key: bytes, start: int) -> tuple[Any, int]:
        return (key[start + 1] != 0 if key[start] else None), start + 2

    return write, read


def _text_codec(dtype: pl.DataType) -> tuple[_Write, _Read]:
    is_string = dtype == pl.String
    to_bytes = _to_utf8 if is_string else _to_bytes

    def write(value: Any) -> bytes:
        if value is None:
            return b"\x00\x00"
        if type(value) is str and is_string and "\x00" not in value:
            return f"\x01{value}\x00".encode()
        data = to_bytes(value)
        if 0 in data:
            data = data.replace(b"\x00", b"\x00\xff")
        return b"\x01" + data + b"\x00"

    def read(key: bytes, start: int) -> tuple[Any, int]:
        end = key.find(b"\x00", start + 1)
        while end >= 0 and key[end + 1 : end + 2] == b"\xff":
            end = key.find(b"\x00", end + 2)
        if end < 0:
            raise IndexError
        if not key[start]:
            return None, end + 1
        data = key[start + 1 : end].replace(b"\x00\xff", b"\x00")
        return (data.decode() if is_string else data), end + 1

    return write, read


def _head_of(encoding: ValueEncoding) -> tuple[int, ...]:
    """The first bytes of a row without nulls: format, layout, null bits. Those of 10 columns are (0xff, 0x03)."""
    count = len(encoding.columns)
    return FORMAT, encoding.number, *(min(0xFF, (1 << count - at) - 1) for at in range(0, count, 8))


def _is_word(dtype: pl.DataType) -> bool:
    return type(dtype) in _STRUCT_CODES


def _to_utf8(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return value.encode()


def _to_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return value


def _writer(dtype: pl.DataType) -> _Write:
    if is_bytes(dtype):
        return _to_utf8 if dtype == pl.String else _to_bytes
    return struct.Struct(f"<{_STRUCT_CODES[type(dtype)]}").pack


def _check(write: _Write, value: Any, name: str, dtype: pl.DataType) -> None:
    if value is None:
        return
    try:
        write(value)
    except MISFITS as error:
        raise DataError(misfit(name, value, dtype, error)) from error

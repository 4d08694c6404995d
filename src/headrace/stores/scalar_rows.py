"""One row at a time in the bytes of ``ordered_keys`` and ``row_values``, for whoever has a row and no batch.

The columnar encodings make thousands of rows at once and take about as long for one. A user's code that looks one key
up for each message needs a microsecond instead. Numbers, bools, strings and binaries are packed here; keys and values
that have other columns go through the columnar encodings, as batches of one row. The bytes are the same either way.

Pure; nothing blocks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from headrace.core.errors import CorruptLogError, DataError
from headrace.stores.binary_columns import DELETE_LOCAL_STATE
from headrace.stores.ordered_keys import KeyEncoding
from headrace.stores.row_values import FORMAT, ValueEncoding

_LETTERS: dict[type[pl.DataType], str] = {
    pl.Int8: "b", pl.Int16: "h", pl.Int32: "i", pl.Int64: "q",
    pl.UInt8: "B", pl.UInt16: "H", pl.UInt32: "I", pl.UInt64: "Q",
    pl.Float32: "f", pl.Float64: "d", pl.Boolean: "?",
}  # fmt: skip

_Write = Callable[[Any], bytes]
_Read = Callable[[bytes, int], tuple[Any, int]]
_MISFITS = (AttributeError, OverflowError, TypeError, ValueError, struct.error)


class ScalarKeys:
    """The key of one row: a tuple of values in the order of the columns."""

    def __init__(self, columns: Mapping[str, pl.DataType]) -> None:
        self._columns = dict(columns)
        self._whole = KeyEncoding(columns)
        codecs = [_key_codec(dtype) for dtype in columns.values()]
        self._codecs = [codec for codec in codecs if codec is not None]
        self._packed = len(self._codecs) == len(codecs)
        self._first: _Write = self._codecs[0][0] if self._packed else lambda value: self._by_columns((value,))

    def encode_one(self, value: Any) -> bytes:
        """The key of a single column."""
        try:
            return self._first(value)
        except _MISFITS:
            return self.encode((value,))  # which says what is wrong

    def encode(self, values: Sequence[Any]) -> bytes:
        """The key of these values; of fewer values than there are columns the beginning that such keys share."""
        if not self._packed:
            return self._by_columns(values)
        try:
            return b"".join([write(value) for (write, _), value in zip(self._codecs, values, strict=False)])
        except _MISFITS:
            for (write, _), (name, dtype), value in zip(self._codecs, self._columns.items(), values, strict=False):
                _check(write, value, name, dtype)
            raise

    def decode(self, key: bytes) -> tuple[Any, ...]:
        """The values that ``encode`` was given."""
        if not self._packed:
            return self._whole.decode([key]).row(0)
        values = []
        at = 0
        try:
            for _, read in self._codecs:
                value, at = read(key, at)
                values.append(value)
        except (IndexError, struct.error) as error:
            raise CorruptLogError(f"the stored key {key!r} ends too early", hint=DELETE_LOCAL_STATE) from error
        return tuple(values)

    def _by_columns(self, values: Sequence[Any]) -> bytes:
        some = dict(list(self._columns.items())[: len(values)])
        return KeyEncoding(some).encode(one_row(some, values))[0]


class ScalarValues:
    """The value of one row: what ``encoding`` makes of a batch."""

    def __init__(self, encoding: ValueEncoding) -> None:
        self._encoding = encoding
        self._columns = dict(encoding.columns)
        self._null_bytes = -(-len(self._columns) // 8)
        self._full = tuple(min(0xFF, (1 << len(self._columns) - 8 * n) - 1) for n in range(self._null_bytes))
        self._head = (FORMAT, encoding.number, *self._full)
        self._texts = [place for place, dtype in enumerate(self._columns.values()) if _is_text(dtype)]
        self._words = [place for place, dtype in enumerate(self._columns.values()) if type(dtype) in _LETTERS]
        self._packed = len(self._texts) + len(self._words) == len(self._columns)
        dtypes = list(self._columns.values())
        letters = "".join(_LETTERS[type(dtypes[place])] for place in self._words) if self._packed else ""
        self._record = struct.Struct(f"<BB{'B' * self._null_bytes}{letters}{'I' * len(self._texts)}")
        self._to_text = {place: _to_utf8 if dtypes[place] == pl.String else _to_bytes for place in self._texts}
        self._strings = {place for place in self._texts if dtypes[place] == pl.String}

    def encode(self, values: Sequence[Any]) -> bytes:
        """The value of these columns, in their order."""
        if not self._packed:
            return self._encoding.encode(one_row(self._columns, values))[0]
        try:
            return self._pack(values)
        except _MISFITS:
            for value, (name, dtype) in zip(values, self._columns.items(), strict=True):
                _check(_writer(dtype), value, name, dtype)
            raise

    def decode(self, value: bytes) -> Sequence[Any]:
        """The columns that ``encode`` was given, of this layout."""
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
        at = self._record.size
        for place, length in zip(self._texts, fields[first + len(self._words) :], strict=True):
            text = value[at : at + length]
            values[place] = text.decode() if place in self._strings else text
            at += length
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


def one_row(columns: Mapping[str, pl.DataType], values: Sequence[Any]) -> pl.DataFrame:
    """A batch of one row; raises ``DataError`` for a value that isn't of its column's type."""
    series = []
    for (name, dtype), value in zip(columns.items(), values, strict=True):
        try:
            series.append(pl.Series(name, [value], dtype=dtype, strict=True))
        except Exception as error:
            raise _misfit(name, value, dtype) from error
    return pl.DataFrame(series)


# -- keys ---------------------------------------------------------------------------------------------


def _key_codec(dtype: pl.DataType) -> tuple[_Write, _Read] | None:
    """How one column of a key is written and read; None when that is left to the columnar encoding."""
    if _is_text(dtype):
        return _text_codec(dtype)
    kind = type(dtype)
    if kind not in _LETTERS:
        return None
    if kind in (pl.Float32, pl.Float64):
        return _float_codec(8 if kind is pl.Float64 else 4)
    if kind is pl.Boolean:
        return _bool_codec()
    return _integer_codec(struct.calcsize(f"<{_LETTERS[kind]}"), signed=dtype.is_signed_integer())


def _integer_codec(width: int, *, signed: bool) -> tuple[_Write, _Read]:
    offset = 1 << (8 * width - 1) if signed else 0
    null = bytes(1 + width)

    def write(value: Any) -> bytes:
        if value is None:
            return null
        return b"\x01" + (value + offset).to_bytes(width)  # type: ignore[no-any-return]

    def read(key: bytes, at: int) -> tuple[Any, int]:
        end = at + 1 + width
        if len(key) < end:
            raise IndexError
        return (int.from_bytes(key[at + 1 : end]) - offset if key[at] else None), end

    return write, read


def _float_codec(width: int) -> tuple[_Write, _Read]:
    number = struct.Struct(">d" if width == 8 else ">f")
    sign = 1 << (8 * width - 1)
    every = (1 << 8 * width) - 1
    null = bytes(1 + width)

    def write(value: Any) -> bytes:
        if value is None:
            return null
        bits = int.from_bytes(number.pack(math.nan if value != value else value + 0.0))  # noqa: PLR0124 - NaN
        return b"\x01" + (bits ^ every if bits & sign else bits ^ sign).to_bytes(width)

    def read(key: bytes, at: int) -> tuple[Any, int]:
        end = at + 1 + width
        if len(key) < end:
            raise IndexError
        bits = int.from_bytes(key[at + 1 : end])
        bits = bits ^ sign if bits & sign else bits ^ every
        return (number.unpack(bits.to_bytes(width))[0] if key[at] else None), end

    return write, read


def _bool_codec() -> tuple[_Write, _Read]:
    def write(value: Any) -> bytes:
        if value is None:
            return b"\x00\x00"
        if not isinstance(value, bool):
            raise TypeError
        return b"\x01\x01" if value else b"\x01\x00"

    def read(key: bytes, at: int) -> tuple[Any, int]:
        return (key[at + 1] != 0 if key[at] else None), at + 2

    return write, read


def _text_codec(dtype: pl.DataType) -> tuple[_Write, _Read]:
    is_string = dtype == pl.String
    to_bytes = _to_utf8 if is_string else _to_bytes

    def write(value: Any) -> bytes:
        if value is None:
            return b"\x00\x00"
        data = to_bytes(value)
        if 0 in data:
            data = data.replace(b"\x00", b"\x00\xff")
        return b"\x01" + data + b"\x00"

    def read(key: bytes, at: int) -> tuple[Any, int]:
        end = key.find(b"\x00", at + 1)
        while end >= 0 and key[end + 1 : end + 2] == b"\xff":
            end = key.find(b"\x00", end + 2)
        if end < 0:
            raise IndexError
        if not key[at]:
            return None, end + 1
        data = key[at + 1 : end].replace(b"\x00\xff", b"\x00")
        return (data.decode() if is_string else data), end + 1

    return write, read


# -- values -------------------------------------------------------------------------------------------


def _is_text(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Binary)


def _to_utf8(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return value.encode()


def _to_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return value


def _writer(dtype: pl.DataType) -> _Write:
    if _is_text(dtype):
        return _to_utf8 if dtype == pl.String else _to_bytes
    return struct.Struct(f"<{_LETTERS[type(dtype)]}").pack


def _check(write: _Write, value: Any, name: str, dtype: pl.DataType) -> None:
    if value is None:
        return
    try:
        write(value)
    except _MISFITS as error:
        raise _misfit(name, value, dtype) from error


def _misfit(name: str, value: Any, dtype: pl.DataType) -> DataError:
    return DataError(f"column {name!r}: {value!r:.100} ({type(value).__name__}) is not of type {dtype}")

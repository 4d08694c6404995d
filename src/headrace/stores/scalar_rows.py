"""The encodings of ``ordered_keys`` and ``row_values`` for a single row: the same bytes, without a DataFrame.

The columnar encodings take about as long for one row as for thousands. User code that looks one key up for each message
needs a microsecond instead. Numbers, bools, strings and binaries are packed here with ``struct``. Keys and values with
columns of other types go through the columnar encodings, as batches of one row. The bytes are the same either way.

A column of a key has a codec, a pair of functions ``(write, read)``. ``write(value)`` returns the column's bytes.
``read(key, start)`` returns the value and the position after it. For an Int16, ``write(1)`` is ``b"\\x01\\x80\\x01"``,
and ``read(b"\\x01\\x80\\x01", 0)`` is ``(1, 3)``.

``RowCodec`` does the same for all values of a row, in one call of compiled code each way.

Pure; nothing blocks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from headrace.core.errors import CorruptLogError, DataError
from headrace.serdes.values import column, misfit
from headrace.stores.binary_columns import DELETE_LOCAL_STATE
from headrace.stores.ordered_keys import KeyEncoding
from headrace.stores.row_values import FORMAT, ValueEncoding

_STRUCT_CODES: dict[type[pl.DataType], str] = {
    pl.Int8: "b", pl.Int16: "h", pl.Int32: "i", pl.Int64: "q",
    pl.UInt8: "B", pl.UInt16: "H", pl.UInt32: "I", pl.UInt64: "Q",
    pl.Float32: "f", pl.Float64: "d", pl.Boolean: "?",
}  # fmt: skip

_Write = Callable[[Any], bytes]
_Read = Callable[[bytes, int], tuple[Any, int]]
MISFITS = (AttributeError, KeyError, OverflowError, TypeError, ValueError, struct.error)
_FLAGS = {True: True, False: False}


class ScalarKeys:
    """Encodes the key of one row: a tuple of values in the order of the columns."""

    def __init__(self, columns: Mapping[str, pl.DataType]) -> None:
        self._columns = dict(columns)
        self._columnar = KeyEncoding(columns)
        codecs = [_key_codec(dtype) for dtype in columns.values()]
        self._codecs = [codec for codec in codecs if codec is not None]
        self._packed = len(self._codecs) == len(codecs)
        self._first: _Write = self._codecs[0][0] if self._packed else lambda value: self._by_columns((value,))

    def encode_one(self, value: Any) -> bytes:
        """Encode the key of a single column."""
        try:
            return self._first(value)
        except MISFITS:
            return self.encode((value,))  # this raises an error that says what is wrong

    def encode(self, values: Sequence[Any]) -> bytes:
        """Encode a key, or the prefix that all keys with these values in their first columns share."""
        if not self._packed:
            return self._by_columns(values)
        try:
            return b"".join([write(value) for (write, _), value in zip(self._codecs, values, strict=False)])
        except MISFITS:
            for (write, _), (name, dtype), value in zip(self._codecs, self._columns.items(), values, strict=False):
                _check(write, value, name, dtype)
            raise

    def decode(self, key: bytes) -> tuple[Any, ...]:
        """Return the values of an encoded key."""
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
        self._texts = [place for place, dtype in enumerate(self._columns.values()) if _is_text(dtype)]
        self._words = [place for place, dtype in enumerate(self._columns.values()) if _is_word(dtype)]
        self._packed = len(self._texts) + len(self._words) == len(self._columns)
        dtypes = list(self._columns.values())
        codes = "".join(_STRUCT_CODES[type(dtypes[place])] for place in self._words) if self._packed else ""
        self._record = struct.Struct(f"<BB{'B' * self._null_bytes}{codes}{'I' * len(self._texts)}")
        self._to_text = {place: _to_utf8 if dtypes[place] == pl.String else _to_bytes for place in self._texts}
        self._strings = {place for place in self._texts if dtypes[place] == pl.String}

    def encode(self, values: Sequence[Any]) -> bytes:
        """Encode the values of the columns, in their order."""
        if not self._packed:
            return self._encoding.encode(one_row(self._columns, values))[0]
        try:
            return self._pack(values)
        except MISFITS:
            for value, (name, dtype) in zip(values, self._columns.items(), strict=True):
                _check(_writer(dtype), value, name, dtype)
            raise

    def decode(self, value: bytes) -> Sequence[Any]:
        """Return the values of an encoded row with this layout."""
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
    """Does the same as ``ScalarValues`` in a quick way, for rows without nulls of a layout that ``struct`` can pack.

    ``encode(row)`` raises one of ``MISFITS`` for a null, and for a value that doesn't fit; ``ScalarValues.encode`` then
    encodes the row or says what is wrong. ``decode(value)`` returns a row; ``otherwise(value)`` if the value has
    another layout, or a null.
    """

    def __init__(self, encoding: ValueEncoding, otherwise: Callable[[bytes], tuple[Any, ...]]) -> None:
        # Source text is compiled, as for dataclasses. With the columns Int64 and String:
        #   lambda row: pack(1, 0, 3, row[0], len(t1 := utf8(row[1]))) + t1
        #   lambda data: rest(data, *unpack(data, 3)) if data[:3] == head else otherwise(data)
        #   lambda data, v0, l1: (v0, str(data[15:(e1 := 15 + l1)], 'utf-8'),)
        head = _head_of(encoding)
        words = [
            (at, _STRUCT_CODES[type(dtype)]) for at, dtype in enumerate(encoding.columns.values()) if _is_word(dtype)
        ]
        texts = [at for at, dtype in enumerate(encoding.columns.values()) if _is_text(dtype)]
        after = struct.Struct(f"<{''.join(code for _, code in words)}{'I' * len(texts)}")
        whole = struct.Struct(f"<{'B' * len(head)}{after.format[1:]}")
        dtypes = list(encoding.columns.values())
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


def is_packed(columns: Mapping[str, pl.DataType]) -> bool:
    """Whether ``RowCodec`` is for rows of these columns."""
    return all(_is_word(dtype) or _is_text(dtype) for dtype in columns.values())


def _compiled(source: str, known: dict[str, Any]) -> Any:
    return eval(source, known)  # noqa: S307 - of our own text


def one_row(columns: Mapping[str, pl.DataType], values: Sequence[Any]) -> pl.DataFrame:
    """Return a batch of one row. Raises ``DataError`` for a value that isn't of its column's type."""
    series = []
    for (name, dtype), value in zip(columns.items(), values, strict=True):
        try:
            series.append(column(name, [value], dtype))
        except Exception as error:
            raise DataError(misfit(name, value, dtype, error)) from error
    return pl.DataFrame(series)


# -- keys ---------------------------------------------------------------------------------------------


def _key_codec(dtype: pl.DataType) -> tuple[_Write, _Read] | None:
    """Return the codec of one column of a key; None if it needs the columnar encoding."""
    if _is_text(dtype):
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


# -- values -------------------------------------------------------------------------------------------


def _head_of(encoding: ValueEncoding) -> tuple[int, ...]:
    """The first bytes of a row without nulls: format, layout, null bits. Those of 10 columns are (0xff, 0x03)."""
    count = len(encoding.columns)
    return FORMAT, encoding.number, *(min(0xFF, (1 << count - at) - 1) for at in range(0, count, 8))


def _is_word(dtype: pl.DataType) -> bool:
    return type(dtype) in _STRUCT_CODES


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
    return struct.Struct(f"<{_STRUCT_CODES[type(dtype)]}").pack


def _check(write: _Write, value: Any, name: str, dtype: pl.DataType) -> None:
    if value is None:
        return
    try:
        write(value)
    except MISFITS as error:
        raise DataError(misfit(name, value, dtype, error)) from error

"""Keys as bytes that sort as their columns do: nulls first, then by the first column, the second, and so on.

A key is the encodings of its columns, one after the other, so the encoding of its first columns is a prefix of it. A
column is one byte (0 for null, 1 for a value), and then:

- integers, dates, times, durations, enums (by their index): big-endian, with the sign bit flipped. - bools: one byte.
Decimals: 16 bytes, like an integer of that width. - floats: big-endian bits, flipped so that they sort as numbers.
-0.0 becomes 0.0; all NaNs are the same and the greatest.
- strings, binaries: the bytes, with each 0 written as ``00 FF``, and a final 0. What follows a final 0 is at most 1,
so a
  string sorts before those that continue it.

A null of fixed width has zeros for its value. The form is durable: tests hold golden bytes.

Example, with columns (String, Int16): ``("ab", 1)`` is ``01 61 62 00 | 01 80 01``, and ``(None, -1)`` is
``00 00 | 01 7f ff``.

Pure. There is no Python code per row; numpy and Arrow make the ``bytes`` objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.core.errors import CorruptLogError, DeclarationError
from headrace.stores.binary_columns import (
    DELETE_LOCAL_STATE,
    Places,
    Rows,
    Words,
    from_bytes,
    from_words,
    is_bytes,
    join_rows,
    to_bytes,
    to_words,
    words_of,
)

_ESCAPED = b"\x00\xff"


class KeyEncoding:
    """Encodes keys of some columns in a fixed order. Raises ``DeclarationError`` for a type that can't be in a key.

    The fields of fixed width between two strings form one numpy record for each row. Columns (Int64, String, Int16)
    have two records, before and after the bytes of the string; a record that follows a string starts with its final 0.
    """

    def __init__(self, columns: Mapping[str, pl.DataType]) -> None:
        if not columns:
            raise DeclarationError("a key needs at least one column")
        for name, dtype in columns.items():
            if not is_bytes(dtype) and not words_of(dtype):
                raise DeclarationError(
                    f"column {name!r} of type {dtype} can't be part of a key",
                    hint="use a number, string, binary, bool, decimal, date, time or enum; for a struct, its fields",
                )
        self.columns = dict(columns)
        self._records = _records(self.columns)

    def encode(self, keys: pl.DataFrame) -> list[bytes]:
        """Return one key for each row. The rows must have the columns with their types; other columns are ignored."""
        parts: list[Words | pa.LargeBinaryArray] = []
        record = np.zeros(keys.height, self._records[0])
        for place, (name, dtype) in enumerate(self.columns.items()):
            series = keys.get_column(name)
            present = series.is_not_null().to_numpy() if series.null_count() else None
            record[f"present {place}"] = 1 if present is None else present
            if is_bytes(dtype):
                parts += [record, _escape(to_bytes(series))]
                record = np.zeros(keys.height, self._records[len(parts) // 2])
                continue
            for number, word in enumerate(to_words(series)):
                ordered = _to_ordered(word)
                record[f"{place}.{number}"] = ordered if present is None else ordered * present
        return join_rows([*parts, record])

    def decode(self, keys: Sequence[bytes]) -> pl.DataFrame:
        """Return the columns of encoded keys."""
        rows = Rows(keys)
        ends = _ends_of_strings(rows.data) if len(self._records) > 1 else None
        records = iter(self._records)
        record = rows.record(next(records))
        columns = []
        for place, (name, dtype) in enumerate(self.columns.items()):
            present = record[f"present {place}"] != 0
            valid = None if present.all() else present
            if ends is not None and is_bytes(dtype):
                column = from_bytes(name, dtype, _unescape(rows.until(_first_from(ends, rows.at))), valid)
                record = rows.record(next(records))
            else:
                formats = words_of(dtype) or ()
                words = [_from_ordered(record[f"{place}.{n}"], format_) for n, format_ in enumerate(formats)]
                column = from_words(name, dtype, words, valid)
            columns.append(column)
        return pl.DataFrame(columns)


def _records(columns: Mapping[str, pl.DataType]) -> list[np.dtype[Any]]:
    """Return the types of the fixed-width records of a key: before, between and after its strings."""
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
    """Return unsigned numbers that sort as ``words`` do.

    Int8 [-1, 0, 1] becomes [0x7f, 0x80, 0x81]: the sign bit is flipped. A positive float gets its sign bit set. A
    negative one has all bits inverted, because the larger magnitude must sort first.
    """
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
    """Reverse ``_to_ordered``."""
    wanted = np.dtype(format_)
    unsigned, sign = _unsigned(wanted)
    words = ordered.astype(unsigned)
    if wanted.kind == "i":
        words ^= sign
    elif wanted.kind == "f":
        words = np.where(words & sign, words ^ sign, ~words)
    return words.view(wanted)


def _unsigned(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], Any]:
    """Return the unsigned type of the same width, and its highest bit."""
    unsigned = np.dtype(f"<u{dtype.itemsize}")
    return unsigned, unsigned.type(1 << (8 * dtype.itemsize - 1))


def _escape(array: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return _replaced(array, b"\x00", _ESCAPED) if _has_zeros(array) else array


def _unescape(array: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return _replaced(array, _ESCAPED, b"\x00") if _has_zeros(array) else array


def _replaced(array: pa.LargeBinaryArray, pattern: bytes, by: bytes) -> pa.LargeBinaryArray:
    import pyarrow.compute as pc  # when first used: it takes a tenth of the start of every process

    return pc.replace_substring(array, pattern=pattern, replacement=by)


def _has_zeros(array: pa.LargeBinaryArray) -> bool:
    data = array.buffers()[2]
    return data is not None and not np.frombuffer(data, np.uint8).all()


def _ends_of_strings(data: npt.NDArray[np.uint8]) -> Places:
    """Return the position of every 0 that isn't escaped. A string ends at the first of them after its start.

    Some are zeros of numbers. That doesn't matter: none of them is inside a string.
    """
    zeros = np.flatnonzero(data == 0)
    after = data[np.minimum(zeros + 1, data.size - 1)]
    ends: Places = zeros[after != 0xFF]
    return ends


def _first_from(ends: Places, starts: Places) -> Places:
    found = np.searchsorted(ends, starts)
    if len(found) and int(found.max()) == len(ends):
        raise CorruptLogError("a string in a stored key has no final 0 byte", hint=DELETE_LOCAL_STATE)
    return ends[found]

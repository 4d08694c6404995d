"""Rows in the order of some columns, like ``DataFrame.sort``, in a fraction of the time.

Polars compares rows. Where the columns of a row fit into one number that has the same order, numpy sorts these numbers.
What all strings of a column have in common is left out: of "member-1042" and "member-977", four bytes count. With
member and time in one number, 130,000 rows take 11 ms instead of 46.

Everything else is left to Polars: nulls, floating-point numbers, nested types, strings that differ in more bytes.

Pure; nothing blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.serdes.hashing import laid_out

Words = npt.NDArray[np.uint64]

_ROWS_MIN = 4096
"""Polars sorts fewer rows as fast, and a single column of numbers faster."""
_SAMPLE = 32
_WORD_BITS, _WORD_BYTES = 64, 8
_SIGN = np.uint64(1 << _WORD_BITS - 1)
_FIRST_BYTES = np.array([(1 << _WORD_BITS) - (1 << 8 * (_WORD_BYTES - kept)) for kept in range(9)], np.uint64)
"""By number of bytes: a word with these bytes set, the first ones."""


def sort_rows(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return the rows in the ascending order of these columns; the order of rows that agree in all is undefined."""
    plain = rows.height < _ROWS_MIN or (len(columns) == 1 and rows.schema[columns[0]] != pl.String)
    numbers = None if plain else _numbers(rows, columns)
    return rows.sort(*columns) if numbers is None else rows[np.argsort(numbers)]


def _numbers(rows: pl.DataFrame, columns: Sequence[str]) -> Words | None:
    """A number for each row, in the order of these columns; None if they don't fit."""
    numbers = np.zeros(rows.height, np.uint64)
    room = _WORD_BITS
    for name in columns:
        words = _words(rows.get_column(name))
        if words is None:
            return None
        for word in words:
            narrow, bits = _narrowed(word)
            room -= bits
            if room < 0:
                return None
            numbers = numbers << np.uint64(bits) | narrow if bits < _WORD_BITS else narrow
    return numbers


def _words(series: pl.Series) -> list[Words] | None:
    """One or two words for each value, which together have the order of the values; None if it takes more."""
    if series.null_count():
        return None
    dtype = series.dtype
    if dtype == pl.String:
        return _words_of_strings(series)
    if dtype.is_integer() or dtype.is_temporal():
        numbers = series.to_physical()
        if numbers.dtype in (pl.Int8, pl.Int16, pl.Int32, pl.Int64):
            # With the other sign bit, the order is that of unsigned numbers.
            return [numbers.cast(pl.Int64).to_numpy().view(np.uint64) ^ _SIGN]
        if numbers.dtype in (pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64):
            return [numbers.cast(pl.UInt64).to_numpy()]
    return None


def _words_of_strings(series: pl.Series) -> list[Words] | None:
    """The bytes after those that all have in common, zero-padded, and the length, which decides if there are zeros."""
    some = series.gather_every(-(-len(series) // _SAMPLE))
    if max(some.str.len_bytes().to_list()) - _common(some) > _WORD_BYTES:  # finds most of those that don't fit
        return None
    common = _common(series)
    data, starts, ends = laid_out(series)
    starts = starts + common
    lengths = ends - starts
    if int(lengths.max()) > _WORD_BYTES:
        return None
    padded = np.frombuffer(bytes(data) + bytes(_WORD_BYTES), np.uint8)
    # word_at[i] is bytes i to i + 7 of the data: words overlap, and need not be aligned.
    word_at = np.ndarray((padded.size - _WORD_BYTES + 1,), ">u8", padded, strides=(1,))
    words = word_at[starts].astype(np.uint64)
    words &= _FIRST_BYTES[lengths]
    return [words, lengths.astype(np.uint64)]


def _common(strings: pl.Series) -> int:
    """How many bytes all of them have in common at the beginning."""
    low, high = (str(each).encode() for each in (strings.min(), strings.max()))
    return next((place for place, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))


def _narrowed(words: Words) -> tuple[Words, int]:
    """The same order in as few bits as it takes, and their number."""
    numbers = words - words.min()
    used = int(np.bitwise_or.reduce(numbers))
    unused = (used & -used).bit_length() - 1 if used else 0
    return numbers >> np.uint64(unused), (used >> unused).bit_length()

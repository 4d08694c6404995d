"""From keys to partitions: a hash that never changes, and the split of a batch by it.

Which partition a key belongs to is written into streams, stores and changelogs, so this hash is a
durable contract: equal keys give equal numbers in every process, release and year. Polars' own hash
promises none of that. The tests hold golden values; a change of any of them breaks every existing app.

A value is mixed from 64-bit words, in columns of numpy:

- integers, booleans: the value as int64 (so all widths agree); dates, datetimes, durations: as int64
  microseconds; times: nanoseconds of the day.
- floats: the bits of the float64, with one NaN and no negative zero.
- strings, binaries, categories: the length and the first 12 bytes as two words, then each further 8
  bytes, zero-padded, mixed with its place and summed. Equal bytes agree, whatever the type.
- decimals: as the text without trailing zeros, so that the scale doesn't matter.
- null: a fixed word. A struct: its fields in order.

Pure: no state, no order, nothing blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.errors import DeclarationError
from headrace.serdes.nulls import filled

Hashes = npt.NDArray[np.uint64]
PartitionIds = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

MAX_PARTITIONS = 1 << 16

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xC4CEB9FE1A85EC53)
_NULL = np.uint64(0x6E756C6C2D6B6579)
_SHIFT = np.uint64(33)
_THREE = np.uint64(3)

# Rows or words handled at a time: what is being mixed stays in the processor's cache (twice as fast).
_BLOCK = 8192
_INLINE = 12
_WORD = 8


def hash_rows(df: pl.DataFrame, columns: Sequence[str]) -> Hashes:
    """One hash a row over ``columns`` in the order given.

    Raises ``DeclarationError`` for a column that is missing or whose type can't be a key.
    """
    if not columns:
        raise DeclarationError("a key needs at least one column")
    combined: Hashes | None = None
    for name in columns:
        try:
            series = df.get_column(name)
        except pl.exceptions.ColumnNotFoundError:
            raise DeclarationError(
                f"key column {name!r} isn't in the batch; it has {', '.join(df.columns) or 'no columns'}"
            ) from None
        combined = _combine(combined, _hash_series(series))
    assert combined is not None
    return combined


def partition_of(df: pl.DataFrame, columns: Sequence[str], n: int) -> PartitionIds:
    """The partition of each row among ``n``: its hash modulo ``n``.

    So partition p of 2n holds keys of partition p mod n only, should a stream ever be doubled.
    """
    if not 1 <= n <= MAX_PARTITIONS:
        raise DeclarationError(f"{n} partitions: there can be 1 to {MAX_PARTITIONS}")
    hashes = hash_rows(df, columns)
    # Division by a constant is vectorised in numpy, the remainder isn't (4 times slower).
    count = np.uint64(n)
    return _as_ids(hashes - (hashes // count) * count, n)


def split(df: pl.DataFrame, ids: PartitionIds, n: int) -> list[tuple[int, pl.DataFrame]]:
    """The rows of each partition, in their order; partitions without rows are left out.

    ``ids`` is what ``partition_of`` gave for the same rows and ``n``.
    """
    if len(ids) != df.height:
        raise ValueError(f"{len(ids)} partition ids for {df.height} rows")
    if not df.height:
        return []
    counts = np.bincount(ids, minlength=n).tolist()
    filled = [(partition, count) for partition, count in enumerate(counts) if count]
    if len(filled) == 1:
        return [(filled[0][0], df)]
    # A filter reads everything once for each partition, but in order; a sort jumps about, once.
    if len(filled) <= _most_filters(df.height):
        return [(partition, df.filter(pl.Series(ids == partition))) for partition, _ in filled]
    # A stable sort of small integers is a radix sort in numpy: hence the narrow ids.
    grouped = df[np.argsort(ids, kind="stable")]
    parts = []
    start = 0
    for partition, count in filled:
        parts.append((partition, grouped.slice(start, count)))
        start += count
    return parts


def _most_filters(rows: int) -> int:
    """Up to how many partitions a filter for each is quicker than a sort (measured with 1 and 2 threads)."""
    return 4 if rows >= 1 << 17 else 2 if rows >= 1 << 13 else 0


def _as_ids(remainders: Hashes, n: int) -> PartitionIds:
    return remainders.astype(np.uint8) if n <= 1 << 8 else remainders.astype(np.uint16)


def _hash_series(series: pl.Series) -> Hashes:
    """The hashes of one column, nulls included."""
    dtype = series.dtype
    if isinstance(dtype, pl.Struct):
        hashes: Hashes | None = None
        for field in series.struct.fields:
            hashes = _combine(hashes, _hash_series(series.struct.field(field)))
        hashed = np.zeros(len(series), np.uint64) if hashes is None else hashes
    elif dtype in (pl.String, pl.Binary):
        hashed = _hash_bytes(series)
    elif isinstance(dtype, pl.Categorical | pl.Enum):
        hashed = _hash_bytes(series.cast(pl.String))
    elif isinstance(dtype, pl.Decimal):
        hashed = _hash_bytes(_plain_decimals(series))
    else:
        hashed = _hash_words(_words(series))
    if series.null_count():
        hashed[series.is_null().to_numpy()] = _NULL
    return hashed


def _words(series: pl.Series) -> Hashes:
    """The values of a fixed-width column as words; what stands for a null doesn't matter."""
    dtype = series.dtype
    if dtype == pl.Null:
        return np.zeros(len(series), np.uint64)
    if dtype.is_float():
        values = filled(series.cast(pl.Float64), 0.0).to_numpy() + 0.0  # -0.0 + 0.0 is 0.0
        values[np.isnan(values)] = np.nan
        return values.view(np.uint64)
    if dtype == pl.UInt64:
        return filled(series, 0).to_numpy().view(np.uint64)
    if dtype in (pl.Date, pl.Datetime):
        numbers = series.cast(pl.Datetime("us")).to_physical()
    elif dtype == pl.Duration:
        numbers = series.cast(pl.Duration("us")).to_physical()
    elif dtype == pl.Time:
        numbers = series.to_physical()
    elif dtype == pl.Boolean or dtype in (
        pl.Int8,
        pl.Int16,
        pl.Int32,
        pl.Int64,
        pl.UInt8,
        pl.UInt16,
        pl.UInt32,
    ):
        numbers = series.cast(pl.Int64)
    else:
        raise DeclarationError(
            f"column {series.name!r} of type {dtype} can't be part of a key",
            hint="use a number, string, binary, bool, date, time, category or struct of them",
        )
    return filled(numbers, 0).to_numpy().view(np.uint64)


def _plain_decimals(series: pl.Series) -> pl.Series:
    text = series.cast(pl.String)
    scale = series.dtype.scale if isinstance(series.dtype, pl.Decimal) else 0
    return text.str.strip_chars_end("0").str.strip_chars_end(".") if scale else text


def _hash_bytes(series: pl.Series) -> Hashes:
    """Hash strings or binaries from Arrow's 16-byte views, which hold strings of up to 12 bytes whole.

    A view is the length (uint32) and 12 bytes, zero-padded; or, of a longer string, its first 4 bytes
    and where it lies. So the usual short key costs neither a copy nor a look anywhere else.
    """
    if not len(series):
        return np.empty(0, np.uint64)
    array = series.to_arrow(compat_level=pl.CompatLevel.newest())
    views = np.frombuffer(array.buffers()[1], np.uint64)[2 * array.offset :][: 2 * len(series)]
    hashed = _hash_short(views[0::2], views[1::2])
    lengths = views.view(np.uint32)[0::4]
    if lengths.max() > _INLINE:
        is_long = lengths > _INLINE
        if series.null_count():
            is_long &= series.is_not_null().to_numpy()
        longs = series.filter(pl.Series(is_long))
        if len(longs):
            hashed[is_long] = _hash_long(longs)
    return hashed


def _hash_short(head: Hashes, rest: Hashes) -> Hashes:
    hashed = head * _GOLDEN
    _mix(hashed)
    hashed ^= rest
    _mix(hashed)
    return hashed


def _hash_long(series: pl.Series) -> Hashes:
    """Hash strings that all have more than 12 bytes."""
    array = series.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset :][: len(series) + 1]
    # The 8 bytes at every place of the data, overlapping and unaligned: indexing it reads words.
    at = np.ndarray((data.size - _WORD + 1,), "<u8", data, strides=(1,))
    starts, ends = bounds[:-1], bounds[1:]
    lengths = (ends - starts).astype(np.uint64)
    hashed = _hash_short((at[starts] << np.uint64(32)) | lengths, at[starts + 4])
    hashed += _sum_tails(at, starts + _INLINE, ends)
    _mix(hashed)
    return hashed


def _sum_tails(at: Hashes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Hashes:
    """For each row the sum of its words from ``starts`` on, each mixed with its place in the row.

    All rows' words stand in one line, which is walked in blocks: rows may be of any and mixed lengths.
    """
    after = np.cumsum((ends - starts + _WORD - 1) // _WORD)
    before = np.concatenate(([0], after[:-1]))
    sums = np.zeros(len(starts), np.uint64)
    total = int(after[-1])
    for low in range(0, total, _BLOCK):
        high = min(low + _BLOCK, total)
        first, last = np.searchsorted(after, (low, high - 1), side="right")
        rows = slice(int(first), int(last) + 1)
        begins = np.maximum(before[rows], low)
        counts = np.minimum(after[rows], high) - begins
        place = np.arange(low, high) - np.repeat(before[rows], counts)
        wanted = np.repeat(starts[rows], counts) + _WORD * place
        # A row's last word may reach past its end: read the row's last 8 bytes, and push out what was before.
        found = np.minimum(wanted, np.repeat(ends[rows] - _WORD, counts))
        words = at[found] >> ((wanted - found).astype(np.uint64) << _THREE)
        words += (place + 1).astype(np.uint64) * _GOLDEN
        _mix(words)
        sums[rows] += np.add.reduceat(words, begins - low)
    return sums


def _hash_words(words: Hashes) -> Hashes:
    hashed = words * _GOLDEN
    _mix(hashed)
    return hashed


def _combine(first: Hashes | None, second: Hashes) -> Hashes:
    if first is None:
        return second
    first *= _GOLDEN
    first += second
    _mix(first)
    return first


def _mix(words: Hashes) -> None:
    """Spread every bit of each word over all of it, in place (the finalizer of MurmurHash3)."""
    scratch = np.empty(min(len(words), _BLOCK), np.uint64)
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
        shifted = scratch[: len(block)]
        for factor in (_FIRST, _SECOND):
            np.right_shift(block, _SHIFT, out=shifted)
            block ^= shifted
            block *= factor
        np.right_shift(block, _SHIFT, out=shifted)
        block ^= shifted

"""From keys to partitions: a hash that never changes, and Kafka's. Pure.

**Hashing.** The partition of a key determines where its messages, state and changelog are, so this hash is a durable
contract: equal keys have equal hashes in every process and in every release. Polars' own hash promises none of that.
The tests hold golden values; a change to any of them breaks every existing app.

Each value is turned into one or more 64-bit words, and the words are mixed into one hash, a numpy column at a time:

- integers, booleans: the value as int64, so that all widths agree. Dates, datetimes, durations: int64 microseconds.
  Times: nanoseconds of the day.
- floats: the bits of the float64, with one NaN and no negative zero.
- strings, binaries, categories: two words for the length and the first 12 bytes. Each further 8 bytes, zero-padded,
  are mixed with their index, and these words are summed. Equal bytes have equal hashes, whatever the type.
- decimals: as text without trailing zeros, so that the scale doesn't matter.
- null: a fixed hash. A struct: its fields, combined in order.

**Kafka partitioning.** Exactly Kafka's default partitioner: a key goes to the partition of its hash, murmur2, so that
other programs find their keys. Records without a key are spread in runs, because a broker stores one batch of a
thousand records faster than a thousand batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.core.errors import DeclarationError
from headrace.core.ids import MAX_PARTITIONS
from headrace.rows.casting import filled
from headrace.rows.given import rows_where

# -- hashing -----------------------------------------------------------------------------------------
Hashes = npt.NDArray[np.uint64]
PartitionIds = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xC4CEB9FE1A85EC53)
_NULL = np.uint64(0x6E756C6C2D6B6579)
_SHIFT = np.uint64(33)
_THREE = np.uint64(3)

# Rows or words are mixed in blocks that stay in the processor's cache; that is twice as fast.
_BLOCK = 8192
# A string of up to 12 bytes is stored whole in its Arrow view.
_INLINE = 12
_WORD = 8
_FILTERS_MAX = 4  # up to so many partitions a filter for each is faster than a sort, for 2 rows and for 100,000


def hash_rows(df: pl.DataFrame, columns: Sequence[str]) -> Hashes:
    """One hash a row over ``columns``, in the order given. Raises ``DeclarationError`` for what can't be a key."""
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


def hash_kind(dtype: pl.DataType) -> str:
    """The kind of a key column's type: equal values of types of one kind have equal hashes."""
    if dtype.is_integer() or dtype == pl.Boolean:
        return "whole number"
    if dtype in (pl.String, pl.Binary, pl.Categorical, pl.Enum):
        return "text"
    if dtype in (pl.Date, pl.Datetime):
        return "time"
    if dtype.is_float():
        return "float"
    return "decimal" if isinstance(dtype, pl.Decimal) else str(dtype.base_type())


def partition_of(df: pl.DataFrame, columns: Sequence[str], n: int) -> PartitionIds:
    if not 1 <= n <= MAX_PARTITIONS:
        raise DeclarationError(f"{n} partitions: a stream can have 1 to {MAX_PARTITIONS}")
    hashes = hash_rows(df, columns)
    # numpy vectorises division by a constant but not the remainder, which takes 4 times as long.
    count = np.uint64(n)
    remainders = hashes - (hashes // count) * count
    return remainders.astype(np.uint8) if n <= 1 << 8 else remainders.astype(np.uint16)


def split(df: pl.DataFrame, ids: PartitionIds, n: int) -> list[tuple[int, pl.DataFrame]]:
    """(partition, rows) for each partition that has rows, in their order; ``ids`` is what ``partition_of`` returned.
    Ids [1, 0, 1] of rows [a, b, c] give [(0, [b]), (1, [a, c])]."""
    if len(ids) != df.height:
        raise ValueError(f"{len(ids)} partition ids for {df.height} rows")
    if not df.height:
        return []
    counts = np.bincount(ids, minlength=n).tolist()
    filled = [(partition, count) for partition, count in enumerate(counts) if count]
    if len(filled) == 1:
        return [(filled[0][0], df)]
    # Filters read all rows once for each partition, but sequentially. A sort reads them once, but in random order.
    if len(filled) <= _FILTERS_MAX:
        return [(partition, rows_where(df, pl.Series(ids == partition))) for partition, _ in filled]
    # numpy's stable sort of 8- or 16-bit integers is a radix sort; that is why ids are narrow.
    grouped = df[np.argsort(ids, kind="stable")]
    parts = []
    start = 0
    for partition, count in filled:
        parts.append((partition, grouped.slice(start, count)))
        start += count
    return parts


def laid_out(series: pl.Series) -> tuple[pa.Buffer, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bytes of all strings or binaries, one after the other, and where each begins and ends."""
    array = series.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset :][: len(series) + 1]
    return data or pa.py_buffer(b""), bounds[:-1], bounds[1:]


def _hash_series(series: pl.Series) -> Hashes:
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
        text = series.cast(pl.String)
        hashed = _hash_bytes(text.str.strip_chars_end("0").str.strip_chars_end(".") if dtype.scale else text)
    else:
        hashed = _hash_words(_words(series))
    if series.null_count():
        hashed[series.is_null().to_numpy()] = _NULL
    return hashed


def _words(series: pl.Series) -> Hashes:
    """The values of a fixed-width column as words. The word of a null is arbitrary: its hash is replaced."""
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
    elif dtype == pl.Boolean or dtype in (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32):
        numbers = series.cast(pl.Int64)
    else:
        raise DeclarationError(
            f"column {series.name!r} of type {dtype} can't be part of a key",
            hint="use a number, string, binary, bool, date, time, category, or a struct of them",
        )
    return filled(numbers, 0).to_numpy().view(np.uint64)


def _hash_bytes(series: pl.Series) -> Hashes:
    """Hash strings or binaries from Arrow's 16-byte views, so a short key costs neither a copy nor a random access. A
    view is the length (uint32) and 12 bytes, zero-padded. For a longer string the 12 bytes are its first 4 bytes, and
    the buffer and offset where it is. As two little-endian words, that of "abc" is (3 | 0x636261 << 32, 0)."""
    if not len(series):
        return np.empty(0, np.uint64)
    array = series.to_arrow(compat_level=pl.CompatLevel.newest())
    views = np.frombuffer(array.buffers()[1], np.uint64)[2 * array.offset :][: 2 * len(series)]
    lengths = views.view(np.uint32)[0::4]
    if series.null_count():
        lengths = np.where(series.is_not_null().to_numpy(), lengths, 0)  # a null may have any
    longest, shortest = int(lengths.max()), int(lengths.min())
    if longest <= _INLINE:
        return _hash_short(views[0::2], views[1::2])
    if shortest > _INLINE:
        return _hash_long(series)
    hashed = _hash_short(views[0::2], views[1::2])
    is_long = lengths > _INLINE
    hashed[is_long] = _hash_long(series.filter(pl.Series(is_long)))
    return hashed


def _hash_short(head: Hashes, rest: Hashes) -> Hashes:
    """Hash the two words of each view: length and bytes 0-3 (``head``), bytes 4-11 (``rest``)."""
    hashed = _hash_words(head)
    hashed ^= rest
    _mix(hashed)
    return hashed


def _hash_long(series: pl.Series) -> Hashes:
    """Hash strings of more than 12 bytes: the first 12 like a short string, then the sum of the words after them."""
    data, starts, ends = laid_out(series)
    # word_at[i] is bytes i to i + 7 of the data: words overlap, and need not be aligned.
    word_at = np.ndarray((data.size - _WORD + 1,), "<u8", data, strides=(1,))
    lengths = (ends - starts).astype(np.uint64)
    # The two words that an inlined view would have. The shift drops bytes 4-7, which are part of the second.
    hashed = _hash_short((word_at[starts] << np.uint64(32)) | lengths, word_at[starts + 4])
    if int(lengths.max()) <= _INLINE + _WORD:
        hashed += _only_tails(word_at, starts + _INLINE, ends)
    else:
        hashed += _sum_tails(word_at, starts + _INLINE, ends)
    _mix(hashed)
    return hashed


def _only_tails(word_at: Hashes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Hashes:
    """What ``_sum_tails`` returns, if each row has one word: half of all the work isn't needed then."""
    words = _tail_words(word_at, starts, ends - _WORD)
    words += _GOLDEN
    _mix(words)
    return words


def _tail_words(word_at: Hashes, wanted: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> Hashes:
    """The zero-padded words at ``wanted``. ``last`` is where the last 8 bytes of each word's row are. The last word of
    a row may reach past its end. Then the row's last 8 bytes are read instead, and shifted right."""
    address = np.minimum(wanted, last)
    words: Hashes = word_at[address] >> ((wanted - address).astype(np.uint64) << _THREE)
    return words


def _sum_tails(word_at: Hashes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Hashes:
    """For each row the sum of its words from ``starts`` to ``ends``, each mixed with its index in the row.

    Rows have different numbers of words. So the words of all rows are numbered consecutively, and the numbers are
    processed in blocks. With 2, 1 and 3 words in rows 0, 1 and 2:

    - ``after`` = [2, 3, 6] is the number of the word after each row's last, ``before`` = [0, 2, 3] that of its first.
    - The block of words 1 to 3 (``low`` = 1, ``high`` = 4) touches all three rows. ``begins`` = [1, 2, 3] is the
      block's first word of each row, ``counts`` = [1, 1, 1] how many of the row's words are in the block.
    - ``index`` = [1, 0, 0] is the index of each word within its row, from which its address follows.
    - ``np.add.reduceat`` adds up the words of each row; a row that continues in the next block is added to there.
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
        index = np.arange(low, high) - np.repeat(before[rows], counts)
        wanted = np.repeat(starts[rows], counts) + _WORD * index
        words = _tail_words(word_at, wanted, np.repeat(ends[rows] - _WORD, counts))
        words += (index + 1).astype(np.uint64) * _GOLDEN
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
    """Let every bit of each word affect all its bits, in place (the finalizer of MurmurHash3)."""
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


# -- kafka partitioning ------------------------------------------------------------------------------
RUN = 500  # how many records without a key go to one partition before the next one gets some
_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFFFFFF)
_MURMUR_WORD = 4
_LONG = 256  # keys with more bytes are hashed one by one: a step of whole columns doesn't pay for a few of them
Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]


def partitions_of(keys: pl.Series, partitions: int, first: int = 0) -> Numbers:
    """The partition of each record, given its key (Binary) or null. Runs without a key begin at ``first``."""
    found = ((murmur2(keys) & _POSITIVE) % np.uint32(partitions)).astype(np.int64)
    nothing = keys.is_null().to_numpy()
    count = int(nothing.sum())
    if count:
        run = max(RUN, -(-count // partitions))
        found[nothing] = (first + np.arange(count) // run) % partitions
    return found


def murmur2(keys: pl.Series) -> Words:
    """The hash of each key, as Java's ``Utils.murmur2`` computes it, but without a sign. Null is like empty."""
    data, starts, lengths = layout(keys)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    order = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[order]
    longest = int(min(sorted_lengths[-1], _LONG)) if lengths.size else 0
    for at in range(0, longest - longest % _MURMUR_WORD, _MURMUR_WORD):
        rows = order[np.searchsorted(sorted_lengths, at + _MURMUR_WORD) :]
        hashes[rows] = hashes[rows] * _M ^ _mixed(_murmur_words(data, starts[rows] + at))
    short = order[: np.searchsorted(sorted_lengths, _LONG + 1)]
    some = _with_rest(hashes[short], data, starts[short], lengths[short])
    some = (some ^ (some >> np.uint32(13))) * _M
    hashes[short] = some ^ (some >> np.uint32(15))
    for row in order[len(short) :]:
        hashes[row] = _murmur2_of(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return hashes


def layout(keys: pl.Series) -> tuple[npt.NDArray[np.uint8], Numbers, Numbers]:
    data, starts, ends = laid_out(keys.fill_null(b"").rechunk())
    return np.frombuffer(data, np.uint8), starts, ends - starts


def _murmur_words(data: npt.NDArray[np.uint8], at: Numbers) -> Words:
    word = data[at].astype(np.uint32)
    for byte in range(1, _MURMUR_WORD):
        word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _with_rest(hashes: Words, data: npt.NDArray[np.uint8], starts: Numbers, lengths: Numbers) -> Words:
    rest = lengths % _MURMUR_WORD
    tails = starts + lengths - rest
    for byte in range(_MURMUR_WORD - 2, -1, -1):
        rows = np.flatnonzero(rest > byte)
        hashes[rows] ^= data[tails[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    rows = np.flatnonzero(rest)
    hashes[rows] *= _M
    return hashes


def _mixed(words: Words) -> Words:
    words = words * _M
    return (words ^ (words >> np.uint32(24))) * _M


def _murmur2_of(key: bytes) -> int:
    """The hash of one key, however long: the words are mixed at once, and then put together one by one."""
    whole = len(key) - len(key) % _MURMUR_WORD
    found, m, bits = _SEED ^ len(key), int(_M), 0xFFFFFFFF
    for word in _mixed(np.frombuffer(key[:whole], "<u4").astype(np.uint32)).tolist():
        found = (found * m & bits) ^ word
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * m & bits
    found = (found ^ found >> 13) * m & bits
    return found ^ found >> 15

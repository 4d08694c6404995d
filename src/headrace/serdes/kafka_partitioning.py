"""Which partition a record goes to: exactly Kafka's default partitioner, for whole columns of keys. Pure.

A key goes to the partition of its hash, murmur2, so that other programs find their keys where Kafka's own clients would
have put them. Records without a key may go anywhere. They are spread in runs, because a broker stores one batch of a
thousand records faster than a thousand batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

RUN = 500
"""How many records without a key go to one partition before the next one gets some."""

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFFFFFF)
_WORD = 4
_LONG = 256
"""Keys with more bytes are hashed one by one: a step of whole columns doesn't pay for a few of them."""

Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]


def partitions_of(keys: pl.Series, partitions: int, first: int = 0) -> Numbers:
    """Return the partition of each record, given its key (Binary) or null. Runs without a key begin at ``first``."""
    found = ((murmur2(keys) & _POSITIVE) % np.uint32(partitions)).astype(np.int64)
    nothing = keys.is_null().to_numpy()
    count = int(nothing.sum())
    if count:
        run = max(RUN, -(-count // partitions))
        found[nothing] = (first + np.arange(count) // run) % partitions
    return found


def murmur2(keys: pl.Series) -> Words:
    """Return the hash of each key, as Java's ``Utils.murmur2`` computes it, but without a sign. Null is like empty."""
    data, starts, lengths = layout(keys)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    order = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[order]
    longest = int(min(sorted_lengths[-1], _LONG)) if lengths.size else 0
    for at in range(0, longest - longest % _WORD, _WORD):
        rows = order[np.searchsorted(sorted_lengths, at + _WORD) :]
        hashes[rows] = hashes[rows] * _M ^ _mixed(_words(data, starts[rows] + at))
    short = order[: np.searchsorted(sorted_lengths, _LONG + 1)]
    hashes[short] = _finished(_with_rest(hashes[short], data, starts[short], lengths[short]))
    for row in order[len(short) :]:
        hashes[row] = _murmur2_of(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return hashes


def layout(keys: pl.Series) -> tuple[npt.NDArray[np.uint8], Numbers, Numbers]:
    """Return the bytes of all keys, and where in them each begins, and its length. Null is like empty."""
    array: Any = keys.fill_null(b"").rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return content, ends[:-1], np.diff(ends)


def _words(data: npt.NDArray[np.uint8], at: Numbers) -> Words:
    """Four bytes from each of these places, as numbers; the first byte is the lowest."""
    word = data[at].astype(np.uint32)
    for byte in range(1, _WORD):
        word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _with_rest(hashes: Words, data: npt.NDArray[np.uint8], starts: Numbers, lengths: Numbers) -> Words:
    """Mix in the one to three bytes after the last whole word."""
    rest = lengths % _WORD
    tails = starts + lengths - rest
    for byte in range(_WORD - 2, -1, -1):
        rows = np.flatnonzero(rest > byte)
        hashes[rows] ^= data[tails[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    rows = np.flatnonzero(rest)
    hashes[rows] *= _M
    return hashes


def _mixed(words: Words) -> Words:
    words = words * _M
    return (words ^ (words >> np.uint32(24))) * _M


def _finished(hashes: Words) -> Words:
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _M
    return hashes ^ (hashes >> np.uint32(15))


def _murmur2_of(key: bytes) -> int:
    """The hash of one key, however long: the words are mixed at once, and then put together one by one."""
    whole = len(key) - len(key) % _WORD
    found, m, bits = _SEED ^ len(key), int(_M), 0xFFFFFFFF
    for word in _mixed(np.frombuffer(key[:whole], "<u4").astype(np.uint32)).tolist():
        found = (found * m & bits) ^ word
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * m & bits
    found = (found ^ found >> 13) * m & bits
    return found ^ found >> 15

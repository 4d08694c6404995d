"""What moves from store to store is cut into portions that need little memory, however many rows there are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import polars as pl

from headrace.serdes.rows import concat_rows

PORTION_ROWS_MAX = 1 << 14
PORTION_BYTES = 8 << 20
_FIRST_PORTION = 256


def in_portions(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield keys and values of some entries at a time, of about ``PORTION_BYTES`` at most.

    The portion before gives their number; only without it must all sizes be checked.
    """
    count = _FIRST_PORTION
    while True:
        # A list of pairs would be three times slower: the garbage collector visits pairs, but neither keys nor values.
        keys, values = [], []
        for key, value in islice(entries, count):
            keys.append(key)
            values.append(value)
        if not keys:
            return
        size = sum(map(len, keys)) + sum(map(len, values))
        count = max(1, min(PORTION_ROWS_MAX, 4 * len(keys), len(keys) * PORTION_BYTES // max(1, size)))
        yield keys, values


def rows_in_portions(frames: Iterable[pl.DataFrame], rows_max: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of all frames in order, in frames of about ``PORTION_BYTES`` and of ``rows_max`` rows at most."""
    waiting: list[pl.DataFrame] = []
    rows = size = 0
    for frame in frames:
        if not frame.height:
            continue
        more = int(frame.estimated_size())
        if waiting and (rows + frame.height > rows_max or size + more > PORTION_BYTES):
            yield concat_rows(waiting)
            waiting, rows, size = [], 0, 0
        if frame.height > rows_max or more > PORTION_BYTES:
            yield from frame.iter_slices(max(1, min(rows_max, frame.height * PORTION_BYTES // more)))
            continue
        waiting.append(frame)
        rows, size = rows + frame.height, size + more
    if waiting:
        yield concat_rows(waiting)

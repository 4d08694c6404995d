"""Lots: how many rows are in memory at a time while results that are due are put in the order of their times.

The rows of a store are in pieces by the hash of their keys, so what is due comes out in the order of hashes. To emit it
in order, an operator lets time advance from stop to stop, so that a lot at most is due at each, and sorts the lot.
If a single time has more rows than a lot, they come out in several lots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.serdes.rows import concat_rows
from headrace.stores import pieces

_PIECES = 4


class Crowd(NamedTuple):
    """How many rows each time has; the times ascend."""

    times: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    def stops(self) -> list[int]:
        """Times at which to stop, ascending: between two of them, and after the last, there is no more than a lot.

        Only a time that has more than a lot by itself makes an exception.
        """
        stops, there = [], 0
        before = None
        for time, count in zip(self.times.tolist(), self.counts.tolist(), strict=True):
            if before is not None and there + count > lot_rows():
                stops.append(before)
                there = 0
            there += count
            before = time
        return stops


EMPTY = Crowd(np.empty(0, np.int64), np.empty(0, np.int64))


def lot_rows() -> int:
    """How many rows a lot has at most."""
    return _PIECES * pieces.PIECE_ROWS


def crowd(times: Iterable[pl.Series]) -> Crowd:
    """Count the rows of each time."""
    found = [each.value_counts(name="__rows") for each in times]
    if not found:
        return EMPTY
    rows = concat_rows([each.rename({each.columns[0]: "time"}) for each in found])
    counted = rows.group_by("time").agg(pl.col("__rows").cast(pl.Int64).sum()).sort("time")
    return Crowd(counted.get_column("time").to_numpy(), counted.get_column("__rows").to_numpy())


def in_lots(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Concatenate frames as long as they are one lot."""
    waiting: list[pl.DataFrame] = []
    rows = 0
    for frame in frames:
        if waiting and rows + frame.height > lot_rows():
            yield concat_rows(waiting)
            waiting, rows = [], 0
        waiting.append(frame)
        rows += frame.height
    if waiting:
        yield concat_rows(waiting)

"""Find pairs of rows with equal keys and near times, vectorised: an index over one run of a join's buffer.

A run is sorted by the hash of its keys, so one binary search finds the candidates of a whole batch. Rows whose hashes
are equal by chance are then distinguished by their keys. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.rows.casting import filled

HASH = "__hash"
TIME = "__time"
PAIRS_MAX = 1 << 20  # candidates are compared in portions, because a hot key may have very many
Indexes = npt.NDArray[np.int64]
Rests = Callable[[Indexes, Indexes], Indexes]
"""How much further (ns) the times of rows of a run are beyond their whole ms than those of rows of a batch."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Row numbers in a batch and in a run, side by side."""

    batch: Indexes
    run: Indexes


def spread(starts: Indexes, counts: Indexes) -> Indexes:
    """The numbers of all ranges, one range after another: of starts 5 and 9 with counts 2 and 3, it is 5 6 9 10 11."""
    begins = np.cumsum(counts) - counts  # where each range begins in the result
    numbers: Indexes = np.repeat(starts - begins, counts) + np.arange(int(counts.sum()))
    return numbers


class RunIndex:
    """Rows in the order of their hashes."""

    def __init__(self, run: pl.DataFrame) -> None:
        self.run = run
        self._hashes: npt.NDArray[np.uint64] = run.get_column(HASH).to_numpy()
        self._times: npt.NDArray[np.int64] = run.get_column(TIME).to_numpy()

    def pairs(
        self,
        batch: pl.DataFrame,
        keys: Sequence[str],
        low_ms: int,
        high_ms: int,
        by_hash: Indexes,
        rests: Rests | None = None,
    ) -> Iterator[Pairs]:
        """Pairs of equal keys with ``low_ms <= run's time - batch's <= high_ms``; ``by_hash``: batch in hash order."""
        hashes: npt.NDArray[np.uint64] = batch.get_column(HASH).to_numpy()[by_hash]
        times: npt.NDArray[np.int64] = batch.get_column(TIME).to_numpy()
        starts, counts = np.empty((2, len(hashes)), np.int64)
        starts[by_hash] = first = np.searchsorted(self._hashes, hashes, "left")
        counts[by_hash] = np.searchsorted(self._hashes, hashes, "right") - first
        rows = np.flatnonzero(counts)
        for portion in _portions(rows, counts):
            count = counts[portion]
            of_batch = np.repeat(portion, count)
            of_run = spread(starts[portion], count)
            apart = self._times[of_run] - times[of_batch]
            near = (apart >= low_ms) & (apart <= high_ms)
            if rests is not None:
                # At a bound itself the rest decides: with 1 ms at most, 0.2 ms and 1.1 ms are near, 0.1 and 1.2 aren't.
                edge = np.flatnonzero(near & ((apart == low_ms) | (apart == high_ms)))
                beyond = rests(of_batch[edge], of_run[edge])
                near[edge] = ((apart[edge] > low_ms) | (beyond >= 0)) & ((apart[edge] < high_ms) | (beyond <= 0))
            of_batch, of_run = of_batch[near], of_run[near]
            if not len(of_batch):
                continue
            same = _equal(batch, of_batch, self.run, of_run, keys)
            yield Pairs(of_batch[same], of_run[same])


def _portions(rows: Indexes, counts: Indexes) -> Iterator[Indexes]:
    start, total = 0, np.cumsum(counts[rows])
    while start < len(rows):
        done = total[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(total, done + PAIRS_MAX, "right")))
        yield rows[start:stop]
        start = stop


def _equal(
    batch: pl.DataFrame, of_batch: Indexes, run: pl.DataFrame, of_run: Indexes, keys: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Which pairs have equal keys; a null is equal to nothing."""
    same = np.ones(len(of_batch), dtype=bool)
    for key in keys:
        equal = batch.get_column(key).gather(of_batch) == run.get_column(key).gather(of_run)
        same &= filled(equal, False).to_numpy()
    return same

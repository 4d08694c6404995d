"""A segment of keyed rows: a DataFrame that never changes, which of its rows are still there, an index of its keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.serdes.hashing import Hashes, hash_rows

Places = npt.NDArray[np.int64]
"""Rows of a segment, by their number."""

_ALL_GONE = 2**63 - 1


def hashes_of(rows: pl.DataFrame, keys: Sequence[str]) -> Hashes:
    """A hash of each row's key; without keys all are equal."""
    return hash_rows(rows, keys) if keys else np.zeros(rows.height, np.uint64)


class Segment:
    """Some rows and what is known of them. ``lows``: the lowest of each due column among the rows still there."""

    def __init__(self, number: int, frame: pl.DataFrame, due: Sequence[str], mask: bytes | None = None) -> None:
        """``mask`` is what ``mask_bytes`` gave for the same rows."""
        self.number = number
        self.frame = frame
        self.living = frame.height
        self.stored_pieces = 0
        self.masked_since_stored = False
        self._alive: npt.NDArray[np.bool_] | None = None
        if mask is not None:
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=frame.height)
            self._alive = bits.astype(np.bool_)
            self.living = int(np.count_nonzero(self._alive))
        self._due = {column: frame.get_column(column).to_numpy() for column in due}
        self._index: tuple[Hashes, Places] | None = None
        self.lows: dict[str, int] = {}
        self._note_lows()

    @property
    def masked(self) -> bool:
        """Some of its rows are gone."""
        return self._alive is not None

    def mask_bytes(self) -> bytes:
        """Which rows are still there, a bit each."""
        alive = np.ones(self.frame.height, np.bool_) if self._alive is None else self._alive
        return np.packbits(alive).tobytes()

    def alive(self) -> pl.DataFrame:
        """The rows that are still there."""
        return self.frame if self._alive is None else self.frame.filter(pl.Series(self._alive))

    def find(self, wanted: pl.DataFrame, hashes: Hashes, keys: Sequence[str], same: Sequence[str]) -> Places:
        """The rows still there that agree with some row of ``wanted`` in the columns ``same``.

        ``hashes`` are those of ``wanted`` by ``keys``. A null agrees with a null.
        """
        return self.locate(wanted, hashes, keys, same)[1]

    def locate(
        self, wanted: pl.DataFrame, hashes: Hashes, keys: Sequence[str], same: Sequence[str]
    ) -> tuple[Places, Places]:
        """As ``find``, and for each the row of ``wanted`` that it agrees with. Fastest where ``hashes`` are sorted."""
        if not self.living:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        ordered, places = self._indexed(keys)
        starts = np.searchsorted(ordered, hashes, "left")
        counts = np.searchsorted(ordered, hashes, "right") - starts
        of_wanted = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(of_wanted)) - np.repeat(np.cumsum(counts) - counts, counts)
        found = places[np.repeat(starts, counts) + within]
        if self._alive is not None:
            there = self._alive[found]
            found, of_wanted = found[there], of_wanted[there]
        agree = np.ones(len(found), np.bool_)
        for column in same:
            equal = self.frame.get_column(column).gather(found).eq_missing(wanted.get_column(column).gather(of_wanted))
            agree &= equal.to_numpy()
        return of_wanted[agree], found[agree]

    def due(self, column: str, bound: int) -> Places:
        """The rows still there whose ``column`` is ``bound`` or less."""
        hit = self._due[column] <= bound
        places: Places = np.flatnonzero(hit if self._alive is None else hit & self._alive)
        return places

    def kill(self, places: Places) -> None:
        """These rows are gone."""
        if not len(places):
            return
        if self._alive is None:
            self._alive = np.ones(self.frame.height, np.bool_)
        self._alive[places] = False
        self.living = int(np.count_nonzero(self._alive))
        self.masked_since_stored = True
        self._note_lows()

    def _indexed(self, keys: Sequence[str]) -> tuple[Hashes, Places]:
        if self._index is None:
            hashes = hashes_of(self.frame, keys)
            places = np.argsort(hashes, kind="stable")
            self._index = (hashes[places], places)
        return self._index

    def _note_lows(self) -> None:
        for column, values in self._due.items():
            living = values if self._alive is None else values[self._alive]
            self.lows[column] = int(living.min()) if len(living) else _ALL_GONE

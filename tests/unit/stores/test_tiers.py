"""When parts are merged: with neighbours of like size, and where nobody looks rows up, not before it is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log2

from hypothesis import given
from hypothesis import strategies as st

from headrace.stores.base import Writes
from headrace.stores.pieces import PIECE_ROWS, Kept, Pieces
from headrace.stores.tiers import Tiers


@dataclass
class Batch:
    """A part that is nothing but its size, and what it was made of."""

    living: int
    of: list[int]
    pieces: Pieces = field(default_factory=lambda: Pieces(Kept("store"), 0, [0], [None]))

    def write(self, writes: Writes) -> None:
        """It isn't in a database."""

    def erase(self, writes: Writes) -> None:
        """It isn't in a database."""


class Merges:
    """Merges batches, and counts the rows that are read for it. ``alike``: all batches have rows of the same keys."""

    def __init__(self, alike: bool) -> None:
        self.read = 0
        self._alike = alike

    def __call__(self, batches: Sequence[Batch]) -> list[Batch]:
        sizes = [batch.living for batch in batches]
        self.read += sum(sizes)
        return [Batch(max(sizes) if self._alike else sum(sizes), [number for batch in batches for number in batch.of])]


def pushed(
    sizes: Sequence[int], *, wait: bool = False, most: int = 1 << 40, alike: bool = False
) -> tuple[list[Batch], int]:
    merges = Merges(alike)
    tiers: Tiers[Batch] = Tiers(Kept("store"), most, merges, wait=wait)
    for number, size in enumerate(sizes):
        tiers.push(Batch(size, [number]))
    return tiers.parts, merges.read


@given(st.lists(st.integers(1, 3 * PIECE_ROWS), min_size=1, max_size=60), st.booleans(), st.booleans())
def test_parts_keep_their_order_and_are_few(sizes: list[int], wait: bool, alike: bool) -> None:
    parts, read = pushed(sizes, wait=wait, alike=alike)
    assert [number for part in parts for number in part.of] == list(range(len(sizes)))
    tiers = log2(sum(sizes)) + 1
    assert len(parts) <= tiers + (8 if wait else 0)
    assert read <= sum(sizes) * (tiers + 1)


def test_large_parts_are_left_alone() -> None:
    assert [part.living for part in pushed([60, 60, 30, 40], most=100)[0]] == [60, 60, 70]


def test_small_parts_wait_for_others_where_rows_are_not_looked_up() -> None:
    """Of a hundred checkpoints with a thousand rows each, of the same keys."""
    eager, waiting = (pushed([1000] * 100, wait=wait, alike=True)[1] for wait in (False, True))
    assert waiting < 0.6 * eager
    assert [part.living for part in pushed([1000] * 7, wait=True)[0]] == [1000] * 7
    assert [part.living for part in pushed([1000] * 8, wait=True)[0]] == [8000]


def test_parts_that_are_a_piece_together_wait_no_longer() -> None:
    assert len(pushed([PIECE_ROWS // 2] * 2, wait=True)[0]) == 1

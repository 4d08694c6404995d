"""Stops of time between which no more than a lot of rows is due."""

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stores import pieces
from headrace.stores.tiers import EMPTY, crowd, in_lots, lot_rows

LOT = 8


@pytest.fixture(autouse=True, scope="module")
def small_lots() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_ROWS", 2)
        assert lot_rows() == LOT
        yield


@given(st.lists(st.lists(st.integers(-5, 20))))
def test_stops_are_as_few_as_fit(frames: list[list[int]]) -> None:
    times = [time for frame in frames for time in frame]
    stops = crowd(pl.Series(frame, dtype=pl.Int64) for frame in frames).stops()
    assert stops == sorted(set(stops)), "they ascend"
    groups = [
        [time for time in times if (low is None or time > low) and (high is None or time <= high)]
        for low, high in pairwise([None, *stops, None])
    ]
    for group in groups:
        assert len(group) <= LOT or len(set(group)) == 1
    for here, after in pairwise(groups):
        assert len(here) + after.count(min(after)) > LOT, "the next time would have fitted"


def test_without_rows_there_is_no_stop() -> None:
    assert crowd([]).stops() == EMPTY.stops() == []


@given(st.lists(st.integers(0, 20)))
def test_lots_have_all_rows_in_their_order(heights: list[int]) -> None:
    ends = np.cumsum([0, *heights]).tolist()
    frames = [pl.DataFrame({"n": range(low, high)}, {"n": pl.Int64}) for low, high in pairwise(ends)]
    lots = list(in_lots(frames))
    assert [n for lot in lots for n in lot["n"]] == list(range(ends[-1]))
    assert all(lot.height <= max(LOT, *heights) for lot in lots)

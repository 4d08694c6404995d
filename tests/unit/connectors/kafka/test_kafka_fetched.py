"""Records that wait to be handed out: nothing is lost, doubled or swapped, however they are cut."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kafka.fetching import FetchedRecords, PartitionFeed, together


def piece(offsets: list[int], size: int = 10) -> FetchedRecords:
    values: list[bytes | None] = [str(offset).encode() for offset in offsets]
    return FetchedRecords(
        offsets, values, offsets[-1] + 1, size, list(values), list(offsets), [[("h", value)] for value in values]
    )


@st.composite
def pieces(draw: st.DrawFn) -> list[FetchedRecords]:
    offsets = sorted(draw(st.sets(st.integers(0, 200), min_size=1, max_size=60)))
    cuts = sorted({0, len(offsets), *draw(st.sets(st.integers(0, len(offsets)), max_size=5))})
    return [piece(offsets[a:b], draw(st.integers(0, 50))) for a, b in pairwise(cuts) if b > a]


@given(pieces(), st.integers(1, 100))
def test_a_feed_hands_out_all_of_it_in_order(given: list[FetchedRecords], max_bytes: int) -> None:
    feed = PartitionFeed("t", 0, 0)
    for one in given:
        feed.put(one)
    assert feed.bytes == sum(one.size for one in given)
    taken = []
    while (one := feed.take(max_bytes)) is not None:
        taken.append(one)
    assert [offset for one in taken for offset in one.offsets] == [offset for one in given for offset in one.offsets]
    assert [value for one in taken for value in one.values] == [value for one in given for value in one.values]
    assert feed.bytes == 0
    assert not feed.waiting
    assert taken[-1].next == given[-1].next == feed.fetched_to


@given(pieces(), st.integers(0, 220))
def test_what_is_before_an_offset(given: list[FetchedRecords], end: int) -> None:
    whole = together(given)
    cut = whole.before(end)
    n = bisect_left(list(whole.offsets), end)
    assert list(cut.offsets) == list(whole.offsets)[:n]
    assert [len(part) for part in (cut.values, cut.keys, cut.times, cut.headers)] == [n] * 4
    assert cut.next == min(end, whole.next)


@given(pieces(), st.integers(0, 220))
def test_the_first_record_of_a_time(given: list[FetchedRecords], time_ms: int) -> None:
    whole = together(given)  # whose times are the offsets
    assert whole.first_at(time_ms) == next((offset for offset in whole.offsets if offset >= time_ms), None)


def test_gaps_are_seen() -> None:
    assert piece([3, 4, 5]).dense
    assert not piece([3, 5]).dense
    assert not together([piece([3, 4]), piece([6])]).dense
    assert FetchedRecords([], [], 9).dense


def test_the_end_moves_the_position_over_what_is_no_record() -> None:
    feed = PartitionFeed("t", 0, 0)
    feed.put(piece([0, 1]))
    assert not feed.at_end
    feed.ended(4)
    assert feed.at_end
    taken = feed.take(1000)
    assert taken is not None
    assert (list(taken.offsets), taken.next) == ([0, 1], 4)
    feed.ended(4)
    assert not feed.waiting
    feed.put(piece([4]))
    assert not feed.at_end


@pytest.mark.parametrize("max_bytes", [1, 1000])
def test_what_is_lost_comes_alone(max_bytes: int) -> None:
    feed = PartitionFeed("t", 0, 0)
    feed.put(piece([0]))
    feed.put(FetchedRecords([], [], 5, lost=4))
    feed.put(piece([5]))
    taken = [feed.take(max_bytes) for _ in range(3)]
    found = [(list(one.offsets), one.next, one.lost) for one in taken if one is not None]
    assert found == [([0], 1, 0), ([], 5, 4), ([5], 6, 0)]


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=9), max_size=5), st.integers(0, 60))
def test_no_record_more_than_fits_is_taken_but_at_least_one(sizes: list[list[int]], max_bytes: int) -> None:
    feed = PartitionFeed("t", 0, 0)
    values: list[bytes | None] = []
    for run in sizes:
        first = len(values)
        values += (b"x" * size for size in run)
        feed.put(FetchedRecords(range(first, len(values)), values[first:], len(values), sum(run)))
    position, taken = 0, []
    while (one := feed.take(max_bytes, exactly=True)) is not None:
        assert list(one.offsets) == list(range(position, one.next))
        position = one.next
        assert one.size == sum(len(value or b"") for value in one.values)
        assert one.size <= max_bytes or len(one) == 1
        taken += one.values
    assert (taken, feed.bytes, position) == (values, 0, len(values))


@pytest.mark.parametrize("at", [0, 2])
def test_nothing_after_a_mark_is_taken_in(at: int) -> None:
    feed = PartitionFeed("t", 0, 5, marked=True)
    values: list[bytes | None] = [b"a", b"b", b"c"]
    values[at] = None
    feed.put(FetchedRecords(range(5, 8), values, 8, 3))
    assert (feed.mark, feed.fetched_to, feed.bytes, feed.sound) == (5 + at, 5 + at, at, False)
    taken = feed.take(100, exactly=True)
    assert taken is not None
    assert (taken.values, taken.next) == (values[:at], 5 + at)

"""Records that may have expired before they were read: it is found out, or it is said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slot_reader import NOW_MS, SSP_0, Reader, name, put, stream
from test_kpl import packed, sealed

from drawn import examples
from headrace.connectors.kinesis.api import (
    HOUR_MS,
    LOOK_MS,
    OLDEST,
    Expiry,
    Position,
    Put,
    parse_position,
    parse_state,
    released,
)
from headrace.connectors.kinesis.feed import Room
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.core.clock import ManualClock
from headrace.core.errors import ProtocolError, TrimmedOffsetError
from headrace.systems.startpoints import MOMENTS

READ_OLDEST = "READ TRIM_HORIZON"
WEEK_H = 7 * 24


def later(kinesis: MemoryKinesis, clock: ManualClock, hours: float) -> None:
    """Time passes, and what is a day old expires."""
    clock.advance(round(hours * HOUR_MS))
    kinesis.trim(clock.now_ms() - kinesis.kept_h * HOUR_MS)


def committed(kinesis: MemoryKinesis, clock: ManualClock) -> dict[str, str]:
    return Reader(kinesis, clock).begin({}).order(s0=READ_OLDEST).read().shards[SSP_0]


def gaps(reader: Reader) -> int:
    return sum(unread.count for unread in reader.unread if unread.counter == "gaps")


@pytest.mark.parametrize(
    "position",
    [OLDEST, Position(7), Position(7, 2), Position(time_ms=5), released(Position(7), 1).position],
)
def test_a_position_says_when_nothing_followed_it(position: Position) -> None:
    stamped = position.at_tip(1_700_000_000_000, 168)
    assert str(stamped) == f"{position} @1700000000000/168h"
    assert parse_position(str(stamped)) == stamped
    assert parse_state(f"RELEASED 1 {stamped}") == released(stamped, 1)
    assert stamped.order == position.order


@pytest.mark.parametrize("text", ["7 @", "7 @5", "7 @5/h", "7 @5/24", "@5/24h", "7 @x/24h", "7@5/24h"])
def test_other_texts_are_no_positions(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_position(text)


@pytest.mark.parametrize(
    ("position", "hours", "kept_h", "whole"),
    [
        (OLDEST, 99, 24, True),  # nothing was read
        (Position(time_ms=NOW_MS), 99, 24, True),
        (Position(7), 0, 24, False),  # only the record can tell
        (Position(7).at_tip(NOW_MS, 24), 23, 24, True),
        (Position(7).at_tip(NOW_MS, 24), 24, 24, False),
        (OLDEST.at_tip(NOW_MS, 24), 25, 24, False),
        (Position(7).at_tip(NOW_MS, WEEK_H), 30, WEEK_H, True),
        (Position(7).at_tip(NOW_MS, WEEK_H), 30, 24, False),  # it was lowered meanwhile
        (Position(7).at_tip(NOW_MS, 24), 30, WEEK_H, False),  # it was raised when records had expired
        (Position(7).at_tip(NOW_MS, WEEK_H), WEEK_H, WEEK_H, False),
    ],
)
def test_what_can_be_said_without_looking(position: Position, hours: int, kept_h: int, whole: bool) -> None:
    assert Expiry(position).whole(NOW_MS + hours * HOUR_MS, lambda: kept_h) is whole


def test_records_that_were_trimmed_before_they_were_read_are_an_error() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1)
    before = committed(kinesis, clock)
    put(kinesis, 0, 2)
    later(kinesis, clock, 1)
    put(kinesis, 0, 3)
    later(kinesis, clock, 24)
    with pytest.raises(TrimmedOffsetError, match="may have deleted records after"):
        Reader(kinesis, clock).begin(before).read()


def test_a_record_of_a_sparse_shard_that_expired_unread_is_an_error() -> None:
    """The app stands at a record 30 hours old, the next one is gone, and the one behind it is 10 hours old."""
    kinesis, clock = stream()
    put(kinesis, 0, 1)
    before = committed(kinesis, clock)
    later(kinesis, clock, 5)
    put(kinesis, 0, 2)
    later(kinesis, clock, 15)
    put(kinesis, 0, 3)
    later(kinesis, clock, 10)
    with pytest.raises(TrimmedOffsetError, match="the record there has expired") as caught:
        Reader(kinesis, clock).begin(before).read()
    assert 'lost="skip"' in (caught.value.hint or "")
    reader = Reader(kinesis, clock, skip_lost=True).begin(before).read()
    assert (reader.numbers, gaps(reader)) == ({name(0): [3]}, 1)
    assert "may be lost: the record there has expired" in reader.unread[0].warning


@pytest.mark.parametrize("arrives", [True, False])
def test_a_sparse_shard_goes_on_if_the_app_was_away_for_less_than_a_day(arrives: bool) -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1)
    reader = Reader(kinesis, clock).begin({}).order(s0=READ_OLDEST)
    for _ in range(4):
        later(kinesis, clock, 10)
        reader.read()
    assert "@" in reader.shards[SSP_0][name(0)]
    later(kinesis, clock, 1)
    if arrives:
        put(kinesis, 0, 2)
    later(kinesis, clock, 20)
    after = Reader(kinesis, clock).begin(reader.shards[SSP_0]).read()
    assert (after.numbers[name(0)], after.unread) == ([2] * arrives, [])


def test_a_gap_in_an_empty_shard_is_said_once() -> None:
    kinesis, clock = stream()
    before = committed(kinesis, clock)
    assert before[name(0)].startswith("TRIM_HORIZON @")
    put(kinesis, 0, 1)
    later(kinesis, clock, 30)
    with pytest.raises(TrimmedOffsetError, match="the shard was empty"):
        Reader(kinesis, clock).begin(before).read()
    reader = Reader(kinesis, clock, skip_lost=True).begin(before).read()
    assert (gaps(reader), dict(reader.numbers)) == (1, {})
    put(kinesis, 0, 2)
    again = Reader(kinesis, clock).begin(reader.shards[SSP_0]).read()
    assert (again.unread, again.numbers) == ([], {name(0): [2]})


def test_retention_that_was_long_enough_all_the_time_is_trusted() -> None:
    kinesis, clock = stream()
    kinesis.kept_h = WEEK_H
    put(kinesis, 0, 1)
    reader = Reader(kinesis, clock).begin({}).order(s0=READ_OLDEST)
    later(kinesis, clock, 8 * 24)
    reader.read()
    later(kinesis, clock, 3 * 24)
    put(kinesis, 0, 2)
    assert Reader(kinesis, clock).begin(reader.shards[SSP_0]).read().numbers == {name(0): [2]}


def test_an_app_that_is_far_behind_makes_sure_with_each_page() -> None:
    """It is kept from reading for a day, in the middle of a run."""
    kinesis, clock = stream()
    put(kinesis, 0, 1, 2)
    reader = Reader(kinesis, clock).begin({}).order(s0=READ_OLDEST).read()
    later(kinesis, clock, 5)
    put(kinesis, 0, 3)
    later(kinesis, clock, 10)
    put(kinesis, 0, 4)
    later(kinesis, clock, 20)
    with pytest.raises(TrimmedOffsetError):
        reader.read()


def test_what_expires_between_two_pages_is_noticed() -> None:
    kinesis, clock = stream()
    kinesis.kept_h = WEEK_H
    for start in range(0, 300, 100):
        put(kinesis, 0, *range(start, start + 100))
        later(kinesis, clock, 20)
    reader = Reader(kinesis, clock, room=Room(feed_bytes_max=100)).begin({}).order(s0=READ_OLDEST)
    while len(reader.numbers[name(0)]) < 150:
        reader.poll(max_bytes=100)
        clock.advance(1000)
    kinesis.trim(clock.now_ms() - 10 * HOUR_MS)
    put(kinesis, 0, 300)
    with pytest.raises(TrimmedOffsetError):
        reader.read()
    assert len(reader.numbers[name(0)]) == 199  # what had been fetched


def test_pages_that_are_empty_keep_nobody_from_making_sure() -> None:
    kinesis, clock = stream()
    kinesis.kept_h = WEEK_H
    for n in range(40):
        put(kinesis, 0, n)
        later(kinesis, clock, 1)
    later(kinesis, clock, 48)
    kinesis.empty_every = 2
    assert Reader(kinesis, clock).begin({}).order(s0=READ_OLDEST).read(turns=60).numbers == {name(0): [*range(40)]}


def test_a_shard_that_was_moved_by_hand_has_no_gap() -> None:
    kinesis, clock = stream()
    before = committed(kinesis, clock)
    put(kinesis, 0, 1)
    later(kinesis, clock, 30)
    put(kinesis, 0, 2)
    reader = Reader(kinesis, clock).begin(before, position=MOMENTS).read()
    assert (reader.numbers, reader.unread) == ({name(0): [2]}, [])


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put aggregate", "read", "restart", "block"]), st.floats(0, 16)),
    min_size=1,
    max_size=14,
)


@settings(max_examples=examples(300), deadline=None)
@given(STEPS, st.sampled_from([0, 2]))
def test_nothing_expires_in_silence(steps: list[tuple[str, float]], empty_every: int) -> None:
    """Whatever is put, read and expires: each record is read, or a gap is said after the one before it."""
    kinesis, clock = stream()
    kinesis.empty_every = empty_every
    reader = Reader(kinesis, clock, skip_lost=True).begin({}).order(s0=READ_OLDEST).read()
    there: dict[int, int] = {}
    seen: list[int] = []
    lost: set[int] = set()
    away_ms = clock.now_ms()
    for step, hours in steps:
        if step.startswith("put"):
            numbers = [len(there), len(there) + 1] if "aggregate" in step else [len(there)]
            there |= dict.fromkeys(numbers, clock.now_ms())
            payloads = [("k", None, b'{"n": %d}' % n) for n in numbers]
            kinesis.put([Put("k", sealed(packed(payloads)) if "aggregate" in step else payloads[0][2])])
        if step == "restart":
            reader = Reader(kinesis, clock, skip_lost=True).begin(reader.shards[SSP_0])
        if step in ("read", "restart"):
            reader.unread.clear()
            reader.numbers.clear()
            gone_for_ms = clock.now_ms() - away_ms
            reader.read()
            seen += reader.numbers[name(0)]
            missing = there.keys() - set(seen) - lost
            assert not missing or gaps(reader), f"{missing} were lost in silence"
            assert gone_for_ms >= 24 * HOUR_MS - 2 * LOOK_MS or not gaps(reader), "a gap that can't be"
            lost |= missing
            away_ms = clock.now_ms()
        later(kinesis, clock, hours)
    assert seen == sorted(set(seen))

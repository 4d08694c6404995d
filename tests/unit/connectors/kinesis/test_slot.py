from __future__ import annotations

import pytest

from headrace.connectors.kinesis.api import OLDEST, Position
from headrace.connectors.kinesis.slot import Slot

READING, RELEASED, EXPECTED, DONE = "7", "RELEASED 1 7", "EXPECTED", "SHARD_END"


@pytest.mark.parametrize(
    ("before", "order", "after"),
    [
        (None, "READ 5", "5"),
        (None, "EXPECT", EXPECTED),
        (None, "RELEASE 1", None),
        (None, "FORGET", None),
        (EXPECTED, "READ 5", "5"),
        (EXPECTED, "EXPECT", EXPECTED),
        (EXPECTED, "RELEASE 1", EXPECTED),
        (EXPECTED, "FORGET", None),
        (READING, "READ 5", READING),
        (READING, "EXPECT", READING),
        (READING, "RELEASE 1", RELEASED),
        (READING, "FORGET", READING),
        (RELEASED, "READ 7", RELEASED),
        (RELEASED, "EXPECT", RELEASED),
        (RELEASED, "RELEASE 0", RELEASED),
        (RELEASED, "FORGET", None),
        (DONE, "READ 5", DONE),
        (DONE, "EXPECT", DONE),
        (DONE, "RELEASE 1", DONE),
        (DONE, "FORGET", None),
        (None, "SKIP 9", None),
        (EXPECTED, "SKIP 9", EXPECTED),
        (READING, "SKIP 9", "9"),
        (READING, "SKIP 6", READING),
        ("7 2", "SKIP 7 1", "7 2"),
        ("7 @5/24h", "SKIP 9", "9"),
        (RELEASED, "SKIP 9", "RELEASED 1 9"),
        (DONE, "SKIP 9", DONE),
        (None, "END", None),
        (EXPECTED, "END", EXPECTED),
        (READING, "END", DONE),
        (RELEASED, "END", DONE),
        (DONE, "END", DONE),
    ],
)
def test_an_order_is_followed_where_it_fits(before: str | None, order: str, after: str | None) -> None:
    slot = Slot({} if before is None else {"a": before})
    slot.follow({})
    slot.said()
    slot.follow({"a": order})
    assert slot.changed is (before != after)
    assert slot.said() == ({} if after is None else {"a": after})
    assert not slot.changed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (READING, "AT_TIMESTAMP 9"),
        (DONE, "AT_TIMESTAMP 9"),
        (RELEASED, "RELEASED 1 AT_TIMESTAMP 9"),
        (EXPECTED, EXPECTED),
    ],
)
def test_a_slot_that_is_moved_says_so(before: str, after: str) -> None:
    slot = Slot({"a": before}, Position(time_ms=9))
    assert slot.changed
    assert slot.said() == {"a": after}


def test_a_slot_that_is_moved_by_hand_skips_nothing() -> None:
    slot = Slot({"a": READING, "b": READING}, Position(time_ms=9))
    assert slot.follow({"a": "SKIP 9", "b": "END"}) == set()
    assert slot.said() == {"a": "AT_TIMESTAMP 9", "b": "AT_TIMESTAMP 9"}


def test_a_slot_says_what_it_has_skipped() -> None:
    slot = Slot({"a": READING, "b": READING, "c": READING})
    assert slot.follow({"a": "SKIP 9", "b": "SKIP 5", "c": "READ 9"}) == {"a"}


def test_only_shards_that_are_read_are_read() -> None:
    slot = Slot({"a": READING, "b": RELEASED, "c": EXPECTED, "d": DONE, "e": "TRIM_HORIZON"})
    assert dict(slot.read()) == {"a": Position(7), "e": OLDEST}


def test_a_slot_that_is_moved_before_it_has_any_shard_begins_there() -> None:
    slot = Slot({}, Position(time_ms=9))
    slot.follow({"a": "READ TRIM_HORIZON", "b": "READ AT_TIMESTAMP 5", "c": "READ 7"})
    assert slot.said() == {"a": "AT_TIMESTAMP 9", "b": "AT_TIMESTAMP 9", "c": "7"}
    later = Slot({"a": "7"}, Position(time_ms=9))
    later.follow({"b": "READ TRIM_HORIZON"})
    assert later.said() == {"a": "AT_TIMESTAMP 9", "b": "TRIM_HORIZON"}

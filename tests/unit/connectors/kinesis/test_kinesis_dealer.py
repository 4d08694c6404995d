"""The list of shards: as new as it needs to be, and asked for no more often."""

from __future__ import annotations

from typing import Literal

import pytest

from headrace.connectors.kinesis.dealer import HURRIES_MAX, HURRY_MS, LIST_MS, KinesisDealer, ShardListing
from headrace.connectors.kinesis.dealing import Dealing
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.core.clock import ManualClock
from headrace.core.errors import StreamNotFoundError, ThrottledError
from headrace.systems.slot_reports import SlotReport

FIRST = "shardId-000000000000"


class Scene:
    """A stream of one shard; ``asked`` counts the lists that were asked for."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000)
        self.stream = MemoryKinesis("orders", shards=1, clock=self.clock)
        self.stream.interfere = self.note
        self.listing = ShardListing(self.stream, "orders", self.clock)
        self.asked = 0
        self.error: Exception | None = None

    def note(self, call: str, moment: Literal["asked", "done"]) -> None:
        if (call, moment) == ("shards", "asked"):
            self.asked += 1
            if self.error is not None:
                raise self.error

    def listed(self, *ended: str) -> int:
        """How many shards the list has."""
        return len(self.listing.shards(set(ended)))


def test_a_list_is_good_for_some_seconds() -> None:
    scene = Scene()
    assert scene.listed() == 1
    scene.stream.split(FIRST)
    scene.clock.advance(LIST_MS - 1)
    assert (scene.listed(), scene.asked) == (1, 1)
    scene.clock.advance(1)
    assert (scene.listed(), scene.asked) == (3, 2)


def test_a_shard_that_ended_is_a_reason_to_look_sooner() -> None:
    scene = Scene()
    scene.listed()
    scene.stream.split(FIRST)
    scene.clock.advance(HURRY_MS)
    assert (scene.listed(FIRST), scene.asked) == (3, 2)
    scene.clock.advance(HURRY_MS)
    assert (scene.listed(FIRST), scene.asked) == (3, 2)  # its children are there


def test_a_shard_without_children_is_no_reason_for_ever() -> None:
    scene = Scene()
    scene.listed()
    for _ in range(3 * HURRIES_MAX):
        scene.clock.advance(HURRY_MS)
        scene.listed(FIRST)
    after_hurry = 2 * HURRIES_MAX * HURRY_MS // LIST_MS
    assert HURRIES_MAX <= scene.asked <= HURRIES_MAX + after_hurry + 1


def test_a_stream_that_is_deleted_while_it_is_read_is_an_error_that_says_so() -> None:
    scene = Scene()
    scene.listed()
    scene.error = StreamNotFoundError("list_shards: ResourceNotFoundException")
    scene.clock.advance(LIST_MS)
    with pytest.raises(StreamNotFoundError, match="'orders' doesn't exist any more: it was deleted"):
        scene.listed()


def test_an_old_list_does_while_kinesis_gives_none() -> None:
    scene = Scene()
    scene.error = ThrottledError("slower")
    with pytest.raises(ThrottledError):
        scene.listed()
    scene.error = None
    assert scene.listed() == 1
    scene.error = ThrottledError("slower")
    scene.clock.advance(LIST_MS)
    assert (scene.listed(), scene.asked) == (1, 3)
    scene.clock.advance(LIST_MS - 1)
    assert (scene.listed(), scene.asked) == (1, 3)
    scene.error = StreamNotFoundError("gone")
    scene.clock.advance(1)
    with pytest.raises(StreamNotFoundError):
        scene.listed()


def test_a_dealer_deals_what_kinesis_lists() -> None:
    scene = Scene()
    dealer = KinesisDealer("orders", scene.stream, Dealing(1), scene.clock)
    assert dealer.deal([None]) == [None]
    (orders,) = dealer.deal([SlotReport(1, {})])
    assert orders == {FIRST: "READ TRIM_HORIZON"}
    dealer.close()

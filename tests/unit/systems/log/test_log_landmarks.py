"""Whether a partition is still the one that was read up to an offset."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.core.ids import SSP, Offset, StreamId
from headrace.systems.base import Edge, Records
from headrace.systems.log.consumer import LogConsumer
from headrace.systems.log.system import LogSystem

ORDERS = SSP(StreamId("log", "orders"), 0)


class Orders:
    """A stream of one partition, and who reads it."""

    def __init__(self, root: Path) -> None:
        self.log = LogSystem(root)
        self.folder = root / "orders"
        self.file = self.folder / "p00000.log"
        self.log.admin().create("orders", 1)

    def append(self, *bodies: bytes) -> None:
        with closing(self.log.producer()) as producer:
            for body in bodies:
                producer.send("orders", 0, body)
            producer.flush()

    def reading(self, position: Offset | Edge = Edge.OLDEST) -> LogConsumer:
        consumer = self.log.consumer()
        consumer.register(ORDERS, position)
        assert isinstance(consumer, LogConsumer)
        return consumer

    def landmarks(self) -> tuple[list[Offset], list[str]]:
        """Those of all positions that have a record before them, read in one poll."""
        with closing(self.reading()) as consumer:
            (polled,) = consumer.poll()
            assert isinstance(polled, Records)
            places = [*polled.offsets[1:], polled.next]
            return places, [consumer.landmark(ORDERS, place) for place in places]

    def has(self, landmark: str, position: Offset) -> bool:
        with closing(self.reading(position)) as consumer:
            return consumer.has_landmark(ORDERS, landmark)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path / "streams")
    orders.append(b"a", b"b", b"c")
    yield orders


def test_each_position_has_its_own(orders: Orders) -> None:
    places, found = orders.landmarks()
    assert len({*found}) == 3
    orders.append(b"d")
    assert all(orders.has(landmark, place) for place, landmark in zip(places, found, strict=True))


def test_nothing_tells_what_a_partition_without_records_is(orders: Orders) -> None:
    with closing(orders.reading()) as consumer:
        assert consumer.landmark(ORDERS, 32) == ""
        consumer.poll()
        assert consumer.landmark(ORDERS, 32) == ""


def test_who_has_polled_nothing_since_goes_on_with_what_it_had(orders: Orders) -> None:
    places, found = orders.landmarks()
    with closing(orders.reading(places[1])) as consumer:
        assert consumer.has_landmark(ORDERS, found[1])
        assert consumer.landmark(ORDERS, places[1]) == found[1]
        consumer.poll()
        assert consumer.landmark(ORDERS, places[1]) == found[1]
        assert consumer.landmark(ORDERS, places[2]) == found[2]


def test_a_partition_that_was_cut_and_has_grown_again_is_another(orders: Orders) -> None:
    places, found = orders.landmarks()
    os.truncate(orders.file, places[0])
    orders.append(b"x", b"y")
    assert [orders.has(landmark, place) for place, landmark in zip(places, found, strict=True)] == [True, False, False]


def test_a_stream_that_was_replaced_is_another_though_it_holds_the_same(orders: Orders) -> None:
    places, found = orders.landmarks()
    shutil.rmtree(orders.folder)
    orders.log.admin().create("orders", 1)
    orders.append(b"a", b"b", b"c")
    assert not any(orders.has(landmark, place) for place, landmark in zip(places, found, strict=True))


def test_what_was_trimmed_is_not_missed(orders: Orders) -> None:
    places, found = orders.landmarks()
    orders.log.admin().trim(ORDERS, places[1])
    assert orders.has(found[1], places[1])
    assert orders.has(found[2], places[2])


def test_who_writes_knows_the_landmark_of_its_last_record(orders: Orders) -> None:
    with closing(orders.log.producer()) as producer:
        assert producer.landmark("orders", 0) == ""
        for bodies in ([b"d"], [b"e" * 20_000, b"f"], [b"g", b"h" * 70_000]):
            for body in bodies:
                producer.send("orders", 0, body)
            producer.flush()
            assert producer.landmark("orders", 0) == orders.landmarks()[1][-1]

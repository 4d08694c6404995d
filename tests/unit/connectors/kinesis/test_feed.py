"""What one shard's answers mean."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from slot_reader import SSP_0, Reader, name, put, stream
from test_kpl import packed, sealed
from typing_extensions import override

from headrace.connectors.kinesis.api import Page, Position, Put
from headrace.connectors.kinesis.feed import Common, Feed, Pace, Room
from headrace.connectors.kinesis.memory import MemoryKinesis

OLDEST = "READ TRIM_HORIZON"


class ForgetfulKinesis(MemoryKinesis):
    """Now and then it returns no iterator, though there is more to read."""

    replies = 0

    @override
    def records(self, iterator: str, limit: int) -> Page:
        page = super().records(iterator, limit)
        self.replies += 1
        return page if self.replies % 3 else replace(page, iterator=None)


def test_no_iterator_does_not_mean_that_a_shard_is_closed() -> None:
    _, clock = stream()
    kinesis = ForgetfulKinesis("orders", shards=1, clock=clock)
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST)
    for n in range(20):
        put(kinesis, 0, n)
        reader.read(turns=2)
    assert reader.shards[SSP_0][name(0)].isdecimal()
    kinesis.split(name(0))
    assert reader.read(turns=30).numbers == {name(0): [*range(20)]}
    assert reader.shards[SSP_0] == {name(0): "SHARD_END"}


def test_a_list_of_shards_that_lags_behind_delays_the_end() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1)
    kinesis.list_lag_ms = 5000
    clock.advance(10_000)
    kinesis.split(name(0))
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST).read(turns=3)
    assert reader.shards[SSP_0][name(0)].isdecimal()
    reader.read(turns=30)
    assert (reader.numbers, reader.shards[SSP_0]) == ({name(0): [1]}, {name(0): "SHARD_END"})


def test_what_arrives_after_a_feed_was_closed_is_dropped() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1)
    feed = Feed(Common("orders", Pace(), Room()), name(0), Position())
    answer = feed.fetch(kinesis, clock)
    assert answer.fetched is not None
    feed.close()
    assert not feed.take_in(answer, clock.monotonic_ms(), 0.5)
    assert not feed.buffer
    assert not feed.hungry


def test_empty_pages_are_no_end() -> None:
    kinesis, clock = stream()
    kinesis.empty_every = 2
    put(kinesis, 0, *range(20))
    assert Reader(kinesis, clock).begin({}).order(s0=OLDEST).read().numbers == {name(0): [*range(20)]}


RECORDS = st.lists(st.integers(1, 4) | st.none(), min_size=1, max_size=12)
"""Of each how many user records are in it; None: it is no aggregate."""


@given(RECORDS, st.integers(1, 60))
def test_another_consumer_goes_on_inside_aggregates(records: list[int | None], max_bytes: int) -> None:
    kinesis, clock = stream()
    total = 0
    for size in records:
        payloads = [b'{"n": %d}' % n for n in range(total, total + (1 if size is None else size))]
        total += len(payloads)
        whole = payloads[0] if size is None else sealed(packed([("k", None, payload) for payload in payloads]))
        kinesis.put([Put("k", whole)])
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST)
    seen: list[int] = []
    for _ in range(total + 3):
        for rows in reader.poll(max_bytes=max_bytes):
            seen += rows.frame["n"].to_list() if rows.frame.height else []
            other = Reader(kinesis, clock).begin(dict(rows.shards or {}))
            assert seen + other.read(turns=2).numbers[name(0)] == [*range(total)]
        clock.advance(1000)
    assert seen == [*range(total)]
    last = kinesis.records(kinesis.iterator(name(0), Position()), 100).records[-1]
    assert reader.shards[SSP_0] == {name(0): str(last.sequence)}


def test_an_aggregate_for_another_shard_is_left_out_and_that_is_said() -> None:
    kinesis, clock = stream(2)
    ranges = {shard.id: shard for shard in kinesis.shards()}
    low, high = ranges[name(0)].first, ranges[name(1)].first
    put(kinesis, 0, 1)
    kinesis.put([Put("k", sealed(packed([("a", low, b'{"n": 2}'), ("b", high, b'{"n": 3}')])), low)])
    put(kinesis, 0, 4)
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST).read()
    assert reader.numbers == {name(0): [1, 4]}
    [unread] = reader.unread
    assert (unread.counter, unread.count) == ("misplaced", 2)
    assert "the KPL had aggregated them for another shard" in unread.warning


def test_an_aggregate_for_another_shard_is_counted_once_if_no_other_record_is_there() -> None:
    kinesis, clock = stream(2)
    high = kinesis.shards()[1].first
    records = [(f"k{n}", high, b'{"n": 1}') for n in range(1000)]
    kinesis.put([Put("k", sealed(packed(records)), 0)])
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST).read()
    assert [(unread.counter, unread.count) for unread in reader.unread] == [("misplaced", 1000)]
    assert Reader(kinesis, clock).begin(reader.shards[SSP_0]).read().unread == []


def test_user_records_have_their_own_keys() -> None:
    kinesis, clock = stream()
    kinesis.put([Put("outer", sealed(packed([("a", None, b'{"n": 1}'), ("b", None, b'{"n": 2}')])))])
    [frame] = Reader(kinesis, clock, columns={"key": "partition_key"}).begin({}).order(s0=OLDEST).read().frames
    assert frame["key"].to_list() == ["a", "b"]

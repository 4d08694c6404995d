"""What only the stream in memory can show: limits, trimming, age, stale lists and lost replies, at chosen times."""

from __future__ import annotations

import pytest

from headrace.connectors.kinesis.api import OLDEST, IteratorExpired, Position, Put
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.core.clock import ManualClock
from headrace.core.errors import (
    StreamExistsError,
    StreamNotFoundError,
    ThrottledError,
    TrimmedOffsetError,
    UnavailableError,
    UsageError,
)

START = 1_700_000_000_000
FIRST = "shardId-000000000000"
SECOND = "shardId-000000000001"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def stream(clock: ManualClock) -> MemoryKinesis:
    return MemoryKinesis("orders", clock=clock)


def put(stream: MemoryKinesis, *texts: str, hash: int | None = None) -> list[int]:
    """The sequence numbers of some records."""
    results = stream.put([Put("key", text.encode(), hash) for text in texts])
    return [result.sequence for result in results if result.sequence is not None]


def texts(stream: MemoryKinesis, shard: str, position: Position = OLDEST) -> list[str]:
    """What one page has."""
    return [record.data.decode() for record in stream.records(stream.iterator(shard, position), 100).records]


def test_iterators_expire_after_five_minutes_and_at_command(stream: MemoryKinesis, clock: ManualClock) -> None:
    put(stream, "a")
    iterator = stream.iterator(FIRST, OLDEST)
    clock.advance(300_000)
    page = stream.records(iterator, 10)
    assert len(page.records) == 1
    clock.advance(1)
    with pytest.raises(IteratorExpired):
        stream.records(iterator, 10)
    assert page.iterator is not None
    assert stream.records(page.iterator, 10).records == []
    stream.expire_iterators()
    with pytest.raises(IteratorExpired):
        stream.records(page.iterator, 10)
    assert texts(stream, FIRST) == ["a"]


def test_a_shard_takes_five_reads_a_second(stream: MemoryKinesis, clock: ManualClock) -> None:
    stream.limited = True
    iterator = stream.iterator(FIRST, OLDEST)
    for _ in range(5):
        stream.records(iterator, 10)
    with pytest.raises(ThrottledError):
        stream.records(iterator, 10)
    clock.advance(200)
    stream.records(iterator, 10)
    with pytest.raises(ThrottledError):
        stream.records(iterator, 10)


def test_a_large_page_is_paid_for_by_a_pause(stream: MemoryKinesis, clock: ManualClock) -> None:
    for _ in range(3):
        stream.put([Put("key", bytes(1 << 19), None)] * 8)
    stream.limited = True
    page = stream.records(stream.iterator(FIRST, OLDEST), 10_000)
    assert sum(len(record.data) for record in page.records) <= 10 << 20
    assert page.iterator is not None
    clock.advance(3_000)
    with pytest.raises(ThrottledError):
        stream.records(page.iterator, 1)
    clock.advance(1_000)
    assert len(stream.records(page.iterator, 100).records) == 24 - len(page.records)


def test_what_a_shard_cannot_take_fails_alone(stream: MemoryKinesis, clock: ManualClock) -> None:
    stream.split(FIRST)
    stream.throttled = {SECOND}
    refused, taken = stream.put([Put("k", b"low", 0), Put("k", b"high", 2**128 - 1)])
    assert (refused.sequence, refused.error.partition(":")[0]) == (None, "ProvisionedThroughputExceededException")
    assert (taken.shard, taken.error) == ("shardId-000000000002", "")
    with pytest.raises(ThrottledError):
        stream.records(stream.iterator(SECOND, OLDEST), 1)
    stream.throttled, stream.limited = set(), True
    results = [result for _ in range(3) for result in stream.put([Put("k", b"low", 0)] * 400)]
    assert [result.sequence is not None for result in results] == [True] * 1000 + [False] * 200
    clock.advance(1_000)
    assert stream.put([Put("k", b"low", 0)])[0].error == ""


def test_trimming_drops_old_records_and_closed_shards(stream: MemoryKinesis, clock: ManualClock) -> None:
    old = put(stream, "a", "b")
    before = stream.iterator(FIRST, OLDEST)
    clock.advance(1_000)
    put(stream, "c")
    stream.trim(START + 1_000)
    assert [record.data for record in stream.records(before, 10).records] == [b"c"]
    assert texts(stream, FIRST, Position(old[0])) == ["c"], "Kinesis goes on with the oldest record that is left"
    clock.advance(1_000)
    stream.split(FIRST)
    stream.trim(START + 2_000)
    assert stream.shards()[0].id == FIRST
    assert texts(stream, FIRST) == []
    clock.advance(1_000)
    stream.trim(START + 2_001)
    assert [(shard.id, shard.parents) for shard in stream.shards()] == [
        (SECOND, (FIRST,)),
        ("shardId-000000000002", (FIRST,)),
    ]
    with pytest.raises(StreamNotFoundError):
        stream.iterator(FIRST, OLDEST)


def test_a_list_of_shards_may_be_old(stream: MemoryKinesis, clock: ManualClock) -> None:
    clock.advance(10_000)
    stream.split(FIRST)
    stream.list_lag_ms = 1
    assert [(shard.id, shard.closed) for shard in stream.shards()] == [(FIRST, False)]
    clock.advance(1)
    assert [shard.closed for shard in stream.shards()] == [True, False, False]
    stream.list_lag_ms = 3_600_000
    assert [shard.id for shard in stream.shards()] == [FIRST], "it is never older than the stream"


def test_pages_may_be_empty_though_there_is_more(stream: MemoryKinesis) -> None:
    put(stream, "a", "b", "c")
    stream.empty_every = 2
    iterator: str | None = stream.iterator(FIRST, OLDEST)
    pages = []
    for _ in range(5):
        assert iterator is not None
        page = stream.records(iterator, 1)
        pages.append([record.data.decode() for record in page.records])
        iterator = page.iterator
    assert pages == [["a"], [], ["b"], [], ["c"]]


def test_a_lost_reply_is_a_write_that_happened(stream: MemoryKinesis) -> None:
    def lose(call: str, moment: str) -> None:
        if (call, moment) == ("put", lost):
            raise UnavailableError("the connection has broken")

    stream.interfere = lose
    for lost in ("asked", "done"):
        with pytest.raises(UnavailableError):
            put(stream, lost)
    assert texts(stream, FIRST) == ["done"]


def test_a_stream_created_again_is_another_one(stream: MemoryKinesis) -> None:
    created = stream.describe().created_ms
    [old] = put(stream, "a")
    iterator = stream.iterator(FIRST, OLDEST)
    with pytest.raises(StreamExistsError):
        stream.create(1)
    stream.delete()
    for call in (stream.describe, stream.shards, lambda: stream.records(iterator, 1), lambda: put(stream, "b")):
        with pytest.raises(StreamNotFoundError):
            call()
    stream.create(2)
    assert stream.describe().created_ms > created
    assert [shard.id for shard in stream.shards()] == [FIRST, SECOND]
    with pytest.raises(StreamNotFoundError):
        stream.records(iterator, 1)
    with pytest.raises(TrimmedOffsetError):
        stream.iterator(FIRST, Position(old))


def test_sequence_numbers_look_like_those_of_kinesis(stream: MemoryKinesis, clock: ManualClock) -> None:
    numbers = put(stream, "a", "b")
    for _ in range(3):  # all within one moment
        stream.merge(*stream.split(stream.shards()[-1].id))
        numbers += put(stream, "c")
    assert numbers == sorted(set(numbers))
    assert {len(str(number)) for number in numbers} == {56}


def test_open_adjacent_shards_can_be_merged_and_open_ones_split(stream: MemoryKinesis) -> None:
    low, high = stream.split(FIRST, at=10)
    assert [(shard.first, shard.last) for shard in stream.shards()[1:]] == [(0, 9), (10, 2**128 - 1)]
    for refused in (lambda: stream.split(FIRST), lambda: stream.merge(FIRST, low), lambda: stream.split(low, at=0)):
        with pytest.raises(UsageError):
            refused()
    lowest, _ = stream.split(low)
    with pytest.raises(UsageError, match="adjacent"):
        stream.merge(lowest, high)

"""One suite for every Kinesis: the stream in memory, and boto3's client on two servers that stand in for Amazon's.

Where a server is known to differ from Kinesis, the test leaves it out and says how it differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5

import pytest

from headrace.connectors.kinesis.api import HASH_END, OLDEST, KinesisApi, Page, Position, Put, Shard
from headrace.connectors.kinesis.feed import Common, Feed, Pace, Room
from headrace.core.clock import ManualClock
from headrace.core.errors import StreamNotFoundError, TrimmedOffsetError, UsageError
from servers.kinesis_streams import KinesisStream, StreamInMemory, StreamOnServer

Open = Callable[[int], KinesisStream]
FIRST = "shardId-000000000000"
LAST_HASH = HASH_END - 1


@pytest.fixture(params=["memory", "kinesis-local", "kinesalite"])
def open_stream(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Creates streams with so many shards."""
    opened: list[KinesisStream] = []

    def create(shards: int) -> KinesisStream:
        if request.param == "memory":
            opened.append(StreamInMemory(shards))
        else:
            opened.append(StreamOnServer(request.getfixturevalue(request.param.replace("-", "_")), shards))
        return opened[-1]

    yield create
    for stream in opened:
        stream.close()


def leave_out(stream: KinesisStream, kind: str, why: str) -> None:
    if stream.kind == kind:
        pytest.skip(f"{kind} {why}")


def write(api: KinesisApi, *texts: str, hash: int = 0) -> list[int]:
    """Write records with a hash; return their sequence numbers."""
    results = api.put([Put(f"key of {text}", text.encode(), hash) for text in texts])
    assert [result.error for result in results] == [""] * len(texts)
    return [result.sequence for result in results if result.sequence is not None]


def pages(api: KinesisApi, shard: str, position: Position = OLDEST, limit: int = 1000) -> list[Page]:
    """The pages of a shard until it ends, or until nothing is left."""
    iterator: str | None = api.iterator(shard, position)
    found: list[Page] = []
    while iterator is not None and (not found or found[-1].records):
        assert len(found) < 100
        found.append(api.records(iterator, limit))
        iterator = found[-1].iterator
    return found


def read(api: KinesisApi, shard: str, position: Position = OLDEST, limit: int = 1000) -> list[str]:
    return [record.data.decode() for page in pages(api, shard, position, limit) for record in page.records]


def by_id(api: KinesisApi) -> dict[str, Shard]:
    return {shard.id: shard for shard in api.shards()}


def children_of(api: KinesisApi, parent: str) -> list[Shard]:
    return sorted((shard for shard in api.shards() if parent in shard.parents), key=lambda shard: shard.first)


@pytest.mark.parametrize("count", [1, 3])
def test_a_new_stream_has_open_shards_that_share_all_hashes(open_stream: Open, count: int) -> None:
    stream = open_stream(count)
    summary = stream.api.describe()
    assert (summary.name, summary.open_shards, summary.kept_h) == (stream.name, count, 24)
    assert abs(stream.now_ms() - summary.created_ms) < 60_000
    shards = sorted(stream.api.shards(), key=lambda shard: shard.first)
    assert [(shard.parents, shard.closed) for shard in shards] == [((), False)] * count
    assert [shard.first for shard in shards] == [0, *(shard.last + 1 for shard in shards[:-1])]
    assert shards[-1].last == LAST_HASH


def test_records_come_back_as_they_were_written(open_stream: Open) -> None:
    stream = open_stream(1)
    before = stream.now_ms()
    puts = [Put("schlüssel", bytes(range(256))), Put("k" * 256, b"{}"), Put("third", b"\x00" * 1000)]
    results = stream.api.put(puts)
    after = stream.now_ms()
    [page, *_] = pages(stream.api, FIRST)
    assert [(record.key, record.data) for record in page.records] == [(put.key, put.data) for put in puts]
    assert [record.sequence for record in page.records] == [result.sequence for result in results]
    assert [result.shard for result in results] == [FIRST] * 3
    assert all(before - 1000 <= record.arrived_ms <= after + 1000 for record in page.records)
    numbers = [record.sequence for record in page.records]
    assert numbers == sorted(set(numbers))
    assert {len(str(number)) for number in numbers} == {56}


def test_the_hash_of_a_key_chooses_the_shard_unless_one_is_given(open_stream: Open) -> None:
    stream = open_stream(4)
    shards = by_id(stream.api)
    keys = [f"key {n}" for n in range(40)]
    for key, result in zip(keys, stream.api.put([Put(key, b"x") for key in keys]), strict=True):
        assert shards[result.shard].first <= int(md5(key.encode()).hexdigest(), 16) <= shards[result.shard].last
    bounds = [bound for shard in shards.values() for bound in (shard.first, shard.last)]
    found = [result.shard for result in stream.api.put([Put("key", b"x", bound) for bound in bounds])]
    assert found == [shard.id for shard in shards.values() for _ in range(2)]


def test_pages_have_up_to_a_limit_and_go_on(open_stream: Open) -> None:
    stream = open_stream(1)
    texts = [f"{n}" for n in range(7)]
    write(stream.api, *texts)
    found = pages(stream.api, FIRST, limit=3)
    assert [len(page.records) for page in found] == [3, 3, 1, 0]
    assert [record.data.decode() for page in found for record in page.records] == texts
    assert found[-1].behind_ms == 0
    tip = found[-1].iterator
    assert tip is not None, "an open shard has no end"
    write(stream.api, "later")
    assert [record.data for record in stream.api.records(tip, 10).records] == [b"later"]


def test_a_page_before_others_is_behind(open_stream: Open) -> None:
    stream = open_stream(1)
    leave_out(stream, "kinesalite", "always says that nothing is behind")
    write(stream.api, "a")
    stream.pass_ms(50)
    write(stream.api, "b")
    first, second, *_ = pages(stream.api, FIRST, limit=1)
    assert (first.behind_ms > 0, second.behind_ms) == (True, 0)


def test_reading_goes_on_after_a_record_or_with_a_part_of_it(open_stream: Open) -> None:
    stream = open_stream(1)
    numbers = write(stream.api, "a", "b", "c")
    assert read(stream.api, FIRST, Position(numbers[0])) == ["b", "c"]
    assert read(stream.api, FIRST, Position(numbers[1], sub=0)) == ["b", "c"]
    assert read(stream.api, FIRST, Position(numbers[2])) == []
    assert read(stream.api, FIRST, Position(numbers[2], sub=5)) == ["c"]


def test_reading_begins_at_a_moment_to_the_millisecond(open_stream: Open) -> None:
    stream = open_stream(1)
    for text in ("a", "b", "c"):
        write(stream.api, text)
        stream.pass_ms(20)
    arrived = [record.arrived_ms for page in pages(stream.api, FIRST) for record in page.records]
    assert arrived == sorted(set(arrived))
    assert read(stream.api, FIRST, Position(time_ms=arrived[1])) == ["b", "c"]
    assert read(stream.api, FIRST, Position(time_ms=arrived[1] + 1)) == ["c"]
    assert read(stream.api, FIRST, Position(time_ms=arrived[0] - 3_600_000)) == ["a", "b", "c"]


def test_a_reader_that_is_days_behind_sees_that_nothing_has_expired(open_stream: Open) -> None:
    """No server lets records expire; by the reader's clock they are 30 hours old."""
    stream = open_stream(1)
    numbers = write(stream.api, "a", "b", "c")
    clock = ManualClock(stream.now_ms() + 30 * 3_600_000)
    feed = Feed(Common(stream.name, Pace(), Room()), FIRST, Position(numbers[0]))
    for _ in range(3):
        answer = feed.fetch(stream.api, clock)
        assert (answer.again, answer.error) == ("", None)
        feed.take_in(answer, clock.monotonic_ms(), 0.5)
    found = feed.buffer.take(1 << 20)
    assert (found.data, list(found.unread)) == ([b"b", b"c"], [])
    assert found.end == Position(numbers[2]).at_tip(clock.now_ms(), 24)


def test_a_moment_in_the_future_means_now(open_stream: Open) -> None:
    stream = open_stream(1)
    leave_out(stream, "kinesalite", "never answers when no record is that new")
    write(stream.api, "before")
    iterator = stream.api.iterator(FIRST, Position(time_ms=stream.now_ms() + 60_000))
    write(stream.api, "after")
    page = stream.api.records(iterator, 10)
    assert [record.data for record in page.records] == [b"after"]


def test_a_split_shard_ends_and_its_children_go_on(open_stream: Open) -> None:
    stream = open_stream(1)
    numbers = write(stream.api, "a", "b")
    stream.split(FIRST, 1000)
    low, high = children_of(stream.api, FIRST)
    assert (low.first, low.last, high.first, high.last) == (0, 999, 1000, LAST_HASH)
    assert [(shard.parents, shard.closed) for shard in (low, high)] == [((FIRST,), False)] * 2
    assert by_id(stream.api)[FIRST].closed
    assert stream.api.describe().open_shards == 2
    later = write(stream.api, "low", hash=999) + write(stream.api, "high", hash=1000)
    assert min(later) > max(numbers)
    assert [read(stream.api, shard.id) for shard in (low, high)] == [["low"], ["high"]]
    assert read(stream.api, FIRST, limit=1) == ["a", "b"], "what was written before stays in the parent"
    for position in (OLDEST, Position(numbers[0]), Position(numbers[1])):
        assert pages(stream.api, FIRST, position)[-1].iterator is None


def test_a_merge_has_two_parents(open_stream: Open) -> None:
    stream = open_stream(2)
    one, other = stream.api.shards()
    numbers = write(stream.api, "one", hash=one.first) + write(stream.api, "other", hash=other.first)
    stream.merge(one.id, other.id)
    [child] = children_of(stream.api, one.id)
    assert (set(child.parents), child.first, child.last, child.closed) == ({one.id, other.id}, 0, LAST_HASH, False)
    assert [by_id(stream.api)[shard.id].closed for shard in (one, other)] == [True, True]
    assert min(write(stream.api, "child")) > max(numbers)
    assert [read(stream.api, shard.id) for shard in (one, other, child)] == [["one"], ["other"], ["child"]]
    assert [pages(stream.api, shard.id)[-1].iterator is None for shard in (one, other, child)] == [True, True, False]


def test_a_closed_shard_that_never_had_a_record_ends(open_stream: Open) -> None:
    stream = open_stream(1)
    open_iterator = stream.api.iterator(FIRST, OLDEST)
    stream.split(FIRST, HASH_END // 2)
    for iterator in (stream.api.iterator(FIRST, OLDEST), open_iterator):
        page = stream.api.records(iterator, 10)
        if stream.kind == "kinesalite":  # says so a page late
            assert page.iterator is not None
            page = stream.api.records(page.iterator, 10)
        assert (page.records, page.iterator) == ([], None)


def test_a_stream_that_does_not_exist_is_named(open_stream: Open) -> None:
    stream = open_stream(1)
    gone = stream.client_of("nowhere")
    calls: list[Callable[[], object]] = [
        gone.describe,
        gone.shards,
        lambda: gone.iterator(FIRST, OLDEST),
        lambda: gone.put([Put("key", b"x")]),
    ]
    for call in calls:
        with pytest.raises(StreamNotFoundError, match="'nowhere'"):
            call()
    gone.close()
    with pytest.raises(StreamNotFoundError, match="shardId-000000000007"):
        stream.api.iterator("shardId-000000000007", OLDEST)


def test_a_deleted_stream_is_gone_for_those_who_read_it(open_stream: Open) -> None:
    stream = open_stream(1)
    write(stream.api, "a")
    iterator = stream.api.iterator(FIRST, OLDEST)
    stream.delete()
    for call in (stream.api.describe, lambda: stream.api.records(iterator, 10), lambda: write(stream.api, "b")):
        with pytest.raises(StreamNotFoundError):
            call()


def test_a_sequence_number_of_another_stream_is_refused(open_stream: Open) -> None:
    stream = open_stream(1)
    leave_out(stream, "kinesis-local", "says that there is no such shard")
    [number] = write(stream.api, "a")
    for other in (5, number * 1000):
        with pytest.raises(TrimmedOffsetError):
            stream.api.iterator(FIRST, Position(other))


def test_too_much_at_once_is_refused_as_a_whole(open_stream: Open) -> None:
    stream = open_stream(1)
    for puts in ([], [Put("k", b"x")] * 501, [Put("k", bytes(1 << 20))], [Put("k", bytes(900_000))] * 6):
        with pytest.raises(UsageError, match="at once"):
            stream.api.put(puts)
    assert read(stream.api, FIRST) == []
    results = stream.api.put([Put("k", b"x")] * 499 + [Put("k", bytes((1 << 20) - 1))])
    assert {result.error for result in results} == {""}


def test_threads_share_a_client(open_stream: Open) -> None:
    stream = open_stream(4)
    shards = stream.api.shards()

    def write_and_read(shard: Shard) -> list[str]:
        for n in range(5):
            write(stream.api, f"{shard.id} {n}", hash=shard.first)
        return read(stream.api, shard.id, limit=2)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(write_and_read, shards))
    assert found == [[f"{shard.id} {n}" for n in range(5)] for shard in shards]

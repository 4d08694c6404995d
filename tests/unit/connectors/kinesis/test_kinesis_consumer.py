from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest
from slot_reader import NOW_MS, SSP_0, SSP_1, Reader, name, put, stream

from headrace.connectors.kinesis.consumer import RecordRows
from headrace.connectors.kinesis.feed import Room
from headrace.core.errors import StreamNotFoundError, TrimmedOffsetError, UnavailableError
from headrace.rows.formats import Decoded, Decoder, FormatSpec, Payload, open_format
from headrace.systems.slots import SlotConsumer
from headrace.systems.startpoints import MOMENTS

OLDEST = "READ TRIM_HORIZON"
DAY_MS = 24 * 3_600_000


def test_it_is_a_consumer_of_slots() -> None:
    assert isinstance(Reader(*stream()).consumer, SlotConsumer)


def test_a_shard_is_read_when_it_is_ordered() -> None:
    kinesis, clock = stream()
    [*_, last] = put(kinesis, 0, 1, 2, 3)
    reader = Reader(kinesis, clock).begin({})
    assert reader.poll() == []
    news, rows = reader.order(s0=OLDEST).poll()
    assert (news.shards, news.offset, news.next) == ({name(0): "TRIM_HORIZON"}, 0, 0)
    assert rows.frame["n"].to_list() == [1, 2, 3]
    assert (rows.offset, rows.next, rows.shard, rows.shards) == (0, 3, name(0), {name(0): str(last)})
    assert rows.place == f"orders, {name(0)}"
    assert reader.consumer.position(SSP_0) == 3


def test_orders_that_are_repeated_change_nothing() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1, 2)
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST).read()
    assert reader.order(s0=OLDEST).read().numbers == {name(0): [1, 2]}


def test_a_slot_without_shards_says_once_that_it_was_given_none() -> None:
    reader = Reader(*stream()).begin({})
    [news] = reader.order().poll()
    assert news.shards == {}
    assert reader.order().poll() == []


def test_another_consumer_goes_on_after_any_rows() -> None:
    kinesis, clock = stream(2)
    put(kinesis, 0, *range(10))
    put(kinesis, 1, *range(100, 110))
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST, s1=OLDEST)
    while sum(map(len, reader.numbers.values())) < 20:
        ends = {shard: list(numbers) for shard, numbers in reader.numbers.items()}
        other = Reader(kinesis, clock).begin(reader.shards[SSP_0])
        if other.shards[SSP_0]:
            other.read()
            whole = {shard: ends.get(shard, []) + other.numbers[shard] for shard in (name(0), name(1))}
            assert whole == {name(0): [*range(10)], name(1): [*range(100, 110)]}
        clock.advance(1000)
        reader.poll(max_bytes=20)


def test_shards_of_a_slot_take_turns() -> None:
    kinesis, clock = stream(3)
    for shard in range(3):
        put(kinesis, shard, *range(10))
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST, s1=OLDEST, s2=OLDEST)
    reader.poll(max_bytes=10)
    for _ in range(9):
        reader.poll(max_bytes=10)
    lengths = [len(reader.numbers[name(shard)]) for shard in range(3)]
    assert sum(lengths) == 20
    assert max(lengths) - min(lengths) <= 1


def test_max_bytes_bounds_what_a_slot_hands_out_but_one_record_always_is() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, *range(5))
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST)
    assert [rows.frame.height for rows in reader.poll(max_bytes=16)] == [0, 2]
    assert [rows.frame.height for rows in reader.poll(max_bytes=1)] == [1]
    assert [rows.frame.height for rows in reader.poll()] == [2]


def test_a_slot_that_is_left_out_is_neither_fetched_nor_handed_out() -> None:
    kinesis, clock = stream(2)
    put(kinesis, 0, 1)
    put(kinesis, 1, 2)
    reader = Reader(kinesis, clock).begin({}).begin({}, SSP_1)
    reader.order(s0=OLDEST).order(SSP_1, s1=OLDEST).read(SSP_1)
    assert reader.numbers == {name(1): [2]}
    assert reader.read().numbers == {name(1): [2], name(0): [1]}


def test_a_full_buffer_stops_fetching_until_it_is_emptied() -> None:
    kinesis, clock = stream()
    for start in range(0, 5000, 500):
        put(kinesis, 0, *range(start, start + 500))
    asked: list[str] = []
    kinesis.interfere = lambda call, moment: asked.append(call) if (call, moment) == ("records", "asked") else None
    reader = Reader(kinesis, clock, room=Room(feed_bytes_max=2000)).begin({}).order(s0=OLDEST)
    for _ in range(10):
        reader.poll(max_bytes=1)
        clock.advance(1000)
    fetched = len(asked)
    assert fetched < 10
    assert reader.read(turns=60).numbers == {name(0): [*range(5000)]}
    assert len(asked) > fetched


def test_a_shard_ends_after_all_its_rows() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1, 2, 3)
    kinesis.split(name(0))
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST)
    said = []
    for _ in range(10):
        said += [(rows.frame.height, (rows.shards or {})[name(0)]) for rows in reader.poll(max_bytes=1)]
        clock.advance(1000)
    assert [rows for rows, _ in said] == [0, 1, 1, 1, 0]
    assert [text == "SHARD_END" for _, text in said] == [False, False, False, False, True]
    assert reader.order(s0="FORGET").poll()[0].shards == {}


def test_a_released_shard_goes_on_elsewhere_with_what_was_not_handed_out() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1, 2, 3)
    reader = Reader(kinesis, clock).begin({}).begin({}, SSP_1).order(s0=OLDEST)
    reader.poll(max_bytes=1)
    [news] = reader.order(s0="RELEASE 1").poll()
    assert news.shards is not None
    text = news.shards[name(0)]
    assert text.startswith("RELEASED 1 ")
    clock.advance(1000)
    assert reader.poll() == []
    reader.order(SSP_1, s0=text.replace("RELEASED 1", "READ")).read()
    assert reader.numbers == {name(0): [1, 2, 3]}


def test_a_shard_that_comes_back_goes_on_where_it_was_released() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1, 2, 3)
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST)
    reader.poll(max_bytes=1)
    reader.order(s0="RELEASE 1").poll()
    back = reader.shards[SSP_0][name(0)].replace("RELEASED 1", "READ")
    assert reader.order(s0=OLDEST).order(s0=back).poll() == []  # they were overtaken
    reader.order(s0="FORGET").order(s0=back).read()
    assert reader.numbers == {name(0): [1, 2, 3]}


def test_an_expired_iterator_is_replaced() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1, 2)
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST).read(turns=2)
    kinesis.expire_iterators()
    put(kinesis, 0, 3)
    assert reader.read().numbers == {name(0): [1, 2, 3]}


def test_a_throttled_shard_waits_and_others_go_on() -> None:
    kinesis, clock = stream(2)
    put(kinesis, 0, 1)
    put(kinesis, 1, 2)
    kinesis.throttled.add(name(0))
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST, s1=OLDEST).read()
    assert reader.numbers == {name(1): [2]}
    kinesis.throttled.clear()
    assert reader.read(turns=30).numbers == {name(0): [1], name(1): [2]}


def test_a_shard_is_not_read_more_often_than_kinesis_allows() -> None:
    kinesis, clock = stream()
    kinesis.limited = True
    calls: list[str] = []
    kinesis.interfere = lambda call, moment: calls.append(moment) if call == "records" else None
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST)
    for n in range(200):
        put(kinesis, 0, n)
        reader.poll()
        clock.advance(50)
    assert reader.read().numbers == {name(0): [*range(200)]}
    assert calls.count("asked") == calls.count("done") >= 50


def test_a_large_page_is_paid_for_by_a_pause() -> None:
    kinesis, clock = stream()
    for n in range(8):
        put(kinesis, 0, n, data=b'{"n": %d%s}' % (n, b" " * 1_000_000))
    kinesis.limited = True
    calls: list[str] = []
    kinesis.interfere = lambda call, moment: calls.append(moment) if call == "records" else None
    reader = Reader(kinesis, clock, room=Room(feed_bytes_max=16 << 20)).begin({}).order(s0=OLDEST)
    for _ in range(30):
        reader.poll(max_bytes=16 << 20)
        put(kinesis, 0, 1)
        clock.advance(200)
    assert calls.count("asked") == calls.count("done") >= 10


def test_a_record_that_is_not_readable_keeps_its_place() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1)
    [sequence] = put(kinesis, 0, 0, data=b"{oops")
    put(kinesis, 0, 3)
    reader = Reader(kinesis, clock, columns={"key": "partition_key"}).begin({}).order(s0=OLDEST).read()
    [frame] = reader.frames
    assert frame.to_dicts() == [{"n": 1, "key": "k1"}, {"n": 3, "key": "k3"}]
    [bad] = reader.bad
    assert (bad.ssp, bad.offset, bad.raw) == (SSP_0, 1, b"{oops")
    assert bad.reason.startswith(f"orders, {name(0)}, record {sequence}: ")


def test_what_kinesis_says_about_records_can_be_columns() -> None:
    kinesis, clock = stream()
    [sequence] = put(kinesis, 0, 1)
    about = {"key": "partition_key", "number": "sequence_number", "arrived": "arrival_time", "from": "shard"}
    [frame] = Reader(kinesis, clock, columns=about).begin({}).order(s0=OLDEST).read().frames
    [row] = frame.to_dicts()
    assert int(row.pop("arrived").timestamp()) != 0
    assert frame["arrived"].dt.epoch("ms").to_list() == [NOW_MS]
    assert row == {"n": 1, "key": "k1", "number": str(sequence), "from": name(0)}


@pytest.mark.parametrize("done", [False, True])
def test_a_slot_that_is_moved_reads_all_its_shards_from_that_moment(done: bool) -> None:
    kinesis, clock = stream(2)
    put(kinesis, 0, 1)
    put(kinesis, 1, 10)
    clock.advance(1000)
    put(kinesis, 0, 2)
    put(kinesis, 1, 20)
    if done:
        kinesis.merge(name(0), name(1))
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST, s1=OLDEST).read()
    committed = reader.shards[SSP_0]
    assert ("SHARD_END" in committed.values()) is done
    other = Reader(kinesis, clock).begin(committed, position=MOMENTS + NOW_MS + 1000)
    assert other.consumer.position(SSP_0) == 0
    assert other.shards[SSP_0] == {name(shard): f"AT_TIMESTAMP {NOW_MS + 1000}" for shard in range(2)}
    assert other.read().numbers == {name(0): [2], name(1): [20]}
    assert other.consumer.position(SSP_0) == 2
    oldest = Reader(kinesis, clock).begin(committed, position=MOMENTS).read()
    assert oldest.numbers == {name(0): [1, 2], name(1): [10, 20]}


def test_registering_again_goes_back_to_what_was_committed() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1, 2, 3)
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST)
    reader.poll(max_bytes=1)
    committed = reader.shards[SSP_0]
    reader.read().numbers.clear()
    assert reader.begin(committed, position=1).read().numbers == {name(0): [2, 3]}
    assert reader.consumer.position(SSP_0) == 3


def test_it_says_how_far_behind_it_is() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1, 2)
    clock.advance(5000)
    put(kinesis, 0, 3)
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST)
    assert reader.consumer.lag(SSP_0) is None
    assert reader.consumer.behind_ms(SSP_0) == {}
    reader.poll(max_bytes=1)
    assert reader.consumer.lag(SSP_0) == 2
    assert reader.consumer.lag(SSP_0, 0) == 3
    assert reader.consumer.behind_ms(SSP_0) == {name(0): 5000}
    reader.read()
    assert reader.consumer.lag(SSP_0) == 0
    assert reader.consumer.behind_ms(SSP_0) == {name(0): 0}


def test_there_are_no_other_slots() -> None:
    reader = Reader(*stream())
    with pytest.raises(StreamNotFoundError, match="slots 0 to 1"):
        reader.consumer.register(SSP_0.__class__(SSP_0.stream, 2), 0)


# -- what is gone


def test_a_stream_that_was_deleted_is_an_error() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1)
    reader = Reader(kinesis, clock).begin({}).order(s0=OLDEST).read()
    kinesis.delete()
    with pytest.raises(StreamNotFoundError, match="'orders' doesn't exist any more"):
        reader.read(turns=60)


def test_a_shard_that_is_gone_with_what_was_not_read_is_an_error() -> None:
    kinesis, clock = stream()
    put(kinesis, 0, 1)
    committed = Reader(kinesis, clock).begin({}).order(s0=OLDEST).read().shards[SSP_0]
    kinesis.split(name(0))
    clock.advance(2 * DAY_MS)
    kinesis.trim(clock.now_ms() - DAY_MS)
    with pytest.raises(TrimmedOffsetError, match="the shard has expired"):
        Reader(kinesis, clock).begin(committed).read(turns=60)
    moved = Reader(kinesis, clock).begin(committed, position=MOMENTS).read(turns=60)
    assert moved.shards[SSP_0] == {name(0): "SHARD_END"}


class Undecided(Decoder):
    """Decodes when it may: until then what it needs is away."""

    def __init__(self) -> None:
        self.away = True

    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        if self.away:
            raise UnavailableError("the registry is away")
        return open_format(FormatSpec("json")).decoder({"n": pl.Int64()}).decode(payloads)


def test_records_that_cannot_be_decoded_yet_are_neither_lost_nor_passed_over() -> None:
    kinesis, clock = stream(2)
    decoder = Undecided()
    reader = Reader(kinesis, clock, maker=RecordRows(decoder, {})).begin({}).order(s0=OLDEST, s1=OLDEST)
    put(kinesis, 0, 1, 2, 3)
    put(kinesis, 1, 10)
    kinesis.split(name(0))
    reader.read()
    assert reader.bad == []
    assert not any(reader.numbers.values())
    assert reader.shards[SSP_0] == {name(0): "TRIM_HORIZON", name(1): "TRIM_HORIZON"}
    assert reader.consumer.lag(SSP_0) == 4
    decoder.away = False
    reader.read()
    assert reader.numbers == {name(0): [1, 2, 3], name(1): [10]}
    assert reader.shards[SSP_0][name(0)] == "SHARD_END"

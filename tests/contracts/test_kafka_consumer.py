"""Topics as rows, on brokers: positions and gaps, ends, what was deleted, what was lost, and what is shown of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import polars as pl
import pytest

import headrace as hr
from chaos.kafka_server import Broker, KfakeServer
from headrace.connectors.kafka import client
from headrace.connectors.kafka import consumer as fetching
from headrace.connectors.kafka.consumer import KafkaSystem
from headrace.connectors.kafka.settings import TopicOptions
from headrace.core.clock import ManualClock
from headrace.core.errors import (
    DeploymentError,
    HeadraceError,
    InfrastructureError,
    StreamNotFoundError,
    TrimmedOffsetError,
    UnavailableError,
    UsageError,
)
from headrace.core.files import readable
from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Consumer, Edge, Ended, Polled, Rows, polled_to
from servers.kafka_topics import Topic

WAIT_S = 60.0
TEXT = {"value": pl.String}


@pytest.fixture(params=["kfake", pytest.param("kafka_broker", marks=pytest.mark.slow)])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def topic(broker: Broker) -> Topic:
    return Topic(broker)


def ssp(partition: int = 0) -> SSP:
    return SSP(StreamId("kafka-t", "t"), partition)


def system_of(topic: Topic, clock: ManualClock | None = None, **said: Any) -> KafkaSystem:
    descriptor = hr.io.kafka(topic.name, **{"brokers": topic.brokers, "format": "text", **said})
    app = hr.App("shop", home="unused")
    app.input("t", TEXT, system=descriptor)
    (spec,) = (one.system for one in app._draft.streams.values())
    options = TopicOptions.of(spec.name, spec.options)
    return KafkaSystem(options) if clock is None else KafkaSystem(options, clock)


class Reader:
    """A consumer, and all that it has returned."""

    def __init__(self, system: KafkaSystem, columns: Mapping[str, Any] | None = None) -> None:
        self.consumer: Consumer = system.consumer({"value": pl.String(), **(columns or {})})
        self.polled: list[Polled] = []

    @property
    def rows(self) -> list[Rows]:
        return [one for one in self.polled if isinstance(one, Rows)]

    @property
    def values(self) -> list[str]:
        return [value for one in self.rows if one.frame.width for value in one.frame["value"].to_list()]

    @property
    def offsets(self) -> list[int]:
        return [offset for one in self.rows for offset in offsets_of(one)]

    def until(self, there: Callable[[], bool], ssps: list[SSP] | None = None, max_bytes: int = 1 << 20) -> None:
        end = time.monotonic() + WAIT_S
        while not there():
            assert time.monotonic() < end, f"only {self.polled}"
            number = self.consumer.fileno()
            assert number is not None
            readable(number, 100)
            while found := self.consumer.poll(ssps, max_bytes):
                self.polled += found
                if there():
                    break

    def until_position(self, position: int, partition: int = 0) -> None:
        self.until(lambda: self.consumer.position(ssp(partition)) >= position)
        assert self.consumer.position(ssp(partition)) == position


def offsets_of(rows: Rows) -> list[int]:
    if rows.offsets is not None:
        return rows.offsets.tolist()
    assert rows.frame.height + len(rows.bad) in (0, rows.next - rows.offset) or rows.next > rows.offset
    bad = {record.offset for record in rows.bad}
    offsets: list[int] = []
    at = rows.offset
    while len(offsets) < rows.frame.height:
        if at not in bad:
            offsets.append(at)
        at += 1
    return offsets


@pytest.fixture
def opened() -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def open_reader(system: KafkaSystem, columns: Mapping[str, Any] | None = None) -> Reader:
        readers.append(Reader(system, columns))
        return readers[-1]

    yield open_reader
    for one in readers:
        one.consumer.close()


def test_offsets_have_gaps_where_transactions_ended_or_were_aborted(
    topic: Topic, opened: Callable[..., Reader]
) -> None:
    topic.put([b"a0", b"a1"])
    with topic.transaction() as producer:
        topic.put([b"c0", b"c1"], producer=producer)
    with topic.transaction(abort=True) as producer:
        topic.put([b"x0", b"x1"], producer=producer)
    topic.put([b"z"])
    with topic.transaction(abort=True) as producer:
        topic.put([b"y"], producer=producer)
    reader = opened(system_of(topic))
    reader.consumer.register(ssp(), Edge.OLDEST)
    reader.until_position(11)
    assert list(zip(reader.offsets, reader.values, strict=True)) == [
        (0, "a0"), (1, "a1"), (2, "c0"), (3, "c1"), (8, "z"),
    ]  # fmt: skip
    assert reader.consumer.lag(ssp()) == 0
    (extent,) = system_of(topic).admin().extents("t")
    assert (extent.oldest, extent.upcoming) == (0, 11)
    for position in range(12):  # each of them can be read on from
        reader.polled.clear()
        reader.consumer.register(ssp(), position)
        reader.until_position(11)
        assert reader.offsets == [offset for offset in (0, 1, 2, 3, 8) if offset >= position]


def test_nothing_is_read_beyond_an_open_transaction_of_another(topic: Topic, opened: Callable[..., Reader]) -> None:
    topic.put([b"a"])
    committed, everything = opened(system_of(topic)), opened(system_of(topic, uncommitted=True))
    for reader in (committed, everything):
        reader.consumer.register(ssp(), Edge.OLDEST)
    with topic.transaction() as producer:
        topic.put([b"t"], producer=producer)
        topic.put([b"b"])
        everything.until(lambda: everything.values == ["a", "t", "b"])
        committed.until_position(1)
        assert system_of(topic).admin().extents("t")[0].upcoming == 1
        assert system_of(topic, uncommitted=True).admin().extents("t")[0].upcoming == 3
    committed.until_position(4)
    assert committed.values == ["a", "t", "b"]


def test_positions_to_begin_at(topic: Topic, opened: Callable[..., Reader]) -> None:
    for n in range(4):
        topic.put([f"{n}".encode()], time_ms=1_000 + 10 * n)
    system = system_of(topic)
    reader = opened(system)

    def read_from(position: int | Edge, begins_at: int) -> None:
        reader.polled.clear()
        reader.consumer.register(ssp(), position)
        assert reader.consumer.position(ssp()) == begins_at
        reader.until_position(4)
        assert reader.values == [f"{n}" for n in range(begins_at, 4)]

    read_from(Edge.OLDEST, 0)
    read_from(2, 2)
    read_from(Edge.UPCOMING, 4)
    read_from(4, 4)
    admin = system.admin()
    for time_ms, offset in ((0, 0), (1_000, 0), (1_001, 1), (1_030, 3), (1_031, 4)):
        assert admin.offset_at(ssp(), time_ms) == offset
    assert [admin.time_of(ssp(), offset) for offset in (0, 3, 4)] == [1_000, 1_030, None]
    for start, begins_at in ((1_011, 2), (9_999_999_999_999, 4)):
        later = opened(system_of(topic, start=f"{start}"))
        later.consumer.register(ssp(), Edge.OLDEST)
        assert later.consumer.position(ssp()) == begins_at
    for offset in (0, 4):
        admin.check_offset(ssp(), offset)
    with pytest.raises(UsageError):
        admin.check_offset(ssp(), 5)
    with pytest.raises(StreamNotFoundError, match="ends at offset 4"):
        reader.consumer.register(ssp(), 5)
    for consumer_or_admin in (lambda: reader.consumer.register(ssp(1), 0), lambda: admin.offset_at(ssp(1), 0)):
        with pytest.raises(StreamNotFoundError, match="partitions 0 to 0"):
            consumer_or_admin()
    reader.consumer.unregister(ssp())
    with pytest.raises(StreamNotFoundError):
        reader.consumer.position(ssp())


def test_an_end_by_offsets_is_told_once_and_after_everything(topic: Topic, opened: Callable[..., Reader]) -> None:
    with topic.transaction() as producer:
        topic.put([b"a", b"b"], producer=producer)
    topic.put([b"c", b"d"])
    for end, values in ((4, ["a", "b", "c"]), (3, ["a", "b"]), (1, ["a"]), (0, [])):
        reader = opened(system_of(topic, end={0: end}))
        reader.consumer.register(ssp(), Edge.OLDEST)
        reader.until(lambda: any(isinstance(one, Ended) for one in reader.polled))  # noqa: B023 - it is used at once
        assert reader.values == values
        assert reader.polled[-1] == Ended(ssp(), end)
        assert reader.consumer.poll() == []
        assert reader.consumer.lag(ssp()) == 0
        assert system_of(topic, end={0: end}).admin().describe("t").bounded


def test_an_end_that_is_still_to_come_is_waited_for(topic: Topic, opened: Callable[..., Reader]) -> None:
    topic.put([b"a"])
    reader = opened(system_of(topic, end={0: 2}))
    reader.consumer.register(ssp(), Edge.OLDEST)
    reader.until_position(1)
    assert not any(isinstance(one, Ended) for one in reader.polled)
    topic.put([b"b", b"c"])
    reader.until(lambda: any(isinstance(one, Ended) for one in reader.polled))
    assert reader.values == ["a", "b"]


def test_an_end_by_time_is_the_first_record_of_that_time(topic: Topic, opened: Callable[..., Reader]) -> None:
    for n in range(4):
        topic.put([f"{n}".encode()], time_ms=1_000 + 10 * n)
    reader = opened(system_of(topic, end="1020"))
    reader.consumer.register(ssp(), Edge.OLDEST)
    reader.until(lambda: Ended(ssp(), 2) in reader.polled)
    assert reader.values == ["0", "1"]


def test_an_end_by_time_without_such_a_record_is_where_the_partition_ends_then(
    topic: Topic, opened: Callable[..., Reader]
) -> None:
    clock = ManualClock(1_500)
    topic.put([b"a"], time_ms=1_000)
    reader = opened(system_of(topic, clock, end="2000"))
    reader.consumer.register(ssp(), Edge.OLDEST)
    reader.until_position(1)
    assert reader.consumer.poll() == []
    topic.put([b"b"], time_ms=1_900)
    reader.until_position(2)
    clock.advance(1_000)
    reader.until(lambda: Ended(ssp(), 2) in reader.polled or bool(reader.consumer.poll() and reader.polled))
    assert reader.values == ["a", "b"]


def test_what_was_deleted_before_it_was_read_stops_the_app(topic: Topic, opened: Callable[..., Reader]) -> None:
    topic.put([b"0", b"1", b"2", b"3"])
    topic.delete_before(3)
    reader = opened(system_of(topic))
    with pytest.raises(TrimmedOffsetError, match=r"offsets 1 to 2 were deleted before they were read, up to 2 records"):
        reader.consumer.register(ssp(), 1)
    with pytest.raises(TrimmedOffsetError):
        system_of(topic).admin().check_offset(ssp(), 2)
    skipping = opened(system_of(topic, lost="skip"))
    skipping.consumer.register(ssp(), 1)
    skipping.until_position(4)
    assert skipping.values == ["3"]
    assert sum(unread.count for one in skipping.rows for unread in one.unread) == 2


@pytest.mark.parametrize("lost", ["stop", "skip"])
def test_what_is_deleted_while_the_app_reads(
    topic: Topic, opened: Callable[..., Reader], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed is full, and what would come next is deleted meanwhile."""
    monkeypatch.setattr(fetching, "FEED_BYTES_MIN", 1)
    monkeypatch.setattr(fetching, "BUFFER_BYTES", 1)
    small = {"queued.min.messages": 1, "queued.max.messages.kbytes": 1, "fetch.message.max.bytes": 2_000}
    system = system_of(topic, lost=lost, options=small)
    many = 60
    for _ in range(many):
        topic.put([b"x" * 5_000])  # batches of their own, as a batch is fetched as a whole
    reader = opened(system)
    reader.consumer.register(ssp(), Edge.OLDEST)
    reader.until(lambda: reader.consumer.position(ssp()) > 0, max_bytes=1)
    topic.delete_before(many - 1)
    if lost == "stop":
        with pytest.raises(TrimmedOffsetError, match="were deleted before they were read"):
            reader.until_position(many)
    else:
        reader.until_position(many)
        assert sum(unread.count for one in reader.rows for unread in one.unread) + len(reader.values) == many
        assert sum(unread.count for one in reader.rows for unread in one.unread) > 0


def test_the_descriptor_wakes_for_each_record(topic: Topic, opened: Callable[..., Reader]) -> None:
    reader = opened(system_of(topic))
    reader.consumer.register(ssp(), Edge.OLDEST)
    number = reader.consumer.fileno()
    assert number is not None
    for n in range(5):
        while reader.consumer.poll():
            pass
        topic.put([f"{n}".encode()])
        assert readable(number, WAIT_S * 1000)
        reader.until(lambda: len(reader.values) == n + 1)  # noqa: B023 - it is used at once
    assert reader.values == [f"{n}" for n in range(5)]


def test_a_partition_that_is_left_out_does_not_hold_others_up(
    broker: Broker, opened: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FEED_BYTES_MIN", 10_000)
    monkeypatch.setattr(fetching, "BUFFER_BYTES", 20_000)
    topic = Topic(broker, 2)
    for partition in range(2):
        topic.put([f"{partition}-{n}-{'x' * 1_000}".encode() for n in range(200)], partition)
    reader = opened(system_of(topic))
    for partition in range(2):
        reader.consumer.register(ssp(partition), Edge.OLDEST)
    reader.until(lambda: len(reader.values) == 200, [ssp(0)], 5_000)
    assert {one.ssp for one in reader.rows} == {ssp(0)}
    reader.until(lambda: len(reader.values) == 400, None, 5_000)
    for partition in range(2):
        mine = [value.rsplit("-", 1)[0] for value in reader.values if value.startswith(f"{partition}-")]
        assert mine == [f"{partition}-{n}" for n in range(200)]


def test_the_lag_is_known_before_the_end_without_a_call_that_could_hang(
    topic: Topic, opened: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Strict(client.Consumer):
        def get_watermark_offsets(self, *place: Any, cached: bool = False, **said: Any) -> Any:
            assert not cached, "it waits for locks of librdkafka, and all of Python with it"
            return super().get_watermark_offsets(*place, cached=cached, **said)

    monkeypatch.setattr(client, "Consumer", Strict)
    monkeypatch.setattr(fetching, "FEED_BYTES_MIN", 10_000)
    monkeypatch.setattr(fetching, "BUFFER_BYTES", 10_000)
    topic.put([b"x" * 1_000 for _ in range(200)])
    reader = opened(system_of(topic))
    reader.consumer.register(ssp(), Edge.OLDEST)
    reader.until(lambda: bool(reader.rows), max_bytes=1)
    end = time.monotonic() + WAIT_S
    while (lag := reader.consumer.lag(ssp())) is None:
        assert time.monotonic() < end
        reader.consumer.poll([])
    assert (lag, reader.consumer.lag(ssp(), 0)) == (200 - reader.consumer.position(ssp()), 200)
    reader.until(lambda: len(reader.values) == 200)
    reader.until(lambda: reader.consumer.lag(ssp()) == 0)


def test_a_reader_up_to_an_offset_waits_for_what_is_fetched(topic: Topic, opened: Callable[..., Reader]) -> None:
    topic.put([b'"a"', b'"b"'])
    with topic.transaction(abort=True) as producer:
        topic.put([b'"never"'], producer=producer)
    consumer = opened(system_of(topic)).consumer
    consumer.register(ssp(), 0)
    assert sum(one.frame.height for one in polled_to(consumer, ssp(), 4, 1 << 20) if isinstance(one, Rows)) == 2
    assert consumer.position(ssp()) == 4, "the mark of the transaction is behind it, too"
    assert list(polled_to(consumer, ssp(), 9, 1 << 20)) == [], "nothing is waited for that isn't there"


def test_max_bytes_bounds_what_is_polled(topic: Topic, opened: Callable[..., Reader]) -> None:
    topic.put([b"x" * 100_000 for _ in range(20)])
    reader = opened(system_of(topic))
    reader.consumer.register(ssp(), Edge.OLDEST)
    reader.until(lambda: len(reader.values) == 20, max_bytes=1)
    assert len(reader.rows) > 1


def test_records_as_columns_and_bad_ones(topic: Topic, opened: Callable[..., Reader]) -> None:
    about = {"k": "key", "h": "headers", "at": "timestamp", "p": "partition", "o": "offset"}
    columns = {
        "n": pl.Int64(), "k": pl.String(), "at": pl.Datetime("ms"), "p": pl.Int32(), "o": pl.Int64(),
        "h": pl.List(pl.Struct({"name": pl.String(), "value": pl.Binary()})),
    }  # fmt: skip
    descriptor = hr.io.kafka(topic.name, brokers=topic.brokers, key_format="text", record_columns=about)
    app = hr.App("shop", home="unused")
    app.input("t", {"n": pl.Int64}, system=descriptor)
    spec = app._draft.streams["t"].system
    topic.put([b'{"n": 1}'], key=b"ann", time_ms=86_400_000, headers=[("a", b"1"), ("a", None)])
    topic.put([b'{"n": ', None])
    topic.put([b'{"n": 2}'])
    reader = opened(KafkaSystem(TopicOptions.of("t", spec.options)))
    reader.consumer = KafkaSystem(TopicOptions.of("t", spec.options)).consumer(columns)
    reader.consumer.register(ssp(), Edge.OLDEST)
    reader.until_position(4)
    rows = pl.concat([one.frame for one in reader.rows if one.frame.width])
    assert rows.select("n", "k", "h", "p", "o").rows() == [
        (1, "ann", [{"name": "a", "value": b"1"}, {"name": "a", "value": None}], 0, 0),
        (2, None, [], 0, 3),
    ]
    assert rows["at"].dt.epoch("ms")[0] == 86_400_000
    bad = [record for one in reader.rows for record in one.bad]
    assert [record.offset for record in bad] == [1, 2]
    assert bad[0].reason.startswith(f"{topic.name}, partition 0, offset 1: ")
    assert bad[0].raw == b'{"n": '


def test_new_partitions_are_noticed(broker: Broker, opened: Callable[..., Reader], monkeypatch: Any) -> None:
    monkeypatch.setattr(fetching, "LOOK_S", 0.2)
    topic = Topic(broker)
    reader = opened(system_of(topic))
    reader.consumer.register(ssp(), Edge.OLDEST)
    topic.add_partitions(3)
    with pytest.raises(DeploymentError, match="now has 3 partitions, but the app reads 1"):
        reader.until(lambda: False)


def test_a_topic_that_is_not_there_is_named_with_others_like_it(broker: Broker) -> None:
    topic = Topic(broker, name="page-views")
    with pytest.raises(StreamNotFoundError) as error:
        system_of(topic).admin()._topics.describe("page-view")
    assert "there is no topic 'page-view'" in error.value.message
    assert error.value.hint == "did you mean 'page-views'?"
    topic.delete()


def test_commits_are_shown_as_a_group(broker: Broker) -> None:
    topic = Topic(broker, 2)
    topic.put([b"x"] * 5)
    admin = system_of(topic).admin()
    for position in (1, 2, 3):
        admin.report_commit(ssp(0), "shop/orders", position)
    admin.report_commit(ssp(1), "shop/orders", 0)
    admin.close()
    assert topic.committed("headrace.shop.orders") == {0: 3, 1: 0}
    admin.report_commit(ssp(0), "shop/orders", 4)  # it may be used again
    admin.close()
    assert topic.committed("headrace.shop.orders")[0] == 4


def test_a_broker_that_goes_away_and_comes_back() -> None:
    with kfake() as server:
        topic = Topic(server)
        topic.put([b"a"])
        reader = Reader(system_of(topic))
        with closing(reader.consumer):
            reader.consumer.register(ssp(), Edge.OLDEST)
            reader.until(lambda: reader.values == ["a"])
            server.stop()
            admin = system_of(topic).admin()
            began = time.monotonic()
            admin.report_commit(ssp(), "shop/orders", 1)
            assert time.monotonic() - began < 5
            admin.close()
            assert time.monotonic() - began < 30  # it waits a little for the answer
            with pytest.raises(UnavailableError, match=server.address):
                admin.extents("t")
            assert reader.consumer.poll() == []
            server.start()
            topic.put([b"b"])
            reader.until(lambda: reader.values == ["a", "b"])
            admin.close()


def test_credentials(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "headrace")
    monkeypatch.setenv("RIGHT", "s3cret-password")
    monkeypatch.setenv("WRONG", "wr0ng-password")

    def login(variable: str) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "app",
            "sasl.password": hr.secret_env(variable),
        }

    with kfake(user=("app", "s3cret-password")) as server:
        topic = Topic(server, options=login("RIGHT"))
        topic.put([b"a"])
        reader = Reader(system_of(topic, options=login("RIGHT")))
        with closing(reader.consumer):
            reader.consumer.register(ssp(), Edge.OLDEST)
            reader.until(lambda: reader.values == ["a"])
        wrong = system_of(topic, options=login("WRONG"))
        with pytest.raises(HeadraceError) as error:
            wrong.admin().describe("t")
        assert type(error.value) is InfrastructureError
        assert "sasl.password" in str(error.value.hint)
        with pytest.raises(InfrastructureError, match="the environment variable MISSING should hold a secret"):
            system_of(topic, options=login("MISSING")).admin().describe("t")
        said = f"{error.value} {caplog.text} {wrong.options}"
        assert "wr0ng-password" not in said
        assert "s3cret-password" not in said


def kfake(**options: Any) -> KfakeServer:
    """A broker of the test's own."""
    try:
        return KfakeServer(**options)
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")

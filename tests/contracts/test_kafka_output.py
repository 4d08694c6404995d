"""Rows into topics of Kafka: the contract of targets, what plain clients get, and every kind of trouble."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from chaos.kafka_plain import Plain, create_topic, read_topic
from chaos.kafka_server import Broker, KfakeServer
from headrace.connectors.kafka import publishing
from headrace.connectors.kafka.client import KafkaClient, open_producer
from headrace.connectors.kafka.publishing import Progress
from headrace.connectors.kafka.rows import Roles
from headrace.connectors.kafka.settings import KafkaSettings, TopicOptions
from headrace.connectors.kafka.target import KafkaOutputAdmin, KafkaTarget, PlainKafkaTarget
from headrace.connectors.kafka.writer_session import VersionSender, WriterSession, decode_progress, encode_progress
from headrace.core.errors import (
    DataError,
    DeclarationError,
    FencedError,
    IndeterminateWriteError,
    InfrastructureError,
    StreamNotFoundError,
    UnavailableError,
)
from headrace.kit.contracts import check_target, target_checks
from headrace.rows.formats import FormatSpec
from headrace.rows.given import HEADERS
from headrace.systems.base import Creation, Target
from kafka_writers import finish

EMPTY = pl.DataFrame(schema={"writer": pl.String, "version": pl.Int64, "n": pl.Int64})

Make = Callable[..., KafkaTarget]


def new_target(broker: Broker, topic: str, roles: Roles | None = None, format: str = "json") -> KafkaTarget:
    return KafkaTarget(options_of(broker, topic, roles, format))


def options_of(broker: Broker, topic: str, roles: Roles | None = None, format: str = "json") -> TopicOptions:
    """What a row becomes in the topic."""
    settings = KafkaSettings(broker.address)
    return TopicOptions(topic=topic, settings=settings, format=FormatSpec(format), **asdict(roles or Roles(key="key")))


@pytest.fixture
def make(kfake: KfakeServer) -> Iterator[Make]:
    """Makes targets, and closes them."""
    made: list[KafkaTarget] = []

    def one(topic: str, roles: Roles | None = None, format: str = "json") -> KafkaTarget:
        made.append(new_target(kfake, topic, roles, format))
        return made[-1]

    yield one
    for target in made:
        target.close()


def publish(target: Target, writer: str, version: int, rows: pl.DataFrame, tries: int = 1) -> None:
    finish(target, writer, version, [target.accept(rows)], tries)


def rows(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame({"key": [f"k{number % 3}" for number in numbers], "n": numbers})


def numbers(found: Sequence[Plain]) -> list[int]:
    return [pl.read_json(record.value or b"")["n"][0] for record in found]


# -- the contract


def check(broker: Broker, name: str) -> None:
    topic = create_topic(broker.address, 3)

    def read() -> pl.DataFrame:
        found = [record.value or b"" for record in read_topic(broker.address, topic)]
        return pl.read_ndjson(b"\n".join(found), schema=EMPTY.schema) if found else EMPTY

    check_target(lambda: new_target(broker, topic, Roles(key="writer")), read, only=name)


@pytest.mark.parametrize("name", target_checks())
def test_kafka_keeps_the_contract(kfake: KfakeServer, name: str) -> None:
    check(kfake, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", target_checks())
def test_apache_kafka_keeps_the_contract(request: pytest.FixtureRequest, name: str) -> None:
    check(request.getfixturevalue("kafka_broker"), name)


# -- what plain clients get


def test_keys_are_where_kafkas_own_clients_put_them(kfake: KfakeServer, make: Make) -> None:
    keys = [f"key-{'x' * (number % 30)}-{number}" for number in range(300)]
    theirs, ours = create_topic(kfake.address, 7), create_topic(kfake.address, 7)
    producer = Producer({"bootstrap.servers": kfake.address, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(theirs, b"", key.encode())
    assert producer.flush(10) == 0
    publish(make(ours), f"{ours}/stage/0/out", 0, pl.DataFrame({"key": keys, "n": range(300)}))
    places = [{record.key: record.partition for record in read_topic(kfake.address, topic)} for topic in (theirs, ours)]
    assert places[0] == places[1]
    assert len(set(places[0].values())) == 7


def test_key_timestamp_and_headers_are_columns(kfake: KfakeServer, make: Make) -> None:
    topic = create_topic(kfake.address)
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    given = pl.DataFrame(
        {"member": [7, None], "at": [at.replace(tzinfo=None)] * 2, "more": [[{"name": "a", "value": b"1"}], []]},
        schema_overrides={"at": pl.Datetime("ms"), "more": HEADERS},
    )
    publish(make(topic, Roles("member", "at", "more")), f"{topic}/stage/0/out", 5, given)
    first, second = read_topic(kfake.address, topic)
    assert (first.key, second.key) == (b"7", None)
    assert first.timestamp == second.timestamp == at.timestamp() * 1000
    own = (("headrace-writer", f"{topic}/stage/0/out".encode()), ("headrace-version", b"5"), ("headrace-row", b"0"))
    assert first.headers == (("a", b"1"), *own)
    assert second.headers == (*own[:2], ("headrace-row", b"1"))
    assert first.value == b'{"member":7,"at":"2026-01-31T12:00:00.000"}'


def test_a_text_has_its_key_beside_it(kfake: KfakeServer, make: Make) -> None:
    topic = create_topic(kfake.address)
    given = pl.DataFrame({"key": ["a", "b"], "value": ["one", "two"]})
    publish(make(topic, format="text"), f"{topic}/stage/0/out", 0, given)
    assert [(record.key, record.value) for record in read_topic(kfake.address, topic)] == [
        (b"a", b"one"),
        (b"b", b"two"),
    ]


def test_a_version_larger_than_the_queue_and_than_a_batch_may_be_gets_there(kfake: KfakeServer, make: Make) -> None:
    topic = create_topic(kfake.address, settings={"max.message.bytes": "5000"})
    many = pl.DataFrame({"key": ["k"] * 3000, "n": range(3000), "text": ["x" * 200] * 3000})
    publish(make(topic), f"{topic}/stage/0/out", 0, many)
    assert numbers(read_topic(kfake.address, topic)) == list(range(3000))


def test_more_partitions_are_taken_in(kfake: KfakeServer, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.kafka.topics.LIMITS_LOOK_S", 0.0)
    topic = create_topic(kfake.address, 1)
    target = make(topic)
    publish(target, f"{topic}/stage/0/out", 0, rows(*range(30)))
    admin = AdminClient({"bootstrap.servers": kfake.address})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(10)
    publish(target, f"{topic}/stage/0/out", 1, rows(*range(30, 60)), tries=100)
    found = read_topic(kfake.address, topic)
    assert sorted(numbers(found)) == list(range(60))
    assert len({record.partition for record in found}) > 1


# -- what a position is


def test_an_open_transaction_of_another_writer_hides_a_committed_version(kfake: KfakeServer, make: Make) -> None:
    topic = create_topic(kfake.address)
    writer = f"{topic}/stage/0/out"
    publish(make(topic), writer, 0, rows(1))
    other = Producer({"bootstrap.servers": kfake.address, "transactional.id": f"{topic}-other"})
    other.init_transactions(10)
    other.begin_transaction()
    other.produce(f"headrace.progress.{topic}", b"", b"other")
    assert other.flush(10) == 0
    heir = make(topic)
    with pytest.raises(UnavailableError, match=r"hides which versions .*/stage/0/out has published|didn't report"):
        heir.position(writer)
    other.commit_transaction(10)
    assert heir.position(writer) == 0


def test_what_was_published_before_another_writers_transaction_ends_is_not_taken_for_missing(
    kfake: KfakeServer, make: Make
) -> None:
    topic = create_topic(kfake.address)
    writer = f"{topic}/stage/0/out"
    first = make(topic)
    assert first.position(writer) == -1
    other = Producer({"bootstrap.servers": kfake.address, "transactional.id": f"{topic}-other"})
    other.init_transactions(10)
    other.begin_transaction()
    other.produce(f"headrace.progress.{topic}", b"", b"other")
    assert other.flush(10) == 0
    publish(first, writer, 0, rows(1, 2))  # committed, and hidden behind the other one's transaction
    heir = make(topic)
    accepted = [heir.accept(rows(1, 2))]
    with pytest.raises(UnavailableError, match="hides"):
        finish(heir, writer, 0, accepted)
    other.abort_transaction(10)
    finish(heir, writer, 0, accepted, tries=20)
    assert numbers(read_topic(kfake.address, topic)) == [1, 2]


@pytest.mark.parametrize("performed", [True, False])
def test_a_commit_whose_reply_is_lost_counts_once(
    kfake: KfakeServer, make: Make, monkeypatch: pytest.MonkeyPatch, performed: bool
) -> None:
    commit, calls = WriterSession.commit, []

    def lost(session: WriterSession) -> None:
        calls.append(session)
        if len(calls) % 2 and not performed:
            raise UnavailableError("the request was lost")
        commit(session)
        if len(calls) % 2:
            raise UnavailableError("the reply was lost")

    monkeypatch.setattr(WriterSession, "commit", lost)
    topic = create_topic(kfake.address)
    target = make(topic)
    for version in range(5):
        publish(target, f"{topic}/stage/0/out", version, rows(version), tries=20)
    assert numbers(read_topic(kfake.address, topic)) == list(range(5))
    assert len(calls) == (5 if performed else 10)


@pytest.mark.parametrize("moment", ["send", "commit"])
def test_what_nobody_knows_is_looked_up(
    kfake: KfakeServer, make: Make, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    original, calls = getattr(WriterSession, moment), []

    def doubtful(session: WriterSession, *what: Any) -> None:
        original(session, *what)
        calls.append(what)
        if len(calls) == 1:
            raise IndeterminateWriteError("the producer has failed")

    monkeypatch.setattr(WriterSession, moment, doubtful)
    topic = create_topic(kfake.address)
    target = make(topic)
    with pytest.raises(UnavailableError, match="the producer has failed"):
        publish(target, f"{topic}/stage/0/out", 0, rows(1))
    publish(target, f"{topic}/stage/0/out", 0, rows(1))
    assert numbers(read_topic(kfake.address, topic)) == [1]
    assert len(calls) == (2 if moment == "send" else 1)


def test_an_error_in_place_of_a_commit_is_no_end(kfake: KfakeServer, make: Make) -> None:
    topic = create_topic(kfake.address)
    writer = f"{topic}/stage/0/out"
    target = make(topic)
    for version in range(6):
        if version % 2:
            error = ("REQUEST_TIMED_OUT", "NOT_COORDINATOR", "UNKNOWN_SERVER_ERROR")[version // 2]
            kfake.fail("EndTxn", error, count=1, transaction=f"headrace.{writer}")
        publish(target, writer, version, rows(version), tries=20)
    assert numbers(read_topic(kfake.address, topic)) == list(range(6))


def test_a_lost_progress_topic_is_an_error_and_nothing_is_written(kfake: KfakeServer, make: Make) -> None:
    topic = create_topic(kfake.address)
    writer = f"{topic}/stage/0/out"
    publish(make(topic), writer, 3, rows(1))
    admin = AdminClient({"bootstrap.servers": kfake.address})
    admin.delete_topics([f"headrace.progress.{topic}"])[f"headrace.progress.{topic}"].result(10)
    after = make(topic)
    with pytest.raises(InfrastructureError, match=r"nothing of .* was published.*say version 3") as caught:
        after.turns.wait(writer, 30, lambda: after.prepare(writer, 3))
    assert "headrace-version N" in (caught.value.hint or "")
    with pytest.raises(InfrastructureError, match="commits say version 3"):
        publish(after, writer, 4, rows(2))
    assert f"headrace.progress.{topic}" not in admin.list_topics(timeout=10).topics
    assert numbers(read_topic(kfake.address, topic)) == [1]

    # What the hint says to do.
    create_topic(kfake.address, name=f"headrace.progress.{topic}", settings={"cleanup.policy": "compact"})
    by_hand = Producer({"bootstrap.servers": kfake.address})
    by_hand.produce(f"headrace.progress.{topic}", b'{"format":1,"version":3,"rows":"","by":"me"}', writer)
    by_hand.flush(10)
    publish(make(topic), writer, 3, rows(1))
    publish(make(topic), writer, 4, rows(2))
    assert numbers(read_topic(kfake.address, topic)) == [1, 2]


def test_a_progress_topic_that_would_be_deleted_is_refused(kfake: KfakeServer, make: Make) -> None:
    topic = create_topic(kfake.address)
    create_topic(kfake.address, name=f"headrace.progress.{topic}", settings={"cleanup.policy": "delete"})
    with pytest.raises(InfrastructureError, match=r"cleanup.policy=delete"):
        publish(make(topic), f"{topic}/stage/0/out", 0, rows(1))


def test_the_progress_record_is_as_it_has_always_been() -> None:
    golden = b'{"format":1,"version":12,"rows":"3-0-0","by":"host/1/ab"}'
    assert encode_progress(Progress(12, "3-0-0", "host/1/ab")) == golden
    assert decode_progress(golden, "w") == Progress(12, "3-0-0", "host/1/ab")
    with pytest.raises(DataError, match="format 2"):
        decode_progress(golden.replace(b":1,", b":2,", 1), "w")
    with pytest.raises(DataError, match="unreadable"):
        decode_progress(b"7", "w")


# -- trouble


def test_two_apps_of_one_name_are_told_apart(kfake: KfakeServer, make: Make) -> None:
    topic = create_topic(kfake.address)
    writer = f"{topic}/stage/0/out"
    mine, theirs = make(topic), make(topic)
    publish(mine, writer, 0, rows(1))
    publish(theirs, writer, 1, rows(2))
    with pytest.raises(
        FencedError, match=f"'headrace.{topic}/stage/0/out' is also used by another process by .*/"
    ) as e:
        publish(mine, writer, 1, rows(3))
    assert "rename one of them" in (e.value.hint or "")
    assert numbers(read_topic(kfake.address, topic)) == [1, 2]


def test_a_record_above_the_topics_limit_is_refused_before_the_commit(kfake: KfakeServer, make: Make) -> None:
    topic = create_topic(kfake.address, settings={"max.message.bytes": "3000"})
    target = make(topic)
    with pytest.raises(DataError, match="the topic takes 3000") as caught:
        target.accept(pl.DataFrame({"key": ["k"], "text": ["x" * 3000]}))
    assert "max.message.bytes" in (caught.value.hint or "")
    fits = pl.DataFrame({"key": ["k"], "n": [1], "text": ["x" * 2400]})
    publish(target, f"{topic}/stage/0/out", 0, fits)
    assert len(read_topic(kfake.address, topic)) == 1


def test_columns_that_cant_be_written_are_refused(kfake: KfakeServer, make: Make) -> None:
    topic = create_topic(kfake.address)
    with pytest.raises(DeclarationError, match="key='key' isn't a column"):
        make(topic).accept(pl.DataFrame({"n": [1]}))
    with pytest.raises(DeclarationError, match="has more than one possible text form"):
        make(topic).accept(pl.DataFrame({"key": [1.5]}))
    with pytest.raises(DeclarationError, match="timestamp='n' is of type Int64"):
        make(topic, Roles(timestamp="n")).accept(pl.DataFrame({"n": [1]}))
    with pytest.raises(DeclarationError, match="headers='n' is of type Int64"):
        make(topic, Roles(headers="n")).accept(pl.DataFrame({"n": [1]}))
    with pytest.raises((DataError, DeclarationError), match="text"):
        make(topic, format="text").accept(pl.DataFrame({"key": ["a"], "b": ["b"], "c": ["c"]}))


def test_a_topic_that_isnt_there_is_waited_for_by_a_restart_only(make: Make) -> None:
    with pytest.raises(StreamNotFoundError, match="no topic 'nowhere'"):
        make("nowhere").accept(rows(1))


@pytest.mark.parametrize(
    ("request_", "error", "said", "hint"),
    [
        ("CreateTopics", "TOPIC_AUTHORIZATION_FAILED", "creating topic 'headrace.progress", "kafka-topics.sh --create"),
        (
            "InitProducerID",
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            "taking over the tr",
            "--transactional-id headrace.",
        ),
        ("Produce", "TOPIC_AUTHORIZATION_FAILED", "writing to topic", "kafka-acls.sh --add --topic"),
    ],
)
def test_missing_rights_are_named(
    kfake: KfakeServer, make: Make, request_: str, error: str, said: str, hint: str
) -> None:
    topic = create_topic(kfake.address)
    kfake.fail(request_, error)
    with pytest.raises(InfrastructureError, match=said) as caught:
        publish(make(topic), f"{topic}/stage/0/out", 0, rows(1))
    assert hint in (caught.value.hint or "")
    publish(make(topic), f"{topic}/stage/0/out", 0, rows(1))
    assert numbers(read_topic(kfake.address, topic)) == [1]


def test_a_broker_that_is_killed_and_comes_back_loses_and_doubles_nothing() -> None:
    with KfakeServer() as broker:
        topic = create_topic(broker.address, 2)
        target = new_target(broker, topic)
        writer = f"{topic}/stage/0/out"
        for version in range(9):
            if version % 3 == 1:
                accepted = [target.accept(rows(version))]
                target.publish(writer, version, accepted)
                broker.stop()
                broker.start()
                finish(target, writer, version, accepted, tries=200)
            publish(target, writer, version, rows(version), tries=200)
        found = read_topic(broker.address, topic)
        target.close()
    assert sorted(numbers(found)) == list(range(9))


def test_a_version_that_takes_longer_than_a_transaction_may_gets_more_time(
    kfake: KfakeServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "TIMEOUT_MS", 1000)
    flush, slow = VersionSender.flush, [2.0]

    def late(sender: VersionSender, client: KafkaClient[Producer], end_s: float) -> None:
        if slow:
            threading.Event().wait(slow.pop())
            sender._wait(client, end_s)
        flush(sender, client, end_s)

    monkeypatch.setattr(VersionSender, "flush", late)
    topic = create_topic(kfake.address)
    target = make(topic)
    writer = f"{topic}/stage/0/out"
    publish(target, writer, 0, rows(1, 2), tries=5)
    assert target._writer(writer).machine.timeout_ms == 2000
    assert numbers(read_topic(kfake.address, topic)) == [1, 2]


def test_closing_doesnt_wait_for_a_broker_that_is_away() -> None:
    with KfakeServer() as broker:
        topic = create_topic(broker.address)
        target = new_target(broker, topic)
        publish(target, f"{topic}/stage/0/out", 0, rows(1))
        broker.stop()
        target.publish(f"{topic}/stage/0/out", 1, [target.accept(rows(2))])
        before_s = time.monotonic()
        target.close()
        assert time.monotonic() - before_s < 30


# -- without transactions


def test_without_transactions_rows_may_come_again_and_say_so(kfake: KfakeServer) -> None:
    topic = create_topic(kfake.address)
    targets = [PlainKafkaTarget(options_of(kfake, topic)) for _ in range(2)]
    for target in targets:
        assert target.position("app/stage/0/out") == -1
        publish(target, f"{topic}/stage/0/out", 0, rows(1, 2))
        target.close()
    found = read_topic(kfake.address, topic)
    assert numbers(found) == [1, 2, 1, 2]
    assert [record.header("headrace-row") for record in found] == [b"0", b"1"] * 2


# -- topics


def test_an_output_creates_its_topic_or_takes_it_as_it_is(kfake: KfakeServer) -> None:
    topic = create_topic(kfake.address, 3)
    there = KafkaOutputAdmin(TopicOptions(topic=topic, settings=KafkaSettings(kfake.address)))
    assert there.describe("out").partitions == 3  # type: ignore[union-attr]
    assert there.create("out", 3, {"n": pl.Int64()}).partitions == 3
    assert there.create("out", 4).partitions == 3
    new = KafkaOutputAdmin(TopicOptions(topic=f"{topic}-new", settings=KafkaSettings(kfake.address)))
    assert new.describe("out") is None
    assert new.would_create("out", 2) == Creation(2, new=True)
    new.create("out", 2)
    assert new.would_create("out", 5) == Creation(2)
    assert new.describe("out").partitions == 2  # type: ignore[union-attr]
    kfake.fail("CreateTopics", "TOPIC_AUTHORIZATION_FAILED")
    other = KafkaOutputAdmin(TopicOptions(topic=f"{topic}-other", settings=KafkaSettings(kfake.address)))
    with pytest.raises(InfrastructureError, match="creating topic") as caught:
        other.create("out", 2)
    assert "kafka-topics.sh --create" in (caught.value.hint or "")


def test_a_producer_that_was_replaced_says_so_and_not_only_that_it_cannot_go_on(kfake: KfakeServer) -> None:
    """It gets to know in the background; then its calls say no more than "fatal error"."""
    topic = create_topic(kfake.address)
    stale, newer = (open_producer(KafkaSettings(kfake.address), f"{topic}-id") for _ in range(2))
    stale.raw.init_transactions(30)
    newer.raw.init_transactions(30)
    stale.raw.begin_transaction()
    stale.raw.produce(topic, b"1")
    until = time.monotonic() + 30
    with pytest.raises(FencedError, match="fenced by a newer instance"):
        while time.monotonic() < until:
            with stale.translating("writing"):
                stale.raw.produce(topic, b"2")

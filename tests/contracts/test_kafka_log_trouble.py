"""What goes wrong with a log in Kafka: topics of others, brokers that go away, seals that meet writers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from chaos.kafka_server import KfakeServer
from headrace.connectors.kafka import client
from headrace.connectors.kafka.log_admin import Metadata, mark_ends
from headrace.connectors.kafka.log_system import KafkaLogSystem
from headrace.connectors.kafka.settings import KafkaSettings, LogOptions, StreamOrder
from headrace.connectors.kafka.topics import Topics
from headrace.core.errors import (
    DataError,
    DeploymentError,
    IndeterminateWriteError,
    StreamNotFoundError,
    StreamSealedError,
    UnavailableError,
)
from headrace.core.files import readable
from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Consumer, Edge, Ended, Polled, Records

admins = pytest.importorskip("confluent_kafka.admin", reason="confluent-kafka is not installed")

_WAIT_MS = 20_000


@pytest.fixture
def options(kfake: KfakeServer) -> LogOptions:
    return LogOptions(KafkaSettings(kfake.address), prefix=f"{uuid.uuid4().hex[:8]}.")


@pytest.fixture
def away(kfake: KfakeServer) -> Iterator[KfakeServer]:
    """A broker of the test's own, which it may stop."""
    with KfakeServer() as server:
        yield server


def ssp(stream: str = "s") -> SSP:
    return SSP(StreamId("kafka", stream), 0)


def polled_until_ended(consumer: Consumer) -> list[Polled]:
    found: list[Polled] = []
    while not any(isinstance(item, Ended) for item in found):
        news = consumer.poll()
        found += news
        assert news or readable(consumer.fileno(), _WAIT_MS), f"nothing comes after {found}"
    return found


def payloads(polled: list[Polled]) -> list[bytes]:
    return [payload for item in polled if isinstance(item, Records) for payload in item.payloads]


def admin_of(options: LogOptions) -> admins.AdminClient:
    return admins.AdminClient({"bootstrap.servers": options.settings.brokers})


# -- topics --------------------------------------------------------------------------------------------


def test_a_topic_of_others_is_left_alone(options: LogOptions) -> None:
    topic = options.topic("s")
    others = admin_of(options)
    others.create_topics([admins.NewTopic(topic, 1)])[topic].result(10)
    log = KafkaLogSystem(options).admin()
    assert log.describe("s") is None
    with pytest.raises(DeploymentError, match="exists already, and isn't one of Headrace's"):
        log.create("s", 1)
    assert log.list() == []


def test_a_topic_that_is_compacted_meanwhile_is_refused(options: LogOptions) -> None:
    log = KafkaLogSystem(options).admin()
    log.create("s", 1)
    resource = admins.ConfigResource(
        admins.ConfigResource.Type.TOPIC,
        options.topic("s"),
        incremental_configs=[
            admins.ConfigEntry("cleanup.policy", "compact", incremental_operation=admins.AlterConfigOpType.SET)
        ],
    )
    others = admin_of(options)
    others.incremental_alter_configs([resource])[resource].result(10)
    with pytest.raises(DeploymentError, match=r"cleanup\.policy is compact: compaction would drop frames") as caught:
        log.create("s", 1)
    assert "cleanup.policy=delete" in str(caught.value)


def test_a_stream_whose_topic_was_deleted_is_gone(options: LogOptions) -> None:
    system = KafkaLogSystem(options)
    system.admin().create("s", 1)
    topic = options.topic("s")
    others = admin_of(options)
    others.delete_topics([topic])[topic].result(10)
    assert system.admin().describe("s") is None
    with pytest.raises(StreamNotFoundError, match="has lost its topic"):
        system.admin().extents("s")
    assert system.admin().create("s", 1).partitions == 1


def test_logs_with_other_prefixes_share_nothing(options: LogOptions) -> None:
    KafkaLogSystem(options).admin().create("s", 1)
    other = LogOptions(options.settings, prefix=f"{options.prefix}x.")
    assert KafkaLogSystem(other).admin().describe("s") is None


# -- records that don't arrive -------------------------------------------------------------------------


def test_a_record_that_is_too_large_is_refused_by_us_or_by_the_broker(options: LogOptions) -> None:
    small = LogOptions(options.settings, prefix=options.prefix, record_bytes=1 << 16)
    KafkaLogSystem(small).admin().create("s", 1)
    producer = KafkaLogSystem(small).producer()
    with pytest.raises(DataError, match="larger than record_bytes="):
        producer.send("s", 0, b"x" * (1 << 17))
    larger = KafkaLogSystem(options).producer()
    larger.send("s", 0, b"x" * (1 << 17))
    with pytest.raises(DataError, match="MSG_SIZE_TOO_LARGE") as caught:
        larger.flush()
    assert "max.message.bytes" in str(caught.value)
    larger.send("s", 0, b"fits")
    assert larger.flush() == {("s", 0): 1}
    producer.close()
    larger.close()


def test_a_record_whose_acknowledgement_is_lost_is_there_once(options: LogOptions, kfake: KfakeServer) -> None:
    system = KafkaLogSystem(options)
    system.admin().create("s", 1)
    producer = system.producer()
    producer.send("s", 0, b"a")
    producer.flush()
    kfake.fail("Produce", "REQUEST_TIMED_OUT", topic=options.topic("s"))
    producer.send("s", 0, b"b")
    assert producer.flush() == {("s", 0): 2}
    producer.close()
    system.admin().seal("s")
    consumer = system.consumer()
    consumer.register(ssp(), Edge.OLDEST)
    assert payloads(polled_until_ended(consumer)) == [b"a", b"b"]
    consumer.close()


def test_a_broker_that_goes_away_and_comes_back(away: KfakeServer) -> None:
    options = LogOptions(KafkaSettings(away.address, (("message.timeout.ms", "3000"),)))
    system = KafkaLogSystem(options)
    admin = system.admin()
    admin.create("s", 1)
    producer, consumer = system.producer(), system.consumer()
    producer.send("s", 0, b"a")
    producer.flush()
    consumer.register(ssp(), Edge.OLDEST)
    away.stop()
    producer.send("s", 0, b"lost, or not")
    with pytest.raises(IndeterminateWriteError):
        producer.flush()
    with pytest.raises(UnavailableError):
        admin.extents("s")
    assert consumer.poll() == []
    away.start()
    producer.send("s", 0, b"b")
    producer.flush()
    producer.close()
    admin.seal("s")
    assert payloads(polled_until_ended(consumer)) == [b"a", b"b"]
    consumer.close()


def test_no_call_of_the_admin_for_groups_is_made(away: KfakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict(admins.AdminClient):  # type: ignore[misc]
        def list_consumer_group_offsets(self, *_: object, **__: object) -> None:
            raise AssertionError("if a broker dies meanwhile, librdkafka may end the process")

        alter_consumer_group_offsets = describe_consumer_groups = list_consumer_group_offsets

    monkeypatch.setattr(client, "AdminClient", Strict)
    admin = KafkaLogSystem(LogOptions(KafkaSettings(away.address))).admin()
    admin.create("s", 1)
    admin.report_position(ssp(), "readers", 7)
    admin.report_position(ssp(), "readers", 8)
    admin.close()
    assert admin.reported_positions("s", "readers") == {0: 8}
    away.stop()
    with pytest.raises(UnavailableError):
        admin.reported_positions("s", "readers")
    admin.report_position(ssp(), "readers", 9)
    away.start()
    admin.close()
    assert admin.reported_positions("s", "readers") == {0: 9}
    admin.close()


# -- seals ---------------------------------------------------------------------------------------------


def test_whoever_writes_while_a_stream_is_sealed_knows_what_is_in_it(options: LogOptions) -> None:
    system = KafkaLogSystem(options)
    system.admin().create("s", 1)
    accepted: list[set[bytes]] = [set(), set()]
    enough = [threading.Event(), threading.Event()]
    failures: list[BaseException] = []

    def write(number: int) -> None:
        producer = KafkaLogSystem(options).producer()
        try:
            for i in range(100_000):
                record = b"%d:%d" % (number, i)
                producer.send("s", 0, record)
                producer.flush()
                accepted[number].add(record)
                if i == 50:
                    enough[number].set()
        except StreamSealedError:
            producer.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    assert all(event.wait(30) for event in enough)
    system.admin().seal("s")
    for thread in threads:
        thread.join(30)
    assert not failures
    consumer = system.consumer()
    consumer.register(ssp(), Edge.OLDEST)
    found = payloads(polled_until_ended(consumer))
    assert len(found) == len(set(found))
    assert set(found) == accepted[0] | accepted[1]
    consumer.close()


def test_a_seal_that_died_halfway_is_completed_by_the_next_one(options: LogOptions) -> None:
    system = KafkaLogSystem(options)
    admin = system.admin()
    admin.create("s", 1)
    before = system.producer()
    before.send("s", 0, b"a")
    before.flush()
    Metadata(options, Topics(options.settings, uncommitted=True)).order(StreamOrder("sealing", "s"))
    assert mark_ends(options, "s", 1) == (1,)
    consumer = system.consumer()
    consumer.register(ssp(), Edge.OLDEST)
    found: list[Polled] = []
    while not found:
        readable(consumer.fileno(), _WAIT_MS)
        found = consumer.poll()
    assert payloads(found) == [b"a"]
    assert [consumer.poll() for _ in range(20)] == [[]] * 20  # it may go on, or not: nobody knows
    with pytest.raises(StreamSealedError):
        system.producer().send("s", 0, b"b")
    before.send("s", 0, b"b")
    with pytest.raises(IndeterminateWriteError, match="is being sealed"):
        before.flush()
    admin.seal("s")
    assert admin.extents("s")[0].upcoming == 3
    rest = polled_until_ended(consumer)
    assert rest[-1] == Ended(ssp(), 3)
    before.close()
    consumer.close()

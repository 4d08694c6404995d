"""One writer's producer, and where its progress is kept: the actions of ``publishing``.

Headers of a record say which row it is, so that a reader who gets one twice can tell: ``headrace-writer``,
``headrace-version``, and ``headrace-row``, its number among those of the version.

The progress topic has the newest version of each writer of an app, compacted. A writer's record is part of the
transaction that publishes the version, so there is one exactly if the rows are there. All are in partition 0, even if
partitions are added, so that a record is looked up where it was written.

A thread of the target uses a session, one at a time; each call may block for as long as a transaction may take.
Whatever was begun when a producer is dropped, Kafka aborts: now, if it can be told, or when the transaction times out.
"""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final

import msgspec
import polars as pl

from headrace.connectors.kafka.client import (
    Consumer,
    KafkaClient,
    KafkaError,
    KafkaException,
    NewTopic,
    Producer,
    TopicPartition,
    open_consumer,
    open_producer,
)
from headrace.connectors.kafka.publishing import Progress
from headrace.connectors.kafka.rows import headers_of
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.topics import TopicLimits, Topics
from headrace.core.errors import HeadraceError, InfrastructureError, UnavailableError
from headrace.core.files import decode_record
from headrace.core.log import logger
from headrace.rows.hashing import partitions_of

QUEUE_KBYTES, QUEUE_RECORDS = 65_536, 500_000  # what waits in one producer at most
ANSWER_S = 5.0
_ROOM_S, _SLICE_S = 0.02, 0.2
Queued = Iterator[tuple[bytes | None, bytes | None, int, int, list[tuple[str, bytes | None]]]]


def producer_limits(record_bytes: int) -> dict[str, str | int | float]:
    return {
        "message_max_bytes": record_bytes,
        # A broker's limit is one of batches, which is what it calls messages.
        "batch_size": min(record_bytes, 1_000_000),
        "queue_buffering_max_kbytes": QUEUE_KBYTES,
        "queue_buffering_max_messages": QUEUE_RECORDS,
    }


class VersionSender:
    """Sends versions of a writer to one topic. ``closing`` ends every wait."""

    def __init__(self, writer: str, limits: TopicLimits, closing: threading.Event) -> None:
        self._writer = writer
        self._limits = limits
        self._topic = limits.topic
        self._closing = closing
        self._partitions = 0

    def send(self, client: KafkaClient[Producer], version: int, pieces: Sequence[pl.DataFrame], end_s: float) -> None:
        """Queue the records of a version. Waits for room in the queue, but not after ``end_s``."""
        row, partitions = 0, self._limits.partitions
        turn = zlib.crc32(f"{self._writer} {version}".encode())
        own = [("headrace-writer", self._writer.encode()), ("headrace-version", b"%d" % version)]
        with client.translating(f"writing to topic {self._topic!r}"):
            if self._partitions not in (0, partitions):  # the client would refuse those that it doesn't know yet
                client.raw.list_topics(self._topic, ANSWER_S)
            self._partitions = partitions
            for piece in pieces:
                self._queue(client, _queued(piece, partitions, turn, own, row), end_s)
                row += piece.height

    def _queue(self, client: KafkaClient[Producer], records: Queued, end_s: float) -> None:
        produce, topic = client.raw.produce, self._topic
        for key, value, partition, timestamp, headers in records:
            while True:
                try:
                    produce(topic, value, key, partition, timestamp=timestamp, headers=headers)  # type: ignore[arg-type]
                    break
                except BufferError:
                    self._wait(client, end_s)
                    client.raw.poll(_ROOM_S)

    def flush(self, client: KafkaClient[Producer], end_s: float) -> None:
        with client.translating(f"writing to topic {self._topic!r}"):
            while client.raw.flush(_SLICE_S):
                self._wait(client, end_s)

    def _wait(self, client: KafkaClient[Producer], end_s: float) -> None:
        if self._closing.is_set():
            raise UnavailableError(f"topic {self._topic!r}: the output is closing")
        if time.monotonic() > end_s:
            why = f": {client.troubles.why}" if client.troubles.why else ""
            said = f"Kafka at {client.brokers}: topic {self._topic!r} doesn't accept a version in time{why}"
            raise UnavailableError(said, hint="check the brokers; Headrace tries again")


def _queued(piece: pl.DataFrame, partitions: int, turn: int, own: list[tuple[str, bytes]], first: int) -> Queued:
    count = piece.height
    times = piece["timestamp"].fill_null(0).to_list() if "timestamp" in piece.columns else repeat(0)
    rows = range(first, first + count)
    places = partitions_of(piece["key"], partitions, turn % partitions).tolist()
    if "headers" in piece.columns:
        given = headers_of(piece["headers"])
        headers = ([*one, *own, ("headrace-row", b"%d" % row)] for one, row in zip(given, rows, strict=True))
    else:
        headers = ([*own, ("headrace-row", b"%d" % row)] for row in rows)
    return zip(piece["key"].to_list(), piece["value"].to_list(), places, times, headers, strict=False)


PREFIX, PARTITION, FORMAT = "headrace.progress.", 0, 1
READ_S = 2.0  # how long one attempt to read the topic takes at most
_SETTINGS: Final = {
    "cleanup.policy": "compact",
    # Only closed segments are compacted, and all that isn't is read by every writer that starts.
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_log = logger(__name__)


class _ProgressRecord(msgspec.Struct):
    format: int
    version: int
    rows: str
    by: str


_decoder = msgspec.json.Decoder(_ProgressRecord)


def encode_progress(progress: Progress) -> bytes:
    return msgspec.json.encode(_ProgressRecord(FORMAT, progress.version, progress.rows, progress.by))


def decode_progress(value: bytes, writer: str) -> Progress:
    record = decode_record(_decoder, value, f"the progress of {writer} in Kafka", FORMAT)
    return Progress(record.version, record.rows, record.by)


def progress_topic_of(app: str) -> str:
    return (PREFIX + re.sub(r"[^a-zA-Z0-9._-]", "_", app))[:249]


class ProgressTopic:
    """The topic of one app. The threads of several writers use it."""

    def __init__(self, settings: KafkaSettings, name: str, topics: Topics) -> None:
        """``topics`` has to know the ends of partitions with open transactions."""
        self.name = name
        # At the end of a partition, a broker waits for more records before it answers that there are none.
        self._settings = replace(settings, client=(*settings.client, ("fetch.wait.max.ms", "20")))
        self._topics = topics
        self._lock = threading.Lock()
        self._checked = False

    def ensure(self, *, create: bool) -> bool:
        """Return whether the topic exists with settings that keep its records; ``create``: create it if it doesn't."""
        with self._lock:
            if self._checked:
                return True
            if self._topics.find(self.name) is None:
                if not create:
                    return False
                self._create()
            self._check()
            self._checked = True
            return True

    def read(self, writer: str) -> Progress | None:
        """What the topic says of a writer; None if others' open transactions may hide it (see ``publishing``)."""
        high = self._topics.upcoming(self.name, [PARTITION])[PARTITION]
        low = self._topics.oldest(self.name, [PARTITION])[PARTITION]
        if low >= high:
            return Progress()
        client = open_consumer(self._settings, "headrace.progress")
        try:
            with client.translating(f"reading topic {self.name!r}"):
                client.raw.assign([TopicPartition(self.name, PARTITION, low)])
                return self._read(client, writer, high)
        finally:
            client.raw.close()

    def _read(self, client: KafkaClient[Consumer], writer: str, high: int) -> Progress | None:
        key, value = writer.encode(), None
        heard = False
        end_s = time.monotonic() + READ_S
        place = [TopicPartition(self.name, PARTITION)]
        while client.raw.position(place)[0].offset < high:
            if time.monotonic() > end_s:
                if not heard:
                    said = f"topic {self.name!r} can't be read: no broker answered in {READ_S:g} s"
                    raise UnavailableError(said, hint="check the brokers; Headrace tries again")
                return None
            for message, error in zip(*client.received(0.05, 1000), strict=True):
                if error is None:
                    value = message.value() if message.key() == key else value
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise client.problem(error, f"reading topic {self.name!r}")
                heard = True
                end_s = end_s if error is not None else time.monotonic() + READ_S
        return Progress() if value is None else decode_progress(value, writer)

    def _create(self) -> None:
        new = NewTopic(self.name, 1, config=dict(_SETTINGS))
        hint = (
            f"ask an administrator to create it: kafka-topics.sh --create --topic {self.name} --partitions 1 "
            "--config cleanup.policy=compact; the app needs the rights Read, Write and Describe for it. Or name "
            "another topic with progress_topic="
        )
        if self._topics.create(new, ", which keeps the positions of writers", hint):
            _log.info("created the topic that keeps the positions of writers", topic=self.name)
        else:
            _log.debug("another writer created the progress topic", topic=self.name)
        self._topics.await_topic(self.name)

    def _check(self) -> None:
        policy = self._topics.settings(self.name, hidden=True).get("cleanup.policy", "compact")
        if policy != "compact":
            raise InfrastructureError(
                f"topic {self.name!r} keeps the positions of writers, but has cleanup.policy={policy}, so Kafka would "
                "delete them",
                hint=f"run kafka-configs.sh --alter --entity-type topics --entity-name {self.name} "
                "--add-config cleanup.policy=compact",
            )


OPEN_S, COMMIT_S, ABORT_S, SLICE_S = 15.0, 10.0, 1.0, 0.5
"""How long these calls wait at most; and after how long they look whether the target is being closed."""


def transactional_id(writer: str) -> str:
    return f"headrace.{writer}"


@dataclass(eq=False)
class WriterSession:
    """The producer of one writer, if it has one."""

    settings: KafkaSettings
    writer: str
    limits: TopicLimits
    progress: ProgressTopic
    closing: threading.Event

    def __post_init__(self) -> None:
        self._sender = VersionSender(self.writer, self.limits, self.closing)
        self._client: KafkaClient[Producer] | None = None
        self._timeout_s = 0.0
        self._began_s: float | None = None
        self._undelivered: KafkaError | None = None

    @property
    def elapsed_ms(self) -> float:
        return 0.0 if self._began_s is None else (time.monotonic() - self._began_s) * 1000

    @property
    def slow_ms(self) -> float:
        """The age of the transaction; 0 if the client has reported trouble, which explains it."""
        return 0.0 if self._client is None or self._client.troubles.last is not None else self.elapsed_ms

    def open(self, timeout_ms: int) -> None:
        self.drop()
        self.limits.look()
        id_, limits = transactional_id(self.writer), producer_limits(self.limits.record_bytes)
        client = open_producer(self.settings, id_, self._heard, transaction_timeout_ms=timeout_ms, **limits)
        self._timeout_s = timeout_ms / 1000
        doing = f"taking over the transactional id {id_!r}"
        try:
            self._patiently(client, doing, client.raw.init_transactions, time.monotonic() + OPEN_S)
        except InfrastructureError as error:
            if not error.retry:
                error.hint = (
                    f"the app's user needs the rights to Describe and Write for the transactional ids of the app: "
                    f"kafka-acls.sh --add --transactional-id headrace.{self.writer.partition('/')[0]}/ "
                    "--resource-pattern-type prefixed --operation All --allow-principal User:...; without them: "
                    "hr.io.kafka(..., transactions=False), which may write rows twice"
                )
            raise
        self._client = client

    def find(self, *, create: bool) -> Progress | None:
        """What the progress topic says of the writer; None if it is hidden. The topic is created only if asked for."""
        return self.progress.read(self.writer) if self.progress.ensure(create=create) else Progress()

    def send(self, progress: Progress, pieces: Sequence[pl.DataFrame]) -> None:
        """Begin a transaction, send the records and then the progress, and wait until Kafka has them."""
        client = self._opened()
        self.limits.look()
        self._began_s = time.monotonic()
        self._undelivered = None
        end_s = self._began_s + self._timeout_s
        with client.translating("beginning a transaction"):
            client.raw.begin_transaction()
        try:
            self._sender.send(client, progress.version, pieces, end_s)
            with client.translating(f"writing to topic {self.progress.name!r}"):
                client.raw.produce(self.progress.name, encode_progress(progress), self.writer.encode(), PARTITION)
            self._sender.flush(client, end_s)
            if self._undelivered is not None:  # the client's own calls only say that a record was refused
                raise client.problem(self._undelivered, f"writing to topic {self.limits.topic!r}")
        except HeadraceError as error:
            raise self._explained(client, error) from error

    def commit(self) -> None:
        """Commit. Whatever is raised but ``FencedError``, the transaction may be committed."""
        client = self._opened()
        self._patiently(client, "committing", client.raw.commit_transaction, time.monotonic() + COMMIT_S)
        self._began_s = None
        client.troubles.over()

    def drop(self) -> None:
        """Do without the producer. An open transaction is aborted, if that goes quickly."""
        client, self._client = self._client, None
        if client is None:
            return
        client.raw.purge()
        if self._began_s is not None:
            self._began_s = None
            try:
                with client.translating("aborting a transaction"):
                    client.raw.abort_transaction(ABORT_S)
            except HeadraceError as error:
                _log.debug("a transaction is left for Kafka to abort", writer=self.writer, why=error.message)

    def _heard(self, error: KafkaError) -> None:
        # When a record is refused, the records after it are purged, which may be reported first.
        if self._undelivered is None or self._undelivered.name().startswith("_PURGE"):
            self._undelivered = error

    def _explained(self, client: KafkaClient[Producer], error: HeadraceError) -> HeadraceError:
        """The reason of a refusal: librdkafka purges records without one, and the next invalid call raises it."""
        if error.retry:
            try:
                client.raw.begin_transaction()
            except KafkaException as reason:
                if reason.args[0].code() != KafkaError._STATE:
                    error = client.problem(reason.args[0], f"writing to topic {self.limits.topic!r}")
        if "AUTHORIZATION_FAILED" in error.message:
            error.hint = (
                f"the app's user needs these rights: kafka-acls.sh --add --topic {self.limits.topic} --operation "
                "Write --operation Describe --allow-principal User:...; and for "
                f"--topic {self.progress.name} the same and --operation Read"
            )
        return error

    def _patiently(
        self, client: KafkaClient[Producer], doing: str, call: Callable[[float], object], end_s: float
    ) -> None:
        """Make a call that goes on where it was when it has waited in vain and is made again."""
        while True:
            began_s = time.monotonic()
            try:
                with client.translating(doing):
                    call(SLICE_S)
                return
            except HeadraceError as error:
                now_s = time.monotonic()
                answered = now_s - began_s < SLICE_S
                if answered or not error.retry or self.closing.is_set() or now_s > end_s:
                    raise

    def _opened(self) -> KafkaClient[Producer]:
        if self._client is None:
            raise UnavailableError(f"{self.writer} has no open producer")
        return self._client

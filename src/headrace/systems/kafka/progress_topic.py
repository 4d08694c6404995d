"""The progress topic: for each writer of an app, the newest version that it has published. One partition, compacted.

A writer's record is part of the transaction that publishes the version, so there is one exactly if the rows are there.
The records of all writers are in partition 0, even if partitions are added later, so that a record is always looked
up where it was written. If the topic is deleted, the published versions are unknown.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from typing import Final

import msgspec

from headrace.core.errors import (
    InfrastructureError,
    StreamNotFoundError,
    UnavailableError,
)
from headrace.core.log import logger
from headrace.core.records import decode_record
from headrace.systems.kafka.client import Consumer, KafkaClient, KafkaError, NewTopic, TopicPartition, open_consumer
from headrace.systems.kafka.publishing import Progress
from headrace.systems.kafka.settings import KafkaSettings
from headrace.systems.kafka.topic_settings import topic_settings
from headrace.systems.kafka.topics import Topics

PREFIX = "headrace.progress."
PARTITION = 0
FORMAT = 1
READ_S = 2.0
"""How long one attempt to read the topic takes at most."""

_CHARS_MAX = 249
_CREATED_S = 5.0
_AT_ONCE = 1000
_WAIT_S = 0.05
_FETCH_MS = "20"
_SETTINGS: Final = {
    "cleanup.policy": "compact",
    # Only closed segments are compacted, and all that isn't is read by every writer that starts.
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}

_log = logger(__name__)


class _Record(msgspec.Struct):
    format: int
    version: int
    rows: str
    by: str


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Record)


def encode_progress(progress: Progress) -> bytes:
    """Return the value of a record."""
    return _encoder.encode(_Record(FORMAT, progress.version, progress.rows, progress.by))


def decode_progress(value: bytes, writer: str) -> Progress:
    """Decode a record. Raises ``DataError`` if another program has written it."""
    record = decode_record(_decoder, value, f"the progress of {writer} in Kafka", FORMAT)
    return Progress(record.version, record.rows, record.by)


def progress_topic_of(app: str) -> str:
    """Return the name of an app's progress topic."""
    return (PREFIX + re.sub(r"[^a-zA-Z0-9._-]", "_", app))[:_CHARS_MAX]


class ProgressTopic:
    """The topic of one app. The threads of several writers use it."""

    def __init__(self, settings: KafkaSettings, name: str, topics: Topics) -> None:
        """``topics`` has to know the ends of partitions with open transactions."""
        self.name = name
        # At the end of a partition, a broker waits for more records before it answers that there are none.
        self._settings = replace(settings, client=(*settings.client, ("fetch.wait.max.ms", _FETCH_MS)))
        self._topics = topics
        self._lock = threading.Lock()
        self._checked = False

    def ensure(self, *, create: bool) -> bool:
        """Return whether the topic exists with settings that keep its records; ``create``: create it if it doesn't."""
        with self._lock:
            if self._checked:
                return True
            try:
                self._topics.partitions(self.name)
            except StreamNotFoundError:
                if not create:
                    return False
                self._create()
            self._check()
            self._checked = True
            return True

    def read(self, writer: str) -> Progress | None:
        """Return what the topic says of a writer now; None if open transactions of others may hide something of it.

        Reads committed records up to the high watermark, which counts the records of open transactions, too. A reader
        of committed records gets to an end before it, where the oldest open transaction begins.
        """
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
                    raise UnavailableError(
                        f"topic {self.name!r} can't be read: no broker answered in {READ_S:g} s",
                        hint="check the brokers; Headrace tries again",
                    )
                return None
            for message, error in zip(*client.received(_WAIT_S, _AT_ONCE), strict=True):
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
        end_s = time.monotonic() + _CREATED_S
        while True:
            try:
                self._topics.partitions(self.name)
                return
            except StreamNotFoundError:
                if time.monotonic() > end_s:
                    raise
            threading.Event().wait(_WAIT_S)

    def _check(self) -> None:
        settings = topic_settings(self._topics, self.name)
        policy = settings.get("cleanup.policy", "compact")
        if policy != "compact":
            raise InfrastructureError(
                f"topic {self.name!r} keeps the positions of writers, but has cleanup.policy={policy}, so Kafka would "
                "delete them",
                hint=f"run kafka-configs.sh --alter --entity-type topics --entity-name {self.name} "
                "--add-config cleanup.policy=compact",
            )

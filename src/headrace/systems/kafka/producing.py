"""Records into a producer's queue, and out of it: what outputs with and without transactions share.

Each record has headers that say which row it is, so that a reader who gets one twice can tell: ``headrace-writer``,
``headrace-version``, and ``headrace-row``, its number among those of the version.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import repeat

import polars as pl

from headrace.core.errors import UnavailableError
from headrace.serdes.kafka_partitioning import partitions_of
from headrace.systems.kafka.client import KafkaClient, Producer
from headrace.systems.kafka.output_records import headers_of

QUEUE_KBYTES, QUEUE_RECORDS = 65_536, 500_000
"""What waits in one producer at most."""
ANSWER_S = 5.0
_ROOM_S, _SLICE_S = 0.02, 0.2

Queued = Iterator[tuple[bytes | None, bytes | None, int, int, list[tuple[str, bytes | None]]]]


def producer_limits(record_bytes: int) -> dict[str, str | int | float]:
    """Return the options of a producer for a topic that takes records of this size."""
    return {
        "message_max_bytes": record_bytes,
        # A broker's limit is one of batches, which is what it calls messages.
        "batch_size": min(record_bytes, 1_000_000),
        "queue_buffering_max_kbytes": QUEUE_KBYTES,
        "queue_buffering_max_messages": QUEUE_RECORDS,
    }


class Sender:
    """Sends versions to one topic. ``closing`` ends every wait."""

    def __init__(self, topic: str, closing: threading.Event) -> None:
        self._topic = topic
        self._closing = closing
        self._partitions = 0

    def send(
        self,
        client: KafkaClient[Producer],
        writer: str,
        version: int,
        pieces: Sequence[pl.DataFrame],
        partitions: int,
        end_s: float,
    ) -> None:
        """Queue the records of a version. Waits for room in the queue, but not after ``end_s``."""
        row = 0
        turn = zlib.crc32(f"{writer} {version}".encode())
        own = [("headrace-writer", writer.encode()), ("headrace-version", b"%d" % version)]
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
        """Wait until everything in the queue is acknowledged, or has failed."""
        with client.translating(f"writing to topic {self._topic!r}"):
            while client.raw.flush(_SLICE_S):
                self._wait(client, end_s)

    def _wait(self, client: KafkaClient[Producer], end_s: float) -> None:
        """Raise if the time limit has passed."""
        if self._closing.is_set():
            raise UnavailableError(f"topic {self._topic!r}: the output is closing")
        if time.monotonic() > end_s:
            why = f": {client.troubles.why}" if client.troubles.why else ""
            raise UnavailableError(
                f"Kafka at {client.brokers}: topic {self._topic!r} doesn't accept a version in time{why}",
                hint="check the brokers; Headrace tries again",
            )


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

"""The topics of the measurements over Kafka: page views as JSON, and the results as others see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import polars as pl

from bench.data import DISORDER_MS, HEALTH, PER_MS, START_MS, URLS, WINDOW_MS
from headrace.connectors.kafka.client import Consumer, NewTopic, Producer, TopicPartition, open_admin, open_producer
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.topics import Topics

DAY_MS = 86_400_000
LATE = "late"
MARKS = 64
"""How many members send a mark: enough for each partition of a shuffle to get one."""
_WAIT_S = 60.0
_HELD_MS = 600_000


@dataclass(frozen=True, slots=True)
class Results:
    """What must come of page views: rows of the filter, and counts by member and window."""

    kept: pl.DataFrame
    counts: pl.DataFrame

    @classmethod
    def of(cls, views: pl.DataFrame) -> Results:
        """What Polars makes of page views."""
        kept = views.filter(pl.col("url") != HEALTH).select("member", "ts")
        start = pl.col("ts") // WINDOW_MS * WINDOW_MS
        counts = kept.group_by("member", start=start).agg(views=pl.len().cast(pl.Int64))
        counts = counts.filter(~pl.col("member").str.starts_with(LATE)).select("member", "start", "views")
        return cls(kept, counts.sort("member", "start"))

    def expected(self, what: str) -> pl.DataFrame:
        """Those of the filter or of the count."""
        return self.kept if what == "filter" else self.counts


class Views:
    """Page views of 200 bytes in order of time, with some disorder: some to warm up, and those that are measured.

    The first ones are of two days earlier, and their windows end with marks that come behind them. Behind all
    others are marks of three days later, which end their windows. A topic has one partition: with more, a shuffle
    would mix their times, and views would be late behind the marks of another partition.
    """

    def __init__(self, warm: int, messages: int, keys: int) -> None:
        random = np.random.default_rng(7)
        first = pl.concat([_views(random, warm, keys, START_MS - 2 * DAY_MS), _marks("opening", START_MS)])
        rest = pl.concat([_views(random, messages, keys, START_MS), _marks(LATE, START_MS + 3 * DAY_MS)])
        self.messages = messages
        self.warm_results = Results.of(first.filter(pl.col("ts") < START_MS))
        self.results = Results.of(pl.concat([first, rest]))
        self._first, self._rest = _records(first), _records(rest)

    def warm(self, what: str) -> int:
        """How many results come before the measured ones at least."""
        return self.warm_results.expected(what).height

    @contextmanager
    def held(self, brokers: str, topic: str) -> Iterator[Callable[[], None]]:
        """Fill a topic. The measured views are in a transaction, which is committed by the call that this gives."""
        producer = open_producer(KafkaSettings(brokers), f"filling-{topic}", transaction_timeout_ms=_HELD_MS).raw
        producer.init_transactions(_WAIT_S)
        for held, records in ((False, self._first), (True, self._rest)):
            producer.begin_transaction()
            _send(producer, topic, records)
            if not held:
                producer.commit_transaction(_WAIT_S)
        yield lambda: producer.commit_transaction(_WAIT_S)

    def fill(self, brokers: str, topic: str) -> int:
        """Fill a topic with all of them, and return where it ends."""
        with self.held(brokers, create(brokers, topic)) as release:
            release()
        return Committed(brokers, topic).offsets()


def _views(random: np.random.Generator, count: int, keys: int, start_ms: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "member": "member-" + pl.Series(random.integers(0, keys, count)).cast(pl.String),
            "url": URLS[random.integers(0, len(URLS), count)],
            "ts": start_ms + np.arange(count) // PER_MS - random.integers(0, DISORDER_MS, count),
        }
    )


def _marks(name: str, time_ms: int) -> pl.DataFrame:
    return pl.DataFrame({"member": [f"{name}-{n}" for n in range(MARKS)], "url": "/", "ts": time_ms})


def _records(views: pl.DataFrame) -> list[tuple[bytes, int]]:
    lines = views.with_columns(session=pl.lit("s" * 40), referrer=pl.lit("https://example.com/" + "r" * 55))
    return list(zip(lines.write_ndjson().encode().splitlines(), views["ts"].to_list(), strict=True))


def _send(producer: Producer, topic: str, records: list[tuple[bytes, int]]) -> None:
    for value, time_ms in records:
        while True:
            try:
                producer.produce(topic, value, timestamp=time_ms)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(_WAIT_S):
        raise TimeoutError(f"the topic {topic} can't be filled in {_WAIT_S:.0f} s")


def create(brokers: str, topic: str) -> str:
    """Create a topic, and return its name."""
    admin = open_admin(KafkaSettings(brokers)).raw
    admin.create_topics([NewTopic(topic, 1)])[topic].result(_WAIT_S)
    return topic


class Committed:
    """How far a topic is for readers of committed records. A transaction's end counts as a record."""

    def __init__(self, brokers: str, topic: str) -> None:
        self._topics = Topics(KafkaSettings(brokers))
        self._topic = topic

    def offsets(self) -> int:
        """Where it ends."""
        return self._topics.upcoming(self._topic, [0])[0]


def read_committed(brokers: str, topic: str) -> list[bytes]:
    """The values of all committed records."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "check",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
    )
    end = Committed(brokers, topic).offsets()
    place = TopicPartition(topic, 0, 0)
    consumer.assign([place])
    found: list[bytes] = []
    end_s = time.monotonic() + _WAIT_S
    while consumer.position([place])[0].offset < end:
        if time.monotonic() > end_s:
            raise TimeoutError(f"the topic {topic} can't be read in {_WAIT_S:.0f} s")
        messages = consumer.consume(1000, 0.05)
        found += [value for one in messages if one.error() is None and (value := one.value()) is not None]
    consumer.close()
    return found

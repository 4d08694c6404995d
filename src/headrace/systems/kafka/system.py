"""A topic of Kafka as a row system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.clock import Clock, WallClock
from headrace.core.errors import UsageError
from headrace.serdes.dtypes import Columns
from headrace.serdes.formats import FormatSpec, open_format
from headrace.systems.base import RowSystem, Target
from headrace.systems.kafka.admin import KafkaAdmin
from headrace.systems.kafka.client import Consumer, KafkaClient, KafkaError, open_consumer
from headrace.systems.kafka.consumer import KafkaConsumer
from headrace.systems.kafka.fetching import Fetching, Wanted
from headrace.systems.kafka.group_commits import GroupCommits
from headrace.systems.kafka.options import Options
from headrace.systems.kafka.record_rows import KeyColumn, RecordRows, columns_about, key_dtype
from headrace.systems.kafka.topics import Topics

CALL_S = 5.0
"""How long a run loop may wait for an answer."""


@dataclass
class KafkaSystem(RowSystem):
    """A system with one topic, as a stream of any name: the options say which one it is."""

    options: Options
    clock: Clock = field(default_factory=WallClock)

    def __post_init__(self) -> None:
        self._topics = Topics(self.options.settings, uncommitted=self.options.uncommitted, answer_s=CALL_S)

    @override
    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.options, self._topics, self._columns(), self._group_commits)

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> KafkaConsumer:
        """Records that can't be read as ``columns`` are bad, so there is nothing more to be had of them ``whole``."""
        options = self.options
        topic = self._topics.describe(options.topic)
        rows = self._rows(columns)
        client = open_consumer(options.settings, "headrace", uncommitted=options.uncommitted)
        by_time = options.end is not None and options.end.time_ms is not None
        wanted = Wanted(rows.wants("key"), by_time or rows.wants("timestamp"), rows.wants("headers"))
        fetching = Fetching(
            client,
            options.topic,
            wanted,
            skip_lost=options.lost == "skip",
            known=topic,
            topic_now=lambda: self._topics.describe(options.topic),
        )
        return KafkaConsumer(options, topic.partitions, self._topics, fetching, rows, self.clock)

    @override
    def target(self, stream: str) -> Target:
        raise UsageError(f"the topic {self.options.topic!r} is an input", hint="declare it as an output")

    def _rows(self, columns: Mapping[str, pl.DataType] | None) -> RecordRows:
        format, key_format = open_format(self.options.format), open_format(self.options.key_format)
        about = self.options.record_columns
        contents = format.columns() if columns is None else {n: t for n, t in columns.items() if n not in about}
        if not contents:  # the contents of these records are unknown, so they are only counted or shown unchanged
            format = open_format(FormatSpec("bytes"))
            contents = format.columns() or {}
        keys = []
        for name in (name for name, what in about.items() if what == "key"):
            dtype = key_dtype(key_format) if columns is None else columns.get(name)
            if dtype is not None:
                keys.append(KeyColumn(name, key_format, dtype))
        return RecordRows(format.decoder(contents), about, keys)

    def _columns(self) -> Columns | None:
        own = open_format(self.options.format).columns()
        about = columns_about(self.options.record_columns, key_dtype(open_format(self.options.key_format)))
        return None if own is None or len(about) < len(self.options.record_columns) else {**own, **about}

    def _group_commits(self, group: str) -> GroupCommits:
        return GroupCommits(self.options.topic, group, self._open_group, self.clock)

    def _open_group(self, group: str, answered: Callable[[KafkaError | None], None]) -> KafkaClient[Consumer]:
        return open_consumer(self.options.settings, group, committed=answered)


def open_kafka_system(name: str, options: Mapping[str, Any]) -> KafkaSystem:
    """The system of a ``SystemSpec``: ``topic``, ``brokers``, and optionally the other fields of ``Options``."""
    return KafkaSystem(Options.of(name, options))

"""Describes a topic as a stream of rows."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence

import polars as pl
from typing_extensions import override

from headrace.core.errors import StreamNotFoundError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.serdes.dtypes import Columns
from headrace.systems.base import Extent, StreamInfo, check_within
from headrace.systems.kafka.group_commits import GroupCommits, group_of
from headrace.systems.kafka.options import Options
from headrace.systems.kafka.record_times import RecordTimes
from headrace.systems.kafka.topics import Topics
from headrace.systems.unwatched import UnwatchedAdmin

_log = logger(__name__)


class KafkaAdmin(UnwatchedAdmin):
    """The one topic is a stream of any name: the options say which one it is.

    ``columns`` are those that the formats say by themselves, if they do.
    """

    def __init__(
        self,
        options: Options,
        topics: Topics,
        columns: Columns | None,
        group_commits: Callable[[str], GroupCommits],
    ) -> None:
        super().__init__()
        self._options = options
        self._topics = topics
        self._columns = columns
        self._group_commits = group_commits
        self._times = RecordTimes(options.settings, uncommitted=options.uncommitted)
        self._groups: dict[str, GroupCommits] = {}
        self._throttle = Throttle(_log)

    @property
    def _topic(self) -> str:
        return self._options.topic

    @override
    def list(self) -> builtins.list[str]:
        return self._topics.names()

    @override
    def describe(self, stream: str) -> StreamInfo:
        """Raises ``StreamNotFoundError``, which names topics with similar names."""
        columns = None if self._columns is None else dict(self._columns)
        end = self._options.end
        topic = self._topics.describe(self._topic)
        partitions = topic.partitions
        if end is not None and (strange := sorted(p for p in end.offsets if p >= partitions)):
            raise UsageError(
                f"end= of topic {self._topic!r} names partition {strange[0]}, but the topic has partitions 0 to "
                f"{partitions - 1}",
                hint="name an offset for each of the topic's partitions",
            )
        if end is not None and end.time_ms is None and len(end.offsets) < partitions:
            missing = min(set(range(partitions)) - set(end.offsets))
            raise UsageError(
                f"end= of topic {self._topic!r} has no offset for partition {missing}",
                hint="name an offset for each of the topic's partitions, or a time",
            )
        bounded = end is not None
        return StreamInfo(stream, partitions, columns, bounded=bounded, until_offset=True, identity=topic.id)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        """Raises ``UsageError``: an input is created by its writers."""
        raise self._refused("is an input, so Headrace doesn't create it", "use kafka-topics.sh --create")

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        raise self._refused("has no columns; its records do", "add the column to the input's schema")

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        raise self._refused(
            "is an input, so Headrace doesn't add partitions to it", "use kafka-topics.sh --alter --partitions"
        )

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        """Each partition up to its oldest open transaction, unless uncommitted records are read, too."""
        partitions = range(self._topics.partitions(self._topic))
        low = self._topics.oldest(self._topic, partitions)
        high = self._topics.upcoming(self._topic, partitions)
        return [Extent(low[p], max(low[p], high[p]), trimmed=low[p] > 0) for p in partitions]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        """By the timestamps of records, which are their writers' or the broker's, as the topic is set up."""
        self._check_partition(ssp)
        found = self._topics.at(self._topic, [ssp.partition], time_ms)[ssp.partition]
        return self._topics.upcoming(self._topic, [ssp.partition])[ssp.partition] if found is None else found

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        """Reads the record."""
        return self._times.read(self._topic, ssp.partition, offset)

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        """An offset in a gap is as good as the next one after it."""
        extents = self.extents(ssp.stream.name)
        if not 0 <= ssp.partition < len(extents):
            raise StreamNotFoundError(f"{ssp}: the topic has partitions 0 to {len(extents) - 1}")
        check_within(ssp, offset, extents[ssp.partition])

    @override
    def seal(self, stream: str) -> None:
        raise self._refused("can't be sealed", "Kafka's topics have no end; end= of hr.io.kafka sets where to stop")

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        raise self._refused("is an input, so Headrace doesn't delete its records", "set the topic's retention")

    @override
    def report_commit(self, ssp: SSP, reader: str, position: Offset) -> None:
        """As an offset of the consumer group ``headrace.<app>.<stage>``."""
        group = group_of(reader)
        if group not in self._groups:
            self._groups[group] = self._group_commits(group)
        self._groups[group].note(ssp.partition, position)

    @override
    def close(self) -> None:
        groups, self._groups = self._groups, {}
        for commits in groups.values():
            commits.close()
        self._topics.close()
        self._times.close()

    def _check_partition(self, ssp: SSP) -> None:
        partitions = self._topics.partitions(self._topic)
        if not 0 <= ssp.partition < partitions:
            raise StreamNotFoundError(f"{ssp}: the topic has partitions 0 to {partitions - 1}")

    def _refused(self, why: str, hint: str) -> UsageError:
        return UsageError(f"the topic {self._topic!r} {why}", hint=hint)

"""Management of the streams of a log in Kafka. Threads may share an admin, but for ``unread``.

A stream is in the registry before its topic is there, so a topic that exists without a stream belongs to another
program, and is left alone. Partitions are counted by the topic.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import replace

import polars as pl
from typing_extensions import override

from headrace.core.errors import DeploymentError, HeadraceError, StreamNotFoundError, UsageError
from headrace.core.ids import SSP, Offset, check_id
from headrace.systems.base import Admin, Extent, StreamInfo, check_within
from headrace.systems.kafka.log_cluster import Cluster
from headrace.systems.kafka.log_groups import Groups
from headrace.systems.kafka.log_marks import mark_ends
from headrace.systems.kafka.log_metadata import Metadata
from headrace.systems.kafka.log_positions import Distances, Reports, Sizes
from headrace.systems.kafka.log_registry import Entry, Order, addition, creation
from headrace.systems.kafka.log_topics import LogOptions, check_settings
from headrace.systems.kafka.record_times import RecordTimes
from headrace.systems.shape import new_columns, require_same_shape, wanted_shape


class KafkaLogAdmin(Admin):
    """The admin of a log."""

    def __init__(self, options: LogOptions, cluster: Cluster, metadata: Metadata, sizes: Sizes) -> None:
        self._options = options
        self._cluster = cluster
        self._metadata = metadata
        self._sizes = sizes
        self._groups = Groups(options)
        self._reports = Reports(self._groups)
        self._distances = Distances(cluster, self._groups)
        self._partitions: dict[str, int] = {}
        """Of streams whose readers are watched. An app that writes a stream doesn't add partitions to it."""
        self._times = RecordTimes(options.settings, uncommitted=True)

    @override
    def list(self) -> builtins.list[str]:
        return self._metadata.refresh().names()

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        topic = self._options.topic(stream)
        entry = self._metadata.find(stream)
        partitions = None if entry is None else self._cluster.partitions(topic)
        return None if entry is None or partitions is None else replace(entry.info, partitions=partitions)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        topic = self._options.topic(stream)
        wanted = wanted_shape(stream, partitions, columns, key)
        entry = self._metadata.find(stream)
        if entry is None:
            entry = self._new(topic, wanted)
        found = self._cluster.partitions(topic)
        if found is None:
            require_same_shape(entry.info, wanted)
            self._cluster.create(topic, entry.info.partitions)
            found = self._cluster.partitions(topic)
        check_settings(topic, self._cluster.settings(topic))
        return require_same_shape(replace(entry.info, partitions=found or entry.info.partitions), wanted)

    def _new(self, topic: str, wanted: StreamInfo) -> Entry:
        if self._cluster.partitions(topic) is not None:
            found = self._metadata.find(wanted.name)
            if found is None:
                raise DeploymentError(
                    f"the topic {topic!r} exists already, and isn't one of Headrace's streams",
                    hint="use another name or prefix, or delete the topic",
                )
            return found
        return self._metadata.order(creation(wanted))

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        entry, partitions = self._require(stream)
        more = new_columns(entry.info, columns)
        if more:
            entry = self._metadata.order(addition(stream, more))
            new_columns(entry.info, columns)  # another one may have added them with other types
        return replace(entry.info, partitions=partitions)

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        wanted_shape(stream, max(partitions, 1), None)
        entry, found = self._require(stream)
        if partitions > found:
            entry.require_open()
            self._cluster.grow(self._options.topic(stream), partitions)
        info = self.describe(stream)
        if info is None:
            raise self._gone(stream)
        return info

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        entry, partitions = self._require(stream)
        oldest, upcoming = self._cluster.extents(self._options.topic(stream), partitions)
        return [_extent(entry, number, oldest[number], upcoming[number]) for number in range(partitions)]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        extent = self.extent(ssp)
        found = self._cluster.at(self._options.topic(ssp.stream.name), ssp.partition, time_ms)
        return extent.upcoming if found is None else max(extent.oldest, min(found, extent.upcoming))

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        """Reads a record. None, too, if it was trimmed meanwhile."""
        extent = self.extent(ssp)
        if offset >= extent.upcoming:
            return None
        return self._times.read(self._options.topic(ssp.stream.name), ssp.partition, max(offset, extent.oldest))

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        check_within(ssp, offset, self.extent(ssp))

    @override
    def seal(self, stream: str) -> None:
        """End the stream: first forbid writes, then write a mark to each partition, then record the ends.

        A writer that finds another program's record between its own asks whether the stream is being sealed; so none
        that has written after a mark continues. Without recorded ends, readers wait at a mark until another call
        completes it.
        """
        entry, partitions = self._require(stream)
        if entry.ends is not None:
            return
        if not entry.sealing:
            self._metadata.order(Order("sealing", stream))
        ends = mark_ends(self._options, stream, partitions)
        self._metadata.order(Order("sealed", stream, ends=ends))

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        extent = self.extent(ssp)
        if before > extent.upcoming:
            raise UsageError(f"{ssp}: can't trim before {before}: the end is {extent.upcoming}")
        if before > extent.oldest:
            self._cluster.delete_before(self._options.topic(ssp.stream.name), ssp.partition, before)

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        topic = self._options.topic(ssp.stream.name)
        self._reports.report(self._group(group), topic, ssp.partition, position)

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        _, partitions = self._require(stream)
        return self._groups.committed(self._group(group), self._options.topic(stream), partitions).result()

    @override
    def close(self) -> None:
        """Waits until positions have been committed that were reported, for some seconds at most."""
        self._groups.close()
        self._times.close()

    @override
    def unread(self, stream: str, group: str) -> builtins.list[int]:
        """Never waits: it returns the last answers, and nothing before the first one."""
        topic = self._options.topic(stream)
        partitions = self._partitions.get(stream)
        if partitions is None:
            partitions = self._partitions[stream] = self._require(stream)[1]
        size = self._sizes.of(stream)
        return [int(records * size) for records in self._distances.unread(topic, partitions, self._group(group))]

    @override
    def bytes_per_offset(self, stream: str) -> float:
        return self._sizes.of(stream)

    # -- streams ---------------------------------------------------------------------------------------

    def _group(self, group: str) -> str:
        """The group in Kafka, where tools for lag show it."""
        return f"{self._options.prefix}{check_id('group', group)}"

    def _require(self, stream: str) -> tuple[Entry, int]:
        """A stream, and how many partitions it has."""
        entry = self._metadata.require(check_id("stream", stream))
        partitions = self._cluster.partitions(self._options.topic(stream))
        if partitions is None:
            raise self._gone(stream)
        return entry, partitions

    def _gone(self, stream: str) -> HeadraceError:
        return StreamNotFoundError(
            f"stream {stream!r} has lost its topic {self._options.topic(stream)!r}: the topic is missing or incomplete",
            hint="the topic was probably deleted: restore it, or create the stream again without its former records",
        )


def _extent(entry: Entry, partition: int, oldest: Offset, upcoming: Offset) -> Extent:
    end = entry.end(partition)
    upcoming = upcoming if end is None else end
    return Extent(min(oldest, upcoming), upcoming, end is not None, trimmed=oldest > 0)

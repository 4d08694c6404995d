"""The admin of a topic of others, and its readers' progress for Kafka's tools.

group commits
    Show an app's progress to Kafka's tools: its commits, as offsets of a consumer group.

    Nothing is read from there. The calls don't wait; what can't be committed is logged, and the next commit says more.

admin
    Describes a topic as a stream of rows.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Sequence

import polars as pl
from typing_extensions import override

from headrace.connectors.kafka.client import (
    KafkaError,
    TopicPartition,
    no_right_to_group,
    open_consumer,
)
from headrace.connectors.kafka.settings import KafkaSettings, Options
from headrace.connectors.kafka.topics import RecordTimes, Topics
from headrace.core.clock import Clock
from headrace.core.errors import (
    StreamNotFoundError,
    UsageError,
)
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.rows.dtypes import Columns
from headrace.systems.base import Extent, StreamInfo, UnwatchedAdmin, check_within

# -- group commits -----------------------------------------------------------------------------------
EVERY_MS = 1000.0
CLOSE_S = 2.0
"""How long the last commit may take."""

_log = logger(__name__)


def group_of(reader: str) -> str:
    """The name of the group of a stage, ``app/stage``."""
    return f"headrace.{reader.replace('/', '.')}"


class GroupCommits:
    """The commits of one stage in one topic. One thread uses it."""

    def __init__(self, settings: KafkaSettings, topic: str, group: str, clock: Clock) -> None:
        self._topic = topic
        self._group = group
        self._client = open_consumer(settings, group, committed=self._answered)
        self._clock = clock
        self._waiting: dict[int, Offset] = {}
        self._sent_ms = -EVERY_MS
        self._under_way = 0
        self._refused = False
        self._throttle = Throttle(_log)

    def note(self, partition: int, position: Offset) -> None:
        """Take in a commit, and send those that wait if it is time."""
        self._waiting[partition] = position
        self._poll(0)
        if not self._under_way and self._clock.monotonic_ms() - self._sent_ms >= EVERY_MS:
            self._send()

    def close(self) -> None:
        """Send what waits, and wait for the answer a little."""
        end_ms = self._clock.monotonic_ms() + CLOSE_S * 1000
        while (self._under_way or self._waiting) and not self._refused and self._clock.monotonic_ms() < end_ms:
            if not self._under_way:
                self._send()
            self._poll(0.05)
        if self._under_way:  # librdkafka would wait for the answer, up to a minute
            threading.Thread(target=self._client.raw.close, name=f"closing {self._group}", daemon=True).start()
        else:
            self._client.raw.close()

    def _poll(self, timeout_s: float) -> None:
        """Take in answers. Commits that find no group because there is no right to it get none: they wait for one."""
        message = self._client.raw.poll(timeout_s)
        error = None if message is None else message.error()
        if error is not None:
            self._refused = no_right_to_group(error)
            self._warn(error)

    def _send(self) -> None:
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in self._waiting.items()]
        self._waiting = {}
        self._sent_ms = self._clock.monotonic_ms()
        self._under_way += 1
        with self._client.translating(f"committing to group {self._group!r}"):
            self._client.raw.commit(offsets=places, asynchronous=True)

    def _answered(self, error: KafkaError | None) -> None:
        self._under_way = 0
        self._refused = False
        if error is not None:
            self._warn(error)

    def _warn(self, error: KafkaError) -> None:
        problem = self._client.problem(error, f"committing to group {self._group!r}")
        self._throttle.warning("positions can't be shown to Kafka's tools", error=problem.message)


# -- admin -------------------------------------------------------------------------------------------
class KafkaAdmin(UnwatchedAdmin):
    """The one topic is a stream of any name: the options say which one it is.

    ``columns`` are those that the formats say by themselves, if they do.
    """

    def __init__(self, options: Options, topics: Topics, columns: Columns | None, clock: Clock) -> None:
        super().__init__()
        self._options = options
        self._topics = topics
        self._columns = columns
        self._clock = clock
        self._times = RecordTimes(options.settings, uncommitted=options.uncommitted)
        self._groups: dict[str, GroupCommits] = {}

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
        low, high = self._topics.extents(self._topic, self._topics.partitions(self._topic))
        return [Extent(low[p], max(low[p], high[p]), trimmed=low[p] > 0) for p in low]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        """By the timestamps of records, which are their writers' or the broker's, as the topic is set up."""
        self._check_partition(ssp)
        found = self._topics.at(self._topic, ssp.partition, time_ms)
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
            self._groups[group] = GroupCommits(self._options.settings, self._topic, group, self._clock)
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

"""The reading side of a log in Kafka. ``register`` waits for brokers; ``poll`` takes records that have arrived.

A partition is fetched from its first poll on. Its end is known from the registry, or found as a mark; then the registry
is asked whether the stream has ended there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from headrace.core.errors import HeadraceError
from headrace.core.ids import SSP, Offset
from headrace.core.readable import readable
from headrace.systems.base import Edge, Ended, Extent, Polled, Position, Records, check_within
from headrace.systems.kafka.client import open_consumer
from headrace.systems.kafka.log_admin import KafkaLogAdmin
from headrace.systems.kafka.log_cluster import Cluster
from headrace.systems.kafka.log_fetching import Feed, Fetching
from headrace.systems.kafka.log_metadata import Metadata
from headrace.systems.kafka.log_positions import Sizes
from headrace.systems.kafka.log_topics import LogOptions
from headrace.systems.registered import Reading, RegisteringConsumer

_USUAL = {
    # Partitions that are added to a fetch wait for the one under way.
    "fetch.wait.max.ms": "50",
    "topic.metadata.refresh.fast.interval.ms": "10",
    "fetch.queue.backoff.ms": "2",
    "fetch.error.backoff.ms": "50",
    "queued.max.messages.kbytes": "16384",
    "queued.min.messages": "10000",
}
_ASK_AGAIN_S = 0.05
_END_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Reading(Reading):
    topic: str
    upcoming: Offset
    """The end of the partition as it was when it was asked for last."""
    asking: Future[Any] | None = None
    upcoming_s: float = 0.0
    """When the end was asked for."""
    end: Offset | None
    """Where the stream has ended; None while it isn't known to have."""
    feed: Feed | None = None
    asked_s: float = 0.0
    """When the registry was asked whether the stream ends at the feed's mark."""


class KafkaLogConsumer(RegisteringConsumer[_Reading]):
    """Reads partitions of a log."""

    def __init__(
        self, options: LogOptions, cluster: Cluster, admin: KafkaLogAdmin, metadata: Metadata, sizes: Sizes
    ) -> None:
        super().__init__()
        self._sizes = sizes
        self._options = options
        self._cluster = cluster
        self._admin = admin
        self._metadata = metadata
        self._fetching = Fetching(open_consumer(options.settings.tuned(_USUAL), "headrace", uncommitted=True))
        self._failure: HeadraceError | None = None

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        """Does nothing if reading continues there anyway, because a task often reads what it has just written."""
        reading = self._readings.get(ssp)
        if reading is not None and reading.feed is not None and reading.feed.sound and reading.position == position:
            return
        extent = self._admin.extent(ssp)
        if isinstance(position, Edge):
            start = extent.oldest if position is Edge.OLDEST else extent.upcoming
        else:
            start = position
        check_within(ssp, start, Extent(extent.oldest, extent.upcoming))
        self.unregister(ssp)
        self._readings[ssp] = _Reading(
            ssp,
            start,
            topic=self._options.topic(ssp.stream.name),
            upcoming=extent.upcoming,
            upcoming_s=time.monotonic(),
            end=extent.upcoming if extent.sealed else None,
        )
        self._fetching.signal()

    @override
    def _release(self, reading: _Reading) -> None:
        if reading.feed is not None:
            self._fetching.end(reading.feed)
            reading.feed = None

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        """If a partition fails after others returned records, this returns the records, and the next poll raises."""
        self._fetching.look()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        out: list[Polled] = []
        for reading in self._asked(ssps):
            try:
                self._read(reading, max_bytes, out)
            except HeadraceError as failure:
                if not out:
                    raise
                self._failure = failure
                break
        return out

    def _read(self, reading: _Reading, max_bytes: int, out: list[Polled]) -> None:
        if reading.ended:
            return
        if reading.position == reading.end:
            self._end(reading, out)
            return
        feed = reading.feed
        if feed is None:
            reading.feed = self._fetching.begin(reading.topic, reading.ssp.partition, reading.position)
            return
        offsets, payloads = self._fetching.take(feed, max_bytes)
        if offsets:
            reading.position = offsets[-1] + 1 if feed.records else feed.next
            self._sizes.seen(reading.ssp.stream.name, len(payloads), sum(map(len, payloads)))
            out.append(Records(reading.ssp, offsets, payloads, reading.position))
        elif feed.mark is not None:
            self._at_mark(reading, feed.mark)
        else:
            reading.position = feed.next
        if reading.position == reading.end:
            self._end(reading, out)

    def _end(self, reading: _Reading, out: list[Polled]) -> None:
        reading.ended = True
        self._release(reading)
        out.append(Ended(reading.ssp, reading.position))

    def _at_mark(self, reading: _Reading, mark: Offset) -> None:
        """Ask whether the stream has ended here. A mark of a call that failed halfway is passed over."""
        now = time.monotonic()
        if now - reading.asked_s < _ASK_AGAIN_S:
            self._fetching.signal()
            return
        reading.asked_s = now
        entry = self._metadata.require(reading.ssp.stream.name)
        reading.end = entry.end(reading.ssp.partition)
        if reading.end is None:
            self._fetching.signal()
            return
        if mark < reading.end:
            self._release(reading)
            reading.position = mark + 1
            self._fetching.signal()
        else:
            reading.position = reading.end

    @override
    def fileno(self) -> int | None:
        return self._fetching.fileno()

    @override
    def arriving(self, ssp: SSP, end: Offset, ms: float) -> bool:
        reading = self._reading(ssp)
        if reading.ended or reading.position >= end:
            return False
        readable(self.fileno(), ms)
        return True

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        """Records to the end of the partition, which is asked for now and then: the answer may be a second old."""
        reading = self._reading(ssp)
        if reading.end is None:
            self._look_for_end(reading)
        end = max(reading.position, reading.upcoming if reading.end is None else reading.end)
        return end - (reading.position if since is None else since)

    def _look_for_end(self, reading: _Reading) -> None:
        now = time.monotonic()
        if reading.asking is not None and reading.asking.done():
            if reading.asking.exception() is None:
                reading.upcoming = max(reading.upcoming, reading.asking.result().offset)
            reading.asking = None
        if reading.asking is None and now - reading.upcoming_s > _END_S:
            reading.upcoming_s = now
            reading.asking = self._cluster.asked_upcoming(reading.topic, reading.ssp.partition)

    @override
    def close(self) -> None:
        self._readings.clear()
        self._fetching.close()

"""Reads partitions of a topic as rows. Offsets are Kafka's: transactions and compaction leave gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, StreamNotFoundError
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.core.readable import readable
from headrace.systems.base import BadRecord, Edge, Ended, Polled, Position, Rows, Unread
from headrace.systems.kafka.fetched import Feed, Fetched
from headrace.systems.kafka.fetching import Fetching, beyond_the_end, lost_records
from headrace.systems.kafka.options import Options
from headrace.systems.kafka.record_rows import RecordRows
from headrace.systems.kafka.topics import Topics
from headrace.systems.registered import Reading, RegisteringConsumer

ASK_AGAIN_MS = 10_000.0
END_MS = 500.0
"""How often brokers are asked where partitions end that aren't read to their ends."""

_log = logger(__name__)


@dataclass(slots=True, kw_only=True)
class _KafkaReading(Reading):
    end: Offset | None = None
    """Where the partition ends for the app; None: it doesn't, or only its time is known."""
    feed: Feed | None = None
    """None when nothing more is to be fetched."""
    held: Fetched | None = None
    """What was taken of the feed, and can't be decoded yet."""
    lost: int = 0
    ask_ms: float = 0.0
    """When the broker may be asked again where the partition ends."""


class KafkaConsumer(RegisteringConsumer[_KafkaReading]):
    """Reads the topic that the options name, as a stream of any name. ``Edge.OLDEST`` is where the options say.

    A bounded partition ends at an offset; or by time, at the first record that has the time or a later one, or, if
    there is none, where the partition ends when the clock has come to that time.
    """

    def __init__(
        self, options: Options, partitions: int, topics: Topics, fetching: Fetching, rows: RecordRows, clock: Clock
    ) -> None:
        super().__init__()
        self._options = options
        self._partitions = partitions
        self._topics = topics
        self._fetching = fetching
        self._maker = rows
        self._clock = clock
        self._throttle = Throttle(_log)
        self._ends: dict[int, Offset] = {}
        """Where partitions ended when brokers said so last."""
        self._asking: dict[int, Future[Any]] = {}
        self._asked_ms = float("-inf")

    # -- where reading begins

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        """Asks the broker where the partition begins and ends."""
        if not 0 <= ssp.partition < self._partitions:
            raise StreamNotFoundError(
                f"{ssp}: the topic {self._options.topic!r} has partitions 0 to {self._partitions - 1}"
            )
        self.unregister(ssp)
        end = None if self._options.end is None else self._options.end.offsets.get(ssp.partition)
        reading = _KafkaReading(ssp, end=end)
        reading.position = self._begins(reading, position)
        if end is None or reading.position < end:
            reading.feed = self._fetching.begin(ssp.partition, reading.position)
        else:
            reading.position = max(reading.position, end)
            self._fetching.signal()
        self._readings[ssp] = reading

    def _begins(self, reading: _KafkaReading, position: Position) -> Offset:
        topic, partition = self._options.topic, reading.ssp.partition
        low = self._topics.oldest(topic, [partition])[partition]
        if position is Edge.OLDEST:
            return self._first(partition, low)
        high = self._topics.upcoming(topic, [partition])[partition]
        if isinstance(position, Edge):
            return high
        if position > high:
            raise beyond_the_end(topic, partition, position, high)
        if position < low:
            if self._options.lost == "stop":
                raise lost_records(topic, partition, position, low)
            reading.lost = low - position
            self._fetching.signal()
        return max(position, low)

    def _first(self, partition: int, low: Offset) -> Offset:
        """Where the first run begins."""
        topic, start = self._options.topic, self._options.start
        if start == "oldest":
            return low
        found = None if isinstance(start, str) else self._topics.at(topic, [partition], start)[partition]
        return self._topics.upcoming(topic, [partition])[partition] if found is None else found

    @override
    def _release(self, reading: _KafkaReading) -> None:
        if reading.feed is not None:
            self._fetching.end(reading.feed)
            reading.feed = None

    @override
    def close(self) -> None:
        super().close()
        self._fetching.close()

    # -- what is read

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        asked = self._asked(ssps)
        self._fetching.look()
        return [polled for reading in asked for polled in self._hand_out(reading, max_bytes)]

    def _hand_out(self, reading: _KafkaReading, max_bytes: int) -> Iterator[Polled]:
        if reading.ended:
            return
        if reading.lost:
            lost, reading.lost = reading.lost, 0
            first, after = reading.position - lost, reading.position
            yield Rows(reading.ssp, pl.DataFrame(), first, after, unread=_unread(lost, after))
        fetched = self._take(reading, max_bytes)
        if fetched is not None and (rows := self._rows(reading, fetched)) is not None:
            yield rows
        if reading.held is None and self._is_over(reading):
            self._release(reading)
            reading.ended = True
            yield Ended(reading.ssp, reading.position)

    def _take(self, reading: _KafkaReading, max_bytes: int) -> Fetched | None:
        feed = reading.feed
        if reading.held is not None or feed is None:
            return reading.held
        with self._fetching.emptying():
            if feed.error is not None and not feed.waiting:
                raise feed.error
            fetched = feed.take(max_bytes)
            self._fetching.emptied(feed)
        if fetched is None:
            return None
        time_ms = self._end_ms
        if time_ms is not None and (found := fetched.first_at(time_ms)) is not None:
            reading.end = found if reading.end is None else min(found, reading.end)
        return fetched if reading.end is None else fetched.before(reading.end)

    def _is_over(self, reading: _KafkaReading) -> bool:
        if reading.end is None and self._end_ms is not None and self._clock.now_ms() >= self._end_ms:
            reading.end = self._present_end(reading)
        return reading.end is not None and reading.position >= reading.end

    @property
    def _end_ms(self) -> int | None:
        return None if self._options.end is None else self._options.end.time_ms

    def _present_end(self, reading: _KafkaReading) -> Offset | None:
        """Return the present end of the partition; None if no broker answers, or if records of that time may be unread.

        The broker is asked when there is nothing more to take, so that a record of the end's time is found first.
        """
        feed, now_ms = reading.feed, self._clock.monotonic_ms()
        if feed is None or now_ms < reading.ask_ms:
            return None
        with self._fetching.emptying():
            if feed.waiting or not feed.at_end:
                return None
        try:
            return self._topics.upcoming(self._options.topic, [feed.partition])[feed.partition]
        except HeadraceError as error:
            if not error.retry:
                raise
            reading.ask_ms = now_ms + ASK_AGAIN_MS
            return None

    def _rows(self, reading: _KafkaReading, fetched: Fetched) -> Rows | None:
        """The rows; None if they can't be decoded now."""
        ssp, first = reading.ssp, reading.position
        if not len(fetched):
            reading.position = fetched.next
            return Rows(ssp, pl.DataFrame(), first, fetched.next, unread=_unread(fetched.lost, fetched.next))
        try:
            decoded = self._maker.decode(ssp.partition, fetched)
        except HeadraceError as error:
            if not error.retry:
                raise
            reading.held = fetched
            self._throttle.warning("records can't be decoded yet; waiting", ssp=str(ssp), error=error.message)
            self._fetching.signal()
            return None
        reading.held = None
        place = f"{self._options.topic}, partition {ssp.partition}"
        bad = [
            BadRecord(ssp, fetched.offsets[i], f"{place}, offset {fetched.offsets[i]}: {why}", fetched.values[i] or b"")
            for i, why in decoded.bad
        ]
        reading.position = fetched.next
        offset = fetched.offsets[0] if decoded.offsets is None else first
        return Rows(ssp, decoded.frame, offset, fetched.next, bad, place, offsets=decoded.offsets)

    @override
    def arriving(self, ssp: SSP, end: Offset, ms: float) -> bool:
        reading = self._reading(ssp)
        feed = reading.feed
        if reading.ended or reading.position >= end or feed is None:
            return False
        with self._fetching.emptying():
            if feed.at_end and not feed.waiting and reading.held is None:
                return False  # what is left before the end are marks of transactions, and what was compacted
        readable(self.fileno(), ms)
        return True

    # -- how far it is

    @override
    def fileno(self) -> int | None:
        return self._fetching.fileno()

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        """Offsets to the end, so gaps count; 0 at the end. None before the broker has said where that is.

        Brokers are asked now and then, without waiting for them, so the answer may be a second old.
        """
        reading = self._reading(ssp)
        if reading.ended:
            return 0
        begun = reading.position if since is None else min(since, reading.position)
        end = self._end_of(reading)
        return None if end is None else max(0, end - begun)

    def _end_of(self, reading: _KafkaReading) -> Offset | None:
        feed = reading.feed
        if feed is None:
            return reading.position
        with self._fetching.emptying():
            known = feed.end if feed.at_end else None
        if known is None:
            self._look_for_ends()
            known = self._ends.get(feed.partition)
        if known is None or reading.end is None:
            return known
        return min(known, reading.end)

    def _look_for_ends(self) -> None:
        if self._asking and all(answer.done() for answer in self._asking.values()):
            answers, self._asking = self._asking, {}
            self._ends |= {n: answer.result().offset for n, answer in answers.items() if answer.exception() is None}
        now_ms = self._clock.monotonic_ms()
        if not self._asking and now_ms - self._asked_ms >= END_MS:
            self._asked_ms = now_ms
            partitions = [one.feed.partition for one in self._readings.values() if one.feed is not None]
            self._asking = self._topics.asked_upcoming(self._options.topic, partitions)


def _unread(lost: int, after: Offset) -> list[Unread]:
    """What to say of offsets up to ``after`` that were deleted."""
    warning = f"offsets {after - lost} to {after - 1} were deleted before they were read"
    return [Unread("lost", lost, warning)] if lost else []

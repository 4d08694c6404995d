"""Reads the shards of slots as rows: what a format makes of records, and what Kinesis says of them as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.connectors.kinesis.api import OLDEST
from headrace.connectors.kinesis.api import Position as ShardPosition
from headrace.connectors.kinesis.feed import Feed, Fetching
from headrace.connectors.kinesis.records import Fetched
from headrace.connectors.kinesis.slot import Slot
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, StreamNotFoundError
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.rows.formats import Decoded, Decoder
from headrace.systems.base import BadRecord, Edge, Polled, Position, Reading, RegisteringConsumer, Rows
from headrace.systems.slot_reports import Shards, SlotOrders
from headrace.systems.slots import SlotConsumer
from headrace.systems.startpoints import MOMENTS, is_moment


class RecordRows:
    """Makes rows of records. ``columns`` names columns of the result, and what of ``RECORD_COLUMNS`` they say."""

    def __init__(self, decoder: Decoder, columns: Mapping[str, str]) -> None:
        self._decoder = decoder
        self._columns = dict(columns)

    def decode(self, shard: str, records: Fetched) -> Decoded:
        decoded = self._decoder.decode(records.data)
        if not self._columns:
            return decoded
        about = [_about(kind, shard, records).alias(name) for name, kind in self._columns.items()]
        if decoded.bad:
            good = np.ones(len(records), dtype=bool)
            good[[index for index, _ in decoded.bad]] = False
            mask = pl.Series(good)
            about = [column.filter(mask) for column in about]
        return Decoded(decoded.frame.with_columns(about), decoded.bad)


def _about(kind: str, shard: str, records: Fetched) -> pl.Series:
    match kind:
        case "partition_key":
            return pl.Series(records.keys, dtype=pl.String)
        case "sequence_number":
            return pl.Series(list(map(str, records.sequences)), dtype=pl.String)
        case "arrival_time":
            return pl.Series(records.arrived_ms, dtype=pl.Int64).cast(pl.Datetime("ms"))
        case _:
            return pl.repeat(shard, len(records), dtype=pl.String, eager=True)


_log = logger(__name__)


@dataclass(slots=True, kw_only=True)
class _SlotReading(Reading):
    slot: Slot
    moment: ShardPosition | None
    feeds: dict[str, Feed] = field(default_factory=dict)  # one for each shard that is read, in the order of their turns
    unread: dict[str, Fetched] = field(default_factory=dict)  # by shard: what can't be decoded yet


class KinesisConsumer(RegisteringConsumer[_SlotReading], SlotConsumer):
    """Reads slots. An offset counts the rows of a slot: it says nothing about where they are in the stream.

    A slot that is registered at a moment (an offset of ``MOMENTS`` or more) reads its shards from there, and counts its
    rows from 0 again. So offsets rise as long as a slot isn't moved, and none of them is ever mistaken for a moment.
    Registered at an edge it counts from 0, too: where a stream is read first is for its dealer to say.
    """

    def __init__(
        self, stream: str, slots: int, fetching: Fetching, rows: RecordRows, clock: Clock, *, waits: bool = False
    ) -> None:
        """``waits``: nothing is read before the dealer's first orders, which may say that others have read it."""
        super().__init__()
        self._waits = waits
        self._stream = stream
        self._slots = slots
        self._fetching = fetching
        self._maker = rows
        self._clock = clock
        self._throttle = Throttle(_log)

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        if not 0 <= ssp.partition < self._slots:
            raise StreamNotFoundError(f"{ssp}: the stream has slots 0 to {self._slots - 1}")
        self.unregister(ssp)
        moment = None if isinstance(position, Edge) else moment_of(position)
        count = 0 if isinstance(position, Edge) or moment is not None else position
        self._readings[ssp] = _SlotReading(ssp, count, slot=Slot({}, moment), moment=moment)

    @override
    def take(self, ssp: SSP, shards: Shards) -> Rows:
        reading = self._reading(ssp)
        self._release(reading)
        reading.slot = Slot(shards, reading.moment)
        self._fetch(reading)
        return self._rows(reading)

    @override
    def direct(self, ssp: SSP, orders: SlotOrders) -> None:
        reading = self._reading(ssp)
        for shard in reading.slot.follow(orders) & reading.feeds.keys():
            self._end(reading, shard)
        self._fetch(reading)

    def _end(self, reading: _SlotReading, shard: str) -> None:
        self._fetching.end(reading.feeds.pop(shard))
        reading.unread.pop(shard, None)

    def _fetch(self, reading: _SlotReading) -> None:
        wanted = {} if self._waits and not reading.slot.directed else dict(reading.slot.read())
        for shard in reading.feeds.keys() - wanted.keys():
            self._end(reading, shard)
        for shard, position in wanted.items():
            if shard not in reading.feeds:
                reading.feeds[shard] = self._fetching.begin(shard, position)

    @override
    def _release(self, reading: _SlotReading) -> None:
        for feed in reading.feeds.values():
            self._fetching.end(feed)
        reading.feeds.clear()
        reading.unread.clear()

    @override
    def close(self) -> None:
        super().close()
        self._fetching.close()

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        asked = self._asked(ssps)
        feeds = [feed for reading in asked for feed in reading.feeds.values()]
        self._fetching.look(feeds)
        with self._fetching.emptying():  # before anything is taken, as it would be lost
            for feed in feeds:
                if feed.error is not None and not feed.buffer:
                    raise feed.error
        return [rows for reading in asked for rows in self._hand_out(reading, max_bytes)]

    def _hand_out(self, reading: _SlotReading, max_bytes: int) -> Iterator[Rows]:
        slot = reading.slot
        if slot.changed:
            yield self._rows(reading)
        for feed, records in self._taken(reading, max_bytes):
            if records is not None:
                decoded = self._decoded(feed.shard, records) if records.data else Decoded(pl.DataFrame())
                if decoded is None:
                    reading.unread[feed.shard] = records
                    continue
                slot.came_to(feed.shard, records.end)
                yield self._made(reading, feed.shard, records, decoded)
            if feed.finished:
                slot.finished(feed.shard)
                self._fetching.end(reading.feeds.pop(feed.shard))
                yield self._rows(reading, feed.shard)

    def _taken(self, reading: _SlotReading, max_bytes: int) -> list[tuple[Feed, Fetched | None]]:
        """What is handed out of each feed: a fair share of ``max_bytes``. The first in turn is the last next time."""
        taken: list[tuple[Feed, Fetched | None]] = []
        with self._fetching.emptying():
            feeds, unread = reading.feeds.values(), reading.unread
            ready = [feed for feed in feeds if feed.buffer or feed.ended or feed.shard in unread]
            room, share = max_bytes, max_bytes // max(1, len(ready))
            for feed in ready:
                if room <= 0:
                    break
                before = feed.buffer.bytes
                records = unread.pop(feed.shard, None)
                if records is None and feed.buffer:
                    records = feed.buffer.take(share)
                room -= before - feed.buffer.bytes
                taken.append((feed, records))
                self._fetching.emptied(feed)
        for feed, _ in taken:
            reading.feeds[feed.shard] = reading.feeds.pop(feed.shard)
        return taken

    def _decoded(self, shard: str, records: Fetched) -> Decoded | None:
        try:
            return self._maker.decode(shard, records)
        except HeadraceError as error:
            if not error.retry:
                raise
            said = "records can't be decoded yet; waiting"
            self._throttle.warning(said, stream=self._stream, shard=shard, why=error.message)
            return None

    def _made(self, reading: _SlotReading, shard: str, records: Fetched, decoded: Decoded) -> Rows:
        place = f"{self._stream}, {shard}" if records.data else ""
        ssp, first = reading.ssp, reading.position
        bad = [
            BadRecord(ssp, first + i, f"{place}, record {records.sequences[i]}: {why}", records.data[i])
            for i, why in decoded.bad
        ]
        reading.position += decoded.frame.height + len(bad)
        shards, holding, unread = reading.slot.said(), reading.slot.holding, records.unread
        return Rows(ssp, decoded.frame, first, reading.position, bad, place, shard, shards, holding, unread=unread)

    def _rows(self, reading: _SlotReading, shard: str = "") -> Rows:
        position, slot = reading.position, reading.slot
        shards = slot.said()
        return Rows(reading.ssp, pl.DataFrame(), position, position, (), "", shard, shards, slot.holding)

    @override
    def fileno(self) -> int | None:
        return self._fetching.fileno()

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        """Rows that weren't handed out. Those that weren't fetched are estimated; None if nothing is known yet."""
        reading = self._reading(ssp)
        with self._fetching.emptying():
            waiting = [feed.waiting() for feed in reading.feeds.values()]
        known = [rows for rows in waiting if rows is not None]
        if len(known) < len(waiting):
            return None
        known += map(len, reading.unread.values())
        return sum(known) + (0 if since is None else max(0, reading.position - since))

    @override
    def behind_ms(self, ssp: SSP) -> Mapping[str, int]:
        now_ms = self._clock.now_ms()
        with self._fetching.emptying():
            behind = {feed.shard: feed.late_ms(now_ms) for feed in self._reading(ssp).feeds.values()}
        return {shard: ms for shard, ms in behind.items() if ms is not None}


def moment_of(offset: Offset) -> ShardPosition | None:
    if not is_moment(offset):
        return None
    return ShardPosition(time_ms=offset - MOMENTS) if offset > MOMENTS else OLDEST

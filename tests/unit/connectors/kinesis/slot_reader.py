"""A consumer of a Kinesis stream in memory, and what it has read so far."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from headrace.connectors.kinesis.api import KinesisApi, Phase, Put, parse_state
from headrace.connectors.kinesis.consumer import KinesisConsumer, RecordRows
from headrace.connectors.kinesis.feed import Common, Fetching, Pace, Room
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.core.clock import Clock, ManualClock
from headrace.core.ids import SSP, StreamId
from headrace.rows.formats import FormatSpec, open_format
from headrace.systems.base import BadRecord, Rows, Unread

NOW_MS = 1_800_000_000_000
SSP_0, SSP_1 = (SSP(StreamId("kinesis", "orders"), number) for number in range(2))


def stream(shards: int = 1) -> tuple[MemoryKinesis, ManualClock]:
    clock = ManualClock(NOW_MS)
    return MemoryKinesis("orders", shards=shards, clock=clock), clock


def name(shard: int) -> str:
    return f"shardId-{shard:012}"


def put(kinesis: MemoryKinesis, shard: int, *numbers: int, data: bytes | None = None) -> list[int]:
    """Put numbers into a shard as JSON; return their sequence numbers."""
    first = next(one.first for one in kinesis.shards() if one.id == name(shard))
    payloads = [b'{"n": %d}' % n if data is None else data for n in numbers]
    results = kinesis.put([Put(f"k{n}", payload, first) for n, payload in zip(numbers, payloads, strict=True)])
    return [result.sequence or 0 for result in results]


def row_maker(columns: dict[str, str] | None = None) -> RecordRows:
    return RecordRows(open_format(FormatSpec("json")).decoder({"n": pl.Int64()}), columns or {})


class Reader:
    """Polls a consumer, and keeps what it hands out."""

    def __init__(
        self,
        api: KinesisApi,
        clock: Clock,
        *,
        fetching: Fetching | None = None,
        pace: Pace = Pace(),  # noqa: B008
        room: Room | None = None,
        columns: dict[str, str] | None = None,
        maker: RecordRows | None = None,
        skip_lost: bool = False,
        waits: bool = False,
    ) -> None:
        self.clock = clock
        self.consumer = KinesisConsumer(
            "orders",
            2,
            fetching or Fetching(api, clock, Common("orders", pace, room or Room(), skip_lost)),
            maker or row_maker(columns),
            clock,
            waits=waits,
        )
        self.shards: dict[SSP, dict[str, str]] = {}
        self.frames: list[pl.DataFrame] = []
        self.bad: list[BadRecord] = []
        self.unread: list[Unread] = []
        self.numbers: dict[str, list[int]] = defaultdict(list)
        """What was read of each shard."""

    def begin(self, shards: dict[str, str], ssp: SSP = SSP_0, position: int = 0) -> Reader:
        self.consumer.register(ssp, position)
        stands = self.consumer.take(ssp, shards)
        assert (stands.offset, stands.next, stands.frame.height) == (*2 * [self.consumer.position(ssp)], 0)
        self.shards[ssp] = dict(stands.shards or {})
        return self

    def order(self, ssp: SSP = SSP_0, **orders: str) -> Reader:
        """Orders by the numbers of shards: ``s0="READ TRIM_HORIZON"``."""
        self.consumer.direct(ssp, {name(int(key[1:])): order for key, order in orders.items()})
        return self

    def poll(self, *ssps: SSP, max_bytes: int = 1 << 20) -> list[Rows]:
        found = [one for one in self.consumer.poll(ssps or None, max_bytes) if isinstance(one, Rows)]
        for rows in found:
            assert rows.next - rows.offset == rows.frame.height + len(rows.bad)
            assert rows.shards is not None
            self.shards[rows.ssp] = dict(rows.shards)
            assert rows.holding == {
                shard for shard, text in rows.shards.items() if parse_state(text).phase is not Phase.READING
            }
            self.bad += rows.bad
            self.unread += rows.unread
            if rows.frame.height:
                self.frames.append(rows.frame)
                self.numbers[rows.shard] += rows.frame["n"].to_list()
        return found

    def read(self, *ssps: SSP, turns: int = 10) -> Reader:
        """Poll for some seconds of a clock that is moved by hand."""
        assert isinstance(self.clock, ManualClock)
        for _ in range(turns):
            while self.poll(*ssps):
                pass
            self.clock.advance(1000)
        return self

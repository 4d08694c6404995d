"""A Kinesis stream in the simulated world: what is put into it, how its shards split and merge, and how it fails.

The stream itself is the one in memory, on virtual time that passes faster than the world's: its limits are in seconds,
and a run takes less than one. It never ends. Here its slots end when the schedule is over, everything is committed and
nothing is left to deal; so an app that ends has shown that it comes to rest.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl
from typing_extensions import override

from headrace.connectors.kinesis.api import DONE, OLDEST, Page, Position, Put, Shard, ShardState, ended_before
from headrace.connectors.kinesis.consumer import KinesisConsumer, RecordRows
from headrace.connectors.kinesis.dealing import Dealing
from headrace.connectors.kinesis.feed import Common, Fetching
from headrace.connectors.kinesis.memory import Call, MemoryKinesis, Moment
from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError
from headrace.core.ids import SSP, Offset
from headrace.plan.model import StreamPlan
from headrace.rows.formats import JsonFormat
from headrace.systems.base import Edge, Ended, Polled
from headrace.systems.slot_reports import SlotOrders, SlotReport
from headrace.systems.slots import Dealer
from simulator.expected import TICK_MS, Message
from simulator.shard_judge import ShardJudge
from simulator.storage import Reader
from simulator.world import Steps, World

if TYPE_CHECKING:
    from simulator.app_cluster import AppCluster
    from simulator.container import SimContainer

STREAM_MS = 20
"""How many ms pass for the stream and who reads it in one of the world's."""

_EPOCH_MS = 1_700_000_000_000
_BEFORE_MS = 60_000
"""How long before the app's time the stream was created."""

_KEYS = 16
_SHARDS_MAX = 7
_PIECE_BYTES = 300
_MAGIC = b"\xf3\x89\x9a\xc2"


def is_sharded(stream: StreamPlan) -> bool:
    """Whether the partitions of a source are slots."""
    return stream.spec.system.kind == "kinesis"


class StreamClock(Clock):
    """The time of streams and of their readers. ``before_ms``: so long before the app's time it is."""

    def __init__(self, world: World) -> None:
        self.before_ms = 0
        self._world = world

    @override
    def now_ms(self) -> int:
        return int(_EPOCH_MS + self.monotonic_ms())

    @override
    def monotonic_ms(self) -> float:
        return self._world.now * STREAM_MS - self.before_ms


@dataclass(frozen=True)
class _Put:
    """A message where it is in the stream."""

    message: Message
    shard: str
    position: Position
    key: str
    arrived_ms: int


class SimStream:
    """One stream, the input of an app."""

    def __init__(self, cluster: AppCluster, plan: StreamPlan) -> None:
        chance = cluster.world.chance
        self.world = cluster.world
        self.plan = plan
        self.clock = StreamClock(cluster.world)
        self.clock.before_ms = _BEFORE_MS
        self.judge = ShardJudge(cluster.oracle.fail, plan.partitions)
        self.readers: dict[Reader, None] = {}
        self.over = False
        """Everything is committed, and nothing is left to deal: the slots end."""
        self._cluster = cluster
        self._time = chance.randrange(20 * TICK_MS)
        self._count = 0
        self._failing = 0.0
        self._ours = False
        """What the world does to the stream never fails."""
        self.api = PiecemealKinesis(plan.spec.stream.name, shards=chance.choice((1, 2, 2, 3, 4)), clock=self.clock)
        self.api.chance = chance
        self.api.interfere = self._interfere
        self.api.limited = chance.random() < 0.5
        self.api.empty_every = chance.choice((0, 0, 2, 5))
        self.haste = chance.choice((1, 1, 5))
        """How much faster the dealers' time passes: they lose patience within a run."""
        self._past: list[_Put] = []
        self._trimmed_ms = 0
        self._live_through_the_past()
        latest = chance.random() < 0.3
        moment = chance.choice((None, _EPOCH_MS, _EPOCH_MS - chance.randrange(_BEFORE_MS // 2)))
        self.start = OLDEST if moment is None else Position(time_ms=moment)
        self.known = self._begin(moment, latest=latest and moment == _EPOCH_MS)

    def run(self) -> Steps:
        """Let things happen to the stream until the faults are over; then wait until all of it is done with."""
        chance, until = self.world.chance, self._cluster.settings.faults_until
        kinds: list[tuple[float, Callable[[], None]]] = [
            (10, self._put_some),
            (4, self._split),
            (3, self._merge),
            (1, self._trim),
            (1, self._expire),
            (3, self._throttle),
            (1, self._fail),
            (2, self._lag),
        ]
        weights = [weight * (1.0 if call == self._put_some else chance.random()) for weight, call in kinds]
        count = chance.choice((12, 24, 36))
        for _ in range(count):
            yield min(max(0.0, until - self.world.now), chance.expovariate(count / until))
            if self.world.now >= until:
                break
            chance.choices([call for _, call in kinds], weights)[0]()
        yield max(0.0, until - self.world.now)
        self._heal()
        self._put_some()
        while (self._cluster.oracle.missing() or self.judge.unrest()) is not None:
            yield 5.0
            if self.judge.unrest() is not None and chance.random() < 0.05 and self._cluster.oracle.missing() is None:
                self._put_everywhere()  # but not faster than it is read
        self.over = True
        self.ring()
        self._tell("has been read, and its shards are dealt")

    def consumer(self, container: SimContainer, columns: Mapping[str, pl.DataType] | None) -> SimSlots:
        """What a task of a container reads its slots with."""
        assert columns is not None
        return SimSlots(self, container, columns)

    def dealer(self) -> Dealer:
        """What a driver deals the shards with."""
        return SimDealer(self)

    def ring(self) -> None:
        """Wake the readers."""
        for reader in self.readers:
            reader.stir()

    def hanging(self) -> str:
        """What is left to do, for a run that hangs."""
        return f"{self.plan.spec.id}: {self.judge.unrest() or 'at rest'}; {self.judge.told()}"

    # -- its life

    def _live_through_the_past(self) -> None:
        chance = self.world.chance
        self._see()
        for _ in range(chance.choice((0, 0, 2, 5, 10))):
            chance.choice((self._put_some, self._put_some, self._split, self._merge, self._trim))()
            self.clock.before_ms -= _BEFORE_MS // 10
        self.clock.before_ms = 0

    def _begin(self, moment: int | None, *, latest: bool) -> Mapping[str, ShardState]:
        """The app begins with what is left, or with what has come since a moment; what it knows about the rest."""
        since = max(self._trimmed_ms, moment or 0)
        self.judge.begins(since)
        for put in self._past:
            if put.arrived_ms >= since:
                self._count_in(put)
        return dict.fromkeys(ended_before(self._shards(), latest=latest), DONE)

    def _put_some(self) -> None:
        for _ in range(self.world.chance.randint(1, 3)):
            key = f"key{self.world.chance.randrange(_KEYS)}"
            self._put(key, [self._message() for _ in range(self.world.chance.choice((1, 1, 1, 2, 4)))])
        self.ring()

    def _put_everywhere(self) -> None:
        """Event time goes on in all shards."""
        for shard in self._open():
            self._put(f"at {shard.first}", [self._message()], shard.first)
        self.ring()

    def _put(self, key: str, messages: list[Message], hash: int | None = None) -> None:
        packed = len(messages) > 1 or (hash is None and self.world.chance.random() < 0.1)
        bodies = [json.dumps({"id": message.id, "k": message.k, "ts": message.ts}) for message in messages]
        data = aggregate(key, [body.encode() for body in bodies]) if packed else bodies[0].encode()
        with _Undisturbed(self):
            (result,) = self.api.put([Put(key, data, hash)])
        if result.sequence is None:  # the shard takes no more at the moment
            return
        self._tell(f"{[message.id for message in messages]} of {key} to {result.shard} as {result.sequence}")
        for sub, message in enumerate(messages):
            position = Position(result.sequence, sub if packed else None)
            put = _Put(message, result.shard, position, key, self.clock.now_ms())
            if self.clock.before_ms:
                self._past.append(put)
            else:
                self._count_in(put)

    def _count_in(self, put: _Put) -> None:
        known = self._cluster.oracle.source_row(self.plan, put.message)
        self.judge.put(known, put.shard, put.position, put.key, put.arrived_ms)

    def _message(self) -> Message:
        self._time += self.world.chance.randrange(30 * TICK_MS)
        self._count += 1
        disorder = self._cluster.shape.case.disorder * TICK_MS
        return self._cluster.new_row(0, self._count, self._time - self.world.chance.randrange(disorder))

    def _split(self) -> None:
        chance = self.world.chance
        wide = [shard for shard in self._open() if shard.last - shard.first > 1 << 100]
        if wide and len(self._open()) < _SHARDS_MAX:
            # The youngest are neighbours in a slot: it gets more and more of them.
            shard = wide[-1] if chance.random() < 0.6 else chance.choice(wide)
            self._tell(f"{shard.id} splits into {self.api.split(shard.id)}")
            self._see()

    def _merge(self) -> None:
        shards = sorted(self._open(), key=lambda shard: shard.first)
        pairs = [(low.id, high.id) for low, high in pairwise(shards)]
        if pairs:
            low, high = self.world.chance.choice(pairs)
            self._tell(f"{low} and {high} merge into {self.api.merge(low, high)}")
            self._see()

    def _trim(self) -> None:
        """Give up what is committed, and shards that are done."""
        now_ms = self.clock.now_ms()
        oldest = now_ms if self.clock.before_ms else self.judge.oldest_needed(now_ms)
        before = self._trimmed_ms = oldest - int(self.world.chance.random() * 1000)
        self.api.trim(before)
        self._tell(f"what came before {before - _EPOCH_MS} is gone")
        self._see()

    def _expire(self) -> None:
        self._tell("iterators expire")
        self.api.expire_iterators()

    def _throttle(self) -> None:
        shard = self.world.chance.choice(self._open()).id
        self._tell(f"{shard} is throttled")
        self.api.throttled.add(shard)
        self.world.after(self.world.chance.random() * 150, lambda: self.api.throttled.discard(shard))

    def _fail(self) -> None:
        self._failing = 0.7
        self._tell("can't be reached most of the time")
        self.world.after(self.world.chance.random() * 60, self._recover)

    def _recover(self) -> None:
        self._failing = 0.0

    def _lag(self) -> None:
        self.api.list_lag_ms = self.world.chance.choice((0, 1000, 4000))
        self._tell(f"lists its shards {self.api.list_lag_ms} ms late")

    def _heal(self) -> None:
        self._recover()
        self.api.throttled.clear()
        self.api.list_lag_ms = 0

    # -- inside

    def _interfere(self, call: Call, moment: Moment) -> None:
        if self._failing and not self._ours and self.world.chance.random() < self._failing / 2:
            raise UnavailableError(f"the call for {call} was {'lost' if moment == 'asked' else 'answered in vain'}")

    def _shards(self) -> list[Shard]:
        with _Undisturbed(self):
            return self.api.shards()

    def _open(self) -> list[Shard]:
        return [shard for shard in self._shards() if not shard.closed]

    def _see(self) -> None:
        """Have the judge know what there is."""
        shards = self._shards()
        self.judge.appeared(shards, self.clock.now_ms())
        self.ring()

    def _tell(self, what: str) -> None:
        self.world.tell(f"stream {self.plan.spec.id}", what)


class PiecemealKinesis(MemoryKinesis):
    """Pages are short, so that a reader has something to get wrong between two of them."""

    chance: random.Random

    @override
    def records(self, iterator: str, limit: int) -> Page:
        return super().records(iterator, min(limit, self.chance.randint(1, 4)))


class SimSlots(KinesisConsumer):
    """The consumer of one task. What fetches in the background is a bell here, which rings when to look again."""

    def __init__(self, stream: SimStream, container: SimContainer, columns: Mapping[str, pl.DataType]) -> None:
        name, clock = stream.plan.spec.stream.name, stream.clock
        # What is committed is trimmed within the day for which Kinesis keeps it, so a gap doesn't stop the app. The
        # oracle misses what is really lost.
        fetching = Fetching(stream.api, clock, Common(name, skip_lost=True), stream.world.chance.random)
        rows = RecordRows(JsonFormat().decoder(dict(columns)), {})
        super().__init__(name, stream.plan.partitions, fetching, rows, clock)
        self._stream_of = stream
        self._container = container
        self._bell = False
        self._ended: set[SSP] = set()
        stream.readers[container] = None

    @override
    def register(self, ssp: SSP, position: Offset | Edge) -> None:
        super().register(ssp, position)
        self._ended.discard(ssp)

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        wanted = [ssp for ssp in (self._readings if ssps is None else ssps) if ssp not in self._ended]
        piece = max_bytes if max_bytes == 1 else 1 + int(self._stream_of.world.chance.random() * _PIECE_BYTES)
        found = super().poll(wanted, piece)
        if self._stream_of.over:
            self._ended.update(wanted)
            found += [Ended(ssp, self.position(ssp)) for ssp in wanted]
        if found:
            self._container.heard()
        if not self._bell and self._container.alive:
            self._bell = True
            self._stream_of.world.after(3 + self._stream_of.world.chance.random() * 5, self._ring)
        return found

    def _ring(self) -> None:
        self._bell = False
        self._container.ring()

    @override
    def fileno(self) -> int | None:
        return 0


class SimDealer(Dealer):
    """The dealer of one driver."""

    def __init__(self, stream: SimStream) -> None:
        self._stream = stream
        self._dealing = Dealing(stream.plan.partitions, stream.start, stream.known)

    @override
    def deal(self, slots: Sequence[SlotReport | None]) -> Sequence[SlotOrders | None]:
        stream = self._stream
        return self._dealing.deal(stream.api.shards(), slots, int(stream.clock.monotonic_ms() * stream.haste))

    @override
    def close(self) -> None:
        return


class _Undisturbed:
    """What the world itself does or looks at: nothing fails or lags."""

    def __init__(self, stream: SimStream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._lag, self._stream.api.list_lag_ms = self._stream.api.list_lag_ms, 0
        self._stream._ours = True

    def __exit__(self, *_: object) -> None:
        self._stream.api.list_lag_ms = self._lag
        self._stream._ours = False


def aggregate(key: str, bodies: list[bytes]) -> bytes:
    """Records of one key in one, as the Kinesis Producer Library packs them."""
    packed = _field(1, key.encode())
    for body in bodies:
        packed += _field(3, b"\x08\x00" + _field(3, body))
    return _MAGIC + packed + md5(packed, usedforsecurity=False).digest()


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])

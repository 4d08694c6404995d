"""Kinesis and its lease tables in this process, for tests and the simulator: no thread, no wait, an injected clock.

``MemoryKinesis`` also does what servers for tests don't: shards split, merge, and disappear when they were trimmed;
iterators expire; limits throttle; lists lag behind; pages are empty though there is more; any call may fail or lose its
reply. ``KinesisStream`` is one for apps that run for real, by ``endpoint_url="memory://"``.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from typing import Any, Literal, Self

import msgspec
from typing_extensions import override

from headrace.connectors.kinesis import api, leases
from headrace.connectors.kinesis.api import KinesisApi, KinesisRecord, Page, Position, Put, PutResult, Shard
from headrace.connectors.kinesis.leases import Item, Kind, Lease, LeaseTable, Write, Written
from headrace.core.clock import Clock, WallClock
from headrace.core.errors import (
    InfrastructureError,
    StreamExistsError,
    StreamNotFoundError,
    ThrottledError,
    TrimmedOffsetError,
    UsageError,
)

Call = Literal["describe", "shards", "iterator", "records", "put"]
Moment = Literal["asked", "done"]
_ITERATOR_MS = 300_000


class MemoryKinesis(KinesisApi):
    """One stream. ``close`` does nothing, so any number of readers and writers can share it.

    ``limited`` makes the limits of shards count. ``throttled`` names shards that take and give nothing at present.
    Every ``empty_every``-th page of a shard is empty. ``kept_h`` is what it says; only ``trim`` drops records.
    ``interfere`` may raise: at ``"asked"`` the call is lost, at ``"done"`` its reply.
    """

    def __init__(self, name: str, *, shards: int = 1, clock: Clock) -> None:
        self.name = name
        self.limited = False
        self.throttled: set[str] = set()
        self.list_lag_ms = 0
        self.empty_every = 0
        self.kept_h = api.DAY_H
        self.interfere: Callable[[Call, Moment], None] = lambda _call, _moment: None
        self._clock = clock
        self._lock = threading.RLock()
        self._shards: dict[str, _StoredShard] = {}
        self._created_ms = -1
        self._second = -1
        self._exists = False
        self._issued = 0
        self._expired = 0
        self.create(shards)

    def create(self, shards: int) -> None:
        """Create the stream (again, after ``delete``), with equal shards. Its shards' names begin at 0 again."""
        with self._lock:
            if self._exists:
                raise StreamExistsError(f"the stream {self.name!r} exists already", hint="delete it first")
            self._exists = True
            self._shards = {}
            self._created_ms = max(self._clock.now_ms(), self._created_ms + 1)
            second = self._second_after(self._second)
            for first, end in pairwise(api.HASH_END * n // shards for n in range(shards + 1)):
                self._add(second, first, end - 1)

    def delete(self) -> None:
        with self._lock:
            self._exists = False
            self._shards = {}

    def split(self, shard: str, at: int | None = None) -> tuple[str, str]:
        with self._lock:
            parent = self._open(shard)
            middle = (parent.first + parent.last + 1) // 2 if at is None else at
            if not parent.first < middle <= parent.last:
                raise UsageError(f"{shard} can't be split at hash {middle}, which isn't inside it")
            parent.closed_ms = self._clock.now_ms()
            second = self._second_after(parent.second)
            low = self._add(second, parent.first, middle - 1, shard)
            return low, self._add(second, middle, parent.last, shard)

    def merge(self, one: str, other: str) -> str:
        with self._lock:
            low, high = sorted((self._open(one), self._open(other)), key=lambda shard: shard.first)
            if low.last + 1 != high.first:
                raise UsageError(f"{one} and {other} aren't adjacent", hint="merge shards whose hashes meet")
            low.closed_ms = high.closed_ms = self._clock.now_ms()
            return self._add(self._second_after(low.second, high.second), low.first, high.last, one, other)

    def trim(self, before_ms: int) -> None:
        with self._lock:
            for shard in self._shards.values():
                shard.trim(before_ms)
                if shard.closed_ms is not None and shard.closed_ms < before_ms and shard.gone_ms is None:
                    shard.gone_ms = self._clock.now_ms()

    def expire_iterators(self) -> None:
        with self._lock:
            self._expired = self._issued

    @override
    def describe(self) -> api.StreamSummary:
        with self._call("describe"):
            open_shards = sum(shard.takes for shard in self._shards.values())
            return api.StreamSummary(self.name, self._created_ms, open_shards, self.kept_h)

    @override
    def shards(self) -> list[Shard]:
        with self._call("shards"):
            seen_ms = max(self._clock.now_ms() - self.list_lag_ms, self._created_ms)
            return [listed for shard in self._shards.values() if (listed := shard.listed(seen_ms)) is not None]

    @override
    def iterator(self, shard: str, position: Position) -> str:
        with self._call("iterator"):
            stored = self._shard(shard)
            return self._issue(stored, stored.index_of(position))

    @override
    def records(self, iterator: str, limit: int) -> Page:
        with self._call("records"):
            serial, created_ms, made_ms, name, index = json.loads(iterator)
            if created_ms != self._created_ms:
                raise StreamNotFoundError(f"the iterator belongs to an earlier stream {self.name!r}")
            if serial <= self._expired or self._clock.now_ms() - made_ms > _ITERATOR_MS:
                raise api.IteratorExpired(f"the iterator of {name} of the stream {self.name!r} has expired")
            shard = self._shard(name)
            self._check_throttled(shard)
            now_ms = self._clock.monotonic_ms()
            if self.limited:
                shard.reads.spend(now_ms)
                shard.read_bytes.check(now_ms)
            shard.pages += 1
            if self.empty_every and shard.pages % self.empty_every == 0:
                return Page([], self._issue(shard, index), shard.behind_ms(index, self._clock.now_ms()))
            records, after = shard.page(index, min(limit, api.READ_RECORDS))
            if self.limited:
                shard.read_bytes.spend(now_ms, sum(map(api.size_of, records)))
            iterator_after = self._issue(shard, after) if shard.takes or after < shard.end else None
            return Page(records, iterator_after, shard.behind_ms(after, self._clock.now_ms()))

    @override
    def put(self, records: Sequence[Put]) -> list[PutResult]:
        with self._call("put"):
            api.check_put(self.name, records)
            return [self._put(record) for record in records]

    @override
    def close(self) -> None:
        pass

    @contextmanager
    def _call(self, call: Call) -> Iterator[None]:
        with self._lock:
            self.interfere(call, "asked")
            if not self._exists:
                raise StreamNotFoundError(f"there is no stream {self.name!r}")
            yield
            self.interfere(call, "done")

    def _put(self, put: Put) -> PutResult:
        number = api.key_hash(put.key) if put.hash is None else put.hash
        shard = next(shard for shard in self._shards.values() if shard.takes and shard.first <= number <= shard.last)
        now_ms = self._clock.monotonic_ms()
        try:
            self._check_throttled(shard)
            if self.limited:
                shard.put_bytes.check(now_ms)
                shard.puts.spend(now_ms)
                shard.put_bytes.spend(now_ms, api.size_of(put))
        except ThrottledError:
            return PutResult(error=f"ProvisionedThroughputExceededException: Rate exceeded for shard {shard.id}")
        return PutResult(shard.id, shard.append(put, self._clock.now_ms()))

    def _add(self, second: int, first: int, last: int, *parents: str) -> str:
        created_ms = max(self._clock.now_ms(), self._created_ms)
        shard = _StoredShard(len(self._shards), second, first, last, parents, created_ms)
        self._shards[shard.id] = shard
        self._second = max(self._second, second)
        return shard.id

    def _second_after(self, *seconds: int) -> int:
        """The second that the sequence numbers of a new shard begin with: later than its parents', if not the time."""
        return max(self._clock.now_ms() // 1000, *(second + 1 for second in seconds))

    def _shard(self, name: str) -> _StoredShard:
        shard = self._shards.get(name)
        if shard is None or shard.gone_ms is not None:
            raise StreamNotFoundError(f"the stream {self.name!r} has no shard {name!r}")
        return shard

    def _open(self, name: str) -> _StoredShard:
        shard = self._shard(name)
        if not shard.takes:
            raise UsageError(f"{name} of the stream {self.name!r} is closed", hint="split and merge open shards only")
        return shard

    def _check_throttled(self, shard: _StoredShard) -> None:
        if shard.id in self.throttled:
            raise ThrottledError(f"{shard.id} of the stream {self.name!r} is throttled")

    def _issue(self, shard: _StoredShard, index: int) -> str:
        self._issued += 1
        return json.dumps([self._issued, self._created_ms, self._clock.now_ms(), shard.id, index])


class _Allowance:
    """So much per second, spent until nothing is left: a large page is paid for by the pause after it."""

    def __init__(self, per_second: int, what: str) -> None:
        self._per_second = per_second
        self._what = what
        self._left = float(per_second)
        self._at_ms = 0.0

    def check(self, now_ms: float) -> None:
        self._left = min(self._per_second, self._left + (now_ms - self._at_ms) * self._per_second / 1000)
        self._at_ms = now_ms
        if self._left < 1:
            raise ThrottledError(f"a shard allows {self._per_second} {self._what} a second")

    def spend(self, now_ms: float, amount: int = 1) -> None:
        self.check(now_ms)
        self._left -= amount


class _StoredShard:
    """A shard and its records. An index counts all records that it ever had."""

    def __init__(
        self, number: int, second: int, first: int, last: int, parents: tuple[str, ...], created_ms: int
    ) -> None:
        self.id = f"shardId-{number:012}"
        self.second = second
        self.first, self.last = first, last
        self.created_ms = created_ms
        self.closed_ms: int | None = None
        self.gone_ms: int | None = None
        self.reads = _Allowance(5, "reads")
        self.read_bytes = _Allowance(2 << 20, "bytes to be read")
        self.puts = _Allowance(1000, "records to be written")
        self.put_bytes = _Allowance(1 << 20, "bytes to be written")
        self.pages = 0
        self._number = number
        self._parents = parents
        self._records: list[KinesisRecord] = []
        self._trimmed = 0
        self._newest = self._sequence(0, second)

    @property
    def takes(self) -> bool:
        return self.closed_ms is None

    @property
    def end(self) -> int:
        return self._trimmed + len(self._records)

    def listed(self, seen_ms: int) -> Shard | None:
        if seen_ms < self.created_ms or (self.gone_ms is not None and self.gone_ms <= seen_ms):
            return None
        closed = self.closed_ms is not None and self.closed_ms <= seen_ms
        return Shard(self.id, self.first, self.last, self._parents, closed)

    def append(self, put: Put, now_ms: int) -> int:
        arrived_ms = max(now_ms, self._records[-1].arrived_ms) if self._records else now_ms
        self._newest = self._sequence(self.end + 1, arrived_ms // 1000)
        self._records.append(KinesisRecord(self._newest, put.key, put.data, arrived_ms))
        return self._newest

    def index_of(self, position: Position) -> int:
        if position.sequence is None:
            moment = position.time_ms or 0
            return self._trimmed + bisect_left(self._records, moment, key=lambda record: record.arrived_ms)
        if not self._sequence(0, self.second) <= position.sequence <= self._newest:
            hint = "the position belongs to another stream"
            raise TrimmedOffsetError(f"{self.id} never had a record {position.sequence}", hint=hint)
        bisect = bisect_right if position.sub is None else bisect_left
        return self._trimmed + bisect(self._records, position.sequence, key=lambda record: record.sequence)

    def page(self, index: int, limit: int) -> tuple[list[KinesisRecord], int]:
        start = max(index - self._trimmed, 0)
        records: list[KinesisRecord] = []
        size = 0
        for record in islice(self._records, start, start + limit):
            size += api.size_of(record)
            if records and size > api.READ_BYTES:
                break
            records.append(record)
        return records, self._trimmed + start + len(records)

    def behind_ms(self, index: int, now_ms: int) -> int:
        start = max(index - self._trimmed, 0)
        return max(now_ms - self._records[start].arrived_ms, 1) if start < len(self._records) else 0

    def trim(self, before_ms: int) -> None:
        count = bisect_left(self._records, before_ms, key=lambda record: record.arrived_ms)
        del self._records[:count]
        self._trimmed += count

    def _sequence(self, count: int, second: int) -> int:
        """A number laid out as Kinesis does it: 56 digits, the time of the shard before the count of the record."""
        return int(f"2{self.second:09x}{self._number % 16:x}{count:016x}00{second:09x}{self._number:08x}2", 16)


_STREAMS: dict[str, MemoryKinesis] = {}


def stream_of(name: str) -> MemoryKinesis:
    try:
        return _STREAMS[name]
    except KeyError:
        raise StreamNotFoundError(
            f"there is no Kinesis stream {name!r} in the memory of this process",
            hint=f'create it in the test: headrace.connectors.kinesis.memory.KinesisStream("{name}")',
        ) from None


class MemoryLeaseTable(LeaseTable):
    """A table that others may share: give it the same ``items``."""

    name = "memory"

    def __init__(self, items: dict[str, Item] | None = None) -> None:
        self.items = {} if items is None else items

    @override
    def ensure(self) -> None:
        return

    @override
    def leases(self) -> list[Lease]:
        found = (leases.parse_lease(item) for item in self.items.values())
        return [lease for lease in found if lease is not None]

    @override
    def write(self, write: Write) -> Written:
        item = self.items.get(write.shard)
        seen = item or {}
        if any(seen.get(name) != value for name, value in write.when.items()):
            return Written(False, leases.parse_lease(item) if item is not None else None)
        if write.kind is Kind.DELETE:
            self.items.pop(write.shard, None)
            return Written(True, None)
        after = {name: value for name, value in seen.items() if name not in write.remove} | dict(write.put)
        for name, by in write.add.items():
            after[name] = leases.number(int(after.get(name, leases.number(0))["N"]) + by)
        after[leases.KEY] = leases.text(write.shard)
        self.items[write.shard] = after
        return Written(True, leases.parse_lease(after))

    @override
    def close(self) -> None:
        return


Record = Mapping[str, Any] | str | bytes


class KinesisStream:
    """A stream of Kinesis that only this process has.

    An app reads it by ``hr.io.kinesis(name, endpoint_url="memory://")``, and runs in this process, by
    ``app.run(local=True)``. Use it as a context manager: after the block its records are gone.

    Parameters
    ----------
    name
        The stream's name.
    shards
        How many shards it begins with.

    Examples
    --------
    >>> from headrace.connectors.kinesis.memory import KinesisStream
    >>> with KinesisStream("orders", shards=2) as orders:
    ...     orders.put("ann", {"member": "ann", "euros": 12.5})
    ...     children = orders.split()
    >>> children
    ('shardId-000000000002', 'shardId-000000000003')
    """

    def __init__(self, name: str, shards: int = 1) -> None:
        if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
            raise UsageError(f"shards={shards!r} isn't a number of shards", hint="write a whole number of at least 1")
        if name in _STREAMS:
            raise StreamExistsError(f"a Kinesis stream {name!r} exists in memory already", hint="close it first")
        self._stream = _STREAMS[name] = MemoryKinesis(name, shards=shards, clock=WallClock())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, key: str, *records: Record) -> None:
        """Write records to the shard of a partition key, in this order: dicts become JSON, texts UTF-8."""
        datas = [_encoded(record) for record in records]
        for start in range(0, len(datas), api.PUT_RECORDS):
            results = self._stream.put([Put(key, data) for data in datas[start : start + api.PUT_RECORDS]])
            if wrong := [result.error for result in results if result.error]:
                raise InfrastructureError(f"{len(wrong)} records weren't written: {wrong[0]}")

    def records(self) -> list[bytes]:
        """What records hold, shard by shard, those that have ended too, each in its order."""
        found: list[bytes] = []
        for shard in self._stream.shards():
            place: str | None = self._stream.iterator(shard.id, api.OLDEST)
            while place is not None:
                page = self._stream.records(place, api.READ_RECORDS)
                found += [record.data for record in page.records]
                place = page.iterator if page.records or page.behind_ms else None
        return found

    @property
    def shards(self) -> list[str]:
        """The shards that take records."""
        return [shard.id for shard in self._stream.shards() if not shard.closed]

    def split(self, shard: str | None = None) -> tuple[str, str]:
        """Split a shard in the middle of its hashes, by default the first that takes records; return its children."""
        return self._stream.split(shard or self.shards[0])

    def merge(self, one: str, other: str) -> str:
        """Merge two shards that are next to each other, and return their child."""
        return self._stream.merge(one, other)

    def close(self) -> None:
        """Forget the stream and its records."""
        _STREAMS.pop(self._stream.name, None)


def _encoded(record: Record) -> bytes:
    if isinstance(record, bytes):
        return record
    return record.encode() if isinstance(record, str) else msgspec.json.encode(dict(record))

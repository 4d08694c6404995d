"""The memory system: the reference for what a record system does, for one process and its threads.

A record can't be read before it is flushed, as in a system with a disk or a network between writer and reader, so tests
find a forgotten flush. One lock guards everything, and nothing blocks while it is held.
"""

from __future__ import annotations

import builtins
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import polars as pl
from typing_extensions import override

from headrace.core.clock import Clock, WallClock
from headrace.core.errors import StreamNotFoundError, StreamSealedError, TrimmedOffsetError, UsageError
from headrace.core.files import Bell
from headrace.core.ids import SSP, Offset, check_id
from headrace.systems import base
from headrace.systems.registry import check_option_names
from headrace.systems.shape import new_columns, require_same_shape, wanted_shape, with_columns


@dataclass(slots=True)
class _Partition:
    """``payloads[0]`` has the offset ``oldest``. ``times`` never fall: a clock that is set back stands still here."""

    payloads: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    oldest: Offset = 0
    trimmed_ms: int | None = None

    @property
    def upcoming(self) -> Offset:
        return self.oldest + len(self.payloads)

    def append(self, records: list[bytes], time_ms: int) -> None:
        self.payloads.extend(records)
        self.times.extend([max(time_ms, self.times[-1] if self.times else 0)] * len(records))


@dataclass(slots=True)
class _Stream:
    info: base.StreamInfo
    partitions: list[_Partition]
    sealed: bool = False
    positions: dict[tuple[str, int], Offset] = field(default_factory=dict)


class MemorySystem(base.Admin, base.System):
    """Streams in memory, and their admin. Tasks and tests that share streams share this object."""

    _named: ClassVar[dict[str, MemorySystem]] = {}
    _naming: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or WallClock()
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._consumers: set[MemoryConsumer] = set()

    @classmethod
    def named(cls, name: str) -> MemorySystem:
        """Return this process's memory system of that name (of a ``SystemSpec``), creating it at the first call."""
        with cls._naming:
            return cls._named.setdefault(name, cls())

    @classmethod
    def forget(cls, name: str) -> None:
        with cls._naming:
            cls._named.pop(name, None)

    @override
    def admin(self) -> MemorySystem:
        return self

    @override
    def consumer(self) -> MemoryConsumer:
        return MemoryConsumer(self)

    @override
    def producer(self) -> MemoryProducer:
        return MemoryProducer(self)

    @override
    def list(self) -> builtins.list[str]:
        with self._lock:
            return sorted(self._streams)

    @override
    def describe(self, stream: str) -> base.StreamInfo | None:
        with self._lock:
            there = self._streams.get(check_id("stream", stream))
            return there.info if there else None

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> base.StreamInfo:
        wanted = wanted_shape(check_id("stream", stream), partitions, columns, key)
        with self._lock:
            there = self._streams.get(stream)
            if there is None:
                there = _Stream(wanted, [_Partition() for _ in range(partitions)])
                self._streams[stream] = there
            return require_same_shape(there.info, wanted)

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> base.StreamInfo:
        with self._lock:
            there = self._stream(stream)
            there.info = with_columns(there.info, new_columns(there.info, columns))
            return there.info

    @override
    def add_partitions(self, stream: str, partitions: int) -> base.StreamInfo:
        wanted_shape(stream, max(partitions, 1), None)
        with self._lock:
            there = self._stream(stream)
            if there.sealed and partitions > len(there.partitions):
                what = f"stream {stream!r} is sealed, so it can't get more partitions"
                raise StreamSealedError(what, hint="a seal is permanent: use another stream")
            there.partitions += [_Partition() for _ in range(len(there.partitions), partitions)]
            there.info = replace(there.info, partitions=len(there.partitions))
            return there.info

    @override
    def extents(self, stream: str) -> builtins.list[base.Extent]:
        with self._lock:
            there = self._stream(stream)
            parts = there.partitions
            return [base.Extent(part.oldest, part.upcoming, there.sealed, trimmed=part.oldest > 0) for part in parts]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        with self._lock:
            part = self._partition(ssp.stream.name, ssp.partition)
            return part.oldest + bisect_left(part.times, time_ms)

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        with self._lock:
            part = self._partition(ssp.stream.name, ssp.partition)
            return part.times[max(0, offset - part.oldest)] if offset < part.upcoming else None

    @override
    def trimmed_ms(self, ssp: SSP) -> int | None:
        with self._lock:
            return self._partition(ssp.stream.name, ssp.partition).trimmed_ms

    @override
    def seal(self, stream: str) -> None:
        with self._lock:
            there = self._stream(stream)
            there.sealed = True
            self._wake({(stream, number) for number in range(len(there.partitions))})

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        with self._lock:
            part = self._partition(ssp.stream.name, ssp.partition)
            if before > part.upcoming:
                raise UsageError(f"{ssp}: can't trim before {before}: the end is {part.upcoming}")
            if before > part.oldest:
                part.trimmed_ms = part.times[before - part.oldest - 1]
                del part.payloads[: before - part.oldest]
                del part.times[: before - part.oldest]
                part.oldest = before

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        with self._lock:
            stream = self._stream(ssp.stream.name)
            stream.positions[check_id("group", group), ssp.partition] = position

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        with self._lock:
            positions = self._stream(stream).positions
            return {number: position for (name, number), position in positions.items() if name == group}

    # -- the lock is held ------------------------------------------------------------------------------
    def _stream(self, name: str) -> _Stream:
        stream = self._streams.get(name)
        if stream is None:
            raise StreamNotFoundError(f"no stream {name!r} in memory", hint="create it first, or check the name")
        return stream

    def _partition(self, name: str, number: int) -> _Partition:
        stream = self._stream(name)
        if not 0 <= number < len(stream.partitions):
            raise StreamNotFoundError(f"stream {name!r} has partitions 0 to {len(stream.partitions) - 1}, not {number}")
        return stream.partitions[number]

    def _wake(self, keys: set[tuple[str, int]]) -> None:
        for consumer in self._consumers:
            consumer._wake(keys)


class MemoryConsumer(base.RegisteringConsumer[base.Reading]):
    """Reads the partitions of a memory system. A bell wakes the thread that waits for records."""

    def __init__(self, system: MemorySystem) -> None:
        super().__init__()
        self._system = system
        self._registered: set[tuple[str, int]] = set()
        self._bell = Bell()
        with system._lock:
            system._consumers.add(self)

    def _wake(self, keys: set[tuple[str, int]]) -> None:
        """Tell the reader of any of these partitions. The system's lock is held."""
        if not self._registered.isdisjoint(keys):
            self._bell.ring()

    @override
    def register(self, ssp: SSP, position: base.Position) -> None:
        with self._system._lock:
            part = self._system._partition(ssp.stream.name, ssp.partition)
            if isinstance(position, base.Edge):
                start = part.oldest if position is base.Edge.OLDEST else part.upcoming
            else:
                start = position
            base.check_within(ssp, start, base.Extent(part.oldest, part.upcoming))
            self._readings[ssp] = base.Reading(ssp, start)
            self._registered.add((ssp.stream.name, ssp.partition))

    @override
    def unregister(self, ssp: SSP) -> None:
        with self._system._lock:
            super().unregister(ssp)
            self._registered.discard((ssp.stream.name, ssp.partition))

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[base.Polled]:
        out: list[base.Polled] = []
        with self._system._lock:
            self._bell.clear()
            for reading in self._asked(ssps):
                out.extend(self._read(reading, max_bytes))
        return out

    def _read(self, reading: base.Reading, max_bytes: int) -> list[base.Polled]:
        ssp = reading.ssp
        stream = self._system._stream(ssp.stream.name)
        part = stream.partitions[ssp.partition]
        start = reading.position
        if start < part.oldest:
            raise TrimmedOffsetError(f"{ssp}: offset {start} was trimmed; the oldest is {part.oldest}")
        index, taken = start - part.oldest, 0
        stop = index
        while stop < len(part.payloads):
            taken += len(part.payloads[stop])
            if taken > max_bytes and stop > index:
                break
            stop += 1
        out: list[base.Polled] = []
        if stop > index:
            reading.position = start + stop - index
            offsets = list(range(start, reading.position))
            out.append(base.Records(ssp, offsets, part.payloads[index:stop], reading.position))
        if stream.sealed and reading.position == part.upcoming and not reading.ended:
            reading.ended = True
            out.append(base.Ended(ssp, reading.position))
        return out

    @override
    def fileno(self) -> int | None:
        return self._bell.fileno()

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        with self._system._lock:
            part = self._system._partition(ssp.stream.name, ssp.partition)
            return part.upcoming - (self._reading(ssp).position if since is None else since)

    @override
    def close(self) -> None:
        with self._system._lock:
            self._system._consumers.discard(self)
            self._readings.clear()
            self._bell.close()


class MemoryProducer(base.Producer):
    """Buffers records until ``flush``."""

    def __init__(self, system: MemorySystem) -> None:
        self._system = system
        self._buffer: dict[tuple[str, int], list[bytes]] = {}

    @override
    def send(self, stream: str, partition: int, payload: bytes) -> None:
        records = self._buffer.get((stream, partition))
        if records is None:
            with self._system._lock:
                self._system._partition(stream, partition)
                self._refuse_if_sealed(stream)
            records = self._buffer[stream, partition] = []
        records.append(bytes(payload))

    def _refuse_if_sealed(self, stream: str) -> None:
        if self._system._stream(stream).sealed:
            raise StreamSealedError(f"stream {stream!r} is sealed: it takes no more records")

    @override
    def flush(self) -> dict[tuple[str, int], Offset]:
        ends: dict[tuple[str, int], Offset] = {}
        failure: StreamSealedError | None = None
        buffer, self._buffer = self._buffer, {}
        with self._system._lock:
            now = self._system._clock.now_ms()
            for (stream, partition), records in buffer.items():
                try:
                    self._refuse_if_sealed(stream)
                except StreamSealedError as error:
                    failure = failure or error
                    continue
                part = self._system._partition(stream, partition)
                part.append(records, now)
                ends[stream, partition] = part.upcoming
            self._system._wake(set(ends))
        if failure is not None:
            raise failure
        return ends

    @override
    def close(self) -> None:
        self.flush()


def open_memory(name: str, options: Mapping[str, Any]) -> MemorySystem:
    check_option_names(name, "memory", options, ("name",))
    return MemorySystem.named(options.get("name", name))

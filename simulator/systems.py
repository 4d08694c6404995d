"""The systems of the simulated world, as tasks see them: consumers, producers and admins of logs, and row targets.

What a producer sends is in flight for a while (``storage``). A flush takes no time: whoever drives the task waits
before it until everything is acknowledged.
"""

from __future__ import annotations

import builtins
import random
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import polars as pl
from typing_extensions import override

from headrace.core.errors import CorruptLogError, TrimmedOffsetError, UnavailableError, UsageError
from headrace.core.ids import SSP, Offset, StreamId
from headrace.systems.base import (
    Admin,
    Consumer,
    Edge,
    Ended,
    Extent,
    Polled,
    Position,
    Producer,
    Records,
    StreamInfo,
    Target,
    Unsynced,
    Wakeups,
    sync_all,
)
from headrace.systems.registry import SystemSpec
from headrace.task.calls import Calls
from headrace.task.connections import Connections
from simulator.sources import SourceLog
from simulator.storage import Channel, Reader, SimLog
from simulator.world import World

if TYPE_CHECKING:
    from simulator.container import SimContainer


class Log(Protocol):
    """What a consumer needs of a partition."""

    readers: dict[Reader, None]
    wakes: bool
    """Who reads it is woken by what comes."""
    synced: Offset
    """What lies before it survives a power cut."""

    @property
    def oldest(self) -> Offset:
        """Where reading may begin."""
        ...

    @property
    def end(self) -> Offset:
        """Behind what can be read now."""
        ...

    @property
    def ended(self) -> bool:
        """Nothing will follow what can be read now."""
        ...

    def readable(self, offset: Offset) -> bool:
        """Reading may go on at this offset."""
        ...

    def offsets(self, start: Offset, stop: Offset) -> list[Offset]:
        """Where records stand."""
        ...

    def read(self, offset: Offset) -> bytes:
        """The record at an offset."""
        ...

    def sync(self) -> None:
        """All that is there is on the disk."""
        ...


def _nothing() -> None:
    return


class RowTarget(Target):
    """A foreign system with transactions: rows and each writer's position change together or not at all.

    At times it can't be reached, and at times its answer gets lost, so that what failed has been done.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rows: list[dict[str, object]] = []
        self.versions: list[int] = []
        """Of each row the version that it belongs to."""
        self.failing = 0.0
        """How likely a call fails."""
        self.away = False
        """Every call fails."""
        self._positions: dict[str, int] = {}

    @override
    def position(self, writer: str) -> int:
        self._fail("could not be asked")
        return self._positions.get(writer, -1)

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        self._fail("could not be reached")
        if version > self._positions.get(writer, -1):
            self._positions[writer] = version
            for part in rows:
                self.rows += part.to_dicts()
                self.versions += [version] * part.height
            if self.world.story is not None:
                self.world.tell(f"target {self.name}", f"version {version} of {writer}: {sum(map(len, rows))} rows")
        self._fail("gave no answer")

    @override
    def close(self) -> None:
        return

    def _fail(self, why: str) -> None:
        if self.away or (self.failing and self.world.chance.random() < self.failing):
            self.world.tell(f"target {self.name}", why)
            raise UnavailableError(f"target {self.name} {why}")


class SimProducer(Producer):
    """Sends for one container."""

    def __init__(self, container: SimContainer, system: str) -> None:
        self._container = container
        self._system = system
        self._touched: dict[SSP, Channel] = {}
        self._unsynced: dict[SSP, Channel] = {}
        self._written: dict[SSP, Channel] = {}

    @override
    def send(self, stream: str, partition: int, payload: bytes) -> None:
        ssp = SSP(StreamId(self._system, stream), partition)
        channel = self._touched[ssp] = self._container.channel(ssp)
        self._container.sends(ssp, payload)
        channel.send(payload)

    @override
    def flush(self) -> dict[tuple[str, int], Offset]:
        """Everything is acknowledged by now: where the last records ended. Or the disk was full."""
        if not self._touched:
            return {}
        touched, self._touched = self._touched, {}
        self._unsynced |= touched
        self._written |= touched
        if (error := self._container.disk_error()) is not None:
            raise error
        assert not any(channel.flying for channel in touched.values()), "nobody waited before the flush"
        return {(ssp.stream.name, ssp.partition): channel.acknowledged for ssp, channel in touched.items()}

    @override
    def landmark(self, stream: str, partition: int) -> str:
        channel = self._written.get(SSP(StreamId(self._system, stream), partition))
        return "" if channel is None else _landmark(channel.log, channel.acknowledged)

    def _synced(self, ssp: SSP) -> None:
        self._unsynced.pop(ssp, None)

    @override
    def unsynced(self) -> Iterable[Unsynced]:
        return [Unsynced(ssp, channel.log.sync, partial(self._synced, ssp)) for ssp, channel in self._unsynced.items()]

    @override
    def close(self) -> None:
        return


def _landmark(log: Log, offset: Offset) -> str:
    before = log.offsets(log.oldest, offset)
    return f"{before[-1]}:{zlib.crc32(log.read(before[-1]))}" if before else ""


class SimConsumer(Consumer):
    """Reads partitions: some of what is there, in pieces as chance will have it."""

    def __init__(self, world: World, logs: Mapping[SSP, Log], reader: Reader) -> None:
        self._world = world
        self._logs = logs
        self._reader = reader
        self._positions: dict[SSP, Offset] = {}
        self._ended: set[SSP] = set()

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        log = self._logs[ssp]
        if isinstance(position, Edge):
            position = log.oldest if position is Edge.OLDEST else log.end
        if position < log.oldest:
            raise TrimmedOffsetError(f"{ssp}: offset {position} was given up; the oldest is {log.oldest}")
        if position > log.end:
            raise UsageError(f"{ssp}: offset {position} lies behind the end, {log.end}")
        self._positions[ssp] = position
        self._ended.discard(ssp)
        if log.wakes:
            log.readers[self._reader] = None

    @override
    def unregister(self, ssp: SSP) -> None:
        self._positions.pop(ssp, None)

    def _is_ready(self, ssp: SSP) -> bool:
        log = self._logs[ssp]
        return self._positions[ssp] < log.end or (log.ended and ssp not in self._ended)

    @property
    def ready(self) -> bool:
        """There is something for a poll."""
        return any(map(self._is_ready, self._positions))

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        chance = self._world.chance
        ready = [ssp for ssp in (self._positions if ssps is None else ssps) if self._is_ready(ssp)]
        found: list[Polled] = []
        if not ready:
            return found
        sure = int(chance.random() * len(ready))  # as long as there is something, something comes
        for number, ssp in enumerate(ready):
            if number == sure or chance.random() < 0.5:
                found += self._read(ssp, max_bytes)
        if not found:
            found = [polled for ssp in ready for polled in self._read(ssp, max_bytes)]
        return found

    def _read(self, ssp: SSP, max_bytes: int) -> list[Polled]:
        log, position = self._logs[ssp], self._positions[ssp]
        if position < log.oldest:
            raise TrimmedOffsetError(f"{ssp}: offset {position} was given up; the oldest is {log.oldest}")
        if not log.readable(position):
            raise CorruptLogError(f"{ssp}: no record begins at offset {position}")
        end = log.end
        if position >= end:
            if not log.ended or ssp in self._ended:
                return []
            self._ended.add(ssp)
            return [Ended(ssp, position)]
        most = 1 if max_bytes == 1 else 1 + int(self._world.chance.random() * 6)
        offsets = log.offsets(position, end)
        after = end if len(offsets) <= most else offsets[most]
        self._positions[ssp] = after
        del offsets[most:]
        return [Records(ssp, offsets, [log.read(at) for at in offsets], after)] if offsets else []

    @override
    def position(self, ssp: SSP) -> Offset:
        return self._positions[ssp]

    @override
    def landmark(self, ssp: SSP, offset: Offset) -> str:
        return _landmark(self._logs[ssp], offset)

    @override
    def has_landmark(self, ssp: SSP, landmark: str) -> bool:
        log, (at, check) = self._logs[ssp], map(int, landmark.split(":"))
        if at < log.oldest:
            return True
        return log.offsets(at, at + 1) == [at] and at < log.end and zlib.crc32(log.read(at)) == check

    @override
    def unsynced(self) -> Iterable[Unsynced]:
        return [
            Unsynced(ssp, self._logs[ssp].sync, _nothing)
            for ssp, position in self._positions.items()
            if position > self._logs[ssp].synced
        ]

    @override
    def fileno(self) -> int | None:
        return 0

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        return self._logs[ssp].end - (self._positions[ssp] if since is None else since)

    @override
    def close(self) -> None:
        return


class SimWakeups(Wakeups):
    """The consumers of a container: those for which something is there are woken."""

    def __init__(self, container: SimContainer) -> None:
        self._container = container
        self._consumers: list[SimConsumer] = []

    @override
    def consumer(self) -> SimConsumer:
        container = self._container
        consumer = SimConsumer(container.world, container.cluster.partitions, container)
        self._consumers.append(consumer)
        return consumer

    @override
    def fileno(self) -> int:
        return 0

    @override
    def stirred(self) -> Collection[SimConsumer]:
        return [consumer for consumer in self._consumers if consumer.ready]

    @override
    def close(self) -> None:
        return


class SimAdmin(Admin):
    """Manages the logs of the world."""

    def __init__(
        self, logs: Mapping[SSP, Log], positions: dict[SSP, Offset], slots: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """``slots`` are the streams whose partitions are slots, each with how many it has."""
        self.mishaps = random.Random()
        self.failing = 0.0
        """How likely it can't be reached when it is asked how far streams go."""
        self._logs = logs
        self._positions = positions
        self._slots = slots
        self._ssps: dict[str, builtins.list[SSP]] = {}
        self._known = 0

    @override
    def list(self) -> builtins.list[str]:
        return sorted({ssp.stream.name for ssp in self._logs})

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        return StreamInfo(stream, len(self._of(stream)))

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        return StreamInfo(stream, partitions, columns)

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        raise UsageError(f"{stream} keeps its columns")

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        raise UsageError(f"{stream} keeps its partitions")

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        if self.failing and self.mishaps.random() < self.failing:
            raise UnavailableError(f"the system of {stream} could not be reached")
        if stream in self._slots:
            return [Extent(0, 0)] * self._slots[stream]
        return [Extent(log.oldest, log.end, log.ended, trimmed=log.oldest > 0) for _, log in self._of(stream)]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        log = self._source(ssp)
        late = (at for at in log.offsets(log.oldest, log.end) if log.arrived_at(at) >= time_ms)
        return next(late, log.end)

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        log = self._source(ssp)
        return int(log.arrived_at(offset)) if offset < log.end else None

    @override
    def trimmed_ms(self, ssp: SSP) -> int | None:
        log = self._source(ssp)
        return int(log.arrived_at(log.oldest - 1)) if log.oldest else None

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        super().check_offset(ssp, offset)
        if not self._logs[ssp].readable(offset):
            raise UsageError(f"{ssp}: no record begins at offset {offset}")

    def _source(self, ssp: SSP) -> SourceLog:
        log = self._logs[ssp]
        assert isinstance(log, SourceLog)
        return log

    @override
    def seal(self, stream: str) -> None:
        raise UsageError(f"{stream} ends by itself")

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        log = self._logs[ssp]
        assert isinstance(log, SimLog)
        log.trim(before)

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        self._positions[ssp] = position

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        return {ssp.partition: self._positions[ssp] for ssp, _ in self._of(stream) if ssp in self._positions}

    def _of(self, stream: str) -> builtins.list[tuple[SSP, Log]]:
        if self._known != len(self._logs):
            self._known = len(self._logs)
            self._ssps.clear()
            for ssp in sorted(self._logs, key=lambda ssp: ssp.partition):
                self._ssps.setdefault(ssp.stream.name, []).append(ssp)
        return [(ssp, self._logs[ssp]) for ssp in self._ssps.get(stream, ())]


class SimConnections(Connections):
    """What one simulated container reaches of the world."""

    def __init__(
        self, container: SimContainer, admin: Admin, targets: Mapping[StreamId, RowTarget], calls: Calls
    ) -> None:
        super().__init__()
        self.calls = calls
        self._container = container
        self._admin = admin
        self._row_targets = targets

    @override
    def admin(self, spec: SystemSpec) -> Admin:
        return self._admin

    @override
    def consumer(
        self, spec: SystemSpec, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False
    ) -> Consumer:
        for stream in self._container.cluster.slotted:
            if stream.plan.spec.system == spec:
                return stream.consumer(self._container, columns)
        return SimConsumer(self._container.world, self._container.cluster.partitions, self._container)

    @override
    def reader(self, spec: SystemSpec) -> Consumer:
        return self.consumer(spec)

    @override
    def _group(self, spec: SystemSpec) -> Wakeups | None:
        if any(stream.plan.spec.system == spec for stream in self._container.cluster.slotted):
            return None
        if spec.name not in self._wakeups:
            self._wakeups[spec.name] = SimWakeups(self._container)
        return self._wakeups[spec.name]

    @override
    def record_producer(self, spec: SystemSpec) -> Producer:
        if spec.name not in self._producers:
            self._producers[spec.name] = SimProducer(self._container, spec.name)
        return self._producers[spec.name]

    @override
    def sync_records(self, read: Iterable[Unsynced] = ()) -> None:
        sync_all([*read, *(each for producer in self._producers.values() for each in producer.unsynced())])

    @override
    def target(self, spec: SystemSpec, stream: StreamId) -> Target:
        return self._row_targets[stream]

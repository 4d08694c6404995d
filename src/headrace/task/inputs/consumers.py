"""The consumers of one task, what is read first, and what is idle.

There is one consumer per system for all partitions there, with a bound on what waits unprocessed. Side inputs come
first: everything else waits until all are read up to their ends at the start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import assert_never

import polars as pl
from msgspec import UNSET

from headrace.api.specs import Role, StreamSpec
from headrace.core.errors import FencedError, HeadraceError, StreamNotFoundError, TrimmedOffsetError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.protocol.record import Detour
from headrace.systems.base import (
    Consumer,
    Edge,
    Ended,
    Polled,
    Position,
    Records,
    Rows,
    Unsynced,
    polled_to,
    rows_before,
)
from headrace.systems.slot_reports import Shards, SlotOrders
from headrace.systems.slots import SlotConsumer
from headrace.task.connections import Connections
from headrace.task.inputs.chooser import Chooser, envelopes
from headrace.task.task import Task

WAITING_BYTES_MAX = 8 << 20
POLL_BYTES_MAX = 4 << 20
_FAR = 1 << 63


class InputConsumers:
    """Reads the input partitions of one task."""

    def __init__(self, specs: Mapping[SSP, StreamSpec], connections: Connections) -> None:
        self._specs = specs
        self._connections = connections
        self._consumers: dict[str, Consumer] = {}
        self._of_slots: dict[str, SlotConsumer] = {}
        self._ssps: dict[str, list[SSP]] = {}
        self._hungry: dict[str, bool] = {}
        self._limits: dict[SSP, Offset] = {}
        self._after: dict[SSP, Offset | None] = {}
        self._again: dict[str, Consumer] = {}
        self._begun = False
        for ssp, spec in specs.items():
            name = spec.system.name
            if name not in self._consumers:
                columns, whole = _looked_at(specs, name)
                self._consumers[name] = consumer = connections.woken_consumer(spec.system, columns, whole=whole)
                if isinstance(consumer, SlotConsumer):  # asked once: for a protocol it takes long
                    self._of_slots[name] = consumer
                self._hungry[name] = False
            self._ssps.setdefault(name, []).append(ssp)

    def begin(self, positions: Mapping[SSP, Position]) -> dict[SSP, Offset]:
        """At the start and after a rollback. Raises ``FencedError`` where an intermediate stream was trimmed past its
        position: its only reader has read further. Any user may trim a source: that is a ``TrimmedOffsetError``."""
        begun: dict[SSP, Offset] = {}
        for name, ssps in self._ssps.items():
            consumer = self._consumers[name]
            for ssp in ssps:
                try:
                    _register(consumer, ssp, positions[ssp])
                    if positions[ssp] is Edge.OLDEST and self._specs[ssp].role is Role.INTERMEDIATE:
                        extent = self._connections.admin(self._specs[ssp].system).extent(ssp)
                        if extent.trimmed:
                            what = f"{ssp}: its beginning was trimmed; the oldest offset is {extent.oldest}"
                            raise TrimmedOffsetError(what)
                except TrimmedOffsetError as error:
                    raise self._given_up(ssp, error) from error
                begun[ssp] = consumer.position(ssp)
            self._hungry[name] = True
        self._begun = True
        return begun

    def _given_up(self, ssp: SSP, error: TrimmedOffsetError) -> HeadraceError:
        if self._specs[ssp].role is Role.INTERMEDIATE:
            return FencedError(
                f"it would have to read trimmed records: {error.message}",
                hint="this is a stale copy of the task; its replacement has read further. If there is none, the task's "
                "changelog was lost",
            )
        return TrimmedOffsetError(
            f"its checkpoint continues with trimmed records: {error.message}",
            hint="the input was trimmed, or its retention is shorter than the app was stopped: the records in between "
            "are lost. Start the app under another name to read the rest",
        )

    def take(self, shards: Mapping[SSP, Shards]) -> list[Rows]:
        of_slots = self._of_slots.items()
        return [consumer.take(ssp, shards.get(ssp, {})) for name, consumer in of_slots for ssp in self._ssps[name]]

    def slots(self) -> list[SSP]:
        return [ssp for name in self._of_slots for ssp in self._ssps[name]]

    def direct(self, orders: Mapping[SSP, SlotOrders]) -> None:
        for ssp, order in orders.items():
            name = self._specs[ssp].system.name
            if name in self._of_slots:
                self._of_slots[name].direct(ssp, order)
                self._hungry[name] = True

    def behind_ms(self, ssp: SSP) -> Mapping[str, int]:
        consumer = self._of_slots.get(self._specs[ssp].system.name)
        return {} if consumer is None else consumer.behind_ms(ssp)

    def stop_at(self, limits: Mapping[SSP, Offset], ends: Mapping[SSP, Offset] | None = None) -> None:
        """Hand nothing out from these offsets on. ``ends`` are those of detours: where there is one, it comes first."""
        ends = ends or {}
        self._after = {ssp: limits.get(ssp) for ssp in ends}
        self._limits = {**limits, **ends}

    def go_past(self, ssp: SSP) -> None:
        if self._limits.pop(ssp, None) is not None:
            self._hungry[self._specs[ssp].system.name] = True

    def go_back(self, ssp: SSP, detour: Detour) -> None:
        """Read on where a detour began. Raises ``StreamNotFoundError`` if the stream isn't the same any more."""
        name = self._specs[ssp].system.name
        try:
            _register(self._consumers[name], ssp, detour.offset)
        except TrimmedOffsetError as error:
            raise self._given_up(ssp, error) from error
        if detour.landmark is not UNSET and not self.has_landmark(ssp, detour.landmark):
            raise not_what_was_read(f"{ssp}: the record before offset {detour.offset} is missing")
        self._limits.pop(ssp, None)
        if (limit := self._after.pop(ssp, None)) is not None:
            self._limits[ssp] = limit
        self._hungry[name] = True

    def poll(self, chooser: Chooser, now_ms: float = 0.0) -> None:
        chooser.now_ms = now_ms
        for name, consumer in self._consumers.items():
            ssps = self._ssps[name]
            if self._limits:
                ssps = [ssp for ssp in ssps if consumer.position(ssp) < self._limits.get(ssp, _FAR)]
            wanted = [ssp for ssp in ssps if chooser.waiting_bytes(ssp) < WAITING_BYTES_MAX]
            if ssps and not wanted:
                continue
            found = consumer.poll(wanted, POLL_BYTES_MAX)  # with none wanted, too: it clears the descriptor
            self._hungry[name] = (bool(found) and consumer.more()) or len(wanted) < len(ssps)
            for polled in found:
                for envelope in envelopes(self._within_limit(consumer, polled) if self._limits else polled):
                    chooser.offer(envelope)

    def _within_limit(self, consumer: Consumer, polled: Polled) -> Polled:
        limit = self._limits.get(polled.ssp, _FAR)
        if polled.next > limit or (isinstance(polled, Ended) and polled.next >= limit):
            consumer.register(polled.ssp, limit)  # the rest will be polled again
        return up_to(polled, limit)

    @property
    def hungry(self) -> bool:
        return any(self._hungry.values())

    def filenos(self) -> list[int]:
        numbers = [consumer.fileno() for consumer in self._consumers.values()]
        return [number for number in numbers if number is not None]

    @property
    def consumers(self) -> Collection[Consumer]:
        return self._consumers.values()

    @property
    def all_woken(self) -> bool:
        systems = {spec.system.name: spec.system for spec in self._specs.values()}
        return all(self._connections.is_woken(system) for system in systems.values())

    def position(self, ssp: SSP) -> Offset:
        return self._consumers[self._specs[ssp].system.name].position(ssp)

    def lag(self, ssp: SSP, since: Offset | None) -> int | None:
        consumer = self._consumers.get(self._specs[ssp].system.name)
        return consumer.lag(ssp, since) if consumer is not None and self._begun else None

    def ends(self, ssps: Collection[SSP]) -> dict[SSP, Offset]:
        ends: dict[SSP, Offset] = {}
        for stream in dict.fromkeys(ssp.stream for ssp in ssps):
            wanted = [ssp for ssp in ssps if ssp.stream == stream]
            admin = self._connections.admin(self._specs[wanted[0]].system)
            if len(wanted) == 1:
                ends[wanted[0]] = admin.extent(wanted[0]).upcoming
                continue
            extents = admin.extents(stream.name)
            ends |= {ssp: extents[ssp.partition].upcoming for ssp in wanted}
        return ends

    def scan(self, positions: Mapping[SSP, Offset | None]) -> Iterator[Records]:
        for ssp, start in positions.items():
            spec = self._specs[ssp]
            end = self._connections.admin(spec.system).extent(ssp).upcoming
            with closing(self._connections.reader(spec.system)) as consumer:
                _register(consumer, ssp, Edge.OLDEST if start is None else start)
                found = polled_to(consumer, ssp, end, POLL_BYTES_MAX)
                yield from (polled for polled in found if isinstance(polled, Records))

    def read_again(self, ssp: SSP, start: Offset, end: Offset) -> Iterator[Records]:
        """Yield what was polled of an intermediate partition and no commit covers, without moving its position."""
        spec = self._specs[ssp].system
        if spec.name not in self._again:
            self._again[spec.name] = self._connections.reader(spec)
        consumer = self._again[spec.name]
        try:
            _register(consumer, ssp, start)
            found = polled_to(consumer, ssp, end, POLL_BYTES_MAX)
            yield from (polled for polled in found if isinstance(polled, Records))
            consumer.unregister(ssp)
        except TrimmedOffsetError as error:
            raise self._given_up(ssp, error) from error

    def landmark(self, ssp: SSP, offset: Offset) -> str:
        """See ``Consumer``. A task that has just taken over its state has read nothing yet: it leaves none."""
        return self._consumers[self._specs[ssp].system.name].landmark(ssp, offset) if self._begun else ""

    def has_landmark(self, ssp: SSP, landmark: str) -> bool:
        return self._consumers[self._specs[ssp].system.name].has_landmark(ssp, landmark)

    def unsynced(self) -> Iterator[Unsynced]:
        for consumer in self._consumers.values():
            yield from consumer.unsynced()

    def close(self) -> None:
        for consumer in (*self._consumers.values(), *self._again.values()):
            consumer.close()
        self._consumers.clear()
        self._again.clear()
        self._of_slots.clear()


def up_to(polled: Polled, limit: Offset) -> Polled:
    """What was polled of a partition, without what is at ``limit`` or after it. An end at the limit is after it."""
    match polled:
        case Records(ssp=ssp, offsets=offsets, payloads=payloads, next=after):
            n = bisect_left(offsets, limit)
            return polled if n == len(offsets) else Records(ssp, offsets[:n], payloads[:n], min(limit, after))
        case Rows():
            return rows_before(polled, limit)
        case Ended(ssp=ssp, next=after):
            return polled if after < limit else Records(ssp, [], [], limit)
        case _:
            assert_never(polled)


def _looked_at(specs: Mapping[SSP, StreamSpec], system: str) -> tuple[dict[str, pl.DataType] | None, bool]:
    columns: dict[str, pl.DataType] = {}
    whole = False
    for spec in specs.values():
        if spec.system.name != system:
            continue
        if spec.schema is None:
            return None, True
        whole |= spec.on_error == "dead_letter"
        columns |= spec.schema.columns
    return columns, whole


def _register(consumer: Consumer, ssp: SSP, position: Position) -> None:
    try:
        consumer.register(ssp, position)
    except UsageError as error:
        raise not_what_was_read(error.message) from error


def not_what_was_read(why: str) -> StreamNotFoundError:
    return StreamNotFoundError(
        f"this is not the stream that the app has read before; its checkpoint doesn't fit it: {why}",
        hint="the stream was replaced by another of its name, or lost its end in a crash of the machine: put the "
        "old one back and start again; to read the one that is there, use another app name",
    )


class Bootstrap:
    """The side inputs of one attempt. Reports to the chooser when one has been read."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._stretches: dict[SSP, tuple[Offset, Offset]] = {}  # the first and the last offset of each
        self._open: set[SSP] = set()

    def begin(self, positions: Mapping[SSP, Offset], ends: Mapping[SSP, Offset]) -> None:
        self._stretches = {ssp: (positions[ssp], end) for ssp, end in ends.items()}
        self._open = set(ends)
        for ssp in ends:
            self.note(ssp, positions[ssp])

    def note(self, ssp: SSP, position: Offset, *, ended: bool = False) -> None:
        if ssp in self._open and (ended or position >= self._stretches[ssp][1]):
            self._open.remove(ssp)
            self._chooser.bootstrapped(ssp)

    def percent(self, positions: Mapping[SSP, Offset]) -> int | None:
        if not self._open:
            return None
        whole = sum(max(0, end - begin) for begin, end in self._stretches.values())
        left = sum(self._stretches[ssp][1] - positions[ssp] for ssp in self._open)
        return 100 * (whole - left) // whole


class Idleness:
    """The source partitions and shards of slots that have been idle for their timeout; times are monotonic."""

    def __init__(self, task: Task, now_ms: float) -> None:
        self._task = task
        self._heard_ms: dict[tuple[SSP, str], float] = {(ssp, ""): now_ms for ssp in task.specs}

    def heard(self, ssp: SSP, now_ms: float, shard: str = "") -> None:
        self._heard_ms[ssp, shard] = now_ms

    def notice(self, chooser: Chooser, now_ms: float) -> None:
        """Mark idle partitions. One with messages that wait to be processed (full steps, slow readers) isn't idle."""
        for ssp, timeout in self._task.timeouts.items():
            for shard in self._task.times[ssp].sending:
                heard = self._heard_ms.setdefault((ssp, shard), now_ms)
                if chooser.waits(ssp):
                    self._heard_ms[ssp, shard] = now_ms
                elif now_ms - heard >= timeout:
                    self._task.idle(ssp, shard)

    def due_ms(self) -> float | None:
        heard, times = self._heard_ms, self._task.times
        sending = ((ssp, shard, ms) for ssp, ms in self._task.timeouts.items() for shard in times[ssp].sending)
        # A shard that wasn't noticed yet is noticed in the next turn.
        return min((heard[ssp, shard] + ms for ssp, shard, ms in sending if (ssp, shard) in heard), default=None)

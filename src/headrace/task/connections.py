"""The systems that one container uses: each is opened once, with one producer that its tasks share (on one thread).

Row systems have no producer, but one target per stream, which a task publishes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from headrace.core.errors import HeadraceError
from headrace.core.frame import Kind, body_of, decode_header
from headrace.core.ids import SSP, Offset, StreamId
from headrace.core.log import logger
from headrace.rows.dtypes import Columns
from headrace.rows.ipc import decode_rows
from headrace.systems.base import (
    SYNCS_AT_ONCE,
    Admin,
    Consumer,
    Producer,
    Records,
    Rows,
    RowSystem,
    System,
    Target,
    Unsynced,
    Wakeups,
    height_before,
    polled_to,
    sync_all,
)
from headrace.systems.registry import SystemSpec, keeps_rows, offsets_are_bytes, open_row_system, open_system
from headrace.systems.startpoints import is_moment
from headrace.task.calls import Calls
from headrace.task.scope import AtWork

COUNT_BYTES_MAX = 64 << 20  # messages are counted by reading them; beyond this many bytes of a partition they aren't
_POLL_BYTES = 4 << 20
_log = logger(__name__)


class Connections:
    """Systems by name, opened when they are first needed and closed together."""

    def __init__(self, wake: Callable[[], None] = lambda: None, at_work: AtWork | None = None) -> None:
        self.calls = Calls(wake)
        self.at_work = at_work or AtWork()
        self._systems: dict[str, System] = {}
        self._row_systems: dict[str, RowSystem] = {}
        self._admins: dict[str, Admin] = {}
        self._producers: dict[str, Producer] = {}
        self._targets: dict[StreamId, Target] = {}
        self._syncing: ThreadPoolExecutor | None = None
        self._wakeups: dict[str, Wakeups | None] = {}

    def admin(self, spec: SystemSpec) -> Admin:
        if spec.name not in self._admins:
            system = self._row_system(spec) if keeps_rows(spec) else self._system(spec)
            self._admins[spec.name] = system.admin()
        return self._admins[spec.name]

    def consumer(self, spec: SystemSpec, columns: Columns | None = None, *, whole: bool = False) -> Consumer:
        """A new consumer, which the caller closes. A row system need only read these ``columns``, if not ``whole``."""
        if keeps_rows(spec):
            return self._row_system(spec).consumer(columns, whole=whole)
        return self._system(spec).consumer()

    def reader(self, spec: SystemSpec) -> Consumer:
        return self._system(spec).reader()

    def woken_consumer(self, spec: SystemSpec, columns: Columns | None = None, *, whole: bool = False) -> Consumer:
        group = None if keeps_rows(spec) else self._group(spec)
        return self.consumer(spec, columns, whole=whole) if group is None else group.consumer()

    def _group(self, spec: SystemSpec) -> Wakeups | None:
        if spec.name not in self._wakeups:
            self._wakeups[spec.name] = self._system(spec).wakeups()
        return self._wakeups[spec.name]

    def stirred(self) -> Iterator[Consumer]:
        for group in self._wakeups.values():
            if group is not None:
                yield from group.stirred()

    def learn(self) -> None:
        for _ in self.stirred():
            pass

    def is_woken(self, spec: SystemSpec) -> bool:
        return not keeps_rows(spec) and self._group(spec) is not None

    def record_producer(self, spec: SystemSpec) -> Producer:
        if spec.name not in self._producers:
            self._producers[spec.name] = self._system(spec).producer()
        return self._producers[spec.name]

    def target(self, spec: SystemSpec, stream: StreamId) -> Target:
        if stream not in self._targets:
            self._targets[stream] = self._row_system(spec).target(stream.name)
        return self._targets[stream]

    def flush_records(self) -> None:
        for producer in self._producers.values():
            producer.flush()

    def sync_records(self, read: Iterable[Unsynced] = ()) -> None:
        """Wait until everything acknowledged by record systems survives a power cut, and what was ``read``."""
        unsynced = [*read]
        for producer in self._producers.values():
            unsynced += producer.unsynced()
        if len(unsynced) > 1 and self._syncing is None:
            self._syncing = ThreadPoolExecutor(SYNCS_AT_ONCE, "headrace-sync")
        sync_all(unsynced, self._syncing)

    def waive_sync(self, read: Iterable[Unsynced] = ()) -> None:
        for each in (*read, *(each for producer in self._producers.values() for each in producer.unsynced())):
            each.done()

    def close(self) -> None:
        self.calls.close()
        if self._syncing is not None:
            self._syncing.shutdown()
        for producer in self._producers.values():
            producer.close()
        for target in self._targets.values():
            target.close()
        for admin in self._admins.values():
            admin.close()
        for group in self._wakeups.values():
            if group is not None:
                group.close()
        self._wakeups.clear()
        self._producers.clear()
        self._targets.clear()

    def _system(self, spec: SystemSpec) -> System:
        if spec.name not in self._systems:
            self._systems[spec.name] = open_system(spec)
        return self._systems[spec.name]

    def _row_system(self, spec: SystemSpec) -> RowSystem:
        if spec.name not in self._row_systems:
            self._row_systems[spec.name] = open_row_system(spec)
        return self._row_systems[spec.name]


@dataclass(frozen=True, slots=True)
class Distance:
    """``messages`` is None if they are too many to be counted, ``size`` (bytes) if offsets aren't bytes."""

    messages: int | None
    size: int | None


def distance(connections: Connections, spec: SystemSpec, ssp: SSP, start: Offset, end: Offset) -> Distance:
    size = end - start if offsets_are_bytes(spec) else None
    if is_moment(end):
        return Distance(None, None)
    if start >= end:
        return Distance(0, 0 if size is not None else None)
    if size is not None and size > COUNT_BYTES_MAX:
        return Distance(None, size)
    consumer = connections.consumer(spec)
    try:
        consumer.register(ssp, start)
        return Distance(_count(consumer, ssp, end), size)
    except HeadraceError as error:
        _log.info("messages can't be counted", ssp=str(ssp), start=start, end=end, error=error.message)
        return Distance(None, size)
    finally:
        consumer.close()


def lag(connections: Connections, spec: SystemSpec, ssp: SSP, start: Offset, end: Offset) -> Distance:
    found = distance(connections, spec, ssp, start, end)
    if found.messages is not None or not keeps_rows(spec):
        return found
    with closing(connections.consumer(spec)) as consumer:
        consumer.register(ssp, start)
        return Distance(consumer.lag(ssp), None)


def _count(consumer: Consumer, ssp: SSP, end: Offset) -> int | None:
    messages, read = 0, 0
    for found in polled_to(consumer, ssp, end, _POLL_BYTES):
        if isinstance(found, Records):
            within = [p for offset, p in zip(found.offsets, found.payloads, strict=True) if offset < end]
            messages += sum(decode_rows(body_of(p)).height for p in within if decode_header(p).kind is Kind.USER)
            read += sum(map(len, within))
        elif isinstance(found, Rows):
            messages += height_before(found, end) + sum(record.offset < end for record in found.bad)
            read += int(found.frame.estimated_size())
        if read > COUNT_BYTES_MAX:
            return None
    return messages

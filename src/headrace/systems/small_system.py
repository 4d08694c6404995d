"""A row system made of a source or a sink that keeps the small contract.

A thread of each consumer reads the partitions of a source, because ``next_batch`` may wait for a server and the run
loop may not. A sink is used on the thread of its task.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import polars as pl
from typing_extensions import override

from headrace.core import errors
from headrace.core.files import Bell
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.rows.dtypes import Columns
from headrace.rows.formats import FormatSpec, open_format
from headrace.rows.given import as_polars, as_records
from headrace.systems import base
from headrace.systems.registry import check_option_names
from headrace.systems.small import Batch, Sink, SinkWriter, Source, SourcePartition

AHEAD_MAX = 2  # how many batches of a partition wait to be polled
PAUSE_S, PAUSE_S_MAX = 0.1, 30.0
"""How long a source is left alone after an error that may pass: twice as long after each further one."""
END_S = 1.0  # how often a source is asked for the end of a partition
CLOSING_S = 5.0
_log = logger(__name__)


def small_system(made: Source | Sink) -> base.RowSystem:
    match made:
        case Source():
            return SourceSystem(made)
        case Sink():
            return SinkSystem(made)
    raise errors.UsageError(
        f"a {type(made).__name__} is neither a Source nor a Sink", hint="derive it from one in headrace.systems.small"
    )


def open_small(name: str, options: Mapping[str, Any]) -> base.RowSystem:
    check_option_names(name, "small", options, ("made",), "made")
    return small_system(options["made"])


@contextmanager
def _raising(made: Source | Sink, doing: str) -> Iterator[None]:
    try:
        yield
    except errors.HeadraceError:
        raise
    except Exception as error:
        said = f"{type(made).__name__}.{doing}: {type(error).__name__}: {error}"
        if isinstance(error, made.retry_on):
            raise errors.UnavailableError(said, hint="it is tried again; check what it connects to") from error
        raise errors.UserFunctionError(said, hint="for errors that may pass, raise OSError or set retry_on") from error


class SourceSystem(base.UnwatchedAdmin, base.RowSystem):
    """Reads a source, which it describes as a stream of any name. It is its own admin."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source

    @override
    def admin(self) -> SourceSystem:
        return self

    @override
    def consumer(self, columns: Columns | None = None, *, whole: bool = False) -> SourceConsumer:
        return SourceConsumer(self._source, columns)

    @override
    def target(self, stream: str) -> base.Target:
        what = f"{type(self._source).__name__} is a source: it can't be written"
        raise errors.UsageError(what, hint="write to a sink")

    @override
    def list(self) -> builtins.list[str]:
        return []

    @override
    def describe(self, stream: str) -> base.StreamInfo:
        return base.StreamInfo(stream, len(self._names()), bounded=self._source.bounded)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> base.StreamInfo:
        raise self._refused("it can't be created")

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> base.StreamInfo:
        raise self._refused("it takes no columns from Headrace")

    @override
    def add_partitions(self, stream: str, partitions: int) -> base.StreamInfo:
        raise self._refused("it takes no partitions from Headrace")

    @override
    def extents(self, stream: str) -> builtins.list[base.Extent]:
        return [self._extent(name) for name in self._names()]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        with _raising(self._source, "position_at"):
            return self._source.position_at(_partition_name(self._names(), ssp), time_ms)

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        name = _partition_name(self._names(), ssp)
        _check_position(self._source, ssp, name, offset, _end(self._source, name))

    @override
    def seal(self, stream: str) -> None:
        raise self._refused("it can't be sealed")

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        raise self._refused("it can't be trimmed")

    def _names(self) -> Sequence[str]:
        with _raising(self._source, "partitions"):
            return list(self._source.partitions())

    def _extent(self, name: str) -> base.Extent:
        end = _end(self._source, name)
        with _raising(self._source, "begin"):
            begin = self._source.begin(name)
        return base.Extent(begin, begin if end is None else max(begin, end), trimmed=begin > 0)

    def _refused(self, why: str) -> errors.UsageError:
        what = f"{type(self._source).__name__} is a source: {why}"
        return errors.UsageError(what, hint="do so where its rows come from")


def _partition_name(names: Sequence[str], ssp: SSP) -> str:
    if not 0 <= ssp.partition < len(names):
        raise errors.StreamNotFoundError(f"{ssp}: the source has partitions 0 to {len(names) - 1}")
    return names[ssp.partition]


def _end(source: Source, name: str) -> Offset | None:
    with _raising(source, "end"):
        return source.end(name)


def _check_position(source: Source, ssp: SSP, name: str, offset: Offset, end: Offset | None) -> None:
    with _raising(source, "begin"):
        begin = source.begin(name)
    if offset < begin:
        what = f"{ssp}: offset {offset} is before the oldest row of {name!r}, which is at {begin}"
        raise errors.TrimmedOffsetError(what, hint="read from oldest, or from a later offset")
    if end is not None and offset > end:
        raise errors.UsageError(f"{ssp}: offset {offset} is after the end, {end}", hint="name an offset up to the end")


@dataclass(slots=True)
class _PartitionReading(base.Reading):
    """A partition; ``fetched`` is the position after the last batch that waits. Only the thread uses ``opened``."""

    name: str = ""
    fetched: Offset = 0
    end: Offset | None = None
    waiting: deque[base.Polled] = field(default_factory=deque)
    opened: SourcePartition | None = None
    due_s: float = 0.0
    end_due_s: float = 0.0
    failures: int = 0
    looks: int = 0  # how often the source has said what comes next


@dataclass(frozen=True, slots=True)
class Made:
    """The rows of a batch; of each bad dict its index and the reason; and all dicts as JSON."""

    frame: pl.DataFrame
    bad: Sequence[tuple[int, str]] = ()
    payloads: Sequence[bytes] = ()


Decode = Callable[[Sequence[Any]], Made]


class SourceConsumer(base.RegisteringConsumer[_PartitionReading]):
    """Reads a source's partitions on a thread, and hands out what has arrived. ``_lock`` guards all but ``opened``."""

    def __init__(self, source: Source, columns: Columns | None) -> None:
        super().__init__()
        self._source = source
        with _raising(source, "partitions"):
            self._names = list(source.partitions())
        self._decoder = None if columns is None else open_format(FormatSpec("json")).decoder(dict(columns))
        self._lock = threading.Condition()
        self._let_go: list[_PartitionReading] = []
        self._failed: errors.HeadraceError | None = None
        self._closed = False
        self._bell = Bell()
        self._throttle = Throttle(_log)
        self._thread = threading.Thread(target=self._work, name="headrace-source", daemon=True)

    @override
    def register(self, ssp: SSP, position: base.Position) -> None:
        name = _partition_name(self._names, ssp)
        end = _end(self._source, name)
        with _raising(self._source, "begin"):
            start = self._source.begin(name) if position is base.Edge.OLDEST else position
        if isinstance(start, base.Edge):
            if end is None:
                raise errors.UnsupportedPositionError(
                    f"{type(self._source).__name__} doesn't say where its partitions end, so reading can't begin there",
                    hint="define end(), or use an offset or oldest",
                )
            start = end
        _check_position(self._source, ssp, name, start, end)
        with self._lock:
            self.unregister(ssp)
            self._readings[ssp] = _PartitionReading(ssp, start, name=name, fetched=start, end=end)
            self._lock.notify_all()
            if self._thread.ident is None:
                self._thread.start()

    @override
    def unregister(self, ssp: SSP) -> None:
        with self._lock:
            super().unregister(ssp)
            self._lock.notify_all()

    @override
    def _release(self, reading: _PartitionReading) -> None:
        self._let_go.append(reading)

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[base.Polled]:
        with self._lock:
            self._bell.clear()
            if self._failed is not None:
                raise self._failed
            found = [reading.waiting.popleft() for reading in self._asked(ssps) if reading.waiting]
            for polled in found:
                self._readings[polled.ssp].position = polled.next
            if found:
                self._lock.notify_all()
            return found

    @override
    def fileno(self) -> int | None:
        return self._bell.fileno()

    @override
    def arriving(self, ssp: SSP, end: Offset, ms: float) -> bool:
        with self._lock:
            reading = self._reading(ssp)
            if reading.ended:
                return bool(reading.waiting)
            before = reading.looks
            reading.due_s = 0.0 if not reading.failures else reading.due_s
            self._lock.notify_all()
            looked = self._lock.wait_for(
                lambda: reading.waiting or reading.looks > before or self._failed is not None, ms / 1000
            )
            return bool(reading.waiting) or not looked or self._failed is not None

    @override
    def landmark(self, ssp: SSP, offset: Offset) -> str:
        """The name of the partition: another one in its place isn't read on."""
        return self._names[ssp.partition]

    @override
    def has_landmark(self, ssp: SSP, landmark: str) -> bool:
        return self._names[ssp.partition] == landmark

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        with self._lock:
            reading = self._reading(ssp)
            start = reading.position if since is None else since
            if reading.ended and reading.end is None:
                return max(0, reading.fetched - start)
            return None if reading.end is None else max(0, reading.end - start)

    @override
    def close(self) -> None:
        with self._lock:
            super().close()
            self._closed = True
            self._lock.notify_all()
        if self._thread.ident is not None:
            self._thread.join(CLOSING_S)
        with self._lock:
            self._bell.close()

    # -- on the thread ---------------------------------------------------------------------------------
    def _work(self) -> None:
        while True:
            with self._lock:
                gone, self._let_go = self._let_go, []
                ready = [r for r in self._readings.values() if self._wants(r) and r.due_s <= time.monotonic()]
                if not gone and not ready:
                    if self._closed:
                        return
                    self._lock.wait(self._pause_s())
                    continue
            for reading in gone:
                self._close_partition(reading)
            for reading in ready:
                self._fetch(reading)

    def _wants(self, reading: _PartitionReading) -> bool:
        return not reading.ended and len(reading.waiting) < AHEAD_MAX and self._failed is None

    def _pause_s(self) -> float | None:
        due = [reading.due_s for reading in self._readings.values() if self._wants(reading)]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _fetch(self, reading: _PartitionReading) -> None:
        try:
            found = self._next(reading)
            end = self._end(reading)
        except errors.HeadraceError as error:
            self._close_partition(reading)
            self._put_off(reading, error)
            return
        with self._lock:
            reading.looks += 1
            reading.failures = 0
            reading.end = end
            if found is None:
                reading.due_s = time.monotonic() + self._source.look_every_s
            else:
                reading.waiting.append(found)
                reading.fetched = found.next
                reading.ended = isinstance(found, base.Ended)
                self._bell.ring()
            self._lock.notify_all()

    def _next(self, reading: _PartitionReading) -> base.Polled | None:
        if reading.opened is None:
            with _raising(self._source, "open"):
                reading.opened = self._source.open(reading.name, reading.fetched)
        with _raising(self._source, "next_batch"):
            given = reading.opened.next_batch()
        with _raising(self._source, "position"):
            after, positions = reading.opened.position(), reading.opened.row_positions()
        if given is None:
            return base.Ended(reading.ssp, reading.fetched)
        rows = _rows_of(given, reading, after, positions, self._decoded)
        return None if not rows.frame.height and not rows.bad and rows.next == rows.offset else rows

    def _decoded(self, records: Sequence[Any]) -> Made:
        if self._decoder is None:
            return Made(pl.DataFrame(records, infer_schema_length=None))
        with _raising(self._source, "next_batch"):
            payloads = [msgspec.json.encode(record) for record in records]
        decoded = self._decoder.decode(payloads)
        return Made(decoded.frame, decoded.bad, payloads)

    def _end(self, reading: _PartitionReading) -> Offset | None:
        now = time.monotonic()
        if now < reading.end_due_s:
            return reading.end
        reading.end_due_s = now + END_S
        return _end(self._source, reading.name)

    def _put_off(self, reading: _PartitionReading, error: errors.HeadraceError) -> None:
        with self._lock:
            if error.retry:
                pause = min(PAUSE_S_MAX, PAUSE_S * 2 ** min(reading.failures, 20))
                reading.failures += 1
                reading.due_s = time.monotonic() + pause
                what = "a source can't be read now; trying again"
                self._throttle.warning(what, partition=str(reading.ssp), error=error.message)
            else:
                error.message = f"{reading.ssp}: {error.message}"
                self._failed = error
                self._bell.ring()
            self._lock.notify_all()

    def _close_partition(self, reading: _PartitionReading) -> None:
        opened, reading.opened = reading.opened, None
        if opened is not None:
            try:
                with _raising(self._source, "close"):
                    opened.close()
            except errors.HeadraceError as error:
                _log.warning("a source couldn't be closed", partition=str(reading.ssp), error=error.message)


def _rows_of(
    given: Batch, reading: _PartitionReading, after: Offset, positions: Sequence[int] | None, decode: Decode
) -> base.Rows:
    table = as_polars(given)
    if isinstance(table, pl.DataFrame):
        made, count = Made(table), table.height
    else:
        records = as_records(table)
        made, count = decode(records), len(records)
    before = reading.fetched
    if positions is None:
        if after - before != count:
            what = f"a batch of {count} rows has moved the position from {before} to {after}"
            raise errors.DataError(what, hint="each row counts 1; if positions have gaps, define row_positions()")
        offsets = None
    else:
        offsets = np.asarray(positions, dtype=np.int64)
        bounded = np.concatenate(([before - 1], offsets, [after]))
        if len(offsets) != count or (np.diff(bounded) < 1).any() or after < before:
            raise errors.DataError(
                f"the positions of a batch of {count} rows don't rise from {before} on to the position after it, "
                f"{after}: {list(offsets[:5])}"
            )
    places = range(before, after) if offsets is None else offsets
    bad = [base.BadRecord(reading.ssp, int(places[index]), reason, made.payloads[index]) for index, reason in made.bad]
    if offsets is not None and bad:
        offsets = np.delete(offsets, [index for index, _ in made.bad])
    return base.Rows(reading.ssp, made.frame, before, after, bad, reading.name, offsets=offsets)


class SinkSystem(base.WriteOnlyAdmin, base.RowSystem):
    """Writes a sink, which it describes as a stream of any name. It is its own admin."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @override
    def admin(self) -> SinkSystem:
        return self

    @override
    def consumer(self, columns: Columns | None = None, *, whole: bool = False) -> base.Consumer:
        raise self.refused("can't be read")

    @override
    def target(self, stream: str) -> SinkTarget:
        return SinkTarget(self._sink)

    @override
    def list(self) -> builtins.list[str]:
        return []

    @override
    def describe(self, stream: str) -> base.StreamInfo:
        return base.StreamInfo(stream, 1)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> base.StreamInfo:
        with _raising(self._sink, "create"):
            self._sink.create(columns)
        return base.StreamInfo(stream, partitions, columns)

    @override
    def refused(self, why: str) -> errors.UsageError:
        return errors.UsageError(f"the sink {type(self._sink).__name__} {why}")


class SinkTarget(base.Target):
    """Publishes versions into a sink. After an error, the next try is that of a new writer."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.replaces = sink.replaces
        self._writers: dict[str, SinkWriter] = {}

    @override
    def accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        with _raising(self._sink, "accept"):
            return self._sink.accept(rows)

    @override
    def position(self, writer: str) -> int:
        with self._used(writer) as used, _raising(self._sink, "position"):
            return used.position()

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        with self._used(writer) as used:
            with _raising(self._sink, "position"):
                if self._sink.keeps_positions and used.position() >= version:
                    return
            with _raising(self._sink, "write"):
                for piece in rows:
                    used.write(piece)
            with _raising(self._sink, "commit"):
                used.commit(version)

    @override
    def close(self) -> None:
        for writer in list(self._writers):
            self._drop(writer)

    @contextmanager
    def _used(self, writer: str) -> Iterator[SinkWriter]:
        try:
            if writer not in self._writers:
                with _raising(self._sink, "open"):
                    self._writers[writer] = self._sink.open(writer)
            yield self._writers[writer]
        except errors.HeadraceError:
            self._drop(writer)
            raise

    def _drop(self, writer: str) -> None:
        used = self._writers.pop(writer, None)
        if used is not None:
            try:
                with _raising(self._sink, "close"):
                    used.close()
            except errors.HeadraceError as error:
                _log.warning("a sink couldn't be closed", writer=writer, error=error.message)

"""The contracts of systems: admin, consumer, producer and target; and what all implementations share.

``headrace.kit.check_system`` checks an implementation against the docstrings here; the memory system is the reference.
These contracts name no vendor's type. A *record* system (log, memory) stores opaque bytes: frames. A *row* system
(files, sql, kinesis) has foreign data: it returns rows, and accepts the rows of whole versions through a *target*.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import msgspec
import polars as pl
from typing_extensions import override

from headrace.core import errors
from headrace.core.ids import SSP, Offset
from headrace.systems.slot_reports import Shards

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Target(Protocol):
    """A foreign system for results that stores each writer's position in one transaction with the data.

    A writer is named by ids joined with ``/``; its versions rise. A version is published again whenever it isn't known
    whether it arrived, possibly by a zombie long after. The stored position decides whether it counts, not the caller.
    ``headrace.kit.contracts.check_target`` checks implementations. One thread uses a target. One without
    transactions keeps no positions: rows may arrive again, and the ``SystemSpec`` says so (``may_repeat``).
    """

    replaces: bool = False
    """Whether a row may replace an older one. Then what a stale copy publishes late must never count."""

    def accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of a version as ``publish`` will get them. Raises ``DataError`` for what it can't take.

        The version isn't committed yet: later, no other version of the app could help.
        """
        return rows

    def prepare(self, writer: str, published: int) -> float | None:
        """Find the position of ``writer``, which by a commit has published ``published``.

        Return after how many milliseconds to make the same call again; None once ``position`` won't have to wait.
        A target that can lose positions raises an error if it has lost this one, because its contents are then unknown.
        """
        return None

    def position(self, writer: str) -> int:
        """Return the highest version that ``writer`` has published; -1 if there is none, or the target keeps none."""

    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> float | None:
        """Add the rows and set the writer's position to ``version``, both or neither, durably, before returning.

        Does nothing if the position is already ``version`` or higher; the transaction itself checks this. ``rows`` are
        pieces of one table, at least one. Raises an error whose ``retry`` says whether the same call may succeed later;
        even then the call may have succeeded. Must not block for more than seconds.

        A target may work in the background, or take a version in parts: it returns after how many milliseconds to make
        the same call again, and None when it has everything.
        """

    def close(self) -> None:
        """Release everything. Called once."""


class Lookup(Protocol):
    """Looks rows up by their keys. One thread uses it at a time; it connects when it is first used."""

    def read(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with these keys, distinct and not null, in the requested columns. Must not block for long.

        Raises an error whose ``retry`` says whether the same call may succeed later.
        """

    def close(self) -> None:
        """Release everything. Called once, possibly from another thread, and while ``read`` is running."""


class Wakeups(Protocol):
    """Consumers that one thread uses, which are woken together."""

    def consumer(self) -> Consumer:
        """Return a new consumer. Its ``fileno`` is that of the group, and ``poll`` doesn't clear it."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a ``poll`` of one of them may return something new."""

    def stirred(self) -> Collection[Consumer]:
        """Return the consumers to poll until they return nothing, and clear the descriptor. Some have no cause."""

    def close(self) -> None:
        """Release the descriptor. The consumers are closed by then."""


SYNCS_AT_ONCE = 8
"""How many places are waited for at the same time: a file system writes its journal once for several of them."""


@dataclass(frozen=True, slots=True)
class Unsynced:
    """Something that a power cut could take.

    ``wait`` waits until it and all else at an equal ``place`` survives, on any thread, or raises
    ``IndeterminateWriteError``. Then ``done`` is called, on the thread that uses the consumer or producer.
    """

    place: Hashable
    wait: Callable[[], None]
    done: Callable[[], None]


def sync_all(unsynced: Iterable[Unsynced], pool: ThreadPoolExecutor | None = None) -> None:
    """Wait until all of it survives a power cut; several places at once, if there is a pool."""
    places: dict[Hashable, list[Unsynced]] = {}
    for each in unsynced:
        places.setdefault(each.place, []).append(each)
    waits = [alike[0].wait for alike in places.values()]
    if pool is None or len(waits) < 2:
        for wait in waits:
            wait()
    else:
        for waited in [pool.submit(wait) for wait in waits]:
            waited.result()
    for alike in places.values():
        for each in alike:
            each.done()


class Edge(Enum):
    """A position that is resolved to an offset when reading starts."""

    OLDEST = "oldest"
    UPCOMING = "upcoming"


Position = Offset | Edge


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The facts about a stream. ``columns`` is the schema that its writer declared, if any.

    Columns in ``added`` came after the stream was created: they are null in older frames and in those of writers that
    don't know them yet. ``bounded``: the stream ends. ``until_caught_up``: it doesn't, but a run stops when it has read
    what existed at its start. ``until_offset``: a stream of rows that can be read up to any offset of its extents.
    ``identity`` distinguishes it from a later stream of its name, if the system has such ids. ``key``: a row is in the
    partition that ``rows.hashing`` gives for these columns; empty if that isn't promised. ``parsed``: the rows are text
    that is parsed as the declared types, and ``columns`` have the types that it looks like.
    """

    name: str
    partitions: int
    columns: dict[str, pl.DataType] | None = None
    bounded: bool = False
    until_caught_up: bool = False
    added: frozenset[str] = frozenset()
    until_offset: bool = False
    identity: str = ""
    key: tuple[str, ...] = ()
    parsed: bool = False


@dataclass(frozen=True, slots=True)
class Creation:
    """What ``Admin.create`` would do: whether the stream is ``new``, and which columns an existing one gains."""

    partitions: int
    new: bool = False
    added: tuple[str, ...] = ()


class Extent(msgspec.Struct, frozen=True):
    """The first readable offset of a partition, and the next one. ``trimmed``: there may have been records before."""

    oldest: Offset
    upcoming: Offset
    sealed: bool = False
    trimmed: bool = False


def check_within(ssp: SSP, offset: Offset, extent: Extent) -> None:
    if offset < extent.oldest:
        what = f"{ssp}: offset {offset} is before the oldest kept record, {extent.oldest}"
        raise errors.TrimmedOffsetError(what, hint="read from oldest, or from a later offset")
    if offset > extent.upcoming:
        what = f"{ssp}: offset {offset} is after the end, {extent.upcoming}"
        raise errors.UsageError(what, hint="name an offset up to the end; headrace stream describe shows where it is")


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A piece of input that can't be decoded. The input's ``on_error`` policy decides what happens to it."""

    ssp: SSP
    offset: Offset
    reason: str
    raw: bytes


class Records(msgspec.Struct):
    """Consecutive records of one partition, the offset of each to register at, and the ``next`` after the last."""

    ssp: SSP
    offsets: list[Offset]
    payloads: list[bytes]
    next: Offset


@dataclass(frozen=True, slots=True)
class Unread:
    """What a consumer doesn't hand out: the counter of the task that shows it, how many, and why, as a warning."""

    counter: str
    count: int
    warning: str


@dataclass(slots=True)
class Rows:
    """Consecutive rows of one partition of a row system; row i has ``offset + i``.

    If ``bad`` isn't empty, its records have offsets in this range, and the rows have the others, in order. ``place``
    names the origin of the rows in errors. Without rows, only the position moves to ``next``.

    A slot's rows are all from ``shard``, and ``shards`` has the position in each shard of the slot after them.
    The watermark waits for the shards in ``holding``, which can't be read before others have made progress.

    ``offsets``: the rows' offsets if there are gaps. ``unread`` is what has no row though it was, or may have been, in
    the partition before ``next``. ``bytes`` is about how much memory the rows take, 0 if that is unknown.
    ``arrived_ms`` is when a task has polled them (monotonic).
    """

    ssp: SSP
    frame: pl.DataFrame
    offset: Offset
    next: Offset
    bad: Sequence[BadRecord] = ()
    place: str = ""
    shard: str = ""
    shards: Shards | None = None
    holding: frozenset[str] = frozenset()
    offsets: npt.NDArray[np.int64] | None = None
    unread: Sequence[Unread] = ()
    bytes: int = 0
    arrived_ms: float = 0.0


class Ended(msgspec.Struct, frozen=True):
    """The end of a partition, after which nothing follows. ``poll`` returns it once, after everything before it."""

    bytes: ClassVar[int] = 0
    ssp: SSP
    next: Offset


Polled = Records | Rows | Ended


class Consumer(Protocol):
    """Reads partitions. One thread uses it."""

    def register(self, ssp: SSP, position: Position) -> None:
        """Start reading ``ssp`` at ``position``, or seek. Raises ``StreamNotFoundError``, and as ``check_within``."""

    def unregister(self, ssp: SSP) -> None:
        """Stop reading ``ssp``."""

    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        """Return the records available now, in order within each partition. Never blocks; the list may be empty.

        ``ssps`` limits the poll to these partitions; back-pressure pauses a partition this way. ``max_bytes`` bounds
        the bytes from each partition, but at least one available record is returned, however large it is.
        """

    def position(self, ssp: SSP) -> Offset:
        """Return the next offset that ``poll`` would read."""

    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable when ``poll`` may return something new; None to poll by the clock.

        ``poll`` clears it, even for partitions that it left out, and however much ``max_bytes`` held back: poll until
        nothing is returned. It may become readable without cause, but must never miss a record.
        """

    def more(self) -> bool:
        """Whether another poll may return something even if nothing becomes available meanwhile."""
        return True

    def arriving(self, ssp: SSP, end: Offset, ms: float) -> bool:
        """Wait up to ``ms`` for records before ``end`` that are in flight. False if ``poll`` returns all at once."""
        return False

    def landmark(self, ssp: SSP, offset: Offset) -> str:
        """Return a landmark that identifies the record before ``offset``, so that a replaced partition shows; or ""."""
        return ""

    def has_landmark(self, ssp: SSP, landmark: str) -> bool:
        """Return whether the partition still has the landmark, as far as is known; valid until the next poll."""
        return True

    def unsynced(self) -> Iterable[Unsynced]:
        """Return the polled data that a power cut could still lose, whoever wrote it.

        A reader waits until it is synced before it commits its position: after a cut the partition may end before it.
        """
        return ()

    def sync(self) -> None:
        """Wait until nothing is unsynced. Raises ``IndeterminateWriteError``."""
        sync_all(self.unsynced())

    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        """Return how many offsets, maybe roughly, are from the position or ``since`` to the end; None if unknown."""

    def close(self) -> None:
        """Release everything. Called once."""


class Producer(Protocol):
    """Appends records. One thread uses it. Order within a partition is the order of ``send``."""

    def send(self, stream: str, partition: int, payload: bytes) -> None:
        """Append a record. It may stay in a bounded buffer until ``flush``."""

    def flush(self) -> dict[tuple[str, int], Offset]:
        """Wait until all is acknowledged. Return the offset after the last record of each partition written.

        Raises ``StorageError`` if something was certainly not written, ``IndeterminateWriteError`` if it may have been,
        ``StreamSealedError`` if the stream has ended.
        """

    def landmark(self, stream: str, partition: int) -> str:
        """Return a landmark (see ``Consumer``) of the last record that it has written to a partition; or ""."""
        return ""

    def unsynced(self) -> Iterable[Unsynced]:
        """Return the acknowledged data that a power cut could still lose. Empty if acknowledged means durable."""
        return ()

    def sync(self) -> None:
        """Wait until nothing is unsynced. Raises ``IndeterminateWriteError``."""
        sync_all(self.unsynced())

    def close(self) -> None:
        """Flush and release. Called once."""


class Admin(Protocol):
    """Metadata and management of a system's streams."""

    def list(self) -> list[str]:
        """Return the names of all streams, sorted."""

    def describe(self, stream: str) -> StreamInfo | None:
        """Return the facts about a stream; None if it doesn't exist."""

    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        """Create a stream, or return the existing one if it has the same shape. Concurrent callers get the same one.

        ``columns`` need not name those that were added later. ``key`` is kept for ``StreamInfo``, and all writers obey
        it; a row system ignores it. Without columns or a key, an existing stream may have any. Raises
        ``StreamExistsError`` if the stream exists with another partition count, schema or key.
        """

    def would_create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> Creation:
        """Return what ``create`` would do now, and change nothing. Raises what it would raise."""
        found = self.describe(stream)
        return Creation(partitions if found is None else found.partitions, new=found is None)

    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        """Add columns after the present ones, and return the new facts. Existing columns stay.

        Concurrent callers agree on one order. Existing records don't change; readers see null in the new columns.
        Raises ``StreamNotFoundError``, ``StreamExistsError`` if a column has another type, ``UsageError`` if the
        stream's columns aren't declared.
        """

    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        """Add partitions until there are this many, and return the new facts. Existing partitions stay.

        Of concurrent callers, the one with the highest count wins. Raises ``StreamNotFoundError``,
        ``StreamSealedError``, and ``DeclarationError`` if no stream can have so many.
        """

    def begin_run(self, stream: str) -> None:
        """Record the stream's present contents. A driver calls this before a run reads the stream. Few systems do."""
        return

    def extents(self, stream: str) -> builtins.list[Extent]:
        """Return the offsets of each partition, in partition order. Raises ``StreamNotFoundError``."""

    def extent(self, ssp: SSP) -> Extent:
        """Return the offsets of one partition. Raises ``StreamNotFoundError``."""
        extents = self.extents(ssp.stream.name)
        if not 0 <= ssp.partition < len(extents):
            raise errors.StreamNotFoundError(f"{ssp}: the stream has partitions 0 to {len(extents) - 1}")
        return extents[ssp.partition]

    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        """Return the offset of the first record, by offset, that was appended at ``time_ms`` (epoch) or later.

        Times are those of writers' clocks, so later records may have earlier ones. Returns the upcoming offset if there
        is none. Raises ``StreamNotFoundError``, and ``UnsupportedPositionError`` if the system knows no times.
        """
        what = f"{ssp}: its system doesn't record when messages were appended, so reading can't begin at a time"
        raise errors.UnsupportedPositionError(what, hint="use an offset, oldest or upcoming")

    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        """Return when the first record at or after ``offset`` was appended (epoch ms), cheaply; None if unknown."""
        return None

    def trimmed_ms(self, ssp: SSP) -> int | None:
        """Return a time (epoch ms) by which all trimmed records had been appended; None if the system can't tell."""
        return None

    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        """Raise, as ``check_within``, unless a consumer can go on at ``offset``, which isn't inside a record."""
        check_within(ssp, offset, self.extent(ssp))

    def custom_offset(self, ssp: SSP, kind: str, value: Mapping[str, Any]) -> Offset:
        """Return the offset of a position that only this system knows: ``value``, in the form of ``kind``.

        Raises ``UnsupportedPositionError`` if the system doesn't know the kind, ``UsageError`` if the value is wrong.
        """
        what = f"{ssp}: its system doesn't know positions of the kind {kind!r}"
        raise errors.UnsupportedPositionError(what, hint="use an offset, a time, oldest or upcoming")

    def seal(self, stream: str) -> None:
        """End a stream: readers get ``Ended``, writers ``StreamSealedError``. Idempotent."""

    def trim(self, ssp: SSP, before: Offset) -> None:
        """Delete the records below ``before``. Only retention and users' commands call this."""

    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        """Publish the position of the readers of ``group``, for back-pressure and lag. Cheap and approximate."""

    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        """Return the last reported position of each partition, from any process."""

    def report_commit(self, ssp: SSP, reader: str, position: Offset) -> None:
        """Show a commit's positions of the stage ``reader`` (``app/stage``) to the system's own tools. Never blocks."""
        return

    def close(self) -> None:
        """Release resources, after sending pending reports. The admin may be used again."""
        return

    def unread(self, stream: str, group: str) -> builtins.list[int]:
        """Return about how many bytes each partition has for the readers of ``group``. Cheap: run loops ask often."""
        read = self.reported_positions(stream, group)
        size = self.bytes_per_offset(stream)
        extents = enumerate(self.extents(stream))
        return [int((extent.upcoming - read.get(number, extent.oldest)) * size) for number, extent in extents]

    def bytes_per_offset(self, stream: str) -> float:
        """Return the approximate number of bytes per offset, which is 1 where offsets count bytes."""
        return 1.0


class System(Protocol):
    """A record system: the factory of its admin, consumers and producers. A ``SystemSpec`` describes one durably."""

    def admin(self) -> Admin:
        """Return the admin."""

    def consumer(self) -> Consumer:
        """Return a new consumer for one thread."""

    def reader(self) -> Consumer:
        """Return a new consumer that is only polled, so it needs no descriptor."""
        return self.consumer()

    def wakeups(self) -> Wakeups | None:
        """Return a new group of consumers; None if each consumer must be woken separately."""
        return None

    def producer(self) -> Producer:
        """Return a new producer for one thread."""


class RowSystem(Protocol):
    """A row system: the factory of its admin, consumers and targets."""

    def admin(self) -> Admin:
        """Return the admin."""

    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> Consumer:
        """Return a new consumer of rows. Raises ``UsageError`` if the system can only be written.

        ``columns`` are those that the app declares, None for all; a system without types of its own reads them with
        these types. Other columns needn't be read, unless the rows must be ``whole``.
        """

    def target(self, stream: str) -> Target:
        """Return a new target for one thread. It connects when it is first used."""


class KeyedSystem(RowSystem, Protocol):
    """A row system whose rows can be looked up by key, so that it can hold a remote table."""

    def lookup(self, columns: Mapping[str, pl.DataType]) -> Lookup:
        """Return a new lookup of rows with these columns."""


@dataclass(slots=True)
class Reading:
    """A registered partition, the offset that it is read from next, and whether its end was reported."""

    ssp: SSP
    position: Offset = 0
    ended: bool = False


R = TypeVar("R", bound=Reading)


class RegisteringConsumer(Consumer, Generic[R]):
    """A consumer that keeps a ``Reading`` for each registered partition."""

    def __init__(self) -> None:
        self._readings: dict[SSP, R] = {}

    @override
    def position(self, ssp: SSP) -> Offset:
        return self._reading(ssp).position

    @override
    def unregister(self, ssp: SSP) -> None:
        reading = self._readings.pop(ssp, None)
        if reading is not None:
            self._release(reading)

    @override
    def close(self) -> None:
        for ssp in list(self._readings):
            self.unregister(ssp)

    def _reading(self, ssp: SSP) -> R:
        reading = self._readings.get(ssp)
        if reading is None:
            raise errors.StreamNotFoundError(f"{ssp} is not registered with this consumer")
        return reading

    def _asked(self, ssps: Iterable[SSP] | None) -> list[R]:
        return list(self._readings.values()) if ssps is None else [self._reading(ssp) for ssp in ssps]

    def _release(self, reading: R) -> None:
        """Release what a reading holds; it is no longer registered."""


def height_before(rows: Rows, limit: Offset) -> int:
    if rows.offsets is not None:
        return int(rows.offsets.searchsorted(limit))
    bad = sum(record.offset < limit for record in rows.bad)
    return max(0, min(rows.frame.height, limit - rows.offset - bad))


def rows_before(rows: Rows, limit: Offset) -> Rows:
    if rows.next <= limit:
        return rows
    height = height_before(rows, limit)
    bad = [record for record in rows.bad if record.offset < limit]
    offsets = None if rows.offsets is None else rows.offsets[:height]
    return Rows(rows.ssp, rows.frame.head(height), rows.offset, limit, bad, rows.place, offsets=offsets)


ARRIVES_MS = 30_000


def polled_to(consumer: Consumer, ssp: SSP, end: Offset, max_bytes: int) -> Iterator[Polled]:
    """Poll a registered partition until it has reached ``end``, or only an unfinished append is left."""
    while consumer.position(ssp) < end:
        found = next_polled(consumer, ssp, end, max_bytes)
        if not found and consumer.position(ssp) < end:
            return
        yield from found


def next_polled(consumer: Consumer, ssp: SSP, end: Offset, max_bytes: int) -> list[Polled]:
    """Poll a registered partition once, and wait for existing records before ``end``; empty if there are none."""
    until = time.monotonic() + ARRIVES_MS / 1000
    while not (found := consumer.poll([ssp], max_bytes)):
        if not consumer.arriving(ssp, end, max(0.0, until - time.monotonic()) * 1000):
            break
        if time.monotonic() > until:
            what = f"{ssp}: no record has arrived for {ARRIVES_MS // 1000} s, though the stream has more"
            raise errors.UnavailableError(what, hint="check the broker; the same call may succeed later")
    return found


class UnwatchedAdmin(Admin):
    """Keeps the positions of readers in this process only."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, str], dict[int, Offset]] = {}

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        self._positions.setdefault((ssp.stream.name, group), {})[ssp.partition] = position

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        return dict(self._positions.get((stream, group), {}))


class WriteOnlyAdmin(Admin):
    """Refuses what only streams that are read can do."""

    def refused(self, why: str) -> errors.UsageError:
        """The error to raise; ``why`` continues a sentence that begins with the name of the place."""
        raise NotImplementedError

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        raise self.refused("takes no columns from Headrace")

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        raise self.refused("has no partitions")

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        raise self.refused("has no offsets")

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        raise self._no_positions()

    @override
    def custom_offset(self, ssp: SSP, kind: str, value: Mapping[str, Any]) -> Offset:
        raise self._no_positions()

    def _no_positions(self) -> errors.UnsupportedPositionError:
        refused = self.refused("has no positions to read from")
        return errors.UnsupportedPositionError(refused.message, hint=refused.hint)

    @override
    def seal(self, stream: str) -> None:
        raise self.refused("can't be sealed")

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        raise self.refused("can't be trimmed")

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        raise self.refused("isn't read as a stream")

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        return {}

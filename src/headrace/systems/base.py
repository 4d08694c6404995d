"""The contracts of a system: admin, consumer, and producer or target (``targets``).

``headrace.testing.check_system`` checks that an implementation keeps what the docstrings here promise. The memory
system is the reference. Nothing in these contracts names a vendor's type.

There are two kinds of system. A *record* system (log, memory) stores opaque bytes: frames. A *row* system (files, sql,
kinesis) has foreign data: it returns rows, and takes the rows of whole versions through a *target*.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.errors import StreamNotFoundError, TrimmedOffsetError, UnsupportedPositionError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.systems.syncing import Unsynced, sync_all
from headrace.systems.targets import Lookup as Lookup  # noqa: PLC0414 - also found here
from headrace.systems.targets import Target as Target  # noqa: PLC0414
from headrace.systems.wakeups import Wakeups as Wakeups  # noqa: PLC0414 - also found here


class Edge(Enum):
    """A position that is resolved to an offset when reading starts."""

    OLDEST = "oldest"
    UPCOMING = "upcoming"


Position = Offset | Edge


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What is known about a stream. ``columns`` is the schema that its writer declared, if any.

    ``added`` names those that were added after the stream was created. Older frames lack them, and so do the frames of
    writers that don't know them yet: there the column is null. ``bounded``: the stream ends. ``until_caught_up``: it
    doesn't, but a run stops when it has read what was there. ``until_offset``: it can be read up to any offset of its
    extents, although it is a stream of rows. ``identity`` tells it from another stream that gets its name later, if
    the system says so.
    """

    name: str
    partitions: int
    columns: dict[str, pl.DataType] | None = None
    bounded: bool = False
    until_caught_up: bool = False
    added: frozenset[str] = frozenset()
    until_offset: bool = False
    identity: str = ""


class Extent(msgspec.Struct, frozen=True):
    """The current offsets of one partition: ``oldest`` is the first readable one, ``upcoming`` the next one.

    ``trimmed``: there may have been records before the oldest one.
    """

    oldest: Offset
    upcoming: Offset
    sealed: bool = False
    trimmed: bool = False


def check_within(ssp: SSP, offset: Offset, extent: Extent) -> None:
    """Raise ``TrimmedOffsetError`` if the offset is below the extent, ``UsageError`` if it is past its end."""
    if offset < extent.oldest:
        raise TrimmedOffsetError(
            f"{ssp}: offset {offset} is before the oldest kept record, {extent.oldest}",
            hint="read from oldest, or from a later offset",
        )
    if offset > extent.upcoming:
        raise UsageError(
            f"{ssp}: offset {offset} is after the end, {extent.upcoming}",
            hint="name an offset up to the end; headrace stream describe shows where it is",
        )


Shards = Mapping[str, str]
"""The shards that a slot has, and how far each has come, as a text of the system's own. Part of each commit."""

SlotOrders = Mapping[str, str]
"""What a slot is to do with which shard, as texts of the system's own. It goes on with shards that aren't named."""


# -- what a consumer hands out ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A piece of input that couldn't be read at all. The input's ``on_error`` policy decides what happens to it."""

    ssp: SSP
    offset: Offset
    reason: str
    raw: bytes


class Records(msgspec.Struct):
    """Consecutive records of one partition. ``next`` is the offset to continue from after the last of them.

    ``offsets[i]`` is the offset of ``payloads[i]``; a consumer registered there reads that record again.
    """

    ssp: SSP
    offsets: list[Offset]
    payloads: list[bytes]
    next: Offset


@dataclass(slots=True)
class Rows:
    """Consecutive rows of one partition of a row system; row i has ``offset + i``.

    If ``bad`` isn't empty, its records have offsets of this range, and the rows have the others, in order. ``place``
    says in errors where the rows are from. Without rows, only the position moves to ``next``.

    A slot's rows are all from ``shard``, and ``shards`` says how far each shard of the slot has come after them.
    ``holding`` are those of which nothing comes before others have done something: their event time is waited for.

    ``offsets``: those of the rows if there are gaps. ``lost``: so many offsets before ``next`` were deleted unread.
    """

    ssp: SSP
    frame: pl.DataFrame
    offset: Offset
    next: Offset
    bad: Sequence[BadRecord] = field(default=())
    place: str = ""
    shard: str = ""
    shards: Shards | None = None
    holding: frozenset[str] = frozenset()
    offsets: npt.NDArray[np.int64] | None = None
    lost: int = 0


class Ended(msgspec.Struct, frozen=True):
    """The partition has ended: nothing will ever follow. ``poll`` returns it once, after everything before it."""

    ssp: SSP
    next: Offset


Polled = Records | Rows | Ended


class Consumer(Protocol):
    """Reads partitions. One thread uses it."""

    def register(self, ssp: SSP, position: Position) -> None:
        """Start reading ``ssp`` at ``position``; a second call seeks.

        Raises ``StreamNotFoundError`` if there is no such partition, ``TrimmedOffsetError`` if the offset is below the
        oldest one kept, ``UsageError`` if it is past the end.
        """
        ...

    def unregister(self, ssp: SSP) -> None:
        """Stop reading ``ssp``."""
        ...

    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        """Return what is available now, in order within each partition. Never blocks; the list may be empty.

        ``ssps`` limits the poll to these partitions; back-pressure pauses a partition this way. ``max_bytes`` bounds
        what is taken from each partition, but at least one available record is returned however large it is.
        """
        ...

    def position(self, ssp: SSP) -> Offset:
        """Return the next offset that ``poll`` would read."""
        ...

    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable when ``poll`` may return something new; None: poll by the clock.

        ``poll`` clears it, also for partitions that this poll left out, and regardless of how much ``max_bytes`` held
        back. So poll until nothing is returned. It may become readable without cause, but must never miss a record.
        """
        ...

    def arriving(self, ssp: SSP, end: Offset, ms: float) -> bool:
        """Wait until more of what is before ``end`` has come, at most so long. False: poll returns all of it at once.

        Where a broker is asked, a poll may return nothing although records are there: those are still on their way.
        """
        return False

    def landmark(self, ssp: SSP, offset: Offset) -> str:
        """Return what tells later whether this is still the partition that was read up to ``offset``; "" if nothing."""
        return ""

    def has_landmark(self, ssp: SSP, landmark: str) -> bool:
        """Whether it still is, as far as that can be told; then the landmark is one until more is polled."""
        return True

    def unsynced(self) -> Iterable[Unsynced]:
        """Return what a power cut could take of all that ``poll`` has returned, whoever wrote it.

        A reader waits for it before it remembers its position: after the cut the partition may not reach that.
        """
        return ()

    def sync(self) -> None:
        """Wait until nothing is unsynced. Raises ``IndeterminateWriteError``."""
        sync_all(self.unsynced())

    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        """Return how far it is from the position, or from the earlier offset ``since``, to the end of the partition.

        In whatever an offset counts, 0 at the end; a system may estimate. None if unknown.
        """
        ...

    def close(self) -> None:
        """Release everything. Called once."""
        ...


class Producer(Protocol):
    """Appends records. One thread uses it. Order within a partition is the order of ``send``."""

    def send(self, stream: str, partition: int, payload: bytes) -> None:
        """Append a record. It may stay in a bounded buffer until ``flush``."""
        ...

    def flush(self) -> dict[tuple[str, int], Offset]:
        """Wait until everything sent is acknowledged.

        Return for each partition written since the last flush the offset after its last record. Raises
        ``StorageError`` if something was certainly not written, ``IndeterminateWriteError`` if it may have been,
        ``StreamSealedError`` if the stream has ended.
        """
        ...

    def unsynced(self) -> Iterable[Unsynced]:
        """Return what a power cut could take of all that is acknowledged.

        Nothing of a system whose acknowledgements promise that, or that doesn't outlive its process anyway.
        """
        return ()

    def sync(self) -> None:
        """Wait until nothing is unsynced. Raises ``IndeterminateWriteError``."""
        sync_all(self.unsynced())

    def close(self) -> None:
        """Flush and release. Called once."""
        ...


class Admin(Protocol):
    """Metadata and management of a system's streams."""

    def list(self) -> list[str]:
        """Return the names of all streams, sorted."""
        ...

    def describe(self, stream: str) -> StreamInfo | None:
        """Return what is known about a stream; None if it doesn't exist."""
        ...

    def create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> StreamInfo:
        """Create a stream, or return the existing one if its shape is the same. Concurrent callers get the same one.

        Without ``columns`` an existing stream may have any. ``columns`` need not name those that were added later.
        Raises ``StreamExistsError`` if the stream exists with another partition count or schema.
        """
        ...

    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        """Add columns after the present ones, and return what is known then. Columns that are there already stay.

        Concurrent callers agree on one order. Records that are there aren't touched: readers take the column for null.
        Raises ``StreamNotFoundError``, ``StreamExistsError`` if a column has another type, ``UsageError`` if the
        stream's columns aren't declared.
        """
        ...

    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        """Add partitions until there are this many, and return what is known then. Those that are there stay.

        Of concurrent callers the one that wants most gets its way. Raises ``StreamNotFoundError``,
        ``StreamSealedError``, ``DeclarationError`` if no stream can have so many.
        """
        ...

    def begin_run(self, stream: str) -> None:
        """Note what is there: a driver calls it before a run of an app reads the stream. Few systems need it."""
        return

    def extents(self, stream: str) -> builtins.list[Extent]:
        """Return the offsets of each partition, in partition order. Raises ``StreamNotFoundError``."""
        ...

    def extent(self, ssp: SSP) -> Extent:
        """Return the offsets of one partition. Raises ``StreamNotFoundError``."""
        extents = self.extents(ssp.stream.name)
        if not 0 <= ssp.partition < len(extents):
            raise StreamNotFoundError(f"{ssp}: the stream has partitions 0 to {len(extents) - 1}")
        return extents[ssp.partition]

    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        """Return the offset of the first record that was appended at ``time_ms`` (since the epoch) or later.

        The first in the order of offsets, by the clock of whoever appended it: later records may have earlier times if
        clocks differ or are set back. The upcoming offset if there is none. Raises ``StreamNotFoundError``, and
        ``UnsupportedPositionError`` if the system doesn't know when records were appended.
        """
        raise UnsupportedPositionError(
            f"{ssp}: its system doesn't record when messages were appended, so reading can't begin at a time",
            hint="use an offset, oldest or upcoming",
        )

    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        """Return when the first record at or after ``offset`` was appended (ms since the epoch).

        None if there is no such record, or if the system doesn't know. Cheap: it is called to show how far readers are.
        """
        return None

    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        """Raise unless a consumer can be registered at ``offset`` and reads on from there.

        ``TrimmedOffsetError`` below the oldest offset, ``UsageError`` past the end or inside a record,
        ``StreamNotFoundError`` if there is no such partition.
        """
        check_within(ssp, offset, self.extent(ssp))

    def custom_offset(self, ssp: SSP, kind: str, value: Mapping[str, Any]) -> Offset:
        """Return the offset of a position that only this system knows; ``value`` describes it in the terms of ``kind``.

        Raises ``UnsupportedPositionError`` if the system doesn't know the kind, ``UsageError`` if the value is wrong.
        """
        raise UnsupportedPositionError(
            f"{ssp}: its system doesn't know positions of the kind {kind!r}",
            hint="use an offset, a time, oldest or upcoming",
        )

    def seal(self, stream: str) -> None:
        """End a stream: readers get ``Ended``, writers ``StreamSealedError``. Idempotent."""
        ...

    def trim(self, ssp: SSP, before: Offset) -> None:
        """Drop the records below ``before``. Called only by retention or when a user asks for it."""
        ...

    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        """Publish the position of the readers of ``group``, for back-pressure and lag. Cheap and approximate.

        It needn't wait until others see it; they do soon.
        """
        ...

    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        """Return the last reported position of each partition, from any process."""
        ...

    def report_commit(self, ssp: SSP, reader: str, position: Offset) -> None:
        """Show people's tools what a commit of the stage ``reader`` (``app/stage``) covers. It never blocks."""
        return

    def close(self) -> None:
        """Release what the admin holds, after what it was told to report. It may be used again."""
        return

    def unread(self, stream: str, group: str) -> builtins.list[int]:
        """Return about how many bytes of each partition the readers of ``group`` have yet to read.

        Cheap: a run loop calls it many times a second. What it says may be some tenths of a second old.
        """
        read = self.reported_positions(stream, group)
        size = self.bytes_per_offset(stream)
        extents = enumerate(self.extents(stream))
        return [int((extent.upcoming - read.get(number, extent.oldest)) * size) for number, extent in extents]

    def bytes_per_offset(self, stream: str) -> float:
        """Return about how many bytes there are from one offset to the next: 1 where offsets count bytes."""
        return 1.0


class System(Protocol):
    """A record system: the factory of its admin, consumers and producers. A ``SystemSpec`` describes one durably."""

    def admin(self) -> Admin:
        """Return the admin."""
        ...

    def consumer(self) -> Consumer:
        """Return a new consumer for one thread."""
        ...

    def reader(self) -> Consumer:
        """Return a new consumer that is asked and never waited for, so it needs no descriptor."""
        return self.consumer()

    def wakeups(self) -> Wakeups | None:
        """Return a new group of consumers; None if each of them has to be woken by itself."""
        return None

    def producer(self) -> Producer:
        """Return a new producer for one thread."""
        ...


class RowSystem(Protocol):
    """A row system: the factory of its admin, consumers and targets."""

    def admin(self) -> Admin:
        """Return the admin."""
        ...

    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> Consumer:
        """Return a new consumer of rows. Raises ``UsageError`` if the system can only be written.

        ``columns`` are those that the app declares. A system without types of its own reads them as these types.
        Others need not be read, unless rows are wanted ``whole``. None means all.
        """
        ...

    def target(self, stream: str) -> Target:
        """Return a new target for one thread. It connects when it is first used."""
        ...


class KeyedSystem(RowSystem, Protocol):
    """A row system whose rows can be looked up by their keys. A remote table may be in it."""

    def lookup(self, columns: Mapping[str, pl.DataType]) -> Lookup:
        """Return a new lookup of rows with these columns."""
        ...

"""What a system is: an admin, a consumer and a producer. Small contracts, one conformance suite.

``headrace.testing.check_system`` holds every implementation to what the docstrings here promise;
the memory system is the reference. Nothing in these contracts names a vendor's type.

Two kinds of system exist. A *record* system (log, memory, kafka) keeps opaque bytes: frames. A *row*
system (files, sql) keeps tables; it hands out rows, and takes the rows of whole versions as a *target*.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import polars as pl

from headrace.core.ids import SSP, Offset


class Edge(Enum):
    """A position that is resolved when reading starts."""

    OLDEST = "oldest"
    UPCOMING = "upcoming"


Position = Offset | Edge


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What is known of a stream. ``columns`` is the schema its writer declared (name to dtype), if any."""

    name: str
    partitions: int
    columns: dict[str, pl.DataType] | None = None
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets of one partition now: readable from ``oldest``; ``upcoming`` is the next one to come."""

    oldest: Offset
    upcoming: Offset
    sealed: bool = False


# -- what a consumer hands out ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A piece of input that could not be read at all; the input's ``on_error`` policy decides its fate."""

    ssp: SSP
    offset: Offset
    reason: str
    raw: bytes


@dataclass(slots=True)
class Records:
    """Consecutive records of one partition. ``next`` is where to go on after the last of them.

    ``offsets[i]`` is the place of ``payloads[i]``; going on from it reads that record again.
    """

    ssp: SSP
    offsets: list[Offset]
    payloads: list[bytes]
    next: Offset


@dataclass(slots=True)
class Rows:
    """Consecutive rows of one partition of a row system; row i stands at ``offset + i``.

    Unless ``bad`` is set: then the rows stand, in order, at the offsets that are not those of ``bad``.
    """

    ssp: SSP
    frame: pl.DataFrame
    offset: Offset
    next: Offset
    bad: Sequence[BadRecord] = field(default=())


@dataclass(frozen=True, slots=True)
class Ended:
    """The partition is at its end, and nothing will ever follow. Polled once, after everything before it."""

    ssp: SSP
    next: Offset


Polled = Records | Rows | Ended


class Consumer(Protocol):
    """Reads partitions. One thread uses it."""

    def register(self, ssp: SSP, position: Position) -> None:
        """Begin to read ``ssp`` at ``position``; a second call moves it (that is a seek).

        Raises ``StreamNotFoundError`` when there is no such partition, ``TrimmedOffsetError`` when an offset
        lies below the oldest one kept, ``UsageError`` when it lies behind the end.
        """
        ...

    def unregister(self, ssp: SSP) -> None:
        """Stop reading ``ssp``."""
        ...

    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        """What is there now, in order within each partition. Never blocks; an empty list is a fine answer.

        ``ssps`` limits the poll to these (how back-pressure pauses a partition). ``max_bytes`` bounds what is
        taken from each partition, but one record is always handed out however large it is.
        """
        ...

    def position(self, ssp: SSP) -> Offset:
        """The next offset that ``poll`` would read."""
        ...

    def fileno(self) -> int | None:
        """A descriptor that turns readable when ``poll`` may have something new, or None: poll by the clock.

        ``poll`` clears it, also for partitions that this poll left out, and however much ``max_bytes`` left
        behind: poll again until nothing comes. It may turn readable for nothing; it must not stay silent.
        """
        ...

    def lag(self, ssp: SSP) -> int | None:
        """How far (in offsets) the position is behind the end of the partition; None when unknown."""
        ...

    def close(self) -> None:
        """Release everything. Called once."""
        ...


class Producer(Protocol):
    """Appends records. One thread uses it. Order within a partition is the order of ``send``."""

    def send(self, stream: str, partition: int, payload: bytes) -> None:
        """Hand a record over. May keep it in a bounded buffer until ``flush``."""
        ...

    def flush(self) -> dict[tuple[str, int], Offset]:
        """Return when all that was sent is acknowledged: the offset behind the last record of each
        partition touched since the last flush.

        Raises ``StorageError`` when something certainly was not written, ``IndeterminateWriteError`` when it
        may have been, ``StreamSealedError`` when the stream has ended.
        """
        ...

    def close(self) -> None:
        """Flush and release. Called once."""
        ...


class Target(Protocol):
    """A foreign place for results that keeps each writer's position in one transaction with the data.

    A writer is a text of ids with ``/`` between; its versions rise. A version is published again whenever it isn't
    known whether it got there, also by a writer's stale copy long after: the position decides, not the caller.
    ``headrace.testing.contracts.check_target`` holds implementations to this. One thread uses a target.
    """

    def position(self, writer: str) -> int:
        """The highest version that ``writer`` has published; -1 when there is none."""
        ...

    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        """Add the rows and set the writer's position to ``version``, both or neither, durably, before returning.

        Does nothing when the position is ``version`` or higher already; that is looked at inside the transaction.
        ``rows`` are pieces of one table, at least one. Raises an error whose ``retry`` says whether the same call
        may succeed later; it may also have succeeded. Must not block for more than seconds.
        """
        ...

    def close(self) -> None:
        """Release everything. Called once."""
        ...


class Lookup(Protocol):
    """Finds rows by their keys. One thread uses it at a time; it connects when it is first used."""

    def read(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows of these keys, which are distinct and not null, with the columns that were asked for.

        Raises an error whose ``retry`` says whether the same call may succeed later. Must not block for more than
        seconds.
        """
        ...

    def close(self) -> None:
        """Release everything. Called once, maybe from another thread than the one that reads, also while it does."""
        ...


class Admin(Protocol):
    """Metadata and management of a system's streams."""

    def list(self) -> list[str]:
        """The names of all streams, sorted."""
        ...

    def describe(self, stream: str) -> StreamInfo | None:
        """What is known of a stream; None when there is none."""
        ...

    def create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> StreamInfo:
        """Create a stream, or return the one that is there if its shape is the same (racing callers agree).

        A caller who names no columns accepts a stream with some.

        Raises ``StreamExistsError`` when it is there with another partition count or schema.
        """
        ...

    def extents(self, stream: str) -> builtins.list[Extent]:
        """The offsets of each partition, in partition order; raises ``StreamNotFoundError``."""
        ...

    def seal(self, stream: str) -> None:
        """End a stream: readers get ``Ended``, writers ``StreamSealedError``. Idempotent."""
        ...

    def trim(self, ssp: SSP, before: Offset) -> None:
        """Give up what lies below ``before``. Never called but by retention or on a user's order."""
        ...

    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        """Publish how far the readers of ``group`` are (for back-pressure and lag). Cheap; approximate."""
        ...

    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        """What ``report_position`` last said, by partition, from any process."""
        ...


class System(Protocol):
    """How to get a record system's admin, consumers and producers. A ``SystemSpec`` describes one durably."""

    def admin(self) -> Admin:
        """The admin."""
        ...

    def consumer(self) -> Consumer:
        """A new consumer; not shared between threads."""
        ...

    def producer(self) -> Producer:
        """A new producer; not shared between threads."""
        ...


class RowSystem(Protocol):
    """How to get a row system's admin, consumers and targets."""

    def admin(self) -> Admin:
        """The admin."""
        ...

    def consumer(self, columns: Collection[str] | None = None) -> Consumer:
        """A new consumer of rows; raises ``UsageError`` when the system is only written.

        ``columns`` are those that somebody looks at: others need not be read. None: all of them.
        """
        ...

    def target(self, stream: str) -> Target:
        """A new target; not shared between threads. It connects when it is first used."""
        ...


class KeyedSystem(RowSystem, Protocol):
    """A row system whose rows can be looked up by their keys: what a remote table may live in."""

    def lookup(self, columns: Mapping[str, pl.DataType]) -> Lookup:
        """A new look-up that finds rows with these columns."""
        ...

"""What Headrace asks of Kinesis: a small protocol with two implementations, boto3's (``boto``) and one in memory.

Errors are Headrace's: ``ThrottledError`` and ``UnavailableError`` pass with time; ``StreamNotFoundError`` means the
stream or a shard of it, and stays; ``TrimmedOffsetError`` means a sequence number that
a shard doesn't have, or no longer has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Protocol

from headrace.core.errors import UsageError
from headrace.systems.kinesis.shard_position import DAY_H, Position

HASH_END = 2**128
"""Hashes of keys are below it."""

PUT_RECORDS, PUT_BYTES, RECORD_BYTES = 500, 5 << 20, 1 << 20
"""The most that one ``put`` takes, its keys included, and the most that one record may have with its key."""

READ_RECORDS, READ_BYTES = 10_000, 10 << 20
"""The most that one page has."""


def key_hash(key: str) -> int:
    """The hash of a key: it chooses the shard."""
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest())


class IteratorExpired(Exception):
    """The iterator is older than five minutes: get another one for the same position."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: the hashes of keys that it covers (``first`` to ``last``), and its parent shards.

    ``closed``: it takes no more records. Parents that were trimmed may be named though they are listed no more.
    """

    id: str
    first: int
    last: int
    parents: tuple[str, ...] = ()
    closed: bool = False


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """A stream: its creation time (ms since the epoch), which distinguishes it from another one of its name.

    ``kept_h``: for how many hours it keeps records.
    """

    name: str
    created_ms: int
    open_shards: int
    kept_h: int = DAY_H


@dataclass(frozen=True, slots=True)
class KinesisRecord:
    """One record as Kinesis keeps it. ``arrived_ms``: about when it arrived."""

    sequence: int
    key: str
    data: bytes
    arrived_ms: int


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to one call for records. ``iterator`` is None if the shard is closed and all of it was handed out."""

    records: Sequence[KinesisRecord]
    iterator: str | None
    behind_ms: int


@dataclass(frozen=True, slots=True)
class Put:
    """A record to write. ``hash`` chooses the shard in place of the hash of the key."""

    key: str
    data: bytes
    hash: int | None = None


@dataclass(frozen=True, slots=True)
class PutResult:
    """Where one record is now, or why it was not taken."""

    shard: str = ""
    sequence: int | None = None
    error: str = ""


def check_put(stream: str, records: Sequence[Put]) -> None:
    """Raise ``UsageError`` unless Kinesis takes so many records, and so many bytes, at once."""
    sizes = [len(record.data) + len(record.key.encode()) for record in records]
    if not records or len(records) > PUT_RECORDS or sum(sizes) > PUT_BYTES or max(sizes) > RECORD_BYTES:
        raise UsageError(
            f"{len(records)} records of {sum(sizes)} bytes, the largest of {max(sizes, default=0)}, can't be written "
            f"to the stream {stream!r} at once",
            hint=f"write 1 to {PUT_RECORDS} records of up to {RECORD_BYTES} bytes, {PUT_BYTES} bytes together",
        )


class KinesisApi(Protocol):
    """One stream of Kinesis. Any thread may use it. Each call is one request, is bounded in time, and may block."""

    def describe(self) -> StreamSummary:
        """Return what is known about the stream. Raises ``StreamNotFoundError``."""
        ...

    def shards(self) -> list[Shard]:
        """Return all shards that Kinesis still lists, those that are closed too. The only call of several pages."""
        ...

    def iterator(self, shard: str, position: Position) -> str:
        """Return an iterator that begins at a position of the shard.

        After a whole record: with the next one. After a part of an aggregate (``sub``): with the aggregate itself.
        Where these were trimmed, Kinesis says nothing: the iterator begins with the oldest record that is left.
        A moment in the future means now. Raises ``TrimmedOffsetError`` if the number isn't one of this shard's.
        """
        ...

    def records(self, iterator: str, limit: int) -> Page:
        """Return up to ``limit`` records. Raises ``IteratorExpired``, ``ThrottledError``.

        A page may be empty though there are more records: only ``behind_ms`` says so.
        """
        ...

    def put(self, records: Sequence[Put]) -> list[PutResult]:
        """Write some records; return one result for each, in order. Some may fail while others are written.

        After ``UnavailableError`` all, some or none of them may have been written. Raises ``UsageError`` if there are
        more records or bytes than Kinesis takes at once.
        """
        ...

    def close(self) -> None:
        """Release everything. Called once."""
        ...

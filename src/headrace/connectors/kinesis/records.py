"""Records of a shard: fetched ones that wait, aggregates, and pages as columns. Pure.

An aggregate, which the Kinesis Producer Library (KPL) has written as one record, is a magic number, a message in
protobuf, and its MD5. Fields: 1 keys, 2 explicit hashes (decimal), 3 records, each with 1 the index of its key, 2
perhaps that of its hash, 3 its data. Everything that isn't one, for whatever reason, is a plain record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from itertools import accumulate

from headrace.connectors.kinesis.api import KinesisRecord, Position, key_hash
from headrace.systems.base import Unread


@dataclass(slots=True)
class Fetched:
    """User records of one shard that follow one another, column by column.

    ``end`` is the position after the last of them. It may be further than that: what was dropped has no row.
    ``subs`` are their places in their aggregates; None if no record is an aggregate. ``unread`` is what has no row.
    """

    data: list[bytes]
    keys: list[str]
    sequences: list[int]
    arrived_ms: list[int]
    end: Position
    subs: list[int] | None = None
    unread: Sequence[Unread] = ()

    def __len__(self) -> int:
        return len(self.data)

    def position_after(self, rows: int) -> Position:
        if rows == len(self.data):
            return self.end
        sequence = self.sequences[rows - 1]
        if self.subs is None or self.sequences[rows] != sequence:
            return Position(sequence)
        return Position(sequence, self.subs[rows - 1])

    def part(self, start: int, stop: int) -> Fetched:
        if start == 0 and stop == len(self.data):
            return self
        span = slice(start, stop)
        subs = None if self.subs is None else self.subs[span]
        end = self.position_after(stop)
        unread = self.unread if stop == len(self.data) else ()
        return Fetched(self.data[span], self.keys[span], self.sequences[span], self.arrived_ms[span], end, subs, unread)


def joined(parts: Sequence[Fetched]) -> Fetched:
    """Consecutive parts as one, for a poll: it doesn't need their places in aggregates."""
    if len(parts) == 1:
        return parts[0]
    whole = Fetched([], [], [], [], parts[-1].end, unread=[unread for part in parts for unread in part.unread])
    for part in parts:
        whole.data += part.data
        whole.keys += part.keys
        whole.sequences += part.sequences
        whole.arrived_ms += part.arrived_ms
    return whole


@dataclass(slots=True)
class Buffer:
    """The queue of one shard."""

    bytes: int = 0
    rows: int = 0
    _queue: deque[tuple[Fetched, list[int]]] = field(default_factory=deque)  # with the bytes up to the end of each row
    _taken: int = 0  # how many rows of the first piece were handed out

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, fetched: Fetched) -> None:
        ends = list(accumulate(map(len, fetched.data)))
        self._queue.append((fetched, ends))
        self.rows += len(ends)
        self.bytes += ends[-1] if ends else 0

    def take(self, max_bytes: int) -> Fetched:
        """Take up to ``max_bytes`` from the front, but at least one row if there is any. There must be something."""
        parts: list[Fetched] = []
        room = max_bytes
        while self._queue and (room > 0 or not parts):
            fetched, ends = self._queue[0]
            start = self._taken
            before = ends[start - 1] if start else 0
            stop = bisect_right(ends, before + room, lo=start)
            if stop == start and ends:
                if any(map(len, parts)):
                    break
                stop += 1  # at least one, however large it is
            size = ends[stop - 1] - before if stop else 0
            parts.append(fetched.part(start, stop))
            room -= size
            self.bytes -= size
            self.rows -= stop - start
            if stop < len(ends):
                self._taken = stop
                break
            self._queue.popleft()
            self._taken = 0
        return joined(parts)

    @property
    def oldest_ms(self) -> int | None:
        for number, (fetched, _) in enumerate(self._queue):
            if fetched.data:
                return fetched.arrived_ms[0 if number else self._taken]
        return None


# -- kpl ---------------------------------------------------------------------------------------------
Hashes = tuple[int, int]  # the first and the last of a shard
MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16
_KEYS, _HASHES, _RECORDS = 1, 2, 3
_KEY_INDEX, _HASH_INDEX, _DATA = 1, 2, 3
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class UserRecord:
    """One record of an aggregate. ``hash`` is what its shard is chosen by."""

    key: str
    hash: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The user records of an aggregate, in order.

    ``misplaced``: one of them belongs to another shard, since the stream was resharded while the KPL was writing. The
    KPL notices that and writes all of them again, so readers leave out a misplaced aggregate as a whole.
    """

    records: list[UserRecord]
    misplaced: bool


def unpack(data: bytes, first: int, last: int) -> Aggregate | None:
    if not data.startswith(MAGIC) or len(data) <= len(MAGIC) + _DIGEST_BYTES:
        return None
    message = data[len(MAGIC) : -_DIGEST_BYTES]
    if md5(message, usedforsecurity=False).digest() != data[-_DIGEST_BYTES:]:
        return None
    try:
        records = _user_records(message)
    except (ValueError, IndexError):  # not what the KPL writes, though the digest fits
        return None
    return Aggregate(records, any(not first <= record.hash <= last for record in records))


def _user_records(message: bytes) -> list[UserRecord]:
    tables: dict[int, list[bytes]] = {_KEYS: [], _HASHES: [], _RECORDS: []}
    for number, value in _fields(message):
        if number in tables:
            tables[number].append(_bytes(value))
    keys = [key.decode() for key in tables[_KEYS]]
    key_hashes = [key_hash(key) for key in keys]
    hashes = [_decimal(text) for text in tables[_HASHES]]
    records = []
    for packed in tables[_RECORDS]:
        fields = dict(_fields(packed))
        index = _number(fields.get(_KEY_INDEX))
        chosen = hashes[_number(fields[_HASH_INDEX])] if _HASH_INDEX in fields else key_hashes[index]
        records.append(UserRecord(keys[index], chosen, _bytes(fields.get(_DATA))))
    return records


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, value = tag & 7, 0
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            value, at = _varint(message, at)
        elif kind in (_FIXED_64, _FIXED_32):
            value = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"unknown kind of field {kind}")
        if at + value > len(message):
            raise ValueError("the message is cut off")
        yield tag >> 3, message[at : at + value]
        at += value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= 70:
            raise ValueError("a number is too long")


def _decimal(text: bytes) -> int:
    if not text.isdigit():
        raise ValueError("a hash isn't a decimal number")
    return int(text)


def _number(value: int | bytes | None) -> int:
    if not isinstance(value, int):
        raise ValueError("a number is missing")
    return value


def _bytes(value: int | bytes | None) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("bytes are missing")
    return value


def unpacked(records: Sequence[KinesisRecord], after: Position, hashes: Callable[[], Hashes]) -> tuple[Fetched, int]:
    """The user records after a position, and how many were left out as they belong to shards with other ``hashes``."""
    records = _following(records, after)
    end = Position(records[-1].sequence) if records else after
    if MAGIC in {record.data[:4] for record in records}:
        return _with_aggregates(records, after, hashes(), end)
    if after.sub is not None:  # KCL also numbers records that aren't aggregates
        records = _following(records, Position(after.sequence))
    data, keys = [record.data for record in records], [record.key for record in records]
    sequences, arrived_ms = [record.sequence for record in records], [record.arrived_ms for record in records]
    return Fetched(data, keys, sequences, arrived_ms, end), 0


def _following(records: Sequence[KinesisRecord], after: Position) -> Sequence[KinesisRecord]:
    if after.sequence is None or not records or records[0].sequence > after.sequence:
        return records
    bisect = bisect_right if after.sub is None else bisect_left
    return records[bisect(records, after.sequence, key=lambda record: record.sequence) :]


def _with_aggregates(
    records: Sequence[KinesisRecord], after: Position, hashes: Hashes, end: Position
) -> tuple[Fetched, int]:
    subs: list[int] = []
    found = Fetched([], [], [], [], end, subs)
    misplaced = 0
    for record in records:
        aggregate = unpack(record.data, *hashes)
        if aggregate is None:
            data, keys = [record.data], [record.key]
        elif aggregate.misplaced:
            misplaced += len(aggregate.records)
            continue
        else:
            data = [user.data for user in aggregate.records]
            keys = [user.key for user in aggregate.records]
        start = after.sub + 1 if after.sub is not None and record.sequence == after.sequence else 0
        found.data += data[start:]
        found.keys += keys[start:]
        more = len(data) - start
        found.sequences += [record.sequence] * more
        found.arrived_ms += [record.arrived_ms] * more
        subs += range(start, len(data))
    return found, misplaced

"""What Headrace asks of Kinesis, the options of a stream, and its shards and positions. Pure.

Texts of a shard in a slot, as commits have them, with the words of the Kinesis Client Library's (KCL's) checkpoints:

- ``TRIM_HORIZON``: to be read from the oldest record; ``AT_TIMESTAMP 1700000000000``: from this moment (ms)
- ``4959033...``: every record up to this sequence number was processed
- ``4959033... 2``: and of the aggregate with this number, the first user records up to 2
- ``<position> @1700000000000/24h``: at this moment, when records were kept for so long, nothing followed it
- ``EXPECTED``: it will come here, and its event time is waited for; ``SHARD_END``: it is closed, and all was processed
- ``RELEASED <slot> <position>``: the slot has stopped reading it there, for this other slot to go on

A split makes two shards of one, a merge one of two. Kinesis lists closed shards until their last record has expired;
parents leave the list before their children. Ids rise, which is how a list that is out of date is recognized.

Kinesis doesn't say what it has deleted: after a record that is gone, reading goes on with the oldest one that is left.
But it keeps every record for a day, or for as long as the stream was and is configured to. So what follows a position

- is all there if nothing was read and the shard wasn't seen to be empty: reading begins with what is left;
- is all there if everything from before a moment was read, and less time has passed: it has arrived since;
- is all there if the record at the position is still there: it is younger;
- may have a gap otherwise.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cached_property, lru_cache
from hashlib import md5
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import polars as pl
from typing_extensions import override

from headrace.core.errors import ProtocolError, UsageError
from headrace.core.secrets import SecretPlace
from headrace.rows.formats import FormatSpec
from headrace.systems.registry import check_option_names

DAY_H = 24  # how many hours every stream keeps its records for, at least


class Phase(Enum):
    """What a slot does with a shard."""

    EXPECTED = "EXPECTED"
    READING = "READING"
    RELEASED = "RELEASED"
    DONE = "SHARD_END"


_RANKS = {Phase.EXPECTED: -1, Phase.RELEASED: 0, Phase.READING: 1, Phase.DONE: 2}


class Position(msgspec.Struct, frozen=True):
    """Where to go on in a shard: after ``sequence``, or if that is None from a moment, or else from the oldest record.

    ``sub`` is the last processed user record of the aggregate at ``sequence``; None: all of it was processed.
    ``tip_ms``: at this moment (ms since the epoch) no record followed, and the stream kept records for ``kept_h``
    hours. So until those have passed, what follows is all there.
    """

    sequence: int | None = None
    sub: int | None = None
    time_ms: int | None = None
    tip_ms: int | None = None
    kept_h: int = DAY_H

    @override
    def __str__(self) -> str:
        return self.place if self.tip_ms is None else f"{self.place} @{self.tip_ms}/{self.kept_h}h"

    @property
    def place(self) -> str:
        if self.sequence is not None:
            return str(self.sequence) if self.sub is None else f"{self.sequence} {self.sub}"
        return "TRIM_HORIZON" if self.time_ms is None else f"AT_TIMESTAMP {self.time_ms}"

    def at_tip(self, tip_ms: int, kept_h: int) -> Position:
        return msgspec.structs.replace(self, tip_ms=tip_ms, kept_h=kept_h)

    @property
    def order(self) -> tuple[int, int, float]:
        """A key that sorts positions of one shard: those without a sequence number first, as in KCL."""
        if self.sequence is None:
            return (-2 if self.time_ms is None else -3, self.time_ms or 0, 0)
        return (0, self.sequence, float("inf") if self.sub is None else self.sub)


OLDEST = Position()


class ShardState(msgspec.Struct, frozen=True):
    """One shard in a slot. ``position`` counts while it is read, and after it was released ``to`` another slot."""

    phase: Phase
    position: Position = OLDEST
    to: int | None = None

    @override
    def __str__(self) -> str:
        match self.phase:
            case Phase.READING:
                return str(self.position)
            case Phase.RELEASED:
                return f"RELEASED {self.to} {self.position}"
            case _:
                return str(self.phase.value)

    @property
    def rank(self) -> tuple[int, tuple[int, int, float]]:
        """A key that sorts states of one shard in several slots. Who has released it is behind who reads it."""
        return _RANKS[self.phase], self.position.order

    def at(self, position: Position) -> ShardState:
        return msgspec.structs.replace(self, position=position)


EXPECTED = ShardState(Phase.EXPECTED)
DONE = ShardState(Phase.DONE)


def reading(position: Position) -> ShardState:
    return ShardState(Phase.READING, position)


def released(position: Position, to: int) -> ShardState:
    return ShardState(Phase.RELEASED, position, to)


def parse_position(text: str) -> Position:
    place, at, tip = text.partition(" @")
    tip_ms, _, kept = tip.partition("/")
    found = _place(place)
    if found is not None and not at:
        return found
    if found is not None and tip_ms.isdecimal() and kept[-1:] == "h" and kept[:-1].isdecimal():
        return found.at_tip(int(tip_ms), int(kept[:-1]))
    raise ProtocolError(f"{text!r} isn't a position in a shard", hint="another version of Headrace wrote it")


def _place(text: str) -> Position | None:
    head, _, rest = text.partition(" ")
    if text == "TRIM_HORIZON":
        return OLDEST
    if head == "AT_TIMESTAMP" and rest.isdecimal():
        return Position(time_ms=int(rest))
    if head.isdecimal() and (not rest or rest.isdecimal()) and text == text.rstrip():
        return Position(int(head), int(rest) if rest else None)
    return None


@lru_cache(maxsize=1 << 12)  # reports are repeated until something changes
def parse_state(text: str) -> ShardState:
    if text == Phase.EXPECTED.value:
        return EXPECTED
    if text == Phase.DONE.value:
        return DONE
    word, _, rest = text.partition(" ")
    slot, _, position = rest.partition(" ")
    if word == Phase.RELEASED.value and slot.isdecimal():
        return released(parse_position(position), int(slot))
    return reading(parse_position(text))


# -- api ---------------------------------------------------------------------------------------------
HASH_END = 2**128  # hashes of keys are below it
PUT_RECORDS, PUT_BYTES, RECORD_BYTES = 500, 5 << 20, 1 << 20  # Kinesis' limits of a call, and of a record with its key
READ_RECORDS, READ_BYTES = 10_000, 10 << 20  # the most that one page has


def key_hash(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest())


class IteratorExpired(Exception):
    """The iterator is older than five minutes: get another one for the same position."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard, its range of hashes, and its parents, which may be listed no more. ``closed``: it takes no records."""

    id: str
    first: int
    last: int
    parents: tuple[str, ...] = ()
    closed: bool = False


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """A stream. ``created_ms`` distinguishes it from another one of its name; ``kept_h``: how long it keeps records."""

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


def size_of(record: Put | KinesisRecord) -> int:
    return len(record.data) + len(record.key.encode())


def check_put(stream: str, records: Sequence[Put]) -> None:
    sizes = list(map(size_of, records))
    if not records or len(records) > PUT_RECORDS or sum(sizes) > PUT_BYTES or max(sizes) > RECORD_BYTES:
        raise UsageError(
            f"{len(records)} records of {sum(sizes)} bytes, the largest of {max(sizes, default=0)}, can't be written "
            f"to the stream {stream!r} at once",
            hint=f"write 1 to {PUT_RECORDS} records of up to {RECORD_BYTES} bytes, {PUT_BYTES} bytes together",
        )


class KinesisApi(Protocol):
    """One stream of Kinesis. Any thread may use it. Each call is one request, is bounded in time, and may block.

    ``ThrottledError`` and ``UnavailableError`` pass with time; ``StreamNotFoundError`` means the stream or a shard of
    it, and stays; ``TrimmedOffsetError`` means a sequence number that a shard doesn't have, or no longer has.
    """

    def describe(self) -> StreamSummary:
        """Raises ``StreamNotFoundError``."""

    def shards(self) -> list[Shard]:
        """All shards that Kinesis still lists, closed ones too. The only call of several pages."""

    def iterator(self, shard: str, position: Position) -> str:
        """An iterator that begins at a position of the shard.

        After a whole record: with the next one. After a part of an aggregate (``sub``): with the aggregate itself.
        Where these were trimmed, Kinesis says nothing: the iterator begins with the oldest record that is left. A
        moment in the future means now. Raises ``TrimmedOffsetError`` if the number isn't one of this shard's.
        """

    def records(self, iterator: str, limit: int) -> Page:
        """Up to ``limit`` records. A page may be empty though there are more: only ``behind_ms`` says so."""

    def put(self, records: Sequence[Put]) -> list[PutResult]:
        """Write some records; return one result for each, in order. Some may fail while others are written.

        After ``UnavailableError`` all, some or none of them may have been written. Raises ``UsageError`` if there are
        more records or bytes than Kinesis takes at once.
        """

    def close(self) -> None:
        """Release everything. Called once."""


# -- options -----------------------------------------------------------------------------------------
LeaseAhead = Literal["stop", "continue", "repeat"]
RECORD_COLUMNS: Mapping[str, pl.DataType] = {
    "partition_key": pl.String(), "sequence_number": pl.String(), "arrival_time": pl.Datetime("ms"),
    "shard": pl.String(),
}  # fmt: skip
"""What can be known about a record, and its type."""
POLL_MS = 200  # while records arrive: Kinesis allows all readers of a shard together five reads a second
FAILOVER_MS = 10_000  # a lease whose counter hasn't moved for this long counts as abandoned: KCL's default


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How Amazon's services are reached. With ``role``, the credentials are for assuming it."""

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    role: str | None = None
    proxy: str | SecretPlace | None = None
    connect_timeout_ms: int | None = None
    read_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Access):
    """What the app says of the stream. ``start`` may be milliseconds since the epoch; ``key`` is an output's.

    ``memo`` is the file in which an app remembers an input, ``remembered`` its contents. ``kinesis`` explains the rest.
    """

    stream: str
    records_per_call: int = READ_RECORDS
    poll_interval_ms: int = POLL_MS
    failover_ms: int = FAILOVER_MS
    format: FormatSpec = field(default_factory=FormatSpec)
    start: str | int = "oldest"
    slots: int | None = None
    record_columns: Mapping[str, str] = field(default_factory=dict)
    lease_table: str | None = None
    lost: str = "stop"
    lease_ahead: LeaseAhead = "stop"
    memo: str | None = None
    remembered: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Options:
        check_option_names(name, "kinesis", options, (one.name for one in fields(cls)), "stream")
        given = dict(options)
        given["format"] = FormatSpec(**given.get("format", {}))
        if isinstance(given.get("proxy"), Mapping):
            given["proxy"] = SecretPlace.of(given["proxy"])
        return cls(**given)

    def memo_path(self) -> Path:
        if self.memo is None:
            raise UsageError(
                f"the Kinesis stream {self.stream!r} isn't an input of an app here, so its slots aren't known",
                hint='declare it as an input: app.input("orders", ..., system=hr.io.kinesis("orders"))',
            )
        return Path(self.memo)


# -- shard tree --------------------------------------------------------------------------------------
def age(shard: str) -> tuple[int, str]:
    return len(shard), shard


def home(shard: str, slots: int) -> int:
    """The slot of a shard that follows no other one. It depends on nothing but the id, so everybody agrees on it.

    Shards that were created together have consecutive numbers, so they go to different slots while there are any.
    """
    digits = shard[len(shard.rstrip("0123456789")) :]
    return (int(digits) if digits else zlib.crc32(shard.encode())) % slots


class ShardTree:
    """One list of the shards of a stream."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = {shard.id: shard for shard in sorted(shards, key=lambda shard: age(shard.id))}
        self._children: dict[str, list[str]] = {}
        for shard in self._shards.values():
            for parent in shard.parents:
                self._children.setdefault(parent, []).append(shard.id)

    def __contains__(self, shard: str) -> bool:
        return shard in self._shards

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._shards)

    def parents(self, shard: str) -> list[str]:
        found = self._shards.get(shard)
        return [] if found is None else sorted(set(found.parents), key=age)

    def children(self, shard: str) -> list[str]:
        return self._children.get(shard, [])

    def is_open(self, shard: str) -> bool:
        return shard in self._shards and not self._shards[shard].closed and shard not in self._children

    def ancestors(self, shards: Collection[str]) -> set[str]:
        found: set[str] = set()
        for id_ in reversed(self.ids):  # children first
            if id_ in shards or id_ in found:
                found.update(self._shards[id_].parents)
        return found

    def is_older_than(self, shards: Iterable[str]) -> bool:
        """Whether one of these shards is newer than the list, so that their slots know more than the list."""
        newest = max(map(age, shards), default=None)
        return newest is not None and (not self._shards or newest > age(self.ids[-1]))

    @cached_property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """The hashes (first to last) that no listed open shard takes. Empty unless the list is incomplete."""
        found, free = [], 0
        for one in sorted((self._shards[id_] for id_ in self.ids if self.is_open(id_)), key=lambda one: one.first):
            if one.first > free:
                found.append((free, one.first - 1))
            free = max(free, one.last + 1)
        return (*found, (free, HASH_END - 1)) if free < HASH_END else tuple(found)


def ended_before(shards: Iterable[Shard], *, latest: bool) -> frozenset[str]:
    """Shards of no use to an app that starts now: parents that are listed no more; if ``latest``, all closed ones."""
    tree = ShardTree(shards)
    trimmed = {parent for id_ in tree.ids for parent in tree.parents(id_) if parent not in tree}
    return frozenset(trimmed | {id_ for id_ in tree.ids if latest and not tree.is_open(id_)})


# -- expiry ------------------------------------------------------------------------------------------
HOUR_MS = 3_600_000
MARGIN_MS = HOUR_MS // 4  # how much earlier than Kinesis' records count as expired, because clocks differ
LOOK_MS = HOUR_MS // 4  # how old it may become when everything was last known to be read


class Expiry:
    """What is known of the records after the position of one shard. Moments are milliseconds since the epoch."""

    def __init__(self, position: Position) -> None:
        self.read_ms = position.tip_ms  # everything that arrived before was read; None: that isn't known of any moment
        self._kept_h = position.kept_h
        self._begun = position.sequence is not None or position.tip_ms is not None

    def whole(self, now_ms: int, kept_h: Callable[[], int]) -> bool:
        """Whether what follows is all there, even if the record at the position is gone."""
        if self.read_ms is None:
            return not self._begun
        age_ms = now_ms - self.read_ms
        return age_ms < _kept_ms(DAY_H) or (self._kept_h > DAY_H and age_ms < _kept_ms(min(self._kept_h, kept_h())))

    def due(self, now_ms: int) -> bool:
        return self.read_ms is None or now_ms - self.read_ms >= LOOK_MS

    def read(self, before_ms: int, kept_h: int = DAY_H) -> None:
        """Everything from before a moment was read, when the stream kept records for at least so long."""
        self._begun = True
        if self.read_ms is None or before_ms >= self.read_ms:
            self.read_ms, self._kept_h = before_ms, kept_h


def _kept_ms(hours: int) -> int:
    return hours * HOUR_MS - MARGIN_MS

"""Byte keys and values of one operator in one task: changes in memory over the contents of the local database.

Writes stay in an overlay until their commit is in the database: ``fresh`` has the changes of the next commit,
``logged`` those that are in the changelog but not in the database yet. A deleted key stays in an overlay with None, and
hides the same key below. Without a database everything stays in memory.

With a time to live, a value is stored after the time when it was put. An index by time would cost a second entry for
each one. Instead every read checks the values that it returns, and a sweep walks through all keys in a circle, as many
at a time as its caller allows, at most once in an eighth of the time to live.

One thread uses a store; ``CommittedKeyValues`` may be read by any. Reads of either may wait for the disk.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import compress, islice
from typing import TYPE_CHECKING, Protocol

import msgspec
import polars as pl
from typing_extensions import override

from headrace.core.errors import DeclarationError, UsageError
from headrace.stores import base

if TYPE_CHECKING:
    from headrace.stores.records import RecordStore

_INSERTED_ONE_BY_ONE_MAX = 16


class _Absent(Enum):
    """The value of a key that isn't in an overlay. None means that it was deleted."""

    ABSENT = "absent"


_ABSENT = _Absent.ABSENT


class _Overlay:
    """A layer of changes. Keys are never removed, so those that aren't sorted yet are the last ones of the dict."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes | None] = {}
        """All entries, unsorted; None marks a deleted one. Single keys are looked up and set here."""
        self._ordered: list[bytes] = []

    def __len__(self) -> int:
        return len(self.entries)

    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes | None]) -> None:
        self.entries.update(zip(keys, values, strict=True))

    def delete_many(self, keys: Iterable[bytes]) -> None:
        self.entries.update(dict.fromkeys(keys))

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes | None]]:
        """Return the entries with ``start <= key < stop``. Keys added meanwhile don't show; changed values do."""
        keys = self._keys(start, stop)
        get = self.entries.get
        return ((key, get(key)) for key in (reversed(keys) if reverse else keys))

    def _keys(self, start: bytes, stop: bytes | None) -> list[bytes]:
        ordered = self._ordered
        new = list(islice(reversed(self.entries), len(self.entries) - len(ordered)))
        if len(new) > _INSERTED_ONE_BY_ONE_MAX:
            new.sort()
            ordered += new
            ordered.sort()  # this merges two sorted runs, in linear time
        else:
            for key in new:
                insort(ordered, key)
        low = bisect_left(ordered, start)
        high = len(ordered) if stop is None else bisect_left(ordered, stop)
        return ordered[low:high]


class _Memory(_Overlay):
    """The lowest layer if there is no database. It drops deleted keys when they are the majority."""

    _deleted = 0

    @override
    def __len__(self) -> int:
        return len(self.entries) - self._deleted

    def update(self, newer: _Overlay) -> None:
        for key, value in newer.entries.items():
            was_deleted = self.entries.get(key, b"") is None
            self._deleted += (value is None) - was_deleted
        self.entries.update(newer.entries)
        if self._deleted * 2 > len(self.entries):
            self.entries = {key: value for key, value in self.entries.items() if value is not None}
            self._ordered, self._deleted = [], 0

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self.entries.get, keys))

    @override
    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        entries = super().range(start, stop, reverse=reverse)
        return ((key, value) for key, value in entries if value is not None)


def merge(
    over: Iterable[tuple[bytes, bytes | None]], under: Iterator[tuple[bytes, bytes | None]], *, reverse: bool
) -> Iterator[tuple[bytes, bytes | None]]:
    """Of equal keys the entry of ``over`` counts. Both are in key order, or reversed."""
    below = next(under, None)
    for key, value in over:
        while below is not None and (below[0] > key if reverse else below[0] < key):
            yield below
            below = next(under, None)
        if below is not None and below[0] == key:
            below = next(under, None)
        yield key, value
    if below is not None:
        yield below
        yield from under


_TIME = struct.Struct(">Q")
_FOREVER = b"\xff" * _TIME.size
_ROUNDS_IN_A_LIFE = 8


class Stamps:
    """The stamps before values: big-endian milliseconds, so that bytes compare as times do."""

    size = _TIME.size

    def __init__(self, ttl_ms: int) -> None:
        if ttl_ms < 1:
            what = f"the time to live is {ttl_ms} ms, but must be at least 1"
            raise DeclarationError(what, hint="leave out ttl to keep entries forever")
        self.ttl_ms = ttl_ms
        self._now: int | None = None

    def advance(self, now_ms: int) -> None:
        """Set the time. It never goes back, and times before 1970 count as 1970."""
        self._now = max(0, now_ms) if self._now is None else max(self._now, now_ms)

    def is_at(self, now_ms: int) -> bool:
        return self._now is not None and now_ms <= self._now

    @property
    def now(self) -> int:
        if self._now is None:
            what = "a store has a time to live, but its clock was never set"
            raise UsageError(what, hint="call advance(now_ms) first")
        return self._now

    def stamp(self, values: Iterable[bytes], *, lasting: bool = False) -> list[bytes]:
        stamp = _FOREVER if lasting else _TIME.pack(self.now)
        return [stamp + value for value in values]

    def alive_from(self) -> bytes:
        return _TIME.pack(0 if self._now is None else max(0, self._now - self.ttl_ms + 1))

    def strip(self, stored: Sequence[bytes | None]) -> list[bytes | None]:
        alive, size = self.alive_from(), self.size
        return [value[size:] if value is not None and value >= alive else None for value in stored]


class _Sweep:
    """The position of the walk through all keys, and when the next walk starts."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._due = 0
        self._oldest = _FOREVER
        self._began: int | None = None
        self.cursor = b""

    def is_due(self) -> bool:
        # A walk is in progress, or an entry can have expired since the last one.
        return self._began is not None or self._stamps.now >= self._due

    def expired_among(self, entries: Iterator[tuple[bytes, bytes]], budget: int) -> list[bytes]:
        if self._began is None:
            self._began = self._stamps.now
        alive = self._stamps.alive_from()
        expired: list[bytes] = []
        for looked, (key, value) in enumerate(entries):
            if looked == budget:
                self.cursor = key
                return expired
            if value < alive:
                expired.append(key)
            elif value < self._oldest:
                self._oldest = value[: Stamps.size]
        # Entries put before the cursor during the walk were not seen, but are no older than the walk's start.
        oldest = min(_TIME.unpack(self._oldest)[0], self._began)
        ttl = self._stamps.ttl_ms
        self._due = max(oldest + ttl, self._stamps.now + ttl // _ROUNDS_IN_A_LIFE)
        self._began, self._oldest, self.cursor = None, _FOREVER, b""
        return expired


_PLAIN = b"\x01"
_STAMPED = b"\x02"
_ABOUT = b""  # no entry has an empty key
_LEAST_KEY = b"\x00"
_ABOUT_FORMAT = 1
_SAMPLED_KEYS = 256


class _About(msgspec.Struct, frozen=True, kw_only=True):
    format: int = _ABOUT_FORMAT
    stamped: bool
    count: int


Dealt = tuple[base.Mask, Sequence[bytes] | None]
"""Selects the entries of a share, and gives new bytes for values that must change."""
_ABOUT_DECODER = msgspec.json.Decoder(_About)


class Contents(Protocol):
    """What the entries of a store mean. Whoever encodes them provides it: a table, timers."""

    def dealt(self, share: base.Share, keys: Sequence[bytes], values: Sequence[bytes]) -> Dealt:
        """Say which entries belong to a share."""

    def shown(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pl.DataFrame:
        """Return entries as rows, for people."""


class KeyValueReader(Protocol):
    """Reads of byte keys and values, from a store or from its committed contents."""

    id: str

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None."""

    def range(
        self, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries with ``start <= key < stop``. Later writes may show or not, and no key comes twice."""


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the least key after all keys that start with ``prefix``, for ``range``; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


class KeyValueStore(KeyValueReader, base.StateStore):
    """Byte keys and values whose changes are logged. With ``ttl_ms``, an entry expires that long after it was put."""

    def __init__(self, id_: str, *, ttl_ms: int | None = None, change_bytes_max: int = base.CHANGE_BYTES_MAX) -> None:
        self.id = id_
        self._stamps = None if ttl_ms is None else Stamps(ttl_ms)
        self._sweep = None if self._stamps is None else _Sweep(self._stamps)
        self._change_bytes_max = change_bytes_max
        self._fresh = _Overlay()
        self._logged = _Overlay()
        self._memory = _Memory()
        self._view: base.View | None = None
        self._cleared = False
        self._count = 0
        self._before: dict[bytes, bytes | None] | None = None
        self.contents: Contents | None = None
        """What the entries mean. Without it the store can't be dealt, and its rows are bytes."""
        self.ahead: RecordStore | None = None
        """Keeps entries decoded: copies of stored ones, and writes that the store doesn't have yet."""

    @override
    def get(self, key: bytes) -> bytes | None:
        if self._stamps is not None:
            return self.get_many([key])[0]
        value = self._fresh.entries.get(key, _ABSENT)
        if value is _ABSENT:
            value = self._logged.entries.get(key, _ABSENT)
        return self._base.get(key) if value is _ABSENT else value

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Deletes entries that have expired."""
        stored = self._stored(keys, [self._fresh, self._logged])
        if self._stamps is None:
            return stored
        alive = self._stamps.alive_from()
        expired = [key for key, value in zip(keys, stored, strict=True) if value is not None and value < alive]
        if expired:
            self._fresh.delete_many(expired)
        return self._stamps.strip(stored)

    @override
    def range(
        self, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        entries = self._stored_range(start, stop, reverse)
        return entries if self._stamps is None else _alive(self._stamps, entries)

    def put(self, key: bytes, value: bytes) -> None:
        if self._stamps is None and key:
            if self._before is not None and key not in self._before:
                self._before[key] = self.get(key)
            self._fresh.entries[key] = value
        else:
            self.put_many([key], [value])

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes], *, lasting: bool = False) -> None:
        """Set keys; of equal ones the last counts. ``lasting``: it never expires, and ``end_trial`` doesn't undo it."""
        if not all(keys):
            raise UsageError(f"store {self.id!r}: a key must have at least one byte")
        if self._before is not None and not lasting:
            self._remember(keys, self._before)
        stored = values if self._stamps is None else self._stamps.stamp(values, lasting=lasting)
        self._fresh.put_many(keys, stored)

    def delete(self, key: bytes) -> None:
        if key and self._before is None:
            self._fresh.entries[key] = None
        else:
            self.delete_many([key])

    def delete_many(self, keys: Sequence[bytes]) -> None:
        if not all(keys):
            raise UsageError(f"store {self.id!r}: a key must have at least one byte")
        if self._before is not None:
            self._remember(keys, self._before)
        self._fresh.delete_many(keys)

    # -- writes that may be undone

    def begin_trial(self) -> None:
        """Remember the previous values of everything put or deleted from now on, except ``lasting`` entries."""
        self._before = {}

    def end_trial(self, *, keep: bool) -> None:
        before, self._before = self._before, None
        if before and not keep:
            self._fresh.put_many(before.keys(), before.values())

    def _remember(self, keys: Sequence[bytes], before: dict[bytes, bytes | None]) -> None:
        new = [key for key in keys if key not in before]
        before.update(zip(new, self._stored(new, [self._fresh, self._logged]), strict=True))

    @override
    def clear(self) -> None:
        if self.ahead is not None:
            self.ahead.forget()
        self._fresh, self._logged, self._memory = _Overlay(), _Overlay(), _Memory()
        self._cleared = self._view is not None
        self._count = 0

    def advance(self, now_ms: int) -> None:
        if self._stamps is None or self._stamps.is_at(now_ms):
            return
        if self.ahead is not None:
            self.ahead.write()  # with the time at which it was put
            self.ahead.forget()
        self._stamps.advance(now_ms)

    def sweep(self, now_ms: int, budget: int) -> int:
        """Delete, and log, the expired entries among the next ``budget`` ones, in a circle; return how many."""
        self.advance(now_ms)
        if self._sweep is None or not self._sweep.is_due():
            return 0
        expired = self._sweep.expired_among(self._stored_range(self._sweep.cursor, None, reverse=False), budget)
        self._fresh.delete_many(expired)
        return len(expired)

    @override
    def take_changes(self, version: int) -> list[bytes]:
        if self.ahead is not None:
            self.ahead.write()
        fresh = self._fresh.entries
        changes = base.encode_entries(self._operation, list(fresh), list(fresh.values()), self._change_bytes_max)
        self._add_logged(self._fresh)
        self._fresh = _Overlay()
        return changes

    @override
    def apply(self, change: bytes) -> None:
        operation = change[:1]
        if operation == base.FORM:
            raise base.other_kind(self.id)
        if operation not in (_PLAIN, _STAMPED):
            raise base.unknown_change(f"store {self.id!r}", operation)
        _check_stamped(self.id, operation == _STAMPED, self._stamps)
        if self.ahead is not None:
            self.ahead.forget()
        applied = _Overlay()
        applied.put_many(*base.decode_change(change))
        self._add_logged(applied)

    @override
    def whole(self, share: base.Share | None = None) -> Iterator[bytes]:
        if share is not None and self.contents is None:
            raise share.undealt(self.id, "only the app knows what its entries mean")
        return self._changes_of(share)

    def _changes_of(self, share: base.Share | None) -> Iterator[bytes]:
        for keys, values in base.in_portions(self._range_over([self._logged], _LEAST_KEY, None, reverse=False)):
            mine = (keys, values) if share is None else self._dealt(share, keys, values)
            yield from base.encode_entries(self._operation, *mine, self._change_bytes_max)

    def _dealt(
        self, share: base.Share, keys: Sequence[bytes], stored: Sequence[bytes]
    ) -> tuple[Sequence[bytes], Sequence[bytes]]:
        assert self.contents is not None
        size = 0 if self._stamps is None else self._stamps.size
        mask, written = self.contents.dealt(share, keys, [value[size:] for value in stored] if size else stored)
        mine = mask.tolist()
        kept = list(compress(stored, mine))
        if written is not None:
            kept = [old[:size] + new for old, new in zip(kept, written, strict=True)]
        return list(compress(keys, mine)), kept

    @override
    def frames(self) -> Iterator[pl.DataFrame]:
        size = 0 if self._stamps is None else self._stamps.size
        for keys, stored in base.in_portions(self._range_over([self._logged], _LEAST_KEY, None, reverse=False)):
            values = [value[size:] for value in stored] if size else stored
            if self.contents is None:
                yield pl.DataFrame({"key": keys, "value": values}, schema={"key": pl.Binary, "value": pl.Binary})
            elif (rows := self.contents.shown(keys, values)).height:
                yield rows

    def _add_logged(self, changes: _Overlay) -> None:
        if self._view is None:
            self._memory.update(changes)
        elif len(self._logged):
            self._logged.entries.update(changes.entries)
        else:
            self._logged = changes

    @override
    def attach(self, view: base.View) -> None:
        self._view = view
        about = _read_about(self.id, view, self._stamps)
        if about is None and next(view.range(b"", None), None) is not None:
            raise base.other_kind(self.id)
        self._count = 0 if about is None else about.count

    @override
    def persist(self, writes: base.Writes) -> None:
        if self._view is None:
            raise UsageError(f"store {self.id!r} has no database to write to", hint="attach one first")
        if not len(self._logged) and not self._cleared:
            return
        self._count = max(0, self._count + self._growth(self._logged))
        if self._cleared:
            writes.delete_all()
            self._cleared = False
        entries = self._logged.entries
        if None in entries.values():
            writes.delete_many(key for key, value in entries.items() if value is None)
            kept = {key: value for key, value in entries.items() if value is not None}
            writes.put_many(kept.keys(), kept.values())
        else:
            writes.put_many(entries.keys(), entries.values())  # type: ignore[arg-type]  # they contain no None
        about = _About(stamped=self._stamps is not None, count=self._count)
        writes.put(_ABOUT, msgspec.json.encode(about))
        self._logged = _Overlay()  # not cleared, because an iteration in progress may still read the old one

    @override
    def entries(self) -> int:
        """Exact without a database, except for uncommitted writes."""
        held = len(self._memory) if self._view is None else self._count + self._growth(self._logged)
        return max(0, held + self._growth(self._fresh))

    @property
    def _operation(self) -> bytes:
        return _PLAIN if self._stamps is None else _STAMPED

    @property
    def _base(self) -> base.View | _Memory:
        return self._memory if self._view is None or self._cleared else self._view

    def _stored(self, keys: Sequence[bytes], layers: Sequence[_Overlay]) -> list[bytes | None]:
        for number, layer in enumerate(layers):
            if not len(layer):
                continue
            get = layer.entries.get
            found = [get(key, _ABSENT) for key in keys]
            missing = [position for position, value in enumerate(found) if value is _ABSENT]
            below = self._stored([keys[position] for position in missing], layers[number + 1 :]) if missing else []
            for position, value in zip(missing, below, strict=True):
                found[position] = value
            return found  # type: ignore[return-value]  # no _ABSENT is left
        return self._base.get_many(keys)

    def _stored_range(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        return self._range_over([self._logged, self._fresh], start, stop, reverse=reverse)

    def _range_over(
        self, over: Sequence[_Overlay], start: bytes, stop: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        # The empty key holds the store's own data.
        lowest = iter(self._base.range(max(start, _LEAST_KEY), stop, reverse=reverse))
        layers = [layer for layer in over if len(layer)]
        if not layers:
            return lowest
        entries: Iterator[tuple[bytes, bytes | None]] = lowest
        for layer in layers:
            entries = merge(layer.range(start, stop, reverse=reverse), entries, reverse=reverse)
        return ((key, value) for key, value in entries if value is not None)

    def _growth(self, layer: _Overlay) -> int:
        """Estimated from a sample of its keys."""
        step = max(1, len(layer) // _SAMPLED_KEYS)
        sample = dict(islice(layer.entries.items(), 0, None, step))
        known = self._base.get_many(list(sample))
        grown = sum((new is not None) - (old is not None) for new, old in zip(sample.values(), known, strict=True))
        return round(grown * len(layer) / max(1, len(sample)))


class CommittedKeyValues(KeyValueReader):
    """The committed entries of a store, for any thread. Each call sees complete commits, an iteration one commit."""

    def __init__(self, id_: str, view: base.PinnableView, *, ttl_ms: int | None = None) -> None:
        self.id = id_
        self._view = view
        self._stamps = None if ttl_ms is None else Stamps(ttl_ms)
        _read_about(id_, view, self._stamps)

    @contextmanager
    def pinned(self) -> Iterator[CommittedKeyValues]:
        """Return the entries as of the last commit. Use it only briefly: its entries can't be deleted from the disk."""
        with self._view.pinned() as view:
            pinned = CommittedKeyValues(self.id, view, ttl_ms=None if self._stamps is None else self._stamps.ttl_ms)
            pinned._stamps = self._stamps  # time still advances
            yield pinned

    def advance(self, now_ms: int) -> None:
        if self._stamps is not None:
            self._stamps.advance(now_ms)

    @override
    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        stored = self._view.get_many(keys)
        return stored if self._stamps is None else self._stamps.strip(stored)

    @override
    def range(
        self, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        entries = self._view.range(max(start, _LEAST_KEY), stop, reverse=reverse)
        return entries if self._stamps is None else _alive(self._stamps, entries)


def _alive(stamps: Stamps, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    alive, size = stamps.alive_from(), stamps.size
    return ((key, value[size:]) for key, value in entries if value >= alive)


def _read_about(id_: str, view: base.View, stamps: Stamps | None) -> _About | None:
    data = view.get(_ABOUT)
    if data is None:
        return None
    about = _ABOUT_DECODER.decode(data)
    if about.format != _ABOUT_FORMAT:
        raise base.unknown_format(id_, about.format, _ABOUT_FORMAT)
    _check_stamped(id_, about.stamped, stamps)
    return about


def _check_stamped(id_: str, stamped: bool, stamps: Stamps | None) -> None:
    if stamped != (stamps is not None):
        was, now = ("with", "without") if stamped else ("without", "with")
        what = f"store {id_!r} was stored {was} a time to live, but is now declared {now} one"
        raise DeclarationError(what, hint=base.TAKE_BACK)

"""Byte keys and values of one step in one task: changes in memory over what the local database holds.

What is written lies in an overlay until its commit is in the database; reads see the overlay, then the database, and
iteration merges both in the order of keys. There are two overlays: ``fresh`` is what the next commit will say,
``taken`` what a commit has said that is not in the database yet. Without a database everything stays in memory.

One thread uses a store. ``Committed`` reads the same entries from any thread, as of the last commit. Reads of either
may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

import msgspec
from typing_extensions import override

from headrace.core.errors import CorruptLogError, DeclarationError, UsageError
from headrace.stores.base import PinnableView, StateStore, View, Writes
from headrace.stores.changes import CHANGE_BYTES_MAX, decode_change, encode_changes
from headrace.stores.conform import other_form
from headrace.stores.overlay import ABSENT, MemoryBase, Overlay, merge
from headrace.stores.ttl import Stamps, Sweep

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


_ABOUT_DECODER = msgspec.json.Decoder(_About)


class Reads(Protocol):
    """What a store answers, and a view of its commits as well."""

    @property
    def id(self) -> str:
        """The store's durable name."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None."""
        ...

    def range(
        self, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < stop`` (None: to the end) in the order of keys, or against it.

        What is written while it goes on may show or not; it never fails by that, and no key comes twice.
        """
        ...


class KeyValues(StateStore, Reads, Protocol):
    """A state store of byte keys and values. Keys have at least one byte."""

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set each key to the value beside it; the last one of equal keys counts."""
        ...

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Remove each key that is there."""
        ...


def after_prefix(prefix: bytes) -> bytes | None:
    """The least key behind all that begin with ``prefix``, for ``range``; None where there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


class KeyValueStore(Reads, StateStore):
    """Byte keys and values, of which every change is logged. See ``StateStore`` and ``Reads``.

    With ``ttl_ms`` entries expire that long after they were last put, by the time that ``advance`` states.
    """

    def __init__(self, id_: str, *, ttl_ms: int | None = None, change_bytes_max: int = CHANGE_BYTES_MAX) -> None:
        self._id = id_
        self._stamps = None if ttl_ms is None else Stamps(ttl_ms)
        self._sweep = None if self._stamps is None else Sweep(self._stamps)
        self._change_bytes_max = change_bytes_max
        self._fresh = Overlay()
        self._taken = Overlay()
        self._memory = MemoryBase()
        self._view: View | None = None
        self._cleared = False
        self._count = 0
        self._before: dict[bytes, bytes | None] | None = None

    @property
    @override
    def id(self) -> str:
        return self._id

    # -- reading

    @override
    def get(self, key: bytes) -> bytes | None:
        if self._stamps is not None:
            return self.get_many([key])[0]
        value = self._fresh.get(key)
        if value is ABSENT:
            value = self._taken.get(key)
        return self._base.get(key) if value is ABSENT else value

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Reads``. What turns out to have expired is deleted."""
        stored = self._stored(keys, [self._fresh, self._taken])
        if self._stamps is None:
            return stored
        alive = self._stamps.alive_from()
        expired = [key for key, value in zip(keys, stored, strict=True) if value is not None and value < alive]
        if expired:
            self._fresh.delete_many(expired)
        return self._stamps.take_off(stored)

    @override
    def range(
        self, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        entries = self._stored_range(start, stop, reverse)
        return entries if self._stamps is None else _alive(self._stamps, entries)

    def prefix(self, prefix: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose keys begin with ``prefix``; see ``range``."""
        return self.range(prefix, after_prefix(prefix), reverse=reverse)

    # -- writing

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        if self._stamps is None and key and self._before is None:
            self._fresh.put(key, value)
        else:
            self.put_many([key], [value])

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes], *, lasting: bool = False) -> None:
        """Set each key to the value beside it; the last one of equal keys counts. ``lasting`` ones don't expire."""
        if not all(keys):
            raise UsageError(f"store {self._id!r}: a key has at least one byte")
        if self._before is not None and not lasting:
            self._remember(keys, self._before)
        stored = values if self._stamps is None else self._stamps.put_on(values, lasting=lasting)
        self._fresh.put_many(keys, stored)

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        if key and self._before is None:
            self._fresh.put(key, None)
        else:
            self.delete_many([key])

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Remove each key that is there."""
        if not all(keys):
            raise UsageError(f"store {self._id!r}: a key has at least one byte")
        if self._before is not None:
            self._remember(keys, self._before)
        self._fresh.delete_many(keys)

    # -- writes that may be taken back

    def begin_trial(self) -> None:
        """What is put and deleted from now on may be taken back, but for what is ``lasting``."""
        self._before = {}

    def end_trial(self, *, keep: bool) -> None:
        """What was put and deleted since the trial began stays, or never happened."""
        before, self._before = self._before, None
        if before and not keep:
            self._fresh.put_many(before.keys(), before.values())

    def _remember(self, keys: Sequence[bytes], before: dict[bytes, bytes | None]) -> None:
        new = [key for key in keys if key not in before]
        before.update(zip(new, self._stored(new, [self._fresh, self._taken]), strict=True))

    @override
    def clear(self) -> None:
        self._fresh, self._taken, self._memory = Overlay(), Overlay(), MemoryBase()
        self._cleared = self._view is not None
        self._count = 0

    # -- time to live

    def advance(self, now_ms: int) -> None:
        """Say what time it is. A store without a time to live doesn't mind."""
        if self._stamps is not None:
            self._stamps.advance(now_ms)

    def sweep(self, now_ms: int, budget: int) -> int:
        """Delete what has expired among the next ``budget`` entries, round and round; returns how many it was.

        Deletions are logged as any other, so that a replay gives the same contents.
        """
        self.advance(now_ms)
        if self._sweep is None or not self._sweep.is_due():
            return 0
        expired = self._sweep.look_at(self._stored_range(self._sweep.cursor, None, reverse=False), budget)
        self._fresh.delete_many(expired)
        return len(expired)

    # -- the changelog

    @override
    def take_changes(self, version: int) -> list[bytes]:
        changes = encode_changes(self._operation, self._fresh.entries, self._change_bytes_max)
        self._settle(self._fresh)
        self._fresh = Overlay()
        return changes

    @override
    def apply(self, change: bytes) -> None:
        operation = change[:1]
        if operation not in (_PLAIN, _STAMPED):
            raise CorruptLogError(
                f"store {self._id!r}: unknown change format {operation!r} in the changelog",
                hint="the changelog was written by a newer Headrace; upgrade this one",
            )
        _check_stamped(self._id, operation == _STAMPED, self._stamps)
        told = Overlay()
        told.put_many(*decode_change(change))
        self._settle(told)

    def _settle(self, told: Overlay) -> None:
        """Take in what the changelog says, or will have said by the time it counts."""
        if self._view is None:
            self._memory.update(told)
        elif len(self._taken):
            self._taken.update(told)
        else:
            self._taken = told

    # -- the local database

    @override
    def attach(self, view: View) -> None:
        self._view = view
        about = _read_about(self._id, view, self._stamps)
        if about is None and next(view.scan(b""), None) is not None:
            raise other_form(self._id)
        self._count = 0 if about is None else about.count

    @override
    def persist(self, writes: Writes) -> None:
        if self._view is None:
            raise UsageError(f"store {self._id!r} has no database to be written to", hint="attach one first")
        if not len(self._taken) and not self._cleared:
            return
        self._count = max(0, self._count + self._growth(self._taken))
        if self._cleared:
            writes.delete_all()
            self._cleared = False
        entries = self._taken.entries
        if None in entries.values():
            writes.delete_many(key for key, value in entries.items() if value is None)
            kept = {key: value for key, value in entries.items() if value is not None}
            writes.put_many(kept.keys(), kept.values())
        else:
            writes.put_many(entries.keys(), entries.values())  # type: ignore[arg-type]  # there is no None in them
        about = _About(stamped=self._stamps is not None, count=self._count)
        writes.put(_ABOUT, msgspec.json.encode(about))
        self._taken = Overlay()  # a new one: an iteration that is under way may still read the old

    # -- for status

    @override
    def entries(self) -> int:
        """See ``StateStore``. Without a database exact, but for what isn't committed."""
        held = len(self._memory) if self._view is None else self._count + self._growth(self._taken)
        return max(0, held + self._growth(self._fresh))

    # -- inside

    @property
    def _operation(self) -> bytes:
        return _PLAIN if self._stamps is None else _STAMPED

    @property
    def _base(self) -> View | MemoryBase:
        """What lies below the overlays."""
        return self._memory if self._view is None or self._cleared else self._view

    def _stored(self, keys: Sequence[bytes], layers: Sequence[Overlay]) -> list[bytes | None]:
        """The values with their stamps, looked for in the layers in turn and then below them."""
        for number, layer in enumerate(layers):
            if not len(layer):
                continue
            found = layer.get_many(keys)
            missing = [place for place, value in enumerate(found) if value is ABSENT]
            below = self._stored([keys[place] for place in missing], layers[number + 1 :]) if missing else []
            for place, value in zip(missing, below, strict=True):
                found[place] = value
            return found  # type: ignore[return-value]  # all that was absent has been filled in
        return self._base.get_many(keys)

    def _stored_range(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        # The empty key is the store's own.
        base = iter(self._base.range(max(start, _LEAST_KEY), stop, reverse=reverse))
        layers = [layer for layer in (self._taken, self._fresh) if len(layer)]
        if not layers:
            return base
        entries: Iterator[tuple[bytes, bytes | None]] = base
        for layer in layers:
            entries = merge(layer.range(start, stop, reverse=reverse), entries, reverse=reverse)
        return ((key, value) for key, value in entries if value is not None)

    def _growth(self, layer: Overlay) -> int:
        """By how many entries a layer makes the database grow: a guess from a sample of its keys."""
        step = max(1, len(layer) // _SAMPLED_KEYS)
        sample = dict(islice(layer.entries.items(), 0, None, step))
        there = self._base.get_many(list(sample))
        grown = sum((new is not None) - (old is not None) for new, old in zip(sample.values(), there, strict=True))
        return round(grown * len(layer) / max(1, len(sample)))


class Committed(Reads):
    """What a store had committed, read from the local database by any thread; see ``Reads``.

    Each call sees whole commits; two calls may see two of them, but for those within ``pinned``. An iteration sees the
    commit that it began with. Nothing is written, so what has expired is passed over, by the time that ``advance``
    states. Closing the database ends it.
    """

    def __init__(self, id_: str, view: PinnableView, *, ttl_ms: int | None = None) -> None:
        self._id = id_
        self._view = view
        self._stamps = None if ttl_ms is None else Stamps(ttl_ms)
        _read_about(id_, view, self._stamps)

    @property
    @override
    def id(self) -> str:
        return self._id

    @contextmanager
    def pinned(self) -> Iterator[Committed]:
        """The same as of one commit, the last: however often it is asked, and whatever is committed meanwhile.

        For a moment: what it sees can't be removed from the disk.
        """
        with self._view.pinned() as view:
            still = Committed(self._id, view, ttl_ms=None if self._stamps is None else self._stamps.ttl_ms)
            still._stamps = self._stamps  # the time goes on
            yield still

    def advance(self, now_ms: int) -> None:
        """Say what time it is."""
        if self._stamps is not None:
            self._stamps.advance(now_ms)

    @override
    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        stored = self._view.get_many(keys)
        return stored if self._stamps is None else self._stamps.take_off(stored)

    @override
    def range(
        self, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        entries = self._view.range(max(start, _LEAST_KEY), stop, reverse=reverse)
        return entries if self._stamps is None else _alive(self._stamps, entries)


def _alive(stamps: Stamps, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    alive, size = stamps.alive_from(), stamps.size
    return ((key, value[size:]) for key, value in entries if value >= alive)


def _read_about(id_: str, view: View, stamps: Stamps | None) -> _About | None:
    data = view.get(_ABOUT)
    if data is None:
        return None
    about = _ABOUT_DECODER.decode(data)
    if about.format != _ABOUT_FORMAT:
        raise CorruptLogError(
            f"store {id_!r}: local state of format {about.format}; this Headrace reads {_ABOUT_FORMAT}",
            hint="upgrade Headrace, or delete the local state: it is rebuilt from the changelog",
        )
    _check_stamped(id_, about.stamped, stamps)
    return about


def _check_stamped(id_: str, stamped: bool, stamps: Stamps | None) -> None:
    if stamped != (stamps is not None):
        was, now = ("with", "without") if stamped else ("without", "with")
        raise DeclarationError(
            f"store {id_!r} was kept {was} a time to live, and is now declared {now} one",
            hint="take the change back, or give the step another id (its state begins anew)",
        )

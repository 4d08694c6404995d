"""The outbox: rows for a foreign system, from the commit that covers them until the target has them.

Rows written during a version are *fresh*. Its commit seals them into one entry, and logs it. Once the commit counts,
the entry is *pending* and may be published. When the target has it, a later commit logs its removal. A crash in between
can leave entries that the target already has: they are published again, and the target's own position decides that they
don't count twice.

A target keeps a position for each *timeline* of the app, since a later one may have published higher versions when a
savepoint of an earlier one is restored. An entry is of the latest timeline that began below it.

An entry consists of encoded pieces, each below the size limit of a changelog record. With a local database, only the
oldest pending pieces stay in memory, so a target that is down for long costs disk space, not memory.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl
from typing_extensions import override

from headrace.core.errors import CorruptLogError
from headrace.rows.given import concat_rows
from headrace.rows.ipc import decode_rows, encode_rows
from headrace.stores.base import Share, StateStore, View, Writes, rows_in_portions, unknown_change
from headrace.stores.encoding import DELETE_LOCAL_STATE
from headrace.stores.keyvalue import after_prefix

_PIECE = b"\x01"
_REMOVE = b"\x02"
_TIMELINE = b"\x03"
_VERSION = struct.Struct(">q")
_KEY = struct.Struct(">cQI")
_KEYS = b"e"
_TIMELINES_KEY = b"t"
_LOGGED_KEY = b"p"
_MEMORY_BYTES_MAX = 16 << 20


@dataclass(slots=True, eq=False)
class _Entry:
    """The rows of one version. A piece that is None is only in the database."""

    version: int
    pieces: list[bytes | None]
    bytes: int
    stored: bool = False


class Outbox(StateStore):
    """The rows of one task for one target. ``accept`` makes of a version's rows what is kept of them."""

    def __init__(self, id_: str, accept: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows) -> None:
        self.id = id_
        self._accept = accept
        self._view: View | None = None
        self._fresh: list[pl.DataFrame] = []
        self._sealed: _Entry | None = None
        self._pending: deque[_Entry] = deque()
        self._to_delete: list[_Entry] = []
        self._published_to = -1
        self._timelines: list[int] = []
        self._timelines_stored = 0
        self.logged_to = -1  # the newest version of which a commit says that the target has it; -1 if none says so
        self._stored_to = -1
        self.pending_bytes = 0  # how many bytes are committed, and not known to be in the target

    def add(self, rows: pl.DataFrame) -> None:
        if rows.height:
            self._fresh.append(rows)

    def commit(self) -> None:
        if self._sealed is not None:
            self._pending.append(self._sealed)
            self.pending_bytes += self._sealed.bytes
            self._sealed = None

    def oldest(self) -> tuple[int, list[pl.DataFrame]] | None:
        """Return the version to publish next, and its rows; None if the target has everything."""
        if not self._pending:
            return None
        entry = self._pending[0]
        return entry.version, [decode_rows(piece, checked=True) for piece in self._load(entry)]

    def published(self, version: int) -> None:
        while self._pending and self._pending[0].version <= version:
            entry = self._pending.popleft()
            self.pending_bytes -= entry.bytes
            self._published_to = entry.version
            self._to_delete.append(entry)

    def timeline_of(self, version: int) -> int | None:
        return next((begun for begun in reversed(self._timelines) if begun < version), None)

    def logged_before(self, version: int) -> int:
        return self.logged_to if self.timeline_of(self.logged_to) == self.timeline_of(version) else -1

    @property
    def timelines(self) -> tuple[int, ...]:
        return tuple(self._timelines)

    @property
    def doubtful(self) -> bool:
        """Whether the target has something that no commit says it has, so that a restart would publish it again."""
        return self._published_to > self.logged_to

    @override
    def entries(self) -> int:
        return len(self._pending)

    @override
    def clear(self) -> None:
        self._to_delete += self._pending
        self._fresh, self._sealed = [], None
        self._pending.clear()
        self.pending_bytes = 0
        self._timelines, self._timelines_stored = [], 0

    @override
    def take_changes(self, version: int) -> list[bytes]:
        """Seal the fresh rows into the entry of this version, not to be published before ``commit``."""
        changes = []
        if self._published_to > self.logged_to:
            self.logged_to = self._published_to
            changes.append(_REMOVE + _VERSION.pack(self._published_to))
        if self._fresh:
            rows = self._accept(concat_rows(self._fresh))
            pieces = [encode_rows(part) for part in rows_in_portions([rows], max(1, rows.height))]
            self._fresh = []
            self._sealed = _entry(version, pieces)
            head = _PIECE + _VERSION.pack(version)
            changes += [head + piece for piece in pieces]
        return changes

    @override
    def apply(self, change: bytes) -> None:
        operation, version = change[:1], _VERSION.unpack_from(change, 1)[0]
        if operation == _PIECE:
            piece = change[1 + _VERSION.size :]
            entry = self._entry_of(version)
            entry.pieces.append(piece)
            entry.bytes += len(piece)
            entry.stored = False
            self.pending_bytes += len(piece)
        elif operation == _REMOVE:
            self.published(version)
            self.logged_to = version
        elif operation == _TIMELINE:
            if version not in self._timelines:
                insort(self._timelines, version)
        else:
            raise unknown_change(f"outbox {self.id!r}", operation)

    def _entry_of(self, version: int) -> _Entry:
        """It is the newest one, unless the entries come from several tasks."""
        newer = 0
        while newer < len(self._pending) and self._pending[-1 - newer].version > version:
            newer += 1
        if newer == len(self._pending) or self._pending[-1 - newer].version != version:
            self._pending.insert(len(self._pending) - newer, _entry(version, []))
        return self._pending[-1 - newer]

    @override
    def whole(self, share: Share | None = None) -> Iterator[bytes]:
        """Not dealt: rows in the target have no key, so all of them are the first's."""
        if share is None or share.first:
            yield from map(timeline_begun, self._timelines)
            for entry in self._pending:
                for piece in self._load(entry):
                    yield _PIECE + _VERSION.pack(entry.version) + piece

    @override
    def frames(self) -> Iterator[pl.DataFrame]:
        for entry in self._pending:
            for piece in self._load(entry):
                yield decode_rows(piece, checked=True)

    @override
    def attach(self, view: View) -> None:
        self._view = view
        timelines = view.get(_TIMELINES_KEY) or b""
        self._timelines = [version for (version,) in _VERSION.iter_unpack(timelines)]
        self._timelines_stored = len(self._timelines)
        logged = view.get(_LOGGED_KEY)
        if logged is not None:
            self._stored_to = self.logged_to = self._published_to = _VERSION.unpack(logged)[0]
        for key, piece in view.range(_KEYS, after_prefix(_KEYS)):
            _, version, _ = _KEY.unpack(key)
            if not self._pending or self._pending[-1].version != version:
                self._pending.append(_Entry(version, [], 0, stored=True))
            entry = self._pending[-1]
            entry.pieces.append(piece if self.pending_bytes + len(piece) <= _MEMORY_BYTES_MAX else None)
            entry.bytes += len(piece)
            self.pending_bytes += len(piece)

    @override
    def persist(self, writes: Writes) -> None:
        for entry in self._to_delete:
            if entry.stored:
                for number in range(len(entry.pieces)):
                    writes.delete(_KEY.pack(_KEYS, entry.version, number))
        self._to_delete = []
        if self._timelines_stored != len(self._timelines):
            writes.put(_TIMELINES_KEY, b"".join(map(_VERSION.pack, self._timelines)))
            self._timelines_stored = len(self._timelines)
        if self.logged_to > self._stored_to:
            writes.put(_LOGGED_KEY, _VERSION.pack(self.logged_to))
            self._stored_to = self.logged_to
        new = [*self._pending, *([self._sealed] if self._sealed else [])]
        for entry in new:
            if entry.stored:
                continue
            for number, piece in enumerate(entry.pieces):
                if piece is not None:
                    writes.put(_KEY.pack(_KEYS, entry.version, number), piece)
            entry.stored = True
        if self._view is not None:  # the oldest entries stay in memory: they are published first
            held = 0
            for entry in new:
                held += entry.bytes
                if held > _MEMORY_BYTES_MAX and entry.stored:
                    entry.pieces = [None] * len(entry.pieces)

    def _load(self, entry: _Entry) -> Iterator[bytes]:
        for number, piece in enumerate(entry.pieces):
            data = piece
            if data is None and self._view is not None:
                data = self._view.get(_KEY.pack(_KEYS, entry.version, number))
            if data is None:
                what = f"outbox {self.id!r}: piece {number} of version {entry.version} is missing from the local state"
                raise CorruptLogError(what, hint=DELETE_LOCAL_STATE)
            yield data


def timeline_begun(version: int) -> bytes:
    return _TIMELINE + _VERSION.pack(version)


def _entry(version: int, pieces: list[bytes]) -> _Entry:
    return _Entry(version, [*pieces], sum(map(len, pieces)))

"""The outbox: rows on their way into a foreign system, from the commit that makes them true until they are there.

Rows written during a version are *fresh*. The commit of the version seals them into one entry, keyed by that version,
and logs it; once the commit counts, the entry is *pending*: a fact that anyone may publish. When the target has it, a
later commit logs its removal. A crash anywhere in between leaves entries that the target may have already: whoever
publishes them again relies on the target's own position to tell.

An entry is kept as encoded pieces, each below the size limit of one changelog record. With a local database beneath,
only the oldest pending pieces stay in memory, so a target that is down for long costs disk, not memory.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
from typing_extensions import override

from headrace.core.errors import CorruptLogError
from headrace.serdes.ipc import concat_rows, decode_rows, encode_rows
from headrace.stores.base import StateStore, View, Writes

_PIECE = b"\x01"
_REMOVE = b"\x02"
_VERSION = struct.Struct(">q")
_KEY = struct.Struct(">cQI")
_KEYS = b"e"
_PIECE_BYTES = 8 << 20
_MEMORY_BYTES_MAX = 16 << 20


@dataclass(slots=True, eq=False)
class _Entry:
    """The rows of one version. A piece that is None lies in the database."""

    version: int
    pieces: list[bytes | None]
    bytes: int
    stored: bool = False


class Outbox(StateStore):
    """The rows of one task on their way to one target. A ``StateStore``."""

    def __init__(self, id_: str) -> None:
        self._id = id_
        self._view: View | None = None
        self._fresh: list[pl.DataFrame] = []
        self._sealed: _Entry | None = None
        self._pending: deque[_Entry] = deque()
        self._gone: list[_Entry] = []
        self._removed = -1
        self._logged = -1
        self.pending_bytes = 0
        """How much is committed, and not known to be in the target."""

    @property
    @override
    def id(self) -> str:
        return self._id

    # -- on the way

    def add(self, rows: pl.DataFrame) -> None:
        """Take in rows of the version that isn't committed yet."""
        if rows.height:
            self._fresh.append(rows)

    def commit(self) -> None:
        """The version sealed last counts: what it holds may be published."""
        if self._sealed is not None:
            self._pending.append(self._sealed)
            self.pending_bytes += self._sealed.bytes
            self._sealed = None

    def oldest(self) -> tuple[int, list[pl.DataFrame]] | None:
        """The version to publish next, and its rows; None when everything is there."""
        if not self._pending:
            return None
        entry = self._pending[0]
        return entry.version, [decode_rows(piece, checked=True) for piece in self._load(entry)]

    def published(self, version: int) -> None:
        """The target has everything up to this version."""
        while self._pending and self._pending[0].version <= version:
            entry = self._pending.popleft()
            self.pending_bytes -= entry.bytes
            self._removed = entry.version
            self._gone.append(entry)

    @override
    def entries(self) -> int:
        """How many versions are committed, and not known to be in the target."""
        return len(self._pending)

    @override
    def clear(self) -> None:
        self._gone += self._pending
        self._fresh, self._sealed = [], None
        self._pending.clear()
        self.pending_bytes = 0

    # -- the changelog

    @override
    def take_changes(self, version: int) -> list[bytes]:
        """See ``StateStore``. What is fresh becomes the entry of this version; nobody may publish it yet."""
        changes = []
        if self._removed > self._logged:
            self._logged = self._removed
            changes.append(_REMOVE + _VERSION.pack(self._removed))
        if self._fresh:
            pieces = [encode_rows(part) for part in _parts(concat_rows(self._fresh))]
            self._fresh = []
            self._sealed = _entry(version, pieces)
            head = _PIECE + _VERSION.pack(version)
            changes += [head + piece for piece in pieces]
        return changes

    @override
    def apply(self, change: bytes) -> None:
        """See ``StateStore``. A change is only read back when its commit counts, so its entry is pending at once."""
        operation, version = change[:1], _VERSION.unpack_from(change, 1)[0]
        if operation == _PIECE:
            piece = change[1 + _VERSION.size :]
            if not self._pending or self._pending[-1].version != version:
                self._pending.append(_entry(version, []))
            self._pending[-1].pieces.append(piece)
            self._pending[-1].bytes += len(piece)
            self.pending_bytes += len(piece)
        elif operation == _REMOVE:
            self.published(version)
            self._logged = version
        else:
            raise CorruptLogError(
                f"outbox {self._id!r}: unknown change format {operation!r} in the changelog",
                hint="the changelog was written by a newer Headrace; upgrade this one",
            )

    # -- the local database

    @override
    def attach(self, view: View) -> None:
        self._view = view
        for key, piece in view.scan(_KEYS):
            _, version, _ = _KEY.unpack(key)
            if not self._pending or self._pending[-1].version != version:
                self._pending.append(_Entry(version, [], 0, stored=True))
            entry = self._pending[-1]
            entry.pieces.append(piece if self.pending_bytes + len(piece) <= _MEMORY_BYTES_MAX else None)
            entry.bytes += len(piece)
            self.pending_bytes += len(piece)

    @override
    def persist(self, writes: Writes) -> None:
        for entry in self._gone:
            if entry.stored:
                for number in range(len(entry.pieces)):
                    writes.delete(_KEY.pack(_KEYS, entry.version, number))
        self._gone = []
        new = [*self._pending, *([self._sealed] if self._sealed else [])]
        for entry in new:
            if entry.stored:
                continue
            for number, piece in enumerate(entry.pieces):
                if piece is not None:
                    writes.put(_KEY.pack(_KEYS, entry.version, number), piece)
            entry.stored = True
        if self._view is not None:
            _let_go(new)

    def _load(self, entry: _Entry) -> Iterator[bytes]:
        for number, piece in enumerate(entry.pieces):
            data = piece
            if data is None and self._view is not None:
                data = self._view.get(_KEY.pack(_KEYS, entry.version, number))
            if data is None:
                raise CorruptLogError(
                    f"outbox {self._id!r}: piece {number} of version {entry.version} is missing in the local state",
                    hint="delete the task's local state: it is rebuilt from the changelog",
                )
            yield data


def _entry(version: int, pieces: list[bytes]) -> _Entry:
    return _Entry(version, [*pieces], sum(map(len, pieces)))


def _parts(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The rows in pieces that stay well below the greatest record of a changelog."""
    size = max(1, int(rows.estimated_size()))
    return rows.iter_slices(max(1, rows.height * _PIECE_BYTES // size))


def _let_go(entries: list[_Entry]) -> None:
    """Keep the oldest in memory: they are published first."""
    held = 0
    for entry in entries:
        held += entry.bytes
        if held > _MEMORY_BYTES_MAX and entry.stored:
            entry.pieces = [None] * len(entry.pieces)

"""Keyed rows: columnar state that is looked up by key, replaced, and asked what is due.

Where ``Runs`` merges partial results without ever looking, some operators must know what came before: sessions grow
into each other, a pane needs to know how many messages its window has had. They *take* the rows of a batch's keys (or
the rows that are due), change them, and *put* them back: three columnar steps, no Python per key.

Rows live in *segments*, each a DataFrame that never changes, with a mask of the rows that are still there and an index
of its keys' hashes (sorted, so a look-up is a binary search; equal hashes are told apart by comparing the keys).
Segments of like size are merged, as in a log-structured merge tree.

What the changelog is told is what a commit's end differs from its beginning by: rows that are gone (by their identity
columns, or because they were due), rows that are new. On disk a segment is a few values of the local database; its mask
is one more, so taking a few rows out of a large segment writes bits, not rows. In memory a row costs its columns and 16
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import polars as pl

from headrace.core.errors import CorruptLogError
from headrace.serdes.ipc import concat_rows, decode_rows, encode_rows
from headrace.stores.base import View, Writes
from headrace.stores.segment import Places, Segment, hashes_of

_ADD = b"\x01"
_REMOVE = b"\x02"
_REMOVE_DUE = b"\x03"
_DUE = struct.Struct(">Bq")
_FRESH_SEGMENTS_MAX = 8
_PIECE_ROWS_MAX = 1 << 18  # one record of the changelog, one value of the database: both have a greatest size
_TAKEN_ROWS_MAX = 1 << 20
_MERGED_ROWS_MAX = 1 << 21
"""Segments are not merged beyond this size: a merge must stay short, however large the state is."""

_MANIFEST = b"manifest"
_MANIFEST_FORMAT = 1
_PIECE = struct.Struct(">cQI")
_MASK = struct.Struct(">cQ")


class _SegmentEntry(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    rows: int
    pieces: int
    masked: bool


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = _MANIFEST_FORMAT
    segments: list[_SegmentEntry]


_MANIFEST_DECODER = msgspec.json.Decoder(_Manifest)


class KeyedRows:
    """Rows by key, of which a key may have several.

    ``keys`` are the columns that rows are looked up by, ``row`` those beside them that tell the rows of one key apart.
    ``due`` are Int64 columns without nulls: each row can be asked for from that moment on. ``conform`` makes rows that
    an earlier version of the app put what this one declares, or refuses them.
    """

    def __init__(
        self,
        id_: str,
        keys: Sequence[str],
        row: Sequence[str],
        due: Sequence[str],
        conform: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
    ) -> None:
        self._id = id_
        self._conform = conform or _as_they_are
        self._keys = list(keys)
        self._row = [*keys, *row]
        self._due = list(due)
        self._view: View | None = None
        self._segments: list[Segment] = []
        self._fresh: list[Segment] = []
        self._removed: list[pl.DataFrame] = []
        self._removed_due: dict[str, int] = {}
        self._gone: list[tuple[int, int]] = []
        self._next_number = 0
        self._changed = False

    @property
    def id(self) -> str:
        """See ``StateStore``."""
        return self._id

    # -- what operators do

    def put(self, rows: pl.DataFrame) -> None:
        """Add rows; none of them may be there already."""
        if not rows.height:
            return
        self._fresh.append(self._segment(rows))
        if len(self._fresh) > _FRESH_SEGMENTS_MAX:
            self._fresh = self._joined(self._fresh)

    def take(self, keys: pl.DataFrame) -> pl.DataFrame | None:
        """Remove and return all rows of these keys (each named once), those put first first; None: there are none."""
        hashes = hashes_of(keys, self._keys)
        frames = []
        for settled, segment in self._all():
            places = segment.find(keys, hashes, self._keys, self._keys)
            if len(places):
                rows = segment.frame[places]
                frames.append(rows)
                segment.kill(places)
                if settled:
                    self._removed.append(rows.select(self._row))
                    self._changed = True
        self._drop_empty()
        return concat_rows(frames) if frames else None

    def find(self, keys: pl.DataFrame) -> Iterator[tuple[Places, pl.DataFrame, Places]]:
        """The rows of these keys (each may be named often), which stay: places in ``keys``, rows, places among them."""
        for _, segment, asked, places in self._located(keys):
            yield asked, segment.frame, places

    def discard(self, keys: pl.DataFrame) -> None:
        """Remove all rows of these keys (each named once), of which none may have others that tell its rows apart."""
        for settled, segment, asked, places in self._located(keys):
            segment.kill(places)
            if settled:
                self._removed.append(keys[asked])
                self._changed = True
        self._drop_empty()

    def take_due(self, column: str, bound: int) -> Iterator[pl.DataFrame]:
        """Remove and return all rows whose ``column`` is ``bound`` or less, in frames of some million rows.

        They are gone when this returns, read or not.
        """
        found: list[tuple[pl.DataFrame, Places]] = []
        for settled, segment in self._all():
            if segment.lows[column] > bound:
                continue
            places = segment.due(column, bound)
            found.append((segment.frame, places))
            segment.kill(places)
            if settled:
                self._removed_due[column] = max(bound, self._removed_due.get(column, bound))
                self._changed = True
        self._drop_empty()
        return _gathered(found)

    def earliest(self, column: str) -> int | None:
        """The lowest value of a ``due`` column; None without rows."""
        return min((segment.lows[column] for _, segment in self._all() if segment.living), default=None)

    def scan(self) -> pl.DataFrame | None:
        """Everything held; for inspection."""
        frames = [segment.alive() for _, segment in self._all() if segment.living]
        return concat_rows(frames) if frames else None

    # -- the changelog

    def take_changes(self, version: int) -> list[bytes]:
        """See ``StateStore``."""
        del version  # a row is the same in whichever commit it becomes true
        changes = [_REMOVE_DUE + _DUE.pack(self._due.index(c), bound) for c, bound in self._removed_due.items()]
        self._removed_due = {}
        if self._removed:
            changes += [_REMOVE + encode_rows(part) for part in _pieces(concat_rows(self._removed))]
            self._removed = []
        for segment in self._joined(self._fresh):
            changes += [_ADD + encode_rows(part) for part in _pieces(segment.frame)]
            self._push(segment)
        self._fresh = []
        return changes

    def apply(self, change: bytes) -> None:
        """See ``StateStore``."""
        operation, body = change[:1], change[1:]
        if operation == _ADD:
            self._push(self._segment(self._conform(decode_rows(body))))
        elif operation == _REMOVE:
            rows = decode_rows(body)
            hashes = hashes_of(rows, self._keys)
            for segment in self._segments:
                segment.kill(segment.find(rows, hashes, self._keys, self._row))
            self._changed = True
        elif operation == _REMOVE_DUE:
            number, bound = _DUE.unpack(body)
            for segment in self._segments:
                segment.kill(segment.due(self._due[number], bound))
            self._changed = True
        else:
            raise CorruptLogError(
                f"store {self._id!r}: unknown change format {operation!r} in the changelog",
                hint="the changelog was written by a newer Headrace; upgrade this one",
            )

    # -- the local database

    def attach(self, view: View) -> None:
        """See ``StateStore``."""
        self._view = view
        data = view.get(_MANIFEST)
        if data is None:
            return
        manifest = _MANIFEST_DECODER.decode(data)
        if manifest.format != _MANIFEST_FORMAT:
            raise CorruptLogError(
                f"store {self._id!r}: local state of format {manifest.format}; this Headrace reads {_MANIFEST_FORMAT}",
                hint="upgrade Headrace, or delete the local state: it is rebuilt from the changelog",
            )
        self._segments = [self._loaded(view, entry) for entry in manifest.segments]
        self._next_number = max((segment.number + 1 for segment in self._segments), default=0)

    def persist(self, writes: Writes) -> None:
        """See ``StateStore``."""
        if not self._changed:
            return
        self._drop_empty()
        self._segments = [self._compacted(segment) for segment in self._segments]
        for number, pieces in self._gone:
            writes.delete(_MASK.pack(b"m", number))
            for piece in range(pieces):
                writes.delete(_PIECE.pack(b"r", number, piece))
        entries = []
        for segment in self._segments:
            if not segment.stored_pieces:
                for piece, part in enumerate(_pieces(segment.frame)):
                    writes.put(_PIECE.pack(b"r", segment.number, piece), encode_rows(part))
                    segment.stored_pieces = piece + 1
            if segment.masked_since_stored:
                writes.put(_MASK.pack(b"m", segment.number), segment.mask_bytes())
                segment.masked_since_stored = False
            pieces, masked = segment.stored_pieces, segment.masked
            entries.append(
                _SegmentEntry(number=segment.number, rows=segment.frame.height, pieces=pieces, masked=masked)
            )
        writes.put(_MANIFEST, msgspec.json.encode(_Manifest(segments=entries)))
        self._gone = []
        self._changed = False

    def clear(self) -> None:
        """See ``StateStore``."""
        self._gone += [(segment.number, segment.stored_pieces) for segment in self._segments if segment.stored_pieces]
        self._segments, self._fresh, self._removed, self._removed_due = [], [], [], {}
        self._changed = True

    def entries(self) -> int:
        """See ``StateStore``."""
        return sum(segment.living for _, segment in self._all())

    # -- inside

    def _all(self) -> Iterator[tuple[bool, Segment]]:
        """All segments, oldest first, and whether the changelog has been told of them."""
        yield from ((True, segment) for segment in self._segments)
        yield from ((False, segment) for segment in self._fresh)

    def _located(self, keys: pl.DataFrame) -> Iterator[tuple[bool, Segment, Places, Places]]:
        """For each segment that has rows of these keys: which keys, and where the rows are."""
        hashes = hashes_of(keys, self._keys)
        order = np.argsort(hashes)  # in their order they are found several times faster
        keys, hashes = keys[order], hashes[order]
        for settled, segment in list(self._all()):
            asked, places = segment.locate(keys, hashes, self._keys, self._keys)
            if len(places):
                yield settled, segment, order[asked], places

    def _drop_empty(self) -> None:
        for segment in self._segments:
            if not segment.living:
                self._leave(segment)
        self._segments = [segment for segment in self._segments if segment.living]
        self._fresh = [segment for segment in self._fresh if segment.living]

    def _segment(self, rows: pl.DataFrame) -> Segment:
        number = self._next_number
        self._next_number += 1
        return Segment(number, rows, self._due)

    def _joined(self, segments: list[Segment]) -> list[Segment]:
        """One segment of what is left in several."""
        living = [segment.alive() for segment in segments if segment.living]
        if len(segments) == 1 and segments[0].living == segments[0].frame.height:
            return segments
        return [self._segment(concat_rows(living))] if living else []

    def _compacted(self, segment: Segment) -> Segment:
        """The segment without the rows that are gone, if that is worth it."""
        if segment.stored_pieces and 2 * segment.living >= segment.frame.height:
            return segment
        if segment.living == segment.frame.height:
            return segment
        self._leave(segment)
        return self._segment(segment.alive())

    def _push(self, segment: Segment) -> None:
        self._changed = True
        self._segments.append(segment)
        while len(self._segments) > 1:
            older, newer = self._segments[-2:]
            if older.living >= 2 * newer.living or older.living + newer.living > _MERGED_ROWS_MAX:
                break
            self._leave(older)
            self._leave(newer)
            self._segments[-2:] = self._joined([older, newer])

    def _leave(self, segment: Segment) -> None:
        if segment.stored_pieces:
            self._gone.append((segment.number, segment.stored_pieces))

    def _loaded(self, view: View, entry: _SegmentEntry) -> Segment:
        values = [view.get(_PIECE.pack(b"r", entry.number, piece)) for piece in range(entry.pieces)]
        mask = view.get(_MASK.pack(b"m", entry.number)) if entry.masked else None
        found = [value for value in values if value is not None]
        if len(found) < entry.pieces or (entry.masked and mask is None):
            raise CorruptLogError(
                f"store {self._id!r}: a part of segment {entry.number} is missing in the local state",
                hint="delete the task's local state: it is rebuilt from the changelog",
            )
        rows = self._conform(concat_rows([decode_rows(value, checked=True) for value in found]))
        segment = Segment(entry.number, rows, self._due, mask)
        segment.stored_pieces = entry.pieces
        return segment


def _as_they_are(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


def _gathered(found: list[tuple[pl.DataFrame, Places]]) -> Iterator[pl.DataFrame]:
    """The rows at these places, small lots together."""
    found.reverse()
    waiting: list[pl.DataFrame] = []
    while found:  # a segment's rows go when they have been read
        frame, places = found.pop()
        for start in range(0, len(places), _TAKEN_ROWS_MAX):
            waiting.append(frame[places[start : start + _TAKEN_ROWS_MAX]])
            if sum(rows.height for rows in waiting) >= _TAKEN_ROWS_MAX:
                yield concat_rows(waiting)
                waiting = []
    if waiting:
        yield concat_rows(waiting)


def _pieces(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    return iter(rows.iter_slices(_PIECE_ROWS_MAX))

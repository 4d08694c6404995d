"""Keyed rows: columnar state that is looked up by key, replaced, and asked what is due.

Where ``Runs`` merges partial results without ever looking, some operators must know what came before: sessions grow
into each other, a pane needs to know how many messages its window has had. They *take* the rows of a batch's keys (or
the rows that are due), change them, and *put* them back: three columnar steps, no Python per key.

Rows live in *segments* (``stores.segment``): rows that never change, in the order of their keys' hashes, with a mask of
those that are still there; so a look-up is a binary search, and equal hashes are told apart by comparing the keys.
Segments of like size are merged, as in a log-structured merge tree. In memory a row costs 17 bytes, and what of its
columns there is room for (``stores.pieces``).

What the changelog is told is what a commit's end differs from its beginning by: rows that are gone (by their identity
columns, or because they were due), rows that are new. On disk a segment is some values of the local database; its mask
is one more, so taking a few rows out of a large segment writes bits, not rows. A restart reads the manifest alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import polars as pl
from typing_extensions import override

from headrace.core.errors import CorruptLogError
from headrace.serdes.hashing import Hashes
from headrace.serdes.ipc import concat_rows, decode_rows, encode_rows
from headrace.stores.base import StateStore, View, Writes
from headrace.stores.conform import other_form
from headrace.stores.pieces import VALUE_ROWS_MAX, Kept, Pieces, Places
from headrace.stores.segment import Segment, hashes_of, ranges

_ADD = b"\x01"
_REMOVE = b"\x02"
_REMOVE_DUE = b"\x03"
_REMOVE_ALL = b"\x04"
_FORM = b"\x05"
_DUE = struct.Struct(">Bq")
_FRESH_SEGMENTS_MAX = 8
_TAKEN_ROWS = 1 << 16
_MERGED_ROWS_MAX = 1 << 20
"""Segments are not merged beyond this size: a merge must stay short and fit into memory, however large the state is."""

_MANIFEST = b"manifest"
_MANIFEST_FORMAT = 3
_FORMAT_WITHOUT_SLICES = 2
_PIECE_OF_FORMAT_1 = struct.Struct(">cQI")
_MASK_OF_FORMAT_1 = struct.Struct(">cQ")


class _SegmentEntry(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    heights: list[int]
    living: int
    lows: list[int]
    masked: bool


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = _MANIFEST_FORMAT
    segments: list[_SegmentEntry]
    form: str = ""


class _EntryOfFormat1(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    rows: int
    pieces: int
    masked: bool


class _ManifestOfFormat1(msgspec.Struct, frozen=True, kw_only=True):
    segments: list[_EntryOfFormat1]


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    format: int


_MANIFEST_DECODER = msgspec.json.Decoder(_Manifest)
_DECODER_OF_FORMAT_1 = msgspec.json.Decoder(_ManifestOfFormat1)
_FORMAT_DECODER = msgspec.json.Decoder(_Format)


class KeyedRows(StateStore):
    """Rows by key, of which a key may have several.

    ``keys`` are the columns that rows are looked up by, ``row`` those beside them that tell the rows of one key apart.
    ``due`` are Int64 columns without nulls: each row can be asked for from that moment on. ``conform`` makes rows that
    an earlier version of the app put what this one declares, or refuses them. ``in_memory``: rows stay there once read.

    ``form`` says how the rows are kept, where they don't say so themselves. It is kept before them, and ``check`` is
    told what was kept before any of them is read.
    """

    def __init__(
        self,
        id_: str,
        keys: Sequence[str],
        row: Sequence[str],
        due: Sequence[str],
        conform: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
        *,
        in_memory: bool = False,
        form: str = "",
        check: Callable[[str], None] | None = None,
    ) -> None:
        self._id = id_
        self._conform = conform
        self._in_memory = in_memory
        self._form = form
        self._check = check
        self._kept_form = ""
        self._keys = list(keys)
        self._row = [*keys, *row]
        self._due = list(due)
        self._kept = Kept(id_, None, conform, in_memory=in_memory, sliced=not in_memory)
        self._segments: list[Segment] = []
        self._fresh: list[Segment] = []
        self._removed: list[pl.DataFrame] = []
        self._removed_due: dict[str, int] = {}
        self._removed_all = False
        self._gone: list[Segment] = []
        self._keys_of_format_1: list[bytes] = []
        self._next_number = 0
        self._changed = False

    @property
    @override
    def id(self) -> str:
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
        keys, hashes, _ = self._in_order(keys)
        frames = []
        for settled, segment in self._all():
            found = segment.find(keys, hashes, self._keys)
            if found is not None:
                places, rows, _ = found
                frames.append(rows)
                segment.kill(places)
                if settled:
                    self._removed.append(rows.select(self._row))
                    self._changed = True
        self._drop_empty()
        return concat_rows(frames) if frames else None

    def find(self, keys: pl.DataFrame) -> Iterator[tuple[Places, pl.DataFrame]]:
        """The rows of these keys (each may be named often), which stay: places in ``keys``, and the row of each."""
        wanted, hashes, order = self._in_order(keys)
        for _, segment in self._all():
            found = segment.find(wanted, hashes, self._keys)
            if found is not None:
                _, rows, asked = found
                yield order[asked], rows

    def take_due(self, column: str, bound: int) -> Iterator[pl.DataFrame]:
        """Remove and return all rows whose ``column`` is ``bound`` or less, in frames of some ten thousand rows.

        They are gone when this returns, read or not. They have to be read before the next ``persist``.
        """
        found: list[tuple[Segment, Places]] = []
        for settled, segment in self._all():
            if segment.low(column) > bound:
                continue
            places = segment.due(column, bound)
            found.append((segment, places))
            segment.kill(places)
            if settled:
                self._removed_due[column] = max(bound, self._removed_due.get(column, bound))
                self._changed = True
        self._drop_empty()
        return _gathered(found)

    def take_all(self) -> Iterator[pl.DataFrame]:
        """Remove and return everything; no key is in two of the frames. See ``take_due``."""
        found = [segment for _, segment in self._all()]
        self.clear()
        self._removed_all = True
        return ranges(found) if found else iter(())

    def earliest(self, column: str) -> int | None:
        """The lowest value of a ``due`` column; None without rows."""
        return min((segment.low(column) for _, segment in self._all() if segment.living), default=None)

    def scan(self) -> pl.DataFrame | None:
        """Everything held; for inspection."""
        frames = list(self.frames())
        return concat_rows(frames) if frames else None

    def frames(self) -> Iterator[pl.DataFrame]:
        """Everything held, a piece after the other."""
        return (rows for _, segment in self._all() for rows in segment.alive())

    # -- the changelog

    @override
    def take_changes(self, version: int) -> list[bytes]:
        del version  # a row is the same in whichever commit it becomes true
        changes = [_REMOVE_ALL] if self._removed_all else []
        changes += [_REMOVE_DUE + _DUE.pack(self._due.index(c), bound) for c, bound in self._removed_due.items()]
        self._removed_due, self._removed_all = {}, False
        if self._removed:
            changes += [_REMOVE + encode_rows(part) for part in _portions(concat_rows(self._removed))]
            self._removed = []
        for segment in self._joined(self._fresh):
            changes += [_ADD + encode_rows(part) for rows in segment.alive() for part in _portions(rows)]
            self._push(segment)
        self._fresh = []
        if changes and self._kept_form != self._form:
            changes.insert(0, _FORM + self._form.encode())
            self._kept_form = self._form
        return changes

    @override
    def apply(self, change: bytes) -> None:
        operation, body = change[:1], change[1:]
        if operation == _ADD:
            self._push(self._segment(self._kept.conform(decode_rows(body))))
        elif operation == _REMOVE:
            rows, hashes, _ = self._in_order(decode_rows(body))
            for segment in self._segments:
                found = segment.find(rows, hashes, self._row)
                if found is not None:
                    segment.kill(found[0])
            self._changed = True
        elif operation == _REMOVE_DUE:
            number, bound = _DUE.unpack(body)
            for segment in self._segments:
                if segment.low(self._due[number]) <= bound:
                    segment.kill(segment.due(self._due[number], bound))
            self._changed = True
        elif operation == _REMOVE_ALL:
            self.clear()
        elif operation == _FORM:
            self._take_form(body.decode())
            self._changed = True
        else:
            raise CorruptLogError(
                f"store {self._id!r}: unknown change format {operation!r} in the changelog",
                hint="the changelog was written by a newer Headrace; upgrade this one",
            )

    # -- the local database

    @override
    def attach(self, view: View) -> None:
        self._kept = Kept(self._id, view, self._conform, in_memory=self._in_memory, sliced=not self._in_memory)
        data = view.get(_MANIFEST)
        if data is None:
            if next(view.scan(b""), None) is not None:
                raise other_form(self._id)
            return
        format_ = _FORMAT_DECODER.decode(data).format
        if format_ == 1:
            self._attach_format_1(view, _DECODER_OF_FORMAT_1.decode(data))
            return
        if format_ not in (_FORMAT_WITHOUT_SLICES, _MANIFEST_FORMAT):
            raise CorruptLogError(
                f"store {self._id!r}: local state of format {format_}; this Headrace reads 1 to {_MANIFEST_FORMAT}",
                hint="upgrade Headrace, or delete the local state: it is rebuilt from the changelog",
            )
        manifest = _MANIFEST_DECODER.decode(data)
        self._take_form(manifest.form)
        for e in manifest.segments:
            pieces = Pieces(self._kept, e.number, e.heights)
            if self._conform is not None:  # rows that don't fit are to be found out at once
                next(pieces.all(), None)
            segment = Segment(self._kept, pieces, self._due, None, living=e.living, lows=e.lows, masked=e.masked)
            self._segments.append(segment)
        self._next_number = max((entry.number + 1 for entry in manifest.segments), default=0)

    def _attach_format_1(self, view: View, manifest: _ManifestOfFormat1) -> None:
        """Read what an older Headrace wrote; the next commit writes it anew."""
        for entry in manifest.segments:
            keys = [_PIECE_OF_FORMAT_1.pack(b"r", entry.number, piece) for piece in range(entry.pieces)]
            values = [view.get(key) for key in keys]
            rows = concat_rows([decode_rows(value, checked=True) for value in values if value is not None])
            mask = _MASK_OF_FORMAT_1.pack(b"m", entry.number)
            bits = view.get(mask) if entry.masked else None
            if rows.height != entry.rows or (entry.masked and bits is None):
                raise CorruptLogError(
                    f"store {self._id!r}: a part of segment {entry.number} is missing in the local state",
                    hint="delete the task's local state: it is rebuilt from the changelog",
                )
            self._keys_of_format_1 += [*keys, mask]
            if bits is not None:
                alive = np.unpackbits(np.frombuffer(bits, np.uint8), count=rows.height)
                rows = rows.filter(pl.Series(alive.astype(np.bool_)))
            if rows.height:
                self._push(self._segment(self._kept.conform(rows)))

    @override
    def persist(self, writes: Writes) -> None:
        if not self._changed:
            return
        self._drop_empty()
        self._segments = [self._compacted(segment) for segment in self._segments]
        for key in self._keys_of_format_1:
            writes.delete(key)
        for segment in self._gone:
            segment.erase(writes)
        entries = []
        for segment in self._segments:
            segment.write(writes)
            lows = [segment.low(column) for column in self._due]
            pieces = segment.pieces
            entries.append(
                _SegmentEntry(
                    number=pieces.number,
                    heights=pieces.heights,
                    living=segment.living,
                    lows=lows,
                    masked=segment.masked,
                )
            )
        writes.put(_MANIFEST, msgspec.json.encode(_Manifest(segments=entries, form=self._kept_form)))
        self._gone, self._keys_of_format_1 = [], []
        self._changed = False

    @override
    def clear(self) -> None:
        for segment in self._segments:
            self._leave(segment)
        self._segments, self._fresh, self._removed, self._removed_due = [], [], [], {}
        self._removed_all = False
        self._kept_form = ""
        self._changed = True

    @override
    def entries(self) -> int:
        return sum(segment.living for _, segment in self._all())

    # -- inside

    def _take_form(self, form: str) -> None:
        if form and self._check is not None:
            self._check(form)
        self._kept_form = form

    def _all(self) -> Iterator[tuple[bool, Segment]]:
        """All segments, oldest first, and whether the changelog has been told of them."""
        yield from ((True, segment) for segment in self._segments)
        yield from ((False, segment) for segment in self._fresh)

    def _in_order(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, Hashes, Places]:
        """Rows in the order of their keys' hashes, these, and the places that they had."""
        hashes = hashes_of(rows, self._keys)
        order = np.argsort(hashes)
        return rows[order], hashes[order], order

    def _drop_empty(self) -> None:
        for segment in self._segments:
            if not segment.living:
                self._leave(segment)
        self._segments = [segment for segment in self._segments if segment.living]
        self._fresh = [segment for segment in self._fresh if segment.living]

    def _segment(self, rows: pl.DataFrame) -> Segment:
        return Segment.of(self._kept, self._number(), rows, self._keys, self._due)

    def _joined(self, segments: list[Segment]) -> list[Segment]:
        """One segment of what is left in several."""
        living = [segment for segment in segments if segment.living]
        if not living or (len(living) == 1 and not living[0].masked):
            return living
        return [Segment.joined(self._kept, self._number(), living, self._due)]

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _compacted(self, segment: Segment) -> Segment:
        """The segment without the rows that are gone, if that is worth it."""
        if 2 * segment.living >= segment.pieces.rows:
            return segment
        self._leave(segment)
        return Segment.joined(self._kept, self._number(), [segment], self._due)

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
        if segment.pieces.stored:
            self._gone.append(segment)


def _gathered(found: list[tuple[Segment, Places]]) -> Iterator[pl.DataFrame]:
    """The rows at these places, small lots together."""
    waiting: list[pl.DataFrame] = []
    number = 0
    for segment, places in found:
        for rows in segment.rows(places):
            waiting.append(rows)
            number += rows.height
            if number >= _TAKEN_ROWS:
                yield concat_rows(waiting)
                waiting, number = [], 0
    if waiting:
        yield concat_rows(waiting)


def _portions(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    return iter(rows.iter_slices(VALUE_ROWS_MAX))

"""Keyed rows: columnar state that is looked up by key, replaced, and asked for what is due.

``Runs`` merges partial results without a look-up. Some operators must know what came before: sessions grow into each
other, and a pane needs to know how many messages its window has had. They *take* the rows of a batch's keys (or the
rows that are due), change them, and *put* them back: three columnar steps without Python per key.

Rows are in *segments* (``stores.segment``): rows that never change, in the order of their keys' hashes, with a mask of
those that are still alive. A look-up is a binary search; rows whose hashes are equal by chance are told apart by their
keys. Segments of like size are merged (``stores.tiers``). In memory a row costs 17 bytes, and as much of its columns
as there is room for (``stores.pieces``).

The changelog receives the difference between one commit and the next: rows that were removed (by their identity
columns, or because they were due) and rows that are new. On disk a segment is some values of the local database. Its
mask is one more, so taking a few rows out of a large segment writes bits, not rows. A restart reads the manifest alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import polars as pl
from typing_extensions import override

from headrace.serdes.hashing import Hashes
from headrace.serdes.ipc import decode_rows, encode_rows
from headrace.serdes.rows import concat_rows
from headrace.stores.base import StateStore, View, Writes
from headrace.stores.form import StateForm
from headrace.stores.lots import EMPTY, Crowd, crowd, lot_rows
from headrace.stores.pieces import VALUE_ROWS_MAX, Kept, Pieces, Places
from headrace.stores.portions import rows_in_portions
from headrace.stores.readable import readable
from headrace.stores.segment import Segment, hashes_of, ranges
from headrace.stores.share import Share
from headrace.stores.tiers import Manifest, Tiers, unknown_change

_ADD = b"\x01"
_REMOVE = b"\x02"
_REMOVE_DUE = b"\x03"
_REMOVE_ALL = b"\x04"
_DUE = struct.Struct(">Bq")
_FRESH_SEGMENTS_MAX = 8
_MERGED_ROWS_MAX = 1 << 20
_FORMAT = 4


class _SegmentEntry(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    heights: list[int]
    living: int
    lows: list[int]
    masked: bool


class _Manifest(Manifest, frozen=True, kw_only=True):
    format: int = _FORMAT
    segments: list[_SegmentEntry]


class KeyedRows(StateStore):
    """Rows by key. A key may have several rows.

    ``keys`` are the columns that rows are looked up by; ``row`` are the other columns that identify a row of a key.
    ``due`` are Int64 columns without nulls: a row can be asked for from that moment on. ``conform`` turns rows that an
    earlier version of the app put into rows of this version, or refuses them. ``form`` is that of the rows.
    ``in_memory``: rows stay in memory once they were read. ``shown`` turns rows into what people read.
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
        form: StateForm | None = None,
        shown: Callable[[pl.DataFrame], pl.DataFrame] = readable,
    ) -> None:
        self._id = id_
        self._shown = shown
        self._keys = list(keys)
        self._row = [*keys, *row]
        self._due = list(due)
        self._kept = Kept(id_, None, conform, in_memory=in_memory, sliced=not in_memory)
        self._tiers: Tiers[Segment] = Tiers(self._kept, _MERGED_ROWS_MAX, self._joined, form)
        self._fresh: list[Segment] = []
        self._removed: list[pl.DataFrame] = []
        self._removed_due: dict[str, int] = {}
        self._removed_all = False

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
        """Remove and return all rows of these distinct keys, oldest first; None if there are none."""
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
                    self._tiers.changed = True
        self._drop_empty()
        return concat_rows(frames) if frames else None

    def find(self, keys: pl.DataFrame) -> Iterator[tuple[Places, pl.DataFrame]]:
        """Yield the rows of these keys (which may repeat): places in ``keys``, and the row of each. The rows stay."""
        wanted, hashes, order = self._in_order(keys)
        for _, segment in self._all():
            found = segment.find(wanted, hashes, self._keys)
            if found is not None:
                _, rows, asked = found
                yield order[asked], rows

    def take_due(self, column: str, bound: int) -> Iterator[pl.DataFrame]:
        """Remove and return all rows whose ``column`` is ``bound`` or less, in frames of a piece at most.

        The rows are removed when this returns, read or not. The caller must read them before the next ``persist``.
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
                self._tiers.changed = True
        self._drop_empty()
        return (rows for segment, places in found for rows in segment.rows(places))

    def crowd(self, column: str, bound: int) -> Crowd:
        """How many rows have each value of ``column`` up to ``bound``; empty if all fit in one lot."""
        if self.entries() <= lot_rows():
            return EMPTY
        due = (segment for _, segment in self._all() if segment.low(column) <= bound)
        return crowd(pl.Series(segment.when_due(column, bound)) for segment in due)

    def take_all(self) -> Iterator[pl.DataFrame]:
        """Remove and return all rows, in frames that share no keys. Read them like those of ``take_due``."""
        found = [segment for _, segment in self._all()]
        self._forget_rows()
        self._removed_all = True
        return ranges(found) if found else iter(())

    def earliest(self, column: str) -> int | None:
        """The lowest value of a ``due`` column; None without rows."""
        return min((segment.low(column) for _, segment in self._all() if segment.living), default=None)

    def scan(self) -> pl.DataFrame | None:
        """Everything held; for inspection."""
        frames = list(self.held())
        return concat_rows(frames) if frames else None

    def held(self) -> Iterator[pl.DataFrame]:
        """Everything held, piece by piece."""
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
            self._tiers.push(segment)
        self._fresh = []
        return [*self._tiers.form_change(), *changes] if changes else changes

    @override
    def apply(self, change: bytes) -> None:
        operation, body = change[:1], change[1:]
        if self._tiers.apply_form(operation, body):
            return
        if operation == _ADD:
            self._tiers.push(self._segment(self._kept.conform(decode_rows(body))))
        elif operation == _REMOVE:
            rows, hashes, _ = self._in_order(decode_rows(body))
            for segment in self._tiers.parts:
                found = segment.find(rows, hashes, self._row)
                if found is not None:
                    segment.kill(found[0])
            self._tiers.changed = True
        elif operation == _REMOVE_DUE:
            number, bound = _DUE.unpack(body)
            for segment in self._tiers.parts:
                if segment.low(self._due[number]) <= bound:
                    segment.kill(segment.due(self._due[number], bound))
            self._tiers.changed = True
        elif operation == _REMOVE_ALL:
            self._forget_rows()
        else:
            raise unknown_change(self._id, operation)

    @override
    def whole(self, share: Share | None = None) -> Iterator[bytes]:
        yield from self._tiers.whole_form()
        for segment in self._tiers.parts:
            rows = segment.alive_once()
            mine = rows if share is None else (share.of(self._id, part) for part in rows)
            for part in rows_in_portions(mine, VALUE_ROWS_MAX):
                yield _ADD + encode_rows(part)

    @override
    def frames(self) -> Iterator[pl.DataFrame]:
        return (self._shown(rows) for segment in self._tiers.parts for rows in segment.alive_once())

    # -- the local database

    @override
    def attach(self, view: View) -> None:
        manifest = self._tiers.attach(view, _Manifest, _FORMAT)
        if manifest is not None:
            self._tiers.restore([self._attached(entry) for entry in manifest.segments])

    def _attached(self, entry: _SegmentEntry) -> Segment:
        pieces = Pieces(self._kept, entry.number, entry.heights)
        if self._tiers.other_columns:  # refuse rows that don't fit now, not when they are first read
            next(pieces.all(), None)
        return Segment(self._kept, pieces, self._due, None, living=entry.living, lows=entry.lows, masked=entry.masked)

    @override
    def persist(self, writes: Writes) -> None:
        if self._tiers.changed:
            self._drop_empty()
            self._tiers.replace([self._compacted(segment) for segment in self._tiers.parts])
            self._tiers.persist(writes, self._manifest)

    def _manifest(self) -> _Manifest:
        entries = [
            _SegmentEntry(
                number=segment.pieces.number,
                heights=segment.pieces.heights,
                living=segment.living,
                lows=[segment.low(column) for column in self._due],
                masked=segment.masked,
            )
            for segment in self._tiers.parts
        ]
        return _Manifest(segments=entries, form=self._tiers.kept_form)

    @override
    def clear(self) -> None:
        self._forget_rows()
        self._tiers.kept_form = None

    @override
    def entries(self) -> int:
        return sum(segment.living for _, segment in self._all())

    # -- inside

    def _forget_rows(self) -> None:
        self._tiers.clear()
        self._fresh, self._removed, self._removed_due = [], [], {}
        self._removed_all = False

    def _all(self) -> Iterator[tuple[bool, Segment]]:
        """All segments, oldest first, and whether they are in the changelog."""
        yield from ((True, segment) for segment in self._tiers.parts)
        yield from ((False, segment) for segment in self._fresh)

    def _in_order(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, Hashes, Places]:
        """The rows in the order of their keys' hashes, the hashes, and the places that the rows had."""
        hashes = hashes_of(rows, self._keys)
        order = np.argsort(hashes)
        return rows[order], hashes[order], order

    def _drop_empty(self) -> None:
        self._tiers.replace([segment for segment in self._tiers.parts if segment.living])
        self._fresh = [segment for segment in self._fresh if segment.living]

    def _segment(self, rows: pl.DataFrame) -> Segment:
        return Segment.of(self._kept, self._tiers.number(), rows, self._keys, self._due)

    def _joined(self, segments: Sequence[Segment]) -> list[Segment]:
        """Merge the rest of several segments into one."""
        living = [segment for segment in segments if segment.living]
        if not living or (len(living) == 1 and not living[0].masked):
            return living
        return [Segment.joined(self._kept, self._tiers.number(), living, self._due)]

    def _compacted(self, segment: Segment) -> Segment:
        """The segment, rewritten if less than half of its rows are left."""
        if 2 * segment.living >= segment.pieces.rows:
            return segment
        return Segment.joined(self._kept, self._tiers.number(), [segment], self._due)


def _portions(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    return iter(rows.iter_slices(VALUE_ROWS_MAX))

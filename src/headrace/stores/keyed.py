"""Keyed rows: columnar state that is looked up by key, replaced, and asked for what is due.

Operators *take* the rows of a batch's keys (or those that are due), change them, and *put* them back: three columnar
steps without Python per key. Rows are in *segments*, which never change, in the order of their keys' hashes, with a
mask of those that are still alive. A look-up is a binary search; rows whose hashes are equal by chance are told apart
by their keys. The hash of each row's key, its due columns and its mask are in memory: 17 bytes a row with one due
column.

Where a key may have very many rows, of which some are removed, the last 24 bits of a hash are those of the whole row.
So the rows of a key are neighbours, and one of them is found without the others.

The changelog receives rows that were removed (by their identity columns, or because they were due) and rows that are
new. On disk the mask of a segment is one value, so taking a few rows out of a large segment writes bits, not rows.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.core.errors import CorruptLogError
from headrace.rows.given import concat_rows, rows_where
from headrace.rows.hashing import Hashes, hash_rows
from headrace.rows.ipc import decode_rows, encode_rows
from headrace.stores.base import Share, StateForm, StateStore, View, Writes, readable, rows_in_portions, unknown_change
from headrace.stores.encoding import Mask
from headrace.stores.matching import spread
from headrace.stores.pieces import VALUE_ROWS_MAX, Kept, PieceRows, Pieces, Places, bits_for, together
from headrace.stores.tiers import EMPTY, Crowd, Manifest, Tiers, crowd, lot_rows

NEVER_DUE = 2**63 - 1
_HASH = "__hash of a row"
_INDEX = struct.Struct(">cQI")
_MASK = struct.Struct(">cQ")


_OF_ROW = np.uint64(2**24 - 1)


def hashes_of(rows: pl.DataFrame, keys: Sequence[str]) -> Hashes:
    return hash_rows(rows, keys) if keys else np.zeros(rows.height, np.uint64)


def _hashes_of_rows(rows: pl.DataFrame, columns: Sequence[str]) -> Hashes:
    """A null adds nothing, so a column that a later version of the app adds changes no hash."""
    total = np.zeros(rows.height, np.uint64)
    for name in columns:
        factor = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") | 1
        there = rows.get_column(name).is_not_null().to_numpy()
        total += hash_rows(rows, [name]) * np.uint64(factor) * there
    return total


@dataclass(slots=True)
class _Index:
    """The facts about each row. ``alive``: which rows are; None: all."""

    hashes: Hashes
    due: dict[str, npt.NDArray[np.int64]]
    alive: npt.NDArray[np.bool_] | None = None


@dataclass(slots=True, eq=False)
class _Segment:
    """``lows``: the lowest value of each due column, if known. Without ``known`` the index is in the database."""

    kept: Kept
    pieces: Pieces
    columns: Sequence[str]
    known: _Index | None
    living: int
    lows: dict[str, int] | None
    masked: bool = False  # some of its rows are dead
    _masked_since_stored: bool = False

    @classmethod
    def of(cls, kept: Kept, number: int, rows: pl.DataFrame, hashes: Hashes, due: Sequence[str]) -> _Segment:
        hashed = rows.with_columns(pl.Series(_HASH, hashes, dtype=pl.UInt64))
        return cls._of_parts(kept, number, _cut(hashed.sort(_HASH, maintain_order=True), bits_for(rows.height)), due)

    @classmethod
    def joined(cls, kept: Kept, number: int, segments: Sequence[_Segment], due: Sequence[str]) -> _Segment:
        parts = [None if part is None else part.sort(_HASH, maintain_order=True) for part in _ranges(segments)]
        return cls._of_parts(kept, number, parts, due)

    @classmethod
    def _of_parts(cls, kept: Kept, number: int, parts: Sequence[PieceRows], due: Sequence[str]) -> _Segment:
        filled = [part for part in parts if part is not None]
        index = _Index(
            np.concatenate([part.get_column(_HASH).to_numpy() for part in filled]),
            {column: np.concatenate([part.get_column(column).to_numpy() for part in filled]) for column in due},
        )
        bare = [None if part is None else part.drop(_HASH) for part in parts]
        lows = {column: int(values.min()) for column, values in index.due.items()}
        return cls(kept, Pieces.of(kept, number, bare), due, index, len(index.hashes), lows)

    def low(self, column: str) -> int:
        if self.lows is None:
            index = self.index
            self.lows = {}
            for name, values in index.due.items():
                living = values if index.alive is None else values[index.alive]
                self.lows[name] = int(living.min()) if len(living) else NEVER_DUE
        return self.lows[column]

    def find(
        self,
        wanted: pl.DataFrame,
        hashes: Hashes,
        same: Sequence[str],
        last: Hashes | None = None,
        *,
        one: bool = False,
    ) -> tuple[Places, pl.DataFrame, Places] | None:
        """The live rows that match one of ``wanted`` (a null matches a null): places, rows, places in ``wanted``.

        With ``last``, hashes from ``hashes`` to these match. ``one``: of each of ``wanted``, one row is enough.
        """
        # For example, with index.hashes 3 3 5 8 and hashes 3 4 8: ``starts`` is 0 2 3; ``hits`` is 0 2, for 4 isn't
        # there; of these, ``starts`` is 0 3 and ``counts`` 2 1. So ``places`` is 0 1 3 and ``of_wanted`` 0 0 2.
        if not self.living:
            return None
        index = self.index
        starts = np.searchsorted(index.hashes, hashes, "left")
        there = index.hashes[np.minimum(starts, len(index.hashes) - 1)]
        hits = np.flatnonzero(there == hashes if last is None else (there >= hashes) & (there <= last))
        starts = starts[hits]
        counts = np.searchsorted(index.hashes, (hashes if last is None else last)[hits], "right") - starts
        of_wanted = np.repeat(hits, counts)
        places = spread(starts, counts)
        if index.alive is not None:
            living = index.alive[places]
            places, of_wanted = places[living], of_wanted[living]
        if not len(places):
            return None
        every = places, of_wanted
        if one:
            first = np.append(True, of_wanted[1:] != of_wanted[:-1])
            places, of_wanted = places[first], of_wanted[first]
        found = self._agreeing(places, of_wanted, wanted, same)
        if one and (found is None or len(found[0]) < len(places)):  # another key has the same hash
            return self._agreeing(*every, wanted, same)
        return found

    def _agreeing(
        self, places: Places, of_wanted: Places, wanted: pl.DataFrame, same: Sequence[str]
    ) -> tuple[Places, pl.DataFrame, Places] | None:
        order = np.argsort(places, kind="stable")
        places, of_wanted = places[order], of_wanted[order]
        rows = concat_rows(list(self.rows(places)))
        agree = np.ones(len(places), np.bool_)
        for column in same:
            equal = rows.get_column(column).eq_missing(wanted.get_column(column).gather(of_wanted))
            agree &= equal.to_numpy()
        if agree.all():
            return places, rows, of_wanted
        return (places[agree], rows_where(rows, pl.Series(agree)), of_wanted[agree]) if agree.any() else None

    def due(self, column: str, bound: int) -> Places:
        hit = self.index.due[column] <= bound
        alive = self.index.alive
        places: Places = np.flatnonzero(hit if alive is None else hit & alive)
        return places

    def rows(self, places: Places) -> Iterator[pl.DataFrame]:
        """``places`` ascend, and may repeat."""
        return (rows if within is None else rows[within] for rows, within in self.pieces.at(places))

    def alive(self) -> Iterator[pl.DataFrame]:
        mask = self.index.alive
        return self.pieces.all() if mask is None else self.rows(np.flatnonzero(mask))

    def alive_once(self) -> Iterator[pl.DataFrame]:
        """The rows alive, for a reader that reads them once: neither they nor the facts about them stay in memory."""
        mask = None
        if self.masked:
            mask = self._read_mask() if self.known is None else self.known.alive
        begin = 0
        for rows in self.pieces.all(once=True):
            yield rows if mask is None else rows_where(rows, pl.Series(mask[begin : begin + rows.height]))
            begin += rows.height

    def kill(self, places: Places) -> None:
        """No place may repeat."""
        if not len(places):
            return
        index = self.index
        if index.alive is None:
            index.alive = np.ones(self.pieces.rows, np.bool_)
        index.alive[places] = False
        self.living -= len(places)
        self.masked = self._masked_since_stored = True
        lows, due = self.lows, index.due
        if lows is not None and any(int(values[places].min()) <= lows[name] for name, values in due.items()):
            self.lows = None

    @property
    def index(self) -> _Index:
        if self.known is None:
            self.known = self._read_index()
        return self.known

    def write(self, writes: Writes) -> None:
        number = self.pieces.number
        if not self.pieces.stored:
            begin = 0
            for piece, end in enumerate(np.cumsum(self.pieces.heights).tolist()):
                columns = [self.index.hashes, *self.index.due.values()]
                if end > begin:
                    little = (column.astype(column.dtype.newbyteorder("<"), copy=False) for column in columns)
                    value = b"".join(column[begin:end].tobytes() for column in little)
                    writes.put(_INDEX.pack(b"i", number, piece), value)
                begin = end
            self.pieces.write(writes)
        if self._masked_since_stored and self.index.alive is not None:
            writes.put(_MASK.pack(b"m", number), np.packbits(self.index.alive).tobytes())
            self._masked_since_stored = False

    def erase(self, writes: Writes) -> None:
        for piece in range(len(self.pieces)):
            writes.delete(_INDEX.pack(b"i", self.pieces.number, piece))
        writes.delete(_MASK.pack(b"m", self.pieces.number))
        self.pieces.erase(writes)

    def _read_index(self) -> _Index:
        number, heights = self.pieces.number, self.pieces.heights
        parts = []
        for piece, height in enumerate(heights):
            if height:
                value = self._read(_INDEX.pack(b"i", number, piece), 8 * height * (1 + len(self.columns)))
                parts.append(np.frombuffer(value, "<u8").reshape(-1, height))
        columns = np.concatenate(parts, axis=1) if parts else np.empty((1 + len(self.columns), 0), np.uint64)
        due = {column: values.view(np.int64) for column, values in zip(self.columns, columns[1:], strict=True)}
        index = _Index(columns[0], due)
        if self.masked:
            index.alive = self._read_mask()
        return index

    def _read_mask(self) -> Mask:
        mask = self._read(_MASK.pack(b"m", self.pieces.number), -(-self.pieces.rows // 8))
        return np.unpackbits(np.frombuffer(mask, np.uint8), count=self.pieces.rows).astype(np.bool_)

    def _read(self, key: bytes, size: int) -> bytes:
        value = None if self.kept.view is None else self.kept.view.get(key)
        if value is None or len(value) != size:
            what = f"store {self.kept.store!r}: a part of segment {self.pieces.number} is missing in the local state"
            raise CorruptLogError(what, hint="delete the task's local state: it is rebuilt from the changelog")
        return value


def ranges(segments: Sequence[_Segment]) -> Iterator[pl.DataFrame]:
    """No two frames share a key."""
    for part in _ranges(segments):
        if part is not None:
            yield part.drop(_HASH)


def _ranges(segments: Sequence[_Segment]) -> Iterator[PieceRows]:
    living = sum(segment.living for segment in segments)
    bits = max([bits_for(living), *(segment.pieces.bits for segment in segments)])
    return together([_dealt(segment, bits) for segment in segments])


def _dealt(segment: _Segment, bits: int) -> Iterator[PieceRows]:
    index, begin = segment.index, 0
    finer = bits - segment.pieces.bits
    for number, height in enumerate(segment.pieces.heights):
        end = begin + height
        rows = segment.pieces.piece(number)
        if rows is None:
            yield from [None] * (1 << finer)
            continue
        rows = rows.with_columns(pl.Series(_HASH, index.hashes[begin:end], dtype=pl.UInt64))
        if index.alive is not None:
            rows = rows.filter(pl.Series(index.alive[begin:end]))
        yield from _cut(rows, bits, number << finer, 1 << finer)
        begin = end


def _cut(rows: pl.DataFrame, bits: int, first: int = 0, number: int | None = None) -> list[PieceRows]:
    """Cut rows in the order of their hashes by the first ``bits`` bits: into ``number`` parts, from ``first`` on."""
    number = 1 << bits if number is None else number
    if number == 1:
        return [rows if rows.height else None]
    bounds = (np.arange(first + 1, first + number, dtype=np.uint64)) << np.uint64(64 - bits)
    inner = np.searchsorted(rows.get_column(_HASH).to_numpy(), bounds, "left").tolist()
    cuts = [0, *inner, rows.height]
    return [rows.slice(a, b - a) if b > a else None for a, b in pairwise(cuts)]


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

    ``row`` are the columns that identify a row of a key; ``take_rows`` finds it by a hash of ``by_row``, which are some
    of them. ``due`` are Int64 columns without nulls: a row can be asked for from that moment on. ``conform`` turns rows
    that an earlier version of the app put into rows of this version, or refuses them. ``in_memory``: rows stay in
    memory once they were read. ``shown`` turns rows into what people read.
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
        by_row: Sequence[str] = (),
    ) -> None:
        self.id = id_
        self._shown = shown
        self._keys = list(keys)
        self._row = [*keys, *row]
        self._due = list(due)
        self._by_row = list(by_row)
        self._kept = Kept(id_, None, conform, in_memory=in_memory, sliced=not in_memory)
        self._tiers: Tiers[_Segment] = Tiers(self._kept, _MERGED_ROWS_MAX, self._joined, form)
        self._fresh: list[_Segment] = []
        self._removed: list[pl.DataFrame] = []
        self._removed_due: dict[str, int] = {}
        self._removed_all = False

    def put(self, rows: pl.DataFrame) -> None:
        if not rows.height:
            return
        self._fresh.append(self._segment(rows))
        if len(self._fresh) > _FRESH_SEGMENTS_MAX:
            self._fresh = self._joined(self._fresh)

    def take(self, keys: pl.DataFrame) -> pl.DataFrame | None:
        """Remove and return all rows of these distinct keys, oldest first; None if there are none."""
        keys, hashes, _ = self._in_order(keys)
        frames = []
        gone = np.zeros(keys.height, np.bool_)
        for settled, segment in self._all():
            found = segment.find(keys, hashes, self._keys, self._last(hashes))
            if found is not None:
                places, rows, asked = found
                frames.append(rows)
                segment.kill(places)
                if settled:
                    self._tiers.changed = True
                    if self._row == self._keys:
                        gone[asked] = True
                    else:
                        self._removed.append(rows.select(self._row))
        if gone.any():  # nothing tells the rows of a key apart: all are gone, and its name says so
            self._removed.append(rows_where(keys.select(self._row), pl.Series(gone)))
        self._drop_empty()
        return concat_rows(frames) if frames else None

    def take_rows(self, wanted: pl.DataFrame) -> pl.DataFrame | None:
        """Remove and return the rows that are equal to one of ``wanted`` in key and ``row``. None of these repeat."""
        wanted, hashes, _ = self._in_order(wanted, whole=True)
        frames = []
        gone = np.zeros(wanted.height, np.bool_)
        for settled, segment in self._all():
            found = segment.find(wanted, hashes, self._row)
            if found is not None:
                places, rows, asked = found
                frames.append(rows)
                segment.kill(places)
                if settled:
                    gone[asked] = True
        if gone.any():
            self._removed.append(rows_where(wanted.select(self._row), pl.Series(gone)))
            self._tiers.changed = True
        self._drop_empty()
        return concat_rows(frames) if frames else None

    def find(self, keys: pl.DataFrame, *, one: bool = False) -> Iterator[tuple[Places, pl.DataFrame]]:
        """Yield the rows of these keys (which may repeat): places in ``keys``, and the row of each. The rows stay.

        ``one``: not all rows of a key, but at least one if it has any.
        """
        wanted, hashes, order = self._in_order(keys)
        for _, segment in self._all():
            found = segment.find(wanted, hashes, self._keys, self._last(hashes), one=one)
            if found is not None:
                _, rows, asked = found
                yield order[asked], rows

    def take_due(self, column: str, bound: int) -> Iterator[pl.DataFrame]:
        """Remove and return the rows due at ``bound``; the caller must read them before the next ``persist``."""
        found: list[tuple[_Segment, Places]] = []
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
        if self.entries() <= lot_rows():
            return EMPTY
        due = (segment for _, segment in self._all() if segment.low(column) <= bound)
        return crowd(pl.Series(segment.index.due[column][segment.due(column, bound)]) for segment in due)

    def take_all(self) -> Iterator[pl.DataFrame]:
        """Remove and return all rows, in frames that share no keys. Read them like those of ``take_due``."""
        found = [segment for _, segment in self._all()]
        self._forget_rows()
        self._removed_all = True
        return ranges(found) if found else iter(())

    def earliest(self, column: str) -> int | None:
        return min((segment.low(column) for _, segment in self._all() if segment.living), default=None)

    def scan(self) -> pl.DataFrame | None:
        frames = list(self.held())
        return concat_rows(frames) if frames else None

    def held(self) -> Iterator[pl.DataFrame]:
        return (rows for _, segment in self._all() for rows in segment.alive())

    @override
    def take_changes(self, version: int) -> list[bytes]:
        del version  # a row is the same in whichever commit it becomes true
        changes = [_REMOVE_ALL] if self._removed_all else []
        changes += [_REMOVE_DUE + _DUE.pack(self._due.index(c), bound) for c, bound in self._removed_due.items()]
        self._removed_due, self._removed_all = {}, False
        if self._removed:
            removed = concat_rows(self._removed).iter_slices(VALUE_ROWS_MAX)
            changes += [_REMOVE + encode_rows(part) for part in removed]
            self._removed = []
        for segment in self._joined(self._fresh):
            for rows in segment.alive():
                changes += [_ADD + encode_rows(part) for part in rows.iter_slices(VALUE_ROWS_MAX)]
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
            rows, hashes, _ = self._in_order(decode_rows(body), whole=True)
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
            raise unknown_change(f"store {self.id!r}", operation)

    @override
    def whole(self, share: Share | None = None) -> Iterator[bytes]:
        yield from self._tiers.whole_form()
        for segment in self._tiers.parts:
            rows = segment.alive_once()
            mine = rows if share is None else (share.of(self.id, part) for part in rows)
            for part in rows_in_portions(mine, VALUE_ROWS_MAX):
                yield _ADD + encode_rows(part)

    @override
    def frames(self) -> Iterator[pl.DataFrame]:
        return (self._shown(rows) for segment in self._tiers.parts for rows in segment.alive_once())

    @override
    def attach(self, view: View) -> None:
        manifest = self._tiers.attach(view, _Manifest, _FORMAT)
        if manifest is not None:
            self._tiers.restore([self._attached(entry) for entry in manifest.segments])

    def _attached(self, entry: _SegmentEntry) -> _Segment:
        pieces = Pieces(self._kept, entry.number, entry.heights)
        if self._tiers.other_columns:  # refuse rows that don't fit now, not when they are first read
            next(pieces.all(), None)
        lows = dict(zip(self._due, entry.lows, strict=True))
        return _Segment(self._kept, pieces, self._due, None, entry.living, lows, entry.masked)

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

    def _forget_rows(self) -> None:
        self._tiers.clear()
        self._fresh, self._removed, self._removed_due = [], [], {}
        self._removed_all = False

    def _all(self) -> Iterator[tuple[bool, _Segment]]:
        yield from ((True, segment) for segment in self._tiers.parts)
        yield from ((False, segment) for segment in self._fresh)

    def _hashes(self, rows: pl.DataFrame, *, whole: bool) -> Hashes:
        """``whole``: of rows, else of keys: the lowest one that a row of the key can have."""
        hashes = hashes_of(rows, self._keys)
        if not self._by_row:
            return hashes
        hashes &= ~_OF_ROW
        return hashes | _hashes_of_rows(rows, self._by_row) & _OF_ROW if whole else hashes

    def _last(self, hashes: Hashes) -> Hashes | None:
        return hashes | _OF_ROW if self._by_row else None

    def _in_order(self, rows: pl.DataFrame, *, whole: bool = False) -> tuple[pl.DataFrame, Hashes, Places]:
        hashes = self._hashes(rows, whole=whole)
        order = np.argsort(hashes)
        return rows[order], hashes[order], order

    def _drop_empty(self) -> None:
        self._tiers.replace([segment for segment in self._tiers.parts if segment.living])
        self._fresh = [segment for segment in self._fresh if segment.living]

    def _segment(self, rows: pl.DataFrame) -> _Segment:
        return _Segment.of(self._kept, self._tiers.number(), rows, self._hashes(rows, whole=True), self._due)

    def _joined(self, segments: Sequence[_Segment]) -> list[_Segment]:
        living = [segment for segment in segments if segment.living]
        if not living or (len(living) == 1 and not living[0].masked):
            return living
        return [_Segment.joined(self._kept, self._tiers.number(), living, self._due)]

    def _compacted(self, segment: _Segment) -> _Segment:
        if 2 * segment.living >= segment.pieces.rows:
            return segment
        return _Segment.joined(self._kept, self._tiers.number(), [segment], self._due)

"""Reads the files of partitions as rows, one entry of the file list after another."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, StreamNotFoundError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.core.log import logger
from headrace.serdes.row_pieces import Piece
from headrace.systems.base import BadRecord, Edge, Ended, Polled, Position, Rows
from headrace.systems.files.file_list import ROWS_MAX, Entry, FileList, offset_of, place_of
from headrace.systems.files.rowfile import RowFile
from headrace.systems.files.stock import Follower
from headrace.systems.registered import Reading, RegisteringConsumer

_REMEMBERED = 1000
_log = logger(__name__)

Open = Callable[[Entry], RowFile | None]
"""Opens an entry; None if the file has changed and is listed again, so that this entry is to be passed over."""


@dataclass(slots=True, kw_only=True)
class _Reading(Reading):
    entries: list[Entry]
    """Those of the partition. The list grows."""
    place: int = 0
    open: RowFile | None = None
    rows: int = 0
    """How many row numbers this consumer has passed, in how many bytes of finished entries: for estimates."""
    bytes: int = 0
    begun: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """The latest places, with ``rows`` at their beginning."""


class FilesConsumer(RegisteringConsumer[_Reading]):
    """Reads files as rows. An offset says the place of an entry in its partition, and a row of it.

    ``refresh`` reads what was appended to the list; it is called every ``refresh_s`` unless the list has ended.
    ``follow`` starts a follower, once partition 0 is read here.
    """

    def __init__(
        self,
        listed: FileList,
        open_entry: Open,
        *,
        refresh: Callable[[], None] = lambda: None,
        refresh_s: float = 1.0,
        follow: Callable[[], Follower] | None = None,
    ) -> None:
        super().__init__()
        self._list = listed
        self._open = open_entry
        self._refresh = refresh
        self._refresh_s = refresh_s
        self._refreshed = time.monotonic()
        self._follow = follow
        self._follower: Follower | None = None

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        """Rows before an offset are counted, not parsed. In Parquet they aren't even read."""
        if not 0 <= ssp.partition < self._list.partitions:
            raise StreamNotFoundError(f"{ssp}: the input has partitions 0 to {self._list.partitions - 1}")
        self.unregister(ssp)
        entries = self._list.places[ssp.partition]
        reading = _Reading(ssp, entries=entries)
        match position:
            case Edge.OLDEST:
                pass
            case Edge.UPCOMING:
                self._move(reading, len(entries))
            case _:
                self._seek(reading, position)
        reading.begun.append((reading.place, 0))
        self._readings[ssp] = reading
        if ssp.partition == 0 and self._follow is not None and self._follower is None:
            self._follower = self._follow()

    def _seek(self, reading: _Reading, position: Offset) -> None:
        place, row = place_of(position)
        self._move(reading, place)
        if place > len(reading.entries) or (place == len(reading.entries) and row):
            raise UsageError(
                f"{reading.ssp}: offset {position} is after the end, {offset_of(len(reading.entries))}",
                hint="the list of files in the app's home has become shorter; read again from the oldest offset",
            )
        if not row:
            return
        entry = reading.entries[place]
        reading.open = self._open(entry)
        if reading.open is None:
            self._move(reading, place + 1)
            return
        skipped = reading.open.skip(row)
        reading.position += skipped
        reading.rows = skipped
        if skipped < row:
            self._release(reading)
            raise UsageError(
                f"{reading.ssp}: offset {position} is after the end of {entry.path}, which has {skipped} rows",
                hint="the file has become shorter; read again from the oldest offset",
            )

    @override
    def _release(self, reading: _Reading) -> None:
        if reading.open is not None:
            reading.open.close()
            reading.open = None

    @override
    def close(self) -> None:
        super().close()
        if self._follower is not None:
            self._follower.close()

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        if self._follower is not None:
            self._follower.check()
        now = time.monotonic()
        if not self._list.ended and now - self._refreshed >= self._refresh_s:
            self._refreshed = now
            self._refresh()
        out: list[Polled] = []
        for reading in self._asked(ssps):
            if not reading.ended:
                out.extend(self._read(reading, max_bytes))
        return out

    def _read(self, reading: _Reading, max_bytes: int) -> list[Polled]:
        out: list[Polled] = []
        found = False
        while not found:
            if reading.open is None:
                if reading.place == len(reading.entries):
                    if self._list.ended:
                        reading.ended = True
                        out.append(Ended(reading.ssp, reading.position))
                    return out
                reading.open = self._open(reading.entries[reading.place])
            pieces = None if reading.open is None else reading.open.read(max_bytes)
            if pieces is None:
                out.append(self._pass(reading))
                continue
            for piece in pieces:
                rows = self._rows(reading, piece)
                if rows is not None:
                    out.append(rows)
                    found = True
        return out

    def _pass(self, reading: _Reading) -> Rows:
        """Move to the next entry; return empty rows, which move the position there."""
        self._release(reading)
        before = reading.position
        entry = reading.entries[reading.place]
        reading.bytes += entry.end - entry.start
        self._move(reading, reading.place + 1)
        reading.begun.append((reading.place, reading.rows))
        return Rows(reading.ssp, pl.DataFrame(), before, reading.position)

    def _move(self, reading: _Reading, place: int) -> None:
        reading.place = place
        reading.position = offset_of(place)

    def _rows(self, reading: _Reading, piece: Piece) -> Rows | None:
        offset = reading.position + piece.skipped
        reading.rows += piece.skipped + piece.span
        reading.position = offset + piece.span
        path = reading.entries[reading.place].path
        if reading.position >= offset_of(reading.place + 1):
            raise DataError(f"{path} has more than {ROWS_MAX} rows", hint="split it into several files")
        if not piece.span:
            return None
        bad = tuple(
            BadRecord(reading.ssp, offset + row.index, f"{path}:{row.line}: {row.reason}", row.raw) for row in piece.bad
        )
        return Rows(reading.ssp, piece.frame, offset, reading.position, bad, place=path, bytes=piece.bytes)

    @override
    def fileno(self) -> int | None:
        """None: files have more rows until they end, and folders are looked at by the clock."""
        return None

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        """Rows to the end. The number of rows in files that were not begun is estimated by their bytes.

        None before there is something to estimate by.
        """
        reading = self._reading(ssp)
        unread = 0 if reading.ended else self._unread(reading)
        return None if unread is None else unread + self._since(reading, since)

    def _unread(self, reading: _Reading) -> int | None:
        if reading.place == len(reading.entries):
            return 0
        open_rows = None if reading.open is None else reading.open.left()
        ahead = reading.entries[reading.place :]
        left = sum(entry.end - entry.start for entry in ahead)
        if open_rows is not None:
            now = ahead[0].end - ahead[0].start
            rows, size = reading.position - offset_of(reading.place) + open_rows, now
            return open_rows + rows * (left - now) // max(1, size)
        if not reading.bytes:
            return None
        passed = reading.position - offset_of(reading.place)
        return max(1, reading.rows * left // reading.bytes - passed)

    def _since(self, reading: _Reading, since: Offset | None) -> int:
        """How many rows were polled after an offset."""
        if since is None or since >= reading.position:
            return 0
        place, row = place_of(since)
        for begun, rows in reversed(reading.begun):
            if begun <= place:
                return max(0, reading.rows - rows - row)
        return reading.rows

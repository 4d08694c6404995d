"""Reads the files of partitions as rows, one entry of the file list after another, from any position on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, StreamNotFoundError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.core.log import logger
from headrace.rows.casting import cast_column
from headrace.rows.dtypes import Columns
from headrace.rows.formats import json_parser
from headrace.rows.pieces import ROW_BYTES_MAX, ParsedRows, row_ends
from headrace.rows.text import CsvFormat
from headrace.systems.base import BadRecord, Edge, Ended, Polled, Position, Reading, RegisteringConsumer, Rows
from headrace.systems.files import rowfile
from headrace.systems.files.stock import ROWS_MAX, Entry, FileList, Follower, Look, changed, offset_of, place_of
from headrace.systems.files.storage import SUFFIXES, Found, LocalStorage, Storage, compression_of, suffix_of

_REMEMBERED = 1000
_log = logger(__name__)
Open = Callable[[Entry], rowfile.RowFile | None]
"""Opens an entry; None if the file has changed and is listed again, so that this entry is to be passed over."""


@dataclass(slots=True, kw_only=True)
class _Reading(Reading):
    entries: list[Entry]  # Those of the partition. The list grows.
    place: int = 0
    open: rowfile.RowFile | None = None
    rows: int = 0  # how many row numbers this consumer has passed, in how many bytes of finished entries: for estimates
    bytes: int = 0
    begun: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """The latest places, with ``rows`` at their beginning."""


class FilesConsumer(RegisteringConsumer[_Reading]):
    """Reads files as rows. Reading partition 0 starts a follower by ``follow``."""

    def __init__(
        self,
        listed: FileList,
        open_entry: Open,
        refresh: Callable[[], None],
        refresh_s: float,
        follow: Callable[[], Follower] | None,
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
        if not 0 <= ssp.partition < self._list.partitions:
            raise StreamNotFoundError(f"{ssp}: the input has partitions 0 to {self._list.partitions - 1}")
        self.unregister(ssp)
        reading = _Reading(ssp, entries=self._list.places[ssp.partition])
        if position is Edge.UPCOMING:
            self._move(reading, len(reading.entries))
        elif not isinstance(position, Edge):
            self._seek(reading, position)
        reading.begun.append((reading.place, 0))
        self._readings[ssp] = reading
        if ssp.partition == 0 and self._follow is not None and self._follower is None:
            self._follower = self._follow()

    def _seek(self, reading: _Reading, position: Offset) -> None:
        place, row = place_of(position)
        self._move(reading, place)
        if place > len(reading.entries) or (place == len(reading.entries) and row):
            said = f"{reading.ssp}: offset {position} is after the end, {offset_of(len(reading.entries))}"
            hint = "the list of files in the app's home has become shorter; read again from the oldest offset"
            raise UsageError(said, hint=hint)
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
            what = f"{reading.ssp}: offset {position} is after the end of {entry.path}, which has {skipped} rows"
            raise UsageError(what, hint="the file has become shorter; read again from the oldest offset")

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

    def _rows(self, reading: _Reading, piece: ParsedRows) -> Rows | None:
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
        """Rows to the end, estimated by bytes for files that weren't begun; None before there is anything to go by."""
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
        if since is None or since >= reading.position:
            return 0
        place, row = place_of(since)
        for begun, rows in reversed(reading.begun):
            if begun <= place:
                return max(0, reading.rows - rows - row)
        return reading.rows


SETTLED_S = 10.0  # a file that hasn't been written for this long is complete, even if its last line has no line break


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is read of each file. ``typed``: columns of these types. Otherwise the ``declared`` ones, all if None.

    Parquet has types of its own. ``whole``: other columns of the files, too.
    """

    typed: Columns | None = None
    declared: Columns | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Reader(Look):
    """Opens entries of one input. Without ``format`` the files' endings say it; ``form`` matters for CSV only.

    ``goes_on``: the input reads on in files that grow, so it leaves unfinished rows for later.
    """

    storage: Storage
    format: str | None
    form: CsvFormat
    goes_on: bool = False

    def open(self, entry: Entry, wanted: Wanted) -> rowfile.RowFile:
        self._check(entry)
        format = self.format_of(entry.path)
        if format == "parquet":
            names = None if wanted.declared is None or wanted.whole else wanted.declared.keys()
            if isinstance(self.storage, LocalStorage):
                return rowfile.ParquetFile(entry.path, wanted.typed, names)
            return rowfile.StoredParquetFile(entry.path, self.storage.open(entry.path), wanted.typed, names)
        columns = self._text_columns(entry, wanted)
        file = self._text(entry)
        try:
            if format == "jsonl":
                return file.parse_with(json_parser(columns))
            header = self._header(entry, file, columns)
            return file.parse_with(rowfile.csv_parser(entry.path, header, columns, self.form))
        except BaseException:
            file.close()
            raise

    def columns(self, entry: Entry) -> Columns:
        format = self.format_of(entry.path)
        if format == "parquet":
            if isinstance(self.storage, LocalStorage):
                return rowfile.parquet_columns(entry.path, entry.path)
            with closing(self.storage.open(entry.path)) as stored:
                return rowfile.parquet_columns(stored, entry.path)
        with closing(self._text(_whole(entry))) as file:
            return rowfile.infer_jsonlines(file) if format == "jsonl" else rowfile.infer_csv(file, self.form)

    def _text_columns(self, entry: Entry, wanted: Wanted) -> Columns:
        if wanted.typed is not None:
            return wanted.typed
        if wanted.declared is None:
            return self.columns(entry)
        if not wanted.whole:
            return dict(wanted.declared)
        try:
            return {**self.columns(entry), **wanted.declared}
        except DataError:  # nothing to infer from: each row will say what is wrong with it
            return dict(wanted.declared)

    def _header(self, entry: Entry, file: rowfile.TextFile, columns: Columns) -> list[str]:
        if not entry.start:
            return rowfile.read_header(file, self.form, list(columns)) or list(columns)
        with closing(self._text(_whole(entry))) as beginning:
            return rowfile.read_header(beginning, self.form, list(columns)) or list(columns)

    def _text(self, entry: Entry) -> rowfile.TextFile:
        csv = self.format_of(entry.path) == "csv"
        source = rowfile.open_source(self.storage, entry, self.form.encoding if csv else rowfile.UTF_8)
        try:
            return rowfile.TextFile(
                entry.path, source, quote=self._quote(entry.path), lines_before=lambda: self._lines_before(entry)
            )
        except BaseException:
            source.close()
            raise

    def _lines_before(self, entry: Entry) -> int:
        if not entry.start:
            return 0
        lines, left = 0, entry.start
        with closing(self.storage.open(entry.path)) as file:
            while left and (data := file.read(min(left, rowfile.COUNT_BYTES))):
                lines += data.count(b"\n")
                left -= len(data)
        return lines

    def _quote(self, path: str) -> bytes | None:
        quote = self.form.quote if self.format_of(path) == "csv" else None
        return None if quote is None else quote.encode()

    def _grows(self, path: str) -> bool:
        """Whether the file is of a kind that programs append to, and that can be read from anywhere."""
        format = self.format_of(path)
        plain = format == "jsonl" or (format == "csv" and self.form.encoding == rowfile.UTF_8)
        return plain and self.storage.samples and compression_of(path) is None

    def replaced(self, entry: Entry) -> bool:
        found = self.storage.find(entry.path)
        return not isinstance(found, Found) or not self._same(entry, found)

    def format_of(self, path: str) -> str:
        return self.format or SUFFIXES.get(suffix_of(path), "csv")

    def _check(self, entry: Entry) -> None:
        found = self.storage.find(entry.path)
        if not isinstance(found, Found):
            hint = "put the file back, or give the app another name to read the present files from the start"
            raise DataError(f"{entry.path} has disappeared before the app read all of it", hint=hint)
        if not self._same(entry, found):
            raise changed(entry.path, entry, found)

    def _same(self, entry: Entry, found: Found) -> bool:
        if (found.size, found.modified) == (entry.size, entry.modified):
            return True
        likely = entry.sample and found.size >= entry.size
        return bool(likely) and self.storage.sample(entry.path, entry.size) == entry.sample

    @override
    def sample(self, path: str, size: int) -> str:
        return self.storage.sample(path, size)

    @override
    def appendable(self, path: str, end: int) -> bool:
        if not self._grows(path):
            return False
        if not end:
            return True
        with closing(self.storage.open(path)) as file:
            file.seek(end - 1)
            return file.read(1) == b"\n"

    @override
    def end(self, file: Found, start: int) -> int:
        if not (self.goes_on and self._grows(file.path)) or time.time() - file.modified / 1e9 > SETTLED_S:
            return file.size
        quote = self._quote(file.path)
        end, rest = start, b""
        with closing(self.storage.open(file.path)) as stream:
            stream.seek(start)
            left = file.size - start
            while left and (data := stream.read(min(left, rowfile.COUNT_BYTES))):
                left -= len(data)
                rest += data
                ends = row_ends(rest, quote)
                if len(ends):
                    end += int(ends[-1])
                    rest = rest[int(ends[-1]) :]
                elif len(rest) > ROW_BYTES_MAX:
                    return file.size  # the reader says what is wrong with this row
        return end


def entry_of(found: Found) -> Entry:
    return Entry(path=found.path, partition=0, start=0, end=found.size, size=found.size, modified=found.modified)


def _whole(entry: Entry) -> Entry:
    return entry_of(Found(entry.path, entry.size, entry.modified))


def first_since(item: Rows, times: pl.Series, dtype: pl.DataType, time_ms: int) -> Offset | None:
    """Return the offset of the first of the rows whose time, of this type, is ``time_ms`` or later; None if none is."""
    times, unreadable = cast_column(times, dtype)
    if isinstance(dtype, pl.Datetime):
        times = times.dt.timestamp("ms")
    row = next((row for row in (times >= time_ms).arg_true() if row not in unreadable), None)
    if row is None:
        return None
    # The frame lacks the rows that are bad.
    numbers = np.delete(np.arange(item.next - item.offset), [record.offset - item.offset for record in item.bad])
    return item.offset + int(numbers[row])

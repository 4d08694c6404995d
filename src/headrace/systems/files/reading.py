"""How an input's files are read: each entry of the list becomes an open file of rows, or an inferred schema."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError
from headrace.serdes.csv_format import CsvFormat
from headrace.serdes.dtypes import Columns
from headrace.serdes.formats.json import json_parser
from headrace.serdes.row_pieces import ROW_BYTES_MAX, row_ends
from headrace.systems.files.csvfile import csv_parser, infer_csv, read_header
from headrace.systems.files.file_list import Entry
from headrace.systems.files.jsonlines import infer_jsonlines
from headrace.systems.files.parquet import ParquetFile, StoredParquetFile, parquet_columns
from headrace.systems.files.place import SUFFIXES, compression_of, suffix_of
from headrace.systems.files.rowfile import RowFile
from headrace.systems.files.source import UTF_8, open_source
from headrace.systems.files.stocktaking import Look, changed
from headrace.systems.files.storage import Found, LocalStorage, Storage
from headrace.systems.files.text import COUNT_BYTES, TextFile

SETTLED_S = 10.0
"""A file that hasn't been written for this long is complete, even if its last line has no line break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is read of each file. ``typed``: columns of these types. Otherwise the ``declared`` ones, all if None.

    Text is parsed as the declared types; Parquet has types of its own. ``whole``: other columns of the files, too.
    """

    typed: Columns | None = None
    declared: Mapping[str, pl.DataType] | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """Opens entries of one input. Without ``format`` the files' endings say it; ``form`` matters for CSV only."""

    storage: Storage
    format: str | None
    form: CsvFormat

    def open(self, entry: Entry, wanted: Wanted) -> RowFile:
        """Open an entry. Raises ``DataError`` if the file was deleted or replaced since it was listed."""
        self._check(entry)
        format = self._format(entry.path)
        if format == "parquet":
            names = None if wanted.declared is None or wanted.whole else wanted.declared.keys()
            if isinstance(self.storage, LocalStorage):
                return ParquetFile(entry.path, wanted.typed, names)
            return StoredParquetFile(entry.path, self.storage.open(entry.path), wanted.typed, names)
        columns = self._text_columns(entry, wanted)
        file = self._text(entry)
        try:
            if format == "jsonl":
                return file.parse_with(json_parser(columns))
            header = self._header(entry, file, columns)
            return file.parse_with(csv_parser(entry.path, header, columns, self.form))
        except BaseException:
            file.close()
            raise

    def columns(self, entry: Entry) -> Columns:
        """The columns of a file, inferred if it is text."""
        format = self._format(entry.path)
        if format == "parquet":
            if isinstance(self.storage, LocalStorage):
                return parquet_columns(entry.path, entry.path)
            with closing(self.storage.open(entry.path)) as stored:
                return parquet_columns(stored, entry.path)
        with closing(self._text(_whole(entry))) as file:
            return infer_jsonlines(file) if format == "jsonl" else infer_csv(file, self.form)

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

    def _header(self, entry: Entry, file: TextFile, columns: Columns) -> list[str]:
        if not entry.start:
            return read_header(file, self.form, list(columns)) or list(columns)
        with closing(self._text(_whole(entry))) as beginning:
            return read_header(beginning, self.form, list(columns)) or list(columns)

    def _text(self, entry: Entry) -> TextFile:
        csv = self._format(entry.path) == "csv"
        source = open_source(self.storage, entry, self.form.encoding if csv else UTF_8)
        try:
            return TextFile(
                entry.path, source, quote=self.quote(entry.path), lines_before=lambda: self._lines_before(entry)
            )
        except BaseException:
            source.close()
            raise

    def _lines_before(self, entry: Entry) -> int:
        if not entry.start:
            return 0
        lines, left = 0, entry.start
        with closing(self.storage.open(entry.path)) as file:
            while left and (data := file.read(min(left, COUNT_BYTES))):
                lines += data.count(b"\n")
                left -= len(data)
        return lines

    def quote(self, path: str) -> bytes | None:
        """What quotes a file's texts, in which line breaks don't end a row."""
        quoted = self._format(path) == "csv" and self.form.quote is not None
        return self.form.quote.encode() if quoted and self.form.quote is not None else None

    def grows(self, path: str) -> bool:
        """Whether the file is of a kind that programs append to, and that can be read from anywhere."""
        format = self._format(path)
        plain = format == "jsonl" or (format == "csv" and self.form.encoding == UTF_8)
        return plain and self.storage.samples and compression_of(path) is None

    def replaced(self, entry: Entry) -> bool:
        """Return whether the file was deleted or replaced since it was listed."""
        found = self.storage.find(entry.path)
        return not isinstance(found, Found) or not self._same(entry, found)

    def _format(self, path: str) -> str:
        return self.format or SUFFIXES.get(suffix_of(path), "csv")

    def _check(self, entry: Entry) -> None:
        found = self.storage.find(entry.path)
        if not isinstance(found, Found):
            raise DataError(
                f"{entry.path} has disappeared before the app read all of it",
                hint="put the file back, or give the app another name to read the present files from the start",
            )
        if not self._same(entry, found):
            raise changed(entry.path, entry, found)

    def _same(self, entry: Entry, found: Found) -> bool:
        if (found.size, found.modified) == (entry.size, entry.modified):
            return True
        likely = entry.sample and found.size >= entry.size
        return bool(likely) and self.storage.sample(entry.path, entry.size) == entry.sample


class FileLook(Look):
    """Looks into files. ``grows``: the input reads on in files that grow, so it leaves unfinished rows for later."""

    def __init__(self, reader: Reader, grows: bool) -> None:
        self._reader = reader
        self._grows = grows

    @override
    def sample(self, path: str, size: int) -> str:
        return self._reader.storage.sample(path, size)

    @override
    def appendable(self, path: str, end: int) -> bool:
        if not self._reader.grows(path):
            return False
        if not end:
            return True
        with closing(self._reader.storage.open(path)) as file:
            file.seek(end - 1)
            return file.read(1) == b"\n"

    @override
    def end(self, file: Found, start: int) -> int:
        if not (self._grows and self._reader.grows(file.path)) or time.time() - file.modified / 1e9 > SETTLED_S:
            return file.size
        quote = self._reader.quote(file.path)
        end, rest = start, b""
        with closing(self._reader.storage.open(file.path)) as stream:
            stream.seek(start)
            left = file.size - start
            while left and (data := stream.read(min(left, COUNT_BYTES))):
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
    """All of a file, outside any list."""
    return Entry(path=found.path, partition=0, start=0, end=found.size, size=found.size, modified=found.modified)


def _whole(entry: Entry) -> Entry:
    return entry_of(Found(entry.path, entry.size, entry.modified))

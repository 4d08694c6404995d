"""Files as a system: one input or output of Parquet, JSON lines or CSV files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError, UsageError
from headrace.core.log import logger
from headrace.core.url import check_no_credentials
from headrace.serdes.csv_format import CsvFormat
from headrace.serdes.dtypes import Columns, columns_from_json, instantiate
from headrace.systems.base import RowSystem
from headrace.systems.files.admin import FilesAdmin
from headrace.systems.files.beginnings import Beginnings
from headrace.systems.files.consumer import FilesConsumer
from headrace.systems.files.file_list import Entry, FileList
from headrace.systems.files.place import FORMATS, format_of, is_remote, nothing_found, storage_of
from headrace.systems.files.reading import FileLook, Reader, Wanted
from headrace.systems.files.rowfile import RowFile
from headrace.systems.files.stock import Follower, Stock
from headrace.systems.files.stocktaking import ChangedFiles, Look, NewFiles, Policy
from headrace.systems.files.storage import Found
from headrace.systems.files.target import FilesTarget
from headrace.systems.option_names import check_option_names

LOOK_MS = 1000
_OPTIONS = (
    "path", "format", "partitions", "columns", "csv", "new_files", "changed_files", "look_ms", "list_file",
    "event_time", "awaited",
)  # fmt: skip
_log = logger(__name__)


@dataclass(frozen=True)
class FilesSystem(RowSystem):
    """A system with one stream of any name: ``path`` says which files it is.

    ``path`` is a file, a folder or a pattern; for writing, a folder. ``format`` defaults to that of the files' endings
    (Parquet for an output). ``columns`` default to those of the first file. The files are dealt to ``partitions`` in
    the order of their names. In ``list_file`` an app remembers which files there are; ``new_files`` and
    ``changed_files`` say what happens to others. A followed folder is looked at every ``look_ms``. With ``event_time``,
    the column with the time of a row and its type, a position may be a time. ``awaited``: the files are written when an
    app starts, so it can be planned without them.
    """

    path: str
    format: str | None = None
    columns: Columns | None = None
    partitions: int | None = None
    csv: CsvFormat = field(default_factory=CsvFormat)
    new_files: NewFiles = "refuse"
    changed_files: ChangedFiles = "refuse"
    look_ms: int = LOOK_MS
    list_file: str | None = None
    event_time: Columns | None = None
    awaited: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        check_no_credentials(self.path)
        if self.format is not None and self.format not in FORMATS:
            raise DeclarationError(f"files {self.path}: unknown format {self.format!r}", hint=f"one of {FORMATS}")
        if self.partitions is not None and self.partitions < 1:
            raise DeclarationError(f"files {self.path}: {self.partitions} partitions; use 1 or more")
        for name, values in (("new_files", NewFiles), ("changed_files", ChangedFiles)):
            if getattr(self, name) not in get_args(values):
                raise DeclarationError(
                    f"files {self.path}: {name}={getattr(self, name)!r}", hint=f"one of {get_args(values)}"
                )
        if self.list_file is None and self.new_files != "refuse":
            raise DeclarationError(
                f"files {self.path}: new_files={self.new_files!r} works only in an app, which keeps a list of files"
            )
        if self.columns is not None:
            typed = {name: instantiate(dtype, name) for name, dtype in self.columns.items()}
            object.__setattr__(self, "columns", typed)

    @override
    def admin(self) -> FilesAdmin:
        beginnings = Beginnings(self.path, self.event_time, lambda columns: self._consumer(columns, follow=False))
        return FilesAdmin(
            self.path, self.format, self.new_files, self._stock(), self._columns, beginnings, awaited=self.awaited
        )

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> FilesConsumer:
        """Raises ``StreamNotFoundError`` if there are no files, unless some may be added later."""
        return self._consumer(columns, whole=whole, follow=self.new_files == "follow")

    def _consumer(
        self, columns: Mapping[str, pl.DataType] | None, *, whole: bool = False, follow: bool
    ) -> FilesConsumer:
        stock = self._stock()
        listed = stock.present()
        if listed.nothing and self.new_files == "refuse":
            raise nothing_found(self.path)
        wanted = self._wanted(listed, columns, whole)

        def open_entry(entry: Entry) -> RowFile | None:
            try:
                return self._reader.open(entry, wanted)
            except DataError as error:
                if self.changed_files == "refuse" or not self._reader.replaced(entry):
                    raise
                _log.warning("a file was replaced before all of it was read", file=entry.path, error=error.message)
                return None

        def follower() -> Follower:
            return Follower(self._stock().take, self.look_ms / 1000)

        return FilesConsumer(
            listed,
            open_entry,
            refresh=stock.refresh,
            refresh_s=self.look_ms / 1000,
            follow=follower if follow else None,
        )

    @override
    def target(self, stream: str) -> FilesTarget:
        """The target is the folder ``path``, whatever the name of the stream."""
        del stream
        if is_remote(self.path):
            raise UsageError(f"files can't be written to {self.path}", hint="write to a local folder")
        return FilesTarget(Path(self.path), self.format or "parquet")

    @cached_property
    def _reader(self) -> Reader:
        return Reader(storage_of(self.path)[0], self.format, self.csv)

    def _stock(self) -> Stock:
        policy = Policy(self.path, self.new_files, self.changed_files)
        return Stock(policy, self.partitions, None if self.list_file is None else Path(self.list_file), self._look)

    def _look(self, found: list[Found]) -> Look:
        if found:
            format_of(found, self.format)  # raises if they have several
        return FileLook(self._reader, grows=self.new_files != "refuse")

    def _wanted(self, listed: FileList, columns: Mapping[str, pl.DataType] | None, whole: bool) -> Wanted:
        if self.columns is not None:
            narrow = columns is not None and not whole and self.columns.keys() >= columns.keys()
            return Wanted(typed={name: self.columns[name] for name in columns} if narrow and columns else self.columns)
        if columns is None:
            return Wanted(typed=self._columns(listed))
        return Wanted(declared=columns, whole=whole)

    def _columns(self, listed: FileList) -> Columns | None:
        if self.columns is not None:
            return self.columns
        first = next((entries[0] for entries in listed.places if entries), None)
        if first is None or not self.csv.header or self._reader.replaced(first):
            return None
        return self._reader.columns(first) or None


def open_files(name: str, options: Mapping[str, Any]) -> FilesSystem:
    """The system of a ``SystemSpec``: ``path``, and optionally the other fields of ``FilesSystem``, as JSON."""
    check_option_names(name, "files", options, _OPTIONS, "path")
    given = dict(options)
    for option in ("columns", "event_time"):
        if given.get(option) is not None:
            given[option] = columns_from_json(given[option])
    given["csv"] = CsvFormat.of(given.get("csv", {}))
    return FilesSystem(**given)

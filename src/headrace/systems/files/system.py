"""Files as a system: one input or output of Parquet, JSON lines or CSV files."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import polars as pl
from typing_extensions import override

from headrace.core import errors
from headrace.core.ids import SSP, Offset
from headrace.core.log import logger
from headrace.core.secrets import check_no_credentials
from headrace.rows.dtypes import Columns, columns_from_json, instantiate
from headrace.rows.text import CsvFormat
from headrace.systems.base import Creation, Edge, Extent, Rows, RowSystem, StreamInfo, UnwatchedAdmin
from headrace.systems.files import stock as file_list
from headrace.systems.files.consumer import FilesConsumer, Reader, Wanted, first_since
from headrace.systems.files.rowfile import RowFile, check_writable
from headrace.systems.files.storage import FORMATS, Found, format_of, is_remote, nothing_found, storage_of
from headrace.systems.files.target import FilesTarget
from headrace.systems.registry import check_option_names

FILE = "file"
_READ_BYTES = 4 << 20


class FilesAdmin(UnwatchedAdmin):
    """The one stream has any name, since the path says which files it is."""

    def __init__(self, files: FilesSystem) -> None:
        super().__init__()
        self._files = files
        self._path = files.path
        self._stock = files.stock()

    @override
    def list(self) -> builtins.list[str]:
        return [Path(self._path).stem] if self._stock.present().latest else []

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        bounded = self._files.new_files == "refuse"
        listed = self._stock.present()
        if bounded and listed.nothing and not self._files.awaited:
            raise nothing_found(self._path)
        found = self._files.columns_of(listed)
        columns = None if found is None else dict(found)
        until_caught_up = self._files.new_files == "next_run"
        parsed = self._files.is_parsed(listed)
        return StreamInfo(
            stream, listed.partitions, columns, bounded=bounded, until_caught_up=until_caught_up, parsed=parsed
        )

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        typed = self._writable(stream, partitions, columns)
        try:
            Path(self._path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"can't create the folder {self._path}: {error}"
            raise errors.StorageError(what, hint="an output of files is a folder") from error
        return StreamInfo(stream, partitions, typed, bounded=True)

    @override
    def would_create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> Creation:
        self._writable(stream, partitions, columns)
        return Creation(partitions, new=not Path(self._path).is_dir())

    def _writable(self, stream: str, partitions: int, columns: Columns | None) -> dict[str, pl.DataType] | None:
        if partitions < 1:
            raise errors.DeclarationError(f"stream {stream!r}: {partitions} partitions; use 1 or more")
        typed = None if columns is None else {name: instantiate(dtype, name) for name, dtype in columns.items()}
        if self._files.format == "csv" and typed is not None:
            check_writable(self._path, typed)
        return typed

    @override
    def begin_run(self, stream: str) -> None:
        self._stock.take()

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        raise errors.UsageError(f"{self._path} has the columns of its files", hint="write files with the new column")

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        what = f"{self._path}: the number of partitions is fixed at the first run of an app"
        raise errors.UsageError(what, hint="give the input another id and partitions= (it is then read from its start)")

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        """The end is after the last listed file: offsets don't say how many rows there are."""
        listed = self._stock.present()
        return [Extent(0, file_list.offset_of(len(entries)), sealed=listed.ended) for entries in listed.places]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        """Rows without a readable event time don't count. Reads the rows before it, but only that column."""
        if not self._files.event_time:
            raise errors.UnsupportedPositionError(
                f"{ssp}: the rows of {self._path} have no time of arrival, so reading can't begin at a time",
                hint="name the column with the rows' time: app.input(..., event_time=...); or use an offset, a file "
                '({"kind": "file", "path": ...}), oldest or upcoming',
            )
        ((column, dtype),) = self._files.event_time.items()
        with closing(self._files.open_consumer(self._files.event_time, follow=False)) as consumer:
            consumer.register(ssp, Edge.UPCOMING)
            end = consumer.position(ssp)
            consumer.register(ssp, Edge.OLDEST)
            while consumer.position(ssp) < end:
                for item in consumer.poll(max_bytes=_READ_BYTES):
                    if isinstance(item, Rows) and column in item.frame:
                        offset = first_since(item, item.frame[column], dtype, time_ms)
                        if offset is not None:
                            return offset
        return end

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        super().check_offset(ssp, offset)
        with closing(self._files.open_consumer(None, follow=False)) as consumer:
            consumer.register(ssp, offset)

    @override
    def custom_offset(self, ssp: SSP, kind: str, value: Mapping[str, Any]) -> Offset:
        """The kind ``file``: the ``path`` of a file, or its end. Begins with it, or the next of the partition."""
        if kind != FILE:
            return super().custom_offset(ssp, kind, value)
        listed = self._stock.present()
        if not 0 <= ssp.partition < listed.partitions:
            raise errors.StreamNotFoundError(f"{ssp}: the input has partitions 0 to {listed.partitions - 1}")
        path = value.get("path")
        if set(value) != {"path"} or not isinstance(path, str):
            what = f"{ssp}: a position of the kind {FILE!r} needs the path of a file, not {dict(value)}"
            raise errors.UsageError(what, hint='write {"kind": "file", "path": "data/b.csv"}')
        names = list(listed.latest)
        after = set(names[names.index(self._name(ssp, path, names)) :])
        entries = listed.places[ssp.partition]
        place = next((number for number, entry in enumerate(entries) if entry.path in after), len(entries))
        return file_list.offset_of(place)

    def _name(self, ssp: SSP, path: str, names: Sequence[str]) -> str:
        found = [name for name in names if name == path] or [name for name in names if name.endswith(f"/{path}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise errors.UsageError(f"{ssp}: {path} matches {found[0]} and {found[1]}", hint="write more of the path")
        near = get_close_matches(path, names, n=1) or names[:1]
        what = f"{ssp}: {path} is none of the {len(names)} files of {self._path}"
        raise errors.UsageError(what, hint=f"an example of a file there: {near[0]}" if near else "it has no files yet")

    @override
    def seal(self, stream: str) -> None:
        folder = Path(self._path)
        if folder.is_dir():
            (folder / "_SUCCESS").touch()

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        raise errors.UsageError(f"{ssp}: Headrace doesn't delete input files; delete those you don't need")


LOOK_MS = 1000
_OPTIONS = (
    "path", "format", "partitions", "columns", "csv", "new_files", "changed_files", "look_ms", "list_file",
    "event_time", "awaited",
)  # fmt: skip
_log = logger(__name__)


@dataclass(frozen=True)
class FilesSystem(RowSystem):
    """A system with one stream of any name: ``path`` (a file, a folder or a pattern) says which files it is.

    ``format`` is by default that of the endings (Parquet for an output), ``columns`` are those of the first file. The
    files are dealt to ``partitions`` in the order of their names. An app remembers them in ``list_file``. With
    ``event_time``, a position may be a time. ``awaited``: the files are written when an app starts, so it can be
    planned without them.
    """

    path: str
    format: str | None = None
    columns: Columns | None = None
    partitions: int | None = None
    csv: CsvFormat = field(default_factory=CsvFormat)
    new_files: file_list.NewFiles = "refuse"
    changed_files: file_list.ChangedFiles = "refuse"
    look_ms: int = LOOK_MS
    list_file: str | None = None
    event_time: Columns | None = None
    awaited: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        check_no_credentials(self.path)
        if self.format is not None and self.format not in FORMATS:
            text = f"files {self.path}: unknown format {self.format!r}"
            raise errors.DeclarationError(text, hint=f"one of {FORMATS}")
        if self.partitions is not None and self.partitions < 1:
            raise errors.DeclarationError(f"files {self.path}: {self.partitions} partitions; use 1 or more")
        for name, values in (("new_files", file_list.NewFiles), ("changed_files", file_list.ChangedFiles)):
            if getattr(self, name) not in get_args(values):
                what = f"files {self.path}: {name}={getattr(self, name)!r}"
                raise errors.DeclarationError(what, hint=f"one of {get_args(values)}")
        if self.list_file is None and self.new_files != "refuse":
            said = f"files {self.path}: new_files={self.new_files!r} works only in an app, which keeps a list of files"
            raise errors.DeclarationError(said)
        if self.columns is not None:
            typed = {name: instantiate(dtype, name) for name, dtype in self.columns.items()}
            object.__setattr__(self, "columns", typed)

    @override
    def admin(self) -> FilesAdmin:
        return FilesAdmin(self)

    @override
    def consumer(self, columns: Columns | None = None, *, whole: bool = False) -> FilesConsumer:
        return self.open_consumer(columns, whole=whole, follow=self.new_files == "follow")

    def open_consumer(self, columns: Columns | None, *, whole: bool = False, follow: bool) -> FilesConsumer:
        files = self.stock()
        listed = files.present()
        if listed.nothing and self.new_files == "refuse":
            raise nothing_found(self.path)
        wanted = self._wanted(listed, columns, whole)

        def open_entry(entry: file_list.Entry) -> RowFile | None:
            try:
                return self._reader.open(entry, wanted)
            except errors.DataError as error:
                if self.changed_files == "refuse" or not self._reader.replaced(entry):
                    raise
                _log.warning("a file was replaced before all of it was read", file=entry.path, error=error.message)
                return None

        def follower() -> file_list.Follower:
            return file_list.Follower(self.stock().take, self.look_ms / 1000)

        return FilesConsumer(listed, open_entry, files.refresh, self.look_ms / 1000, follower if follow else None)

    @override
    def target(self, stream: str) -> FilesTarget:
        if is_remote(self.path):
            raise errors.UsageError(f"files can't be written to {self.path}", hint="write to a local folder")
        return FilesTarget(Path(self.path), self.format or "parquet")

    @cached_property
    def _reader(self) -> Reader:
        return Reader(storage_of(self.path)[0], self.format, self.csv, goes_on=self.new_files != "refuse")

    def stock(self) -> file_list.Stock:
        policy = file_list.Policy(self.path, self.new_files, self.changed_files)
        where = None if self.list_file is None else Path(self.list_file)
        return file_list.Stock(policy, self.partitions, where, self._look)

    def _look(self, found: list[Found]) -> file_list.Look:
        if found:
            format_of(found, self.format)  # raises if they have several
        return self._reader

    def _wanted(self, listed: file_list.FileList, columns: Columns | None, whole: bool) -> Wanted:
        if self.columns is not None:
            narrow = columns is not None and not whole and self.columns.keys() >= columns.keys()
            return Wanted(typed={name: self.columns[name] for name in columns} if narrow and columns else self.columns)
        if columns is None:
            return Wanted(typed=self.columns_of(listed))
        return Wanted(declared=columns, whole=whole)

    def columns_of(self, listed: file_list.FileList) -> Columns | None:
        if self.columns is not None:
            return self.columns
        first = _first(listed)
        if first is None or not self.csv.header or self._reader.replaced(first):
            return None
        return self._reader.columns(first) or None

    def is_parsed(self, listed: file_list.FileList) -> bool:
        first = _first(listed)
        return self.columns is None and first is not None and self._reader.format_of(first.path) != "parquet"


def _first(listed: file_list.FileList) -> file_list.Entry | None:
    return next((entries[0] for entries in listed.places if entries), None)


def open_files(name: str, options: Mapping[str, Any]) -> FilesSystem:
    check_option_names(name, "files", options, _OPTIONS, "path")
    given = dict(options)
    for option in ("columns", "event_time"):
        if given.get(option) is not None:
            given[option] = columns_from_json(given[option])
    given["csv"] = CsvFormat.of(given.get("csv", {}))
    return FilesSystem(**given)

"""Describes files as a stream."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.errors import DeclarationError, StorageError, StreamNotFoundError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.serdes.dtypes import Columns, instantiate
from headrace.systems.base import Creation, Extent, StreamInfo
from headrace.systems.files.beginnings import FILE, Beginnings
from headrace.systems.files.csvfile import check_writable
from headrace.systems.files.file_list import FileList, offset_of
from headrace.systems.files.place import nothing_found
from headrace.systems.files.stock import Stock
from headrace.systems.files.stocktaking import NewFiles
from headrace.systems.unwatched import UnwatchedAdmin


class FilesAdmin(UnwatchedAdmin):
    """The one stream has any name, since the path says which files it is."""

    def __init__(
        self,
        path: str,
        format: str | None,
        new_files: NewFiles,
        stock: Stock,
        columns: Callable[[FileList], Columns | None],
        beginnings: Beginnings,
        *,
        awaited: bool = False,
    ) -> None:
        super().__init__()
        self._path = path
        self._format = format
        self._new_files = new_files
        self._stock = stock
        self._columns = columns
        self._beginnings = beginnings
        self._awaited = awaited

    @override
    def list(self) -> builtins.list[str]:
        """The stem of the path, if there are files."""
        return [Path(self._path).stem] if self._stock.present().latest else []

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        """Raises ``StreamNotFoundError`` if there are no files and none may be added later."""
        bounded = self._new_files == "refuse"
        listed = self._stock.present()
        if bounded and listed.nothing and not self._awaited:
            raise nothing_found(self._path)
        columns = self._columns(listed)
        return StreamInfo(
            stream,
            listed.partitions,
            None if columns is None else dict(columns),
            bounded=bounded,
            until_caught_up=self._new_files == "next_run",
        )

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        """Create the folder for the files. Existing files stay."""
        typed = self._writable(stream, partitions, columns)
        try:
            Path(self._path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"can't create the folder {self._path}: {error}", hint="an output of files is a folder"
            ) from error
        return StreamInfo(stream, partitions, typed, bounded=True)

    @override
    def would_create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> Creation:
        self._writable(stream, partitions, columns)
        return Creation(partitions, new=not Path(self._path).is_dir())

    def _writable(
        self, stream: str, partitions: int, columns: Mapping[str, pl.DataType] | None
    ) -> dict[str, pl.DataType] | None:
        """Return the columns of an output, with full types. Raises ``DeclarationError`` if they can't be written."""
        if partitions < 1:
            raise DeclarationError(f"stream {stream!r}: {partitions} partitions; use 1 or more")
        typed = None if columns is None else {name: instantiate(dtype, name) for name, dtype in columns.items()}
        if self._format == "csv" and typed is not None:
            check_writable(self._path, typed)
        return typed

    @override
    def begin_run(self, stream: str) -> None:
        """Add new files to the list. Raises if the input doesn't accept them, or if a file has changed."""
        self._stock.take()

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        raise UsageError(f"{self._path} has the columns of its files", hint="write files with the new column")

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        raise UsageError(
            f"{self._path}: the number of partitions is fixed at the first run of an app",
            hint="give the input another id and partitions= (it is then read from its start)",
        )

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        """The end is after the last listed file: offsets don't say how many rows there are."""
        listed = self._stock.present()
        return [Extent(0, offset_of(len(entries)), sealed=listed.ended) for entries in listed.places]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        """The first row whose event time is ``time_ms`` or later. Reads the rows before it, but only that column."""
        return self._beginnings.at_time(ssp, time_ms)

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        """Counts the rows of the file that the offset is in."""
        super().check_offset(ssp, offset)
        self._beginnings.check(ssp, offset)

    @override
    def custom_offset(self, ssp: SSP, kind: str, value: Mapping[str, Any]) -> Offset:
        """The kind ``file``: the ``path`` of a file, or the end of it. Reading begins with that file.

        In a partition that hasn't got the file, it begins with the first one that was listed after it.
        """
        if kind != FILE:
            return super().custom_offset(ssp, kind, value)
        listed = self._stock.present()
        if not 0 <= ssp.partition < listed.partitions:
            raise StreamNotFoundError(f"{ssp}: the input has partitions 0 to {listed.partitions - 1}")
        return self._beginnings.at_file(ssp, listed, value)

    @override
    def seal(self, stream: str) -> None:
        """Mark the folder as complete, as Spark does."""
        folder = Path(self._path)
        if folder.is_dir():
            (folder / "_SUCCESS").touch()

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        """Raises ``UsageError``: the files belong to the user."""
        raise UsageError(f"{ssp}: Headrace doesn't delete input files; delete those you don't need")

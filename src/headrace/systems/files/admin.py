"""Describes files as a stream."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path

import polars as pl
from typing_extensions import override

from headrace.core.errors import DeclarationError, StorageError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.serdes.dtypes import Columns, instantiate
from headrace.systems.base import Admin, Extent, StreamInfo


class FilesAdmin(Admin):
    """The one stream has any name, since the path says which files it is."""

    def __init__(
        self,
        path: str,
        partitions: Callable[[], builtins.list[builtins.list[Path]] | None],
        columns: Callable[[], Columns],
        rows: Callable[[Path], int],
    ) -> None:
        self._path = path
        self._partitions = partitions
        self._columns = columns
        self._rows = rows
        self._positions: dict[tuple[str, str], dict[int, Offset]] = {}

    @override
    def list(self) -> builtins.list[str]:
        """The stem of the path, if there are files."""
        return [Path(self._path).stem] if self._partitions() else []

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        """None if there are no files."""
        partitions = self._partitions()
        if partitions is None:
            return None
        return StreamInfo(stream, len(partitions), dict(self._columns()), bounded=True)

    @override
    def create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> StreamInfo:
        """Create the folder for the files. Existing files stay."""
        if partitions < 1:
            raise DeclarationError(f"stream {stream!r}: {partitions} partitions; use 1 or more")
        try:
            Path(self._path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"can't create the folder {self._path}: {error}", hint="an output of files is a folder"
            ) from error
        typed = None if columns is None else {name: instantiate(dtype, name) for name, dtype in columns.items()}
        return StreamInfo(stream, partitions, typed, bounded=True)

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        raise UsageError(f"{self._path} has the columns that its files have", hint="write files with the new column")

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        """Text files are read to their end, to count their rows."""
        partitions = self._partitions()
        if partitions is None:
            return []
        return [Extent(0, sum(map(self._rows, files)), sealed=True) for files in partitions]

    @override
    def seal(self, stream: str) -> None:
        """Mark the folder as complete, as Spark does."""
        folder = Path(self._path)
        if folder.is_dir():
            (folder / "_SUCCESS").touch()

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        """Raises ``UsageError``: the files belong to the user."""
        raise UsageError(f"{ssp}: files are not trimmed; delete those you don't need")

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        """Kept in this process only, because no writer waits for readers of files."""
        self._positions.setdefault((ssp.stream.name, group), {})[ssp.partition] = position

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        return dict(self._positions.get((stream, group), {}))

"""Files as a system: one input or output of Parquet, JSON lines or CSV files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typing_extensions import override

from headrace.core.errors import DeclarationError
from headrace.serdes.dtypes import Columns, columns_from_json, instantiate
from headrace.systems.base import RowSystem
from headrace.systems.files.admin import FilesAdmin
from headrace.systems.files.consumer import FilesConsumer
from headrace.systems.files.csvfile import infer_csv, open_csv
from headrace.systems.files.jsonlines import infer_jsonlines, open_jsonlines
from headrace.systems.files.parquet import ParquetFile, parquet_columns, parquet_rows
from headrace.systems.files.place import FORMATS, deal, find_files, format_of, require_files
from headrace.systems.files.rowfile import RowFile
from headrace.systems.files.target import FilesTarget

_INFER = {"parquet": parquet_columns, "jsonl": infer_jsonlines, "csv": infer_csv}


@dataclass(frozen=True)
class FilesSystem(RowSystem):
    """A system with one stream of any name: ``path`` says which files it is.

    ``path`` is a file, a folder or a pattern; for writing, a folder. ``format`` defaults to that of the files' endings
    (Parquet for an output). ``columns`` default to those of the first file. The files are dealt to ``partitions`` in
    the order of their names; by default each file is a partition.
    """

    path: str
    format: str | None = None
    columns: Columns | None = None
    partitions: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        if self.format is not None and self.format not in FORMATS:
            raise DeclarationError(f"files {self.path}: unknown format {self.format!r}", hint=f"one of {FORMATS}")
        if self.partitions is not None and self.partitions < 1:
            raise DeclarationError(f"files {self.path}: {self.partitions} partitions; use 1 or more")
        if self.columns is not None:
            typed = {name: instantiate(dtype, name) for name, dtype in self.columns.items()}
            object.__setattr__(self, "columns", typed)

    @override
    def admin(self) -> FilesAdmin:
        return FilesAdmin(self.path, self._present_partitions, self._read_columns, self._count_rows)

    @override
    def consumer(self, columns: Collection[str] | None = None) -> FilesConsumer:
        """Raises ``StreamNotFoundError`` if there are no files."""
        files = require_files(self.path)
        format = format_of(files, self.format)
        read = _looked_at(self._read_columns(), columns)

        def open_file(path: Path) -> RowFile:
            return _open(path, format, read)

        @cache
        def count(path: Path) -> int | None:
            return parquet_rows(path) if format == "parquet" else None

        return FilesConsumer(deal(files, self.partitions), open_file, count)

    @override
    def target(self, stream: str) -> FilesTarget:
        """The target is the folder ``path``, whatever the name of the stream."""
        del stream
        return FilesTarget(Path(self.path), self.format or "parquet")

    def _present_partitions(self) -> list[list[Path]] | None:
        files = find_files(self.path)
        return deal(files, self.partitions) if files else None

    def _read_columns(self) -> Columns:
        if self.columns is not None:
            return self.columns
        files = require_files(self.path)
        return _INFER[format_of(files, self.format)](files[0])

    def _count_rows(self, path: Path) -> int:
        file = _open(path, format_of([path], self.format), self._read_columns())
        try:
            return file.skip(1 << 62)
        finally:
            file.close()


def _looked_at(there: Columns, names: Collection[str] | None) -> Columns:
    """The columns of these names in this order; all if one is missing, so that the error can name those there are."""
    if names is None or not there.keys() >= set(names):
        return there
    return {name: there[name] for name in names}


def _open(path: Path, format: str, columns: Columns) -> RowFile:
    match format:
        case "parquet":
            return ParquetFile(path, columns)
        case "jsonl":
            return open_jsonlines(path, columns)
    return open_csv(path, columns)


def open_files(name: str, options: Mapping[str, Any]) -> FilesSystem:
    """The system of a ``SystemSpec``: ``path``, and optionally ``format``, ``partitions`` and ``columns`` (as JSON)."""
    unknown = set(options) - {"path", "format", "partitions", "columns"}
    if unknown or "path" not in options:
        wrong = f"unknown options {sorted(unknown)}" if unknown else "no option 'path'"
        raise DeclarationError(
            f"system {name!r} (files): {wrong}", hint="files take path, format, partitions and columns"
        )
    columns = options.get("columns")
    return FilesSystem(
        options["path"],
        options.get("format"),
        None if columns is None else columns_from_json(columns),
        options.get("partitions"),
    )

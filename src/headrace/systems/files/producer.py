"""Writes tables as files: each flush makes one new file a partition, whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import polars as pl

from headrace.core.errors import DataError, DeclarationError, StorageError
from headrace.core.ids import Offset


class FilesProducer:
    """See ``RowProducer``. Offsets count the rows that this producer wrote to the partition.

    A file is written under a hidden name, brought to the disk, and renamed: under its own name it is complete.
    """

    def __init__(self, folder: Path, format: str) -> None:
        self._folder = folder
        self._format = format
        self._tables: dict[tuple[str, int], list[pl.DataFrame]] = {}
        self._written: dict[tuple[str, int], Offset] = {}
        self._run = uuid.uuid4().hex[:12]
        self._files = 0

    def send_rows(self, stream: str, partition: int, rows: pl.DataFrame) -> None:
        """See ``RowProducer``. Keeps a reference until the flush."""
        if rows.height:
            self._tables.setdefault((stream, partition), []).append(rows)

    def flush(self) -> dict[tuple[str, int], Offset]:
        """See ``RowProducer``. What could not be written is kept for the next flush."""
        ends: dict[tuple[str, int], Offset] = {}
        for key in list(self._tables):
            rows = pl.concat(self._tables[key]) if len(self._tables[key]) > 1 else self._tables[key][0]
            self._write(key[1], rows)
            del self._tables[key]
            self._written[key] = ends[key] = self._written.get(key, 0) + rows.height
        return ends

    def _write(self, partition: int, rows: pl.DataFrame) -> None:
        self._files += 1
        name = f"part-{partition:05d}-{self._run}-{self._files:06d}.{self._format}"
        making, done = self._folder / f".{name}.making", self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with making.open("wb") as file:
                self._encode(rows, file.name)
                os.fsync(file.fileno())
            making.rename(done)
            _sync_folder(self._folder)
        except OSError as error:
            _remove(making)
            raise StorageError(f"can't write {done}: {error}", hint="the rows are kept: flush again") from error
        except pl.exceptions.PolarsError as error:
            _remove(making)
            raise DataError(f"{done}: these rows can't be written as {self._format}: {error}") from error

    def _encode(self, rows: pl.DataFrame, path: str) -> None:
        match self._format:
            case "parquet":
                rows.write_parquet(path)
            case "jsonl":
                rows.write_ndjson(path)
            case "csv":
                rows.write_csv(path)
            case other:
                raise DeclarationError(f"{path}: unknown format {other!r}")

    def close(self) -> None:
        """See ``RowProducer``."""
        self.flush()


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the folder itself is out of reach, and the error under way says so


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

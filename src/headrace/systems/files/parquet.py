"""Parquet: row groups are skipped by the file's own index, rows are decoded by Polars in blocks."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.dtypes import Columns
from headrace.systems.files.rowfile import Piece

_BLOCK_BYTES = 32 << 20
"""What is decoded at once. Smaller blocks read the file's index and its pages too often."""


def parquet_columns(path: Path) -> Columns:
    """The columns of a file."""
    try:
        return dict(pl.read_parquet_schema(path))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def parquet_rows(path: Path) -> int:
    """How many rows a file has."""
    return ParquetFile(path, None).rows


class ParquetFile:
    """See ``RowFile``."""

    def __init__(self, path: Path, columns: Columns | None) -> None:
        self._path = path
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is not a readable Parquet file: {error}") from error
        self.rows: int = metadata.num_rows
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        self._block_rows = max(1, _BLOCK_BYTES * max(1, self.rows) // max(1, size))
        self._casts = {} if columns is None else _casts(path, columns)
        self._lazy = pl.scan_parquet(path)
        if columns is not None:
            self._lazy = self._lazy.select(list(columns))
        self._at = 0
        self._block = pl.DataFrame()
        self._taken = 0
        self._row_bytes = 1

    def skip(self, rows: int) -> int:
        """See ``RowFile``."""
        self._at = min(rows, self.rows)
        return self._at

    def read(self, max_bytes: int) -> list[Piece] | None:
        """See ``RowFile``."""
        if self._taken == self._block.height:
            if self._at == self.rows:
                return None
            self._decode()
        frame = self._block.slice(self._taken, max(1, max_bytes // self._row_bytes))
        self._taken += frame.height
        return [Piece(frame, frame.height)]

    def _decode(self) -> None:
        try:
            block = self._lazy.slice(self._at, self._block_rows).collect()
            self._block = block.cast(self._casts) if self._casts else block  # type: ignore[arg-type]
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"{self._path}, from row {self._at} on: {error}") from error
        if not self._block.height:
            raise DataError(f"{self._path} ends at row {self._at}; its index says {self.rows}")
        self._at += self._block.height
        self._taken = 0
        self._row_bytes = max(1, int(self._block.estimated_size()) // self._block.height)

    def close(self) -> None:
        """See ``RowFile``."""
        self._block = pl.DataFrame()
        self._taken, self._at = 0, self.rows


def _casts(path: Path, columns: Columns) -> Columns:
    there = parquet_columns(path)
    for name in columns:
        if name not in there:
            raise DeclarationError(f"{path} has no column {name!r}; it has {', '.join(there)}")
    return {name: dtype for name, dtype in columns.items() if there[name] != dtype}

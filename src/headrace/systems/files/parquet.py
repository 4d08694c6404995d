"""Parquet: the file's own index skips row groups, and Polars decodes rows in blocks."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.dtypes import Columns
from headrace.serdes.row_pieces import Piece
from headrace.systems.files.rowfile import RowFile

_BLOCK_BYTES = 16 << 20
"""About how much is decoded at once."""

_VALUE_BYTES = 8
"""The least size of a value in memory."""


def parquet_columns(path: Path) -> Columns:
    """The columns of a file."""
    try:
        return dict(pl.read_parquet_schema(path))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def parquet_rows(path: Path) -> int:
    """How many rows a file has."""
    return ParquetFile(path, None).rows


class ParquetFile(RowFile):
    """A file that is decoded in blocks of row groups, or of parts of one. ``columns``: None for all."""

    def __init__(self, path: Path, columns: Columns | None) -> None:
        self._path = path
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is not a readable Parquet file: {error}") from error
        self.rows: int = metadata.num_rows
        self._block_rows = max(1, _BLOCK_BYTES * max(1, self.rows) // _decoded_bytes(metadata, columns))
        groups = (metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))
        self._group_ends: list[int] = list(accumulate(groups, initial=0))
        self._casts = {} if columns is None else _casts(path, columns)
        self._lazy = pl.scan_parquet(path, glob=False)
        if columns is not None:
            self._lazy = self._lazy.select(list(columns))
        self._at = 0
        self._block = pl.DataFrame()
        self._taken = 0
        self._row_bytes = 1

    @override
    def skip(self, rows: int) -> int:
        self._at = min(rows, self.rows)
        return self._at

    @override
    def read(self, max_bytes: int) -> list[Piece] | None:
        if self._taken == self._block.height:
            if self._at == self.rows:
                return None
            self._decode()
        frame = self._block.slice(self._taken, max(1, max_bytes // self._row_bytes))
        self._taken += frame.height
        return [Piece(frame, frame.height)]

    def _decode(self) -> None:
        try:
            block = self._lazy.slice(self._at, self._block_end() - self._at).collect()
            self._block = block.cast(self._casts) if self._casts else block  # type: ignore[arg-type]
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"{self._path}, from row {self._at} on: {error}") from error
        if not self._block.height:
            raise DataError(f"{self._path} ends at row {self._at}; its index says {self.rows}")
        self._at += self._block.height
        self._taken = 0
        self._row_bytes = max(1, int(self._block.estimated_size()) // self._block.height)

    def _block_end(self) -> int:
        """Where a block from here should end: with a row group if possible, so that no page is read twice."""
        end = self._at + self._block_rows
        with_group = self._group_ends[bisect_right(self._group_ends, end) - 1]
        return with_group if with_group > self._at else end

    @override
    def close(self) -> None:
        self._block = pl.DataFrame()
        self._taken, self._at = 0, self.rows


def _decoded_bytes(metadata: pq.FileMetaData, columns: Columns | None) -> int:
    """About how large the columns are in memory. Values that the file keeps once for many rows count for each row."""
    size = 0
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        for c in range(group.num_columns):
            column = group.column(c)
            if columns is None or column.path_in_schema.partition(".")[0] in columns:
                size += max(column.total_uncompressed_size, _VALUE_BYTES * column.num_values)
    return max(1, size)


def _casts(path: Path, columns: Columns) -> Columns:
    there = parquet_columns(path)
    for name in columns:
        if name not in there:
            raise DeclarationError(f"{path} has no column {name!r}; it has {', '.join(there)}")
    return {name: dtype for name, dtype in columns.items() if there[name] != dtype}

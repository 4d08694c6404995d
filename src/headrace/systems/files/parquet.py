"""Parquet: the file's own index skips row groups, and Polars decodes rows in blocks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import BinaryIO

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

_SAMPLED_ROWS = 1024


def parquet_columns(file: str | BinaryIO, path: str) -> Columns:
    """The columns of a file."""
    try:
        return dict(pl.read_parquet_schema(file))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


class ParquetFile(RowFile):
    """A file that is decoded in blocks of row groups, or of parts of one.

    ``columns`` are read as these types, or ``names`` as they are in the file; if the file lacks one of the names, all
    of its columns are read, so that an error can say which there are. None of both: all.
    """

    def __init__(self, path: str, columns: Columns | None = None, names: Collection[str] | None = None) -> None:
        self._path = path
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(path, error) from error
        self.rows: int = metadata.num_rows
        wanted = _wanted(metadata, columns, names)
        self._block_rows = max(1, _BLOCK_BYTES * max(1, self.rows) // _decoded_bytes(metadata, wanted))
        groups = (metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))
        self._group_ends: list[int] = list(accumulate(groups, initial=0))
        self._casts = {} if columns is None else _casts(path, columns)
        self._lazy = pl.scan_parquet(path, glob=False)
        if wanted is not None:
            self._lazy = self._lazy.select(list(wanted))
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
        return [Piece(frame, frame.height, bytes=frame.height * self._row_bytes)]

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
        self._row_bytes = _row_bytes(self._block)

    def _block_end(self) -> int:
        """Where a block from here should end: with a row group if possible, so that no page is read twice."""
        end = self._at + self._block_rows
        with_group = self._group_ends[bisect_right(self._group_ends, end) - 1]
        return with_group if with_group > self._at else end

    @override
    def left(self) -> int:
        return self.rows - self._at + self._block.height - self._taken

    @override
    def close(self) -> None:
        self._block = pl.DataFrame()
        self._taken, self._at = 0, self.rows


class StoredParquetFile(RowFile):
    """A file of an object store: Arrow fetches what is needed of it, group by group. Otherwise like ``ParquetFile``."""

    def __init__(
        self, path: str, file: BinaryIO, columns: Columns | None = None, names: Collection[str] | None = None
    ) -> None:
        self._path = path
        self._file = file
        try:
            self._parquet = pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            file.close()
            raise _unreadable(path, error) from error
        metadata = self._parquet.metadata
        self._rows: int = metadata.num_rows
        self._wanted = _wanted(metadata, columns, names)
        self._columns = columns
        self._block_rows = max(1, _BLOCK_BYTES * max(1, self._rows) // _decoded_bytes(metadata, self._wanted))
        self._at = 0
        self._blocks: Iterator[pl.DataFrame] | None = None
        self._block = pl.DataFrame()
        self._row_bytes = 1

    @override
    def skip(self, rows: int) -> int:
        self._at = min(rows, self._rows)
        return self._at

    @override
    def read(self, max_bytes: int) -> list[Piece] | None:
        if not self._block.height and not self._next():
            return None
        frame = self._block.head(max(1, max_bytes // self._row_bytes))
        self._block = self._block.slice(frame.height)
        self._at += frame.height
        return [Piece(frame, frame.height, bytes=frame.height * self._row_bytes)]

    def _next(self) -> bool:
        if self._blocks is None:
            self._blocks = self._decode(self._at)
        try:
            self._block = next(self._blocks, pl.DataFrame())
        except (pa.ArrowException, pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"{self._path}, from row {self._at} on: {error}") from error
        if self._block.height:
            self._row_bytes = _row_bytes(self._block)
        return bool(self._block.height)

    def _decode(self, start: int) -> Iterator[pl.DataFrame]:
        """The blocks from this row on."""
        metadata, first, groups = self._parquet.metadata, 0, list(range(self._parquet.num_row_groups))
        while groups and first + metadata.row_group(groups[0]).num_rows <= start:
            first += metadata.row_group(groups.pop(0)).num_rows
        names = None if self._wanted is None else list(self._wanted)
        for batch in self._parquet.iter_batches(self._block_rows, groups, names, use_threads=False):
            frame = pl.DataFrame(batch)
            frame = frame if names is None else frame.select(names)
            below = max(0, min(start - first, frame.height))
            first += frame.height
            if below < frame.height:
                rows = frame.slice(below)
                yield rows.cast(self._columns) if self._columns else rows  # type: ignore[arg-type]

    @override
    def left(self) -> int:
        return self._rows - self._at

    @override
    def close(self) -> None:
        self._parquet.close()
        self._file.close()


def _unreadable(path: str, error: Exception) -> DataError:
    return DataError(
        f"{path} is not a readable Parquet file: {error}",
        hint="a file that is still being written needs a name that begins with '.' or '_' until it is complete",
    )


def _wanted(
    metadata: pq.FileMetaData, columns: Columns | None, names: Collection[str] | None
) -> Collection[str] | None:
    there = set(metadata.schema.to_arrow_schema().names)
    if columns is not None:
        return columns
    return names if names is not None and there >= set(names) else None


def _decoded_bytes(metadata: pq.FileMetaData, columns: Collection[str] | None) -> int:
    """About how large the columns are in memory. Values that the file keeps once for many rows count for each row."""
    size = 0
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        for c in range(group.num_columns):
            column = group.column(c)
            if columns is None or column.path_in_schema.partition(".")[0] in columns:
                size += max(column.total_uncompressed_size, _VALUE_BYTES * column.num_values)
    return max(1, size)


def _row_bytes(block: pl.DataFrame) -> int:
    """About how large a row is in memory. Some rows speak for all: to sum up all strings takes as long as a filter."""
    some = block.gather_every(max(1, block.height // _SAMPLED_ROWS))
    return max(1, int(some.estimated_size()) // some.height)


def _casts(path: str, columns: Columns) -> Columns:
    there = parquet_columns(path, path)
    for name in columns:
        if name not in there:
            raise DeclarationError(f"{path} has no column {name!r}; it has {', '.join(there)}")
    return {name: dtype for name, dtype in columns.items() if there[name] != dtype}

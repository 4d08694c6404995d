"""The readers of file formats: Parquet, JSON lines and CSV as rows in pieces, from any row on.

Arrow parses CSV because it insists on the number of fields, unlike Polars.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import io
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate
from typing import BinaryIO, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError, StorageError
from headrace.core.files import UNREADABLE
from headrace.rows.dtypes import Columns
from headrace.rows.pieces import (
    ROW_BYTES_MAX,
    BadRow,
    Parse,
    ParsedRows,
    RowsUnreadable,
    last_row_ends,
    parse_rows,
    row_ends,
)
from headrace.rows.text import CsvFormat, from_wire, why_unreadable, wire_columns, without_null_types
from headrace.systems.files.stock import Entry
from headrace.systems.files.storage import Storage, compression_of


class RowFile(Protocol):
    """One open file, or a stretch of one."""

    def skip(self, rows: int) -> int:
        """Skip this number of rows, before the first ``read``; returns how many there were."""

    def read(self, max_bytes: int) -> list[ParsedRows] | None:
        """The next pieces, about ``max_bytes`` together; None at the end."""

    def left(self) -> int | None:
        """How many rows are left; None if the file doesn't say."""
        return None

    def close(self) -> None:
        """Release the file."""


UTF_8 = "utf-8"
_CHUNK_BYTES = 1 << 20


class SourceBroken(Exception):
    """The rest of a file can't be read: it is cut off, or isn't what its name says."""


class _ByteSource(Protocol):
    """Bytes to read once."""

    def read(self, size: int) -> bytes:
        """The next bytes, ``size`` at most; none at the end. Raises ``SourceBroken``."""

    def close(self) -> None:
        """Release the file."""


def open_source(storage: Storage, entry: Entry, encoding: str = UTF_8) -> _ByteSource:
    file = storage.open(entry.path)
    compression = compression_of(entry.path)
    source: _ByteSource = _Stretch(entry, file) if compression is None else _Decompressed(entry.path, file, compression)
    return source if encoding == UTF_8 else _Recoded(source, encoding)


class _Stretch(_ByteSource):
    def __init__(self, entry: Entry, file: BinaryIO) -> None:
        self._path = entry.path
        self._file = file
        self._left = entry.end - entry.start
        if entry.start:
            file.seek(entry.start)

    @override
    def read(self, size: int) -> bytes:
        try:
            data = self._file.read(min(size, self._left))
        except OSError as error:
            raise StorageError(f"can't read {self._path}: {error}", hint="check that it can be reached") from error
        self._left -= len(data)
        if not data and self._left and size:
            raise SourceBroken(f"it is {self._left} bytes shorter than when it was listed")
        return data

    @override
    def close(self) -> None:
        self._file.close()


class _Watched:
    """A file that remembers its error, so that an error of the storage isn't mistaken for one of the data."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.closed = False
        self.error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except (OSError, pa.ArrowException) as error:
            self.error = error
            raise

    def close(self) -> None:
        self.closed = True
        self._file.close()


class _Decompressed(_ByteSource):
    def __init__(self, path: str, file: BinaryIO, compression: str) -> None:
        self._path = path
        self._file = _Watched(file)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._file, "r"), compression)

    @override
    def read(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except (OSError, pa.ArrowException) as error:
            if self._file.error is not None:
                raise StorageError(f"can't read {self._path}: {error}", hint="check that it can be reached") from error
            raise SourceBroken(f"it can't be decompressed: {error}") from error

    @override
    def close(self) -> None:
        self._stream.close()
        if not self._file.closed:
            self._file.close()


class _Recoded(_ByteSource):
    """Text of another encoding. Invalid bytes stay unchanged, and make their row unreadable."""

    def __init__(self, source: _ByteSource, encoding: str) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
        self._rest = b""

    @override
    def read(self, size: int) -> bytes:
        while not self._rest:
            data = self._source.read(_CHUNK_BYTES)
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise SourceBroken(f"its encoding is wrong: {error}") from error
            self._rest = text.encode(errors="surrogateescape")
            if not data:
                break
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    @override
    def close(self) -> None:
        self._source.close()


COUNT_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"


class TextFile(RowFile):
    """Rows that end with line breaks. ``quote``: between two of these, line breaks don't end a row (CSV).

    ``lines_before`` counts the lines before the source begins. A file that breaks off ends with a bad row, which says
    so.
    """

    def __init__(
        self, path: str, source: _ByteSource, *, quote: bytes | None, lines_before: Callable[[], int] = lambda: 0
    ) -> None:
        self.path = path
        self._source = source
        self._quote = quote
        self._lines_before = lines_before
        self._lines = 0
        self._rest = b""
        self._broken: BadRow | None = None
        self._over = False
        self._parse: Parse | None = None
        first = self._more(len(_BOM))
        while first and len(first) < len(_BOM) and (more := self._more(len(_BOM) - len(first))):
            first += more
        if first != _BOM:
            self.give_back(first)

    def parse_with(self, parse: Parse) -> TextFile:
        self._parse = parse
        return self

    def block(self, max_bytes: int) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The next whole rows, and where each ends. Empty at the end of the file."""
        data, want = b"", max(1, max_bytes)
        while True:
            more = self._more(want - len(data))
            data += more
            if not more and self._broken is None:
                return data, last_row_ends(data, self._quote)
            ends = row_ends(data, self._quote)
            if len(ends):
                cut = int(ends[-1])
                self.give_back(data[cut:])
                return data[:cut], ends
            if not more:  # the beginning of a row whose end can't be read
                self._broken = dataclasses.replace(self._broken, raw=data) if self._broken is not None else None
                return b"", ends
            if len(data) > ROW_BYTES_MAX:
                what = f"{self.path}:{self._line(b'', 0)}: a row of more than {ROW_BYTES_MAX} bytes: {data[:60]!r}..."
                raise DataError(what, hint="check for a quote that is never closed, and that the file has this format")
            want *= 2

    def first_row(self, max_bytes: int) -> bytes | None:
        data, ends = self.block(max_bytes)
        if not len(ends):
            return None
        first = data[: int(ends[0])]
        self.give_back(data[len(first) :])
        self._lines += first.count(b"\n")
        return first

    def _more(self, size: int) -> bytes:
        if self._rest:
            more, self._rest = self._rest[:size], self._rest[size:]
            return more
        if self._over:
            return b""
        try:
            more = self._source.read(size)
        except SourceBroken as error:
            self._broken = BadRow(0, f"the rest of the file can't be read: {error}", b"")
            more = b""
        self._over = not more
        return more

    def give_back(self, data: bytes) -> None:
        self._rest = data + self._rest

    @override
    def skip(self, rows: int) -> int:
        left = rows
        while left:
            data, ends = self.block(COUNT_BYTES)
            if not len(ends):
                if self._broken is not None:
                    self._broken = None
                    left -= 1
                break
            if len(ends) > left:
                cut = int(ends[left - 1])
                self.give_back(data[cut:])
                self._lines += data.count(b"\n", 0, cut)
                return rows
            self._lines += data.count(b"\n")
            left -= len(ends)
        return rows - left

    @override
    def read(self, max_bytes: int) -> list[ParsedRows] | None:
        if self._parse is None:
            raise ValueError("parse_with has to be called before read")
        data, ends = self.block(max_bytes)
        if len(ends):
            pieces = parse_rows(data, ends, self._parse)
            if any(piece.bad for piece in pieces):
                pieces = self._with_lines(pieces, data, ends)
            self._lines += len(ends) if self._quote is None else data.count(b"\n")
            return pieces
        if self._broken is None:
            return None
        broken, self._broken = dataclasses.replace(self._broken, line=self._line(b"", 0)), None
        return [ParsedRows(self._parse(b""), 1, bad=(broken,))]

    def _with_lines(self, pieces: list[ParsedRows], data: bytes, ends: npt.NDArray[np.int64]) -> list[ParsedRows]:
        found, first, begins = [], 0, [0, *ends.tolist()]
        for piece in pieces:
            first += piece.skipped
            bad = [dataclasses.replace(row, line=self._line(data, begins[first + row.index])) for row in piece.bad]
            found.append(dataclasses.replace(piece, bad=tuple(bad)))
            first += piece.span
        return found

    def _line(self, data: bytes, at: int) -> int:
        return self._lines_before() + self._lines + data.count(b"\n", 0, at) + 1

    @override
    def close(self) -> None:
        self._source.close()


_HEADER_BYTES = 4 << 10
_HELD = (pl.Int64, pl.UInt64, pl.Float64, pl.Boolean, pl.String, pl.Date, pl.Datetime)
_ARROWS_PREFIX = re.compile(r"^CSV parse error: (Row #\d+: )?")


def read_header(file: TextFile, form: CsvFormat, declared: Sequence[str] | None) -> list[str] | None:
    """The names of the columns; takes what comes before the first row off the file. None: the file is empty."""
    for _ in range(form.skip_lines):
        file.first_row(_HEADER_BYTES)
    if isinstance(form.header, tuple):
        return list(form.header)
    if not form.header and declared is not None:
        return list(declared)
    first = file.first_row(_HEADER_BYTES)
    if first is None:
        return None
    if not form.header:
        file.give_back(first)
    names = _fields(file.path, first, form)
    if not form.header:
        return [f"column_{number}" for number in range(1, len(names) + 1)]
    if len(set(names)) < len(names):
        raise DataError(f"{file.path}: the header names a column twice: {', '.join(names)}")
    return names


def _fields(path: str, line: bytes, form: CsvFormat) -> list[str]:
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if form.quote is not None else csv.QUOTE_NONE
    try:
        text = io.StringIO(line.decode(), newline="")
        return next(csv.reader(text, delimiter=form.separator, quotechar=form.quote, quoting=quoting))
    except (UnicodeDecodeError, StopIteration, csv.Error) as error:
        hint = "describe the file: format=hr.io.csv(encoding=..., separator=..., skip_lines=...)"
        raise DataError(f"{path}: unreadable header line {line[:60]!r}: {error}", hint=hint) from error


def csv_parser(path: str, header: list[str], columns: Columns, form: CsvFormat) -> Parse:
    missing = [name for name in columns if name not in header]
    if missing:
        raise DeclarationError(
            f"{path} has no column {missing[0]!r}; it has {', '.join(header)}",
            hint=None if len(header) > 1 else "check the separator: format=hr.io.csv(separator=...)",
        )
    wire = wire_columns(columns)
    types = {name: _arrow_type(path, name, dtype) for name, dtype in wire.items()}
    convert = pacsv.ConvertOptions(
        column_types=types,
        include_columns=list(columns),
        null_values=list(form.null_values),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parsing = pacsv.ParseOptions(
        delimiter=form.separator, quote_char=form.quote or False, newlines_in_values=form.quote is not None
    )
    empty = pl.DataFrame(schema=columns)

    def parse(data: bytes) -> pl.DataFrame:
        if not data.strip():
            return empty
        # Read everything as one block: Arrow can't place rows that begin in one block and end in the next.
        reading = pacsv.ReadOptions(use_threads=False, column_names=header, block_size=len(data) + 1)
        try:
            table = pacsv.read_csv(pa.BufferReader(data), reading, parsing, convert)
            return from_wire(pl.DataFrame(table), columns)
        except pl.exceptions.PolarsError as error:
            raise RowsUnreadable(why_unreadable(error)) from error
        except pa.ArrowException as error:
            # Arrow counts rows from the start of the block, which means nothing to the reader of the message.
            raise RowsUnreadable(_ARROWS_PREFIX.sub("", str(error).splitlines()[0])) from error

    return parse


def _arrow_type(path: str, name: str, dtype: pl.DataType) -> pa.DataType:
    if not isinstance(dtype, _HELD):
        what = f"{path}: CSV can't hold column {name!r} of type {dtype}"
        raise DeclarationError(what, hint="use Parquet or JSON lines")
    return pl.Series(dtype=dtype).to_arrow(compat_level=pl.CompatLevel.oldest()).type


def check_writable(path: str, columns: Columns) -> None:
    for name, dtype in columns.items():
        if dtype.is_nested():
            what = f"{path}: CSV can't hold column {name!r} of type {dtype}"
            raise DeclarationError(what, hint="use Parquet or JSON lines")


def infer_csv(file: TextFile, form: CsvFormat) -> Columns:
    """The columns of the header, with the types of the first block; String where Polars finds nothing narrower."""
    header = read_header(file, form, None)
    if header is None:
        return {}
    data, _ = file.block(COUNT_BYTES)
    try:
        rows = pl.read_csv(
            data,
            has_header=False,
            new_columns=header,
            separator=form.separator,
            quote_char=form.quote,
            null_values=list(form.null_values),
            infer_schema_length=None,
            truncate_ragged_lines=True,
        )
        return without_null_types({name: rows.schema.get(name, pl.String()) for name in header})
    except pl.exceptions.PolarsError:
        return {name: pl.String() for name in header}


def infer_jsonlines(file: TextFile) -> Columns:
    data, _ = file.block(COUNT_BYTES)
    good = b"\n".join(line for line in data.splitlines() if _is_object(line))
    if not good:
        what = f"{file.path}: no JSON object in its first {len(data)} bytes"
        raise DataError(what, hint="check that the file is JSON lines")
    try:
        return without_null_types(dict(pl.read_ndjson(good, infer_schema_length=None).schema))
    except pl.exceptions.PolarsError as error:
        what = f"{file.path}: its columns can't be inferred: {error}"
        raise DataError(what, hint="declare the columns: schema=...") from error


def _is_object(line: bytes) -> bool:
    if not line.strip():
        return False
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except UNREADABLE:
        return False


_BLOCK_BYTES = 16 << 20  # about how much is decoded at once
_VALUE_BYTES = 8  # the least size of a value in memory
_SAMPLED_ROWS = 1024


def parquet_columns(file: str | BinaryIO, path: str) -> Columns:
    try:
        return dict(pl.read_parquet_schema(file))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


class _BlockFile(RowFile):
    """A Parquet file that is decoded in blocks. ``columns`` are read as these types, or ``names`` as they are there.

    If the file lacks one of the names, all of its columns are read, so that an error can say which there are.
    """

    def __init__(
        self, path: str, metadata: pq.FileMetaData, columns: Columns | None, names: Collection[str] | None
    ) -> None:
        self._path = path
        self._metadata = metadata
        self._rows: int = metadata.num_rows
        self._wanted = _wanted(metadata, columns, names)
        self._casts = columns
        self._block_rows = max(1, _BLOCK_BYTES * max(1, self._rows) // _decoded_bytes(metadata, self._wanted))
        self._at = 0
        self._blocks: Iterator[pl.DataFrame] | None = None
        self._block = pl.DataFrame()
        self._row_bytes = 1

    def _decode(self, start: int) -> Iterator[pl.DataFrame]:
        raise NotImplementedError

    @override
    def skip(self, rows: int) -> int:
        self._at = min(rows, self._rows)
        return self._at

    @override
    def read(self, max_bytes: int) -> list[ParsedRows] | None:
        if not self._block.height and not self._next():
            return None
        frame = self._block.head(max(1, max_bytes // self._row_bytes))
        self._block = self._block.slice(frame.height)
        self._at += frame.height
        return [ParsedRows(frame, frame.height, bytes=frame.height * self._row_bytes)]

    def _next(self) -> bool:
        if self._blocks is None:
            self._blocks = self._decode(self._at)
        try:
            block = next(self._blocks, pl.DataFrame())
            self._block = block.cast(self._casts) if self._casts and block.height else block  # type: ignore[arg-type]
        except (pa.ArrowException, pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"{self._path}, from row {self._at} on: {error}") from error
        if self._block.height:
            self._row_bytes = _row_bytes(self._block)
        return bool(self._block.height)

    @override
    def left(self) -> int:
        return self._rows - self._at

    @override
    def close(self) -> None:
        self._blocks, self._block = iter(()), pl.DataFrame()


class ParquetFile(_BlockFile):
    """A file of this machine, decoded by Polars in blocks of row groups, or of parts of one."""

    def __init__(self, path: str, columns: Columns | None = None, names: Collection[str] | None = None) -> None:
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(path, error) from error
        super().__init__(path, metadata, columns, names)
        groups = (metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))
        self._group_ends: list[int] = list(accumulate(groups, initial=0))
        self._casts = None if columns is None else _casts(path, columns)
        self._lazy = pl.scan_parquet(path, glob=False)
        if self._wanted is not None:
            self._lazy = self._lazy.select(list(self._wanted))

    @override
    def _decode(self, start: int) -> Iterator[pl.DataFrame]:
        while start < self._rows:
            block = self._lazy.slice(start, self._block_end(start) - start).collect()
            if not block.height:
                raise DataError(f"{self._path} ends at row {start}; its index says {self._rows}")
            start += block.height
            yield block

    def _block_end(self, start: int) -> int:
        """With a row group if possible, so that no page is read twice."""
        end = start + self._block_rows
        with_group = self._group_ends[bisect_right(self._group_ends, end) - 1]
        return with_group if with_group > start else end


class StoredParquetFile(_BlockFile):
    """A file of an object store: Arrow fetches what is needed of it, group by group."""

    def __init__(
        self, path: str, file: BinaryIO, columns: Columns | None = None, names: Collection[str] | None = None
    ) -> None:
        self._file = file
        try:
            self._parquet = pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            file.close()
            raise _unreadable(path, error) from error
        super().__init__(path, self._parquet.metadata, columns, names)

    @override
    def _decode(self, start: int) -> Iterator[pl.DataFrame]:
        first, groups = 0, list(range(self._parquet.num_row_groups))
        while groups and first + self._metadata.row_group(groups[0]).num_rows <= start:
            first += self._metadata.row_group(groups.pop(0)).num_rows
        names = None if self._wanted is None else list(self._wanted)
        for batch in self._parquet.iter_batches(self._block_rows, groups, names, use_threads=False):
            frame = pl.DataFrame(batch)
            frame = frame if names is None else frame.select(names)
            below = max(0, min(start - first, frame.height))
            first += frame.height
            if below < frame.height:
                yield frame.slice(below)

    @override
    def close(self) -> None:
        self._parquet.close()
        self._file.close()


def _unreadable(path: str, error: Exception) -> DataError:
    hint = "a file that is still being written needs a name that begins with '.' or '_' until it is complete"
    return DataError(f"{path} is not a readable Parquet file: {error}", hint=hint)


def _wanted(
    metadata: pq.FileMetaData, columns: Columns | None, names: Collection[str] | None
) -> Collection[str] | None:
    if columns is not None or names is None:
        return columns
    return names if set(metadata.schema.to_arrow_schema().names) >= set(names) else None


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

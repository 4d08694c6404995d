"""CSV with a header line, parsed by Arrow. Unlike Polars, it insists on the number of fields."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.dtypes import Columns
from headrace.serdes.row_pieces import Parse, RowsUnreadable
from headrace.systems.files.text import COUNT_BYTES, TextFile
from headrace.systems.files.wire import from_wire, wire_columns, without_null_types

_HEADER_BYTES = 4 << 10
_HELD = (pl.Int64, pl.UInt64, pl.Float64, pl.Boolean, pl.String, pl.Date, pl.Datetime)
_ARROWS_PREFIX = re.compile(r"^CSV parse error: (Row #\d+: )?")


def open_csv(path: Path, columns: Columns) -> TextFile:
    """Open a file that has these columns, and perhaps others, in any order."""
    file = TextFile(path, quoted=True)
    try:
        header = _read_header(file)
        return file.parse_with(_parser(path, header, columns))
    except BaseException:
        file.close()
        raise


def _read_header(file: TextFile) -> list[str]:
    data, ends = file.block(_HEADER_BYTES)
    if not len(ends):
        raise DataError(
            f"{file.path}: the file is empty: it has not even a header", hint="a CSV file begins with its header"
        )
    first = int(ends[0])
    file.give_back(data[first:])
    try:
        header = next(csv.reader(io.StringIO(data[:first].decode())))
    except (UnicodeDecodeError, StopIteration, csv.Error) as error:
        raise DataError(f"{file.path}: unreadable header line {data[:60]!r}: {error}") from error
    if len(set(header)) < len(header):
        raise DataError(f"{file.path}: the header names a column twice: {', '.join(header)}")
    return header


def _parser(path: Path, header: list[str], columns: Columns) -> Parse:
    missing = [name for name in columns if name not in header]
    if missing:
        raise DeclarationError(f"{path} has no column {missing[0]!r}; it has {', '.join(header)}")
    wire = wire_columns(columns)
    types = {name: _arrow_type(path, name, dtype) for name, dtype in wire.items()}
    convert = pacsv.ConvertOptions(
        column_types=types,
        include_columns=list(columns),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parsing = pacsv.ParseOptions(newlines_in_values=True)
    empty = pl.DataFrame(schema=columns)

    def parse(data: bytes) -> pl.DataFrame:
        if not data.strip():
            return empty
        # Read everything as one block: Arrow can't place rows that begin in one block and end in the next.
        reading = pacsv.ReadOptions(use_threads=False, column_names=header, block_size=len(data) + 1)
        try:
            table = pacsv.read_csv(pa.BufferReader(data), reading, parsing, convert)
            return from_wire(pl.DataFrame(table), columns)
        except (pa.ArrowException, pl.exceptions.PolarsError) as error:
            # Arrow counts rows from the start of the block, which means nothing to the reader of the message.
            raise RowsUnreadable(_ARROWS_PREFIX.sub("", str(error).splitlines()[0])) from error

    return parse


def _arrow_type(path: Path, name: str, dtype: pl.DataType) -> pa.DataType:
    if not isinstance(dtype, _HELD):
        raise DeclarationError(
            f"{path}: CSV can't hold column {name!r} of type {dtype}", hint="use Parquet or JSON lines"
        )
    return pl.Series(dtype=dtype).to_arrow(compat_level=pl.CompatLevel.oldest()).type


def csv_header(path: Path) -> list[str]:
    """The names of a file's columns."""
    file = TextFile(path, quoted=True)
    try:
        return _read_header(file)
    finally:
        file.close()


def infer_csv(path: Path) -> Columns:
    """The columns of the header, with the types of the first block; String where Polars finds nothing narrower."""
    file = TextFile(path, quoted=True)
    try:
        header = _read_header(file)
        data, _ = file.block(COUNT_BYTES)
    finally:
        file.close()
    try:
        rows = pl.read_csv(
            data, has_header=False, new_columns=header, infer_schema_length=None, truncate_ragged_lines=True
        )
        return without_null_types({name: rows.schema.get(name, pl.String()) for name in header})
    except pl.exceptions.PolarsError:
        return {name: pl.String() for name in header}

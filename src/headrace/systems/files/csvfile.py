"""CSV, parsed by Arrow. Unlike Polars, it insists on the number of fields."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Literal

import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.csv_format import CsvFormat
from headrace.serdes.dtypes import Columns
from headrace.serdes.row_pieces import Parse, RowsUnreadable
from headrace.serdes.wire import from_wire, why_unreadable, wire_columns, without_null_types
from headrace.systems.files.text import COUNT_BYTES, TextFile

_HEADER_BYTES = 4 << 10
_HELD = (pl.Int64, pl.UInt64, pl.Float64, pl.Boolean, pl.String, pl.Date, pl.Datetime)
_ARROWS_PREFIX = re.compile(r"^CSV parse error: (Row #\d+: )?")


def read_header(file: TextFile, form: CsvFormat, declared: Sequence[str] | None) -> list[str] | None:
    """The names of the columns; takes what comes before the first row off the file. None: the file is empty.

    A file without a header has the ``declared`` columns; without these too, they are named by their numbers.
    """
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
        raise DataError(
            f"{path}: unreadable header line {line[:60]!r}: {error}",
            hint="describe the file: format=hr.io.csv(encoding=..., separator=..., skip_lines=...)",
        ) from error


def csv_parser(path: str, header: list[str], columns: Columns, form: CsvFormat) -> Parse:
    """A parser of rows with the columns of the header, of which these are read."""
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
        raise DeclarationError(
            f"{path}: CSV can't hold column {name!r} of type {dtype}", hint="use Parquet or JSON lines"
        )
    return pl.Series(dtype=dtype).to_arrow(compat_level=pl.CompatLevel.oldest()).type


def csv_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows as Polars' writer takes them."""
    return rows.with_columns(pl.selectors.binary().bin.encode("base64"))


def check_writable(path: str, columns: Columns) -> None:
    """Raise ``DeclarationError`` if a column has a type that has no text in CSV."""
    for name, dtype in columns.items():
        if dtype.is_nested() or isinstance(dtype, pl.Duration):
            raise DeclarationError(
                f"{path}: CSV can't hold column {name!r} of type {dtype}", hint="use Parquet or JSON lines"
            )


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

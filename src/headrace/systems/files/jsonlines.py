"""JSON lines: one object per line."""

from __future__ import annotations

import msgspec
import polars as pl

from headrace.core.errors import DataError
from headrace.serdes.dtypes import Columns
from headrace.serdes.row_pieces import Parse, RowsUnreadable
from headrace.systems.files.text import COUNT_BYTES, TextFile
from headrace.systems.files.wire import from_wire, why_unreadable, wire_columns, without_null_types


def jsonlines_parser(columns: Columns) -> Parse:
    """A parser of objects that have these columns. Missing fields are null; other fields are ignored."""
    wire = wire_columns(columns)
    empty = pl.DataFrame(schema=columns)

    def parse(data: bytes) -> pl.DataFrame:
        if not data.strip():
            return empty
        try:
            return from_wire(pl.read_ndjson(data, schema=wire), columns)
        except pl.exceptions.PolarsError as error:
            raise RowsUnreadable(why_unreadable(error)) from error

    return parse


def infer_jsonlines(file: TextFile) -> Columns:
    """The columns of the first block of a file, from those of its lines that are JSON objects."""
    data, _ = file.block(COUNT_BYTES)
    good = b"\n".join(line for line in data.splitlines() if _is_object(line))
    if not good:
        raise DataError(f"{file.path}: no JSON object in its first {len(data)} bytes", hint="is this another format?")
    try:
        return without_null_types(dict(pl.read_ndjson(good, infer_schema_length=None).schema))
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{file.path}: its columns can't be inferred: {error}", hint="declare them: schema=..."
        ) from error


def _is_object(line: bytes) -> bool:
    if not line.strip():
        return False
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False

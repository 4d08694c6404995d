"""The columns of JSON lines. ``serdes.formats.json`` reads their rows."""

from __future__ import annotations

import msgspec
import polars as pl

from headrace.core.errors import DataError
from headrace.core.records import UNREADABLE
from headrace.serdes.dtypes import Columns
from headrace.serdes.wire import without_null_types
from headrace.systems.files.text import COUNT_BYTES, TextFile


def infer_jsonlines(file: TextFile) -> Columns:
    """Return the columns of the first block of a file, from its lines that are JSON objects."""
    data, _ = file.block(COUNT_BYTES)
    good = b"\n".join(line for line in data.splitlines() if _is_object(line))
    if not good:
        raise DataError(
            f"{file.path}: no JSON object in its first {len(data)} bytes", hint="check that the file is JSON lines"
        )
    try:
        return without_null_types(dict(pl.read_ndjson(good, infer_schema_length=None).schema))
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{file.path}: its columns can't be inferred: {error}", hint="declare the columns: schema=..."
        ) from error


def _is_object(line: bytes) -> bool:
    if not line.strip():
        return False
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except UNREADABLE:
        return False

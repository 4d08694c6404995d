"""Rows as bytes: the body of each frame is one self-describing Arrow IPC stream. Pure.

Polars writes the bytes: it is fast, and writes only the strings that a slice uses. PyArrow reads them. Polars' own
reader copies every buffer, and a damaged length makes it abort the whole process. PyArrow shares the memory of the
bytes, and reports damage as an error.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import polars as pl
import pyarrow as pa

from headrace.core.errors import DataError, FrameError
from headrace.core.frame import Bytes
from headrace.rows.casting import beyond, holds, why_beyond
from headrace.rows.given import concat_rows
from headrace.rows.values import without_wild_views

# Strings are views in Polars. The oldest layout has none, so writing it would first convert every string.
_LAYOUT = pl.CompatLevel.newest()
_END_OF_IPC = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_UNREADABLE = (pl.Int128, pl.UInt128, pl.Object)
_ALWAYS_READABLE = frozenset({
    pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64,
    pl.Boolean, pl.String, pl.Binary, pl.Date, pl.Time, pl.Datetime, pl.Duration, pl.Categorical, pl.Enum, pl.Null,
})  # fmt: skip
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, IndexError, KeyError, MemoryError)
_FEW_ROWS = 4096  # tables of so few rows are joined faster by PyArrow, which copies more slowly
WRITER_HINT = "another program wrote to the stream, or its bytes are damaged; check what writes to it"
_VALUE_HINT = "the bytes are a whole table, so they aren't damaged: whatever wrote it doesn't check its values"


def encode_rows(df: pl.DataFrame) -> bytes:
    """The rows as one Arrow IPC stream. Raises ``DataError`` for what PyArrow couldn't read."""
    return encode_rows_into(io.BytesIO(), df)


def encode_rows_into(buffer: io.BytesIO, df: pl.DataFrame) -> bytes:
    """Append the rows to ``buffer``, which holds a frame's header, and return its whole content, without a copy."""
    for name, dtype in zip(df.columns, df.dtypes, strict=True):
        if type(dtype) not in _ALWAYS_READABLE:
            _require_readable(name, dtype, df)
    buffer.seek(0, io.SEEK_END)  # the position of io.BytesIO(header) is 0
    df.write_ipc_stream(buffer, compat_level=_LAYOUT)
    return buffer.getvalue()


def _require_readable(name: str, dtype: pl.DataType, df: pl.DataFrame) -> None:
    if dtype in _UNREADABLE:
        raise DataError(
            f"column {name!r} of type {dtype} can't be written to a stream",
            hint=f"cast it first: pl.col({name!r}).cast(pl.Int64), or to Decimal or String",
        )
    column = df.get_column(name)
    if holds(dtype, (pl.Decimal,)) and len(wrong := beyond(column)):
        raise DataError(
            f"{why_beyond(column, int(wrong[0]))}, so no reader could decode it",
            hint=f"compute it with fewer digits in the step that makes it: pl.col({name!r}).cast(pl.Float64)",
        )


def decode_rows(data: Bytes, *, checked: bool = False) -> pl.DataFrame:
    """The rows of one Arrow IPC stream of any number of batches. They share ``data``'s memory. ``checked``: Headrace
    wrote the bytes and a checksum has confirmed them, so strings and offsets aren't validated. Raises ``FrameError``
    when the bytes are not exactly one complete stream."""
    table = _read(data)
    _validate([table], data, full=not checked)
    return _as_frame(table, data, tamed=not checked)


def decode_runs(bodies: Sequence[Bytes], *, checked: bool = False) -> list[tuple[pl.DataFrame, list[int]]]:
    """Decode many streams at once: consecutive ones with the same columns become one table, with the height of each.
    With few rows in each this takes a fraction of the time of ``decode_rows``, but errors don't say which one it is."""
    runs: list[list[pa.Table]] = []
    for body in bodies:
        table = _read(body)
        if runs and table.schema.equals(runs[-1][0].schema, check_metadata=True):
            runs[-1].append(table)
        else:
            runs.append([table])
    found = []
    for tables in runs:
        _validate(tables, bodies[0], full=not checked)
        found.append((_together(tables, bodies[0], tamed=not checked), [table.num_rows for table in tables]))
    return found


def _read(data: Bytes) -> pa.Table:
    source = pa.BufferReader(data)
    try:
        table = pa.ipc.open_stream(source).read_all()
    except _ARROW_ERRORS as error:
        raise FrameError(f"{_describe(data)} is not an Arrow batch: {error}", hint=WRITER_HINT) from error
    end = source.tell()
    if end != len(data):
        raise FrameError(
            f"an Arrow batch of {end} bytes is followed by {len(data) - end} more: {_start(data, end)}",
            hint=WRITER_HINT,
        )
    # A stream cut off after a batch parses as a shorter one; only the missing end marker gives it away.
    if bytes(data[-len(_END_OF_IPC) :]) != _END_OF_IPC:
        raise FrameError(f"{_describe(data)} is an Arrow batch without its end marker", hint=WRITER_HINT)
    return table


def _validate(tables: Sequence[pa.Table], data: Bytes, *, full: bool) -> None:
    try:
        for table in tables:
            table.validate(full=full)
    except _ARROW_ERRORS as error:
        raise FrameError(f"{_describe(data)} has a value that can't be decoded: {error}", hint=_VALUE_HINT) from error


def _together(tables: Sequence[pa.Table], data: Bytes, *, tamed: bool) -> pl.DataFrame:
    if len(tables) == 1:
        return _as_frame(tables[0], data, tamed=tamed)
    plain = all(dtype.num_fields == 0 and not pa.types.is_dictionary(dtype) for dtype in tables[0].schema.types)
    if plain and sum(table.num_rows for table in tables) <= _FEW_ROWS * len(tables):
        return _as_frame(pa.concat_tables(tables).combine_chunks(), data, tamed=tamed)
    return concat_rows([_as_frame(table, data, tamed=tamed) for table in tables])


def _as_frame(table: pa.Table, data: Bytes, *, tamed: bool) -> pl.DataFrame:
    """``tamed``: the table comes from elsewhere, so its views are checked first."""
    try:
        frame = pl.from_arrow(without_wild_views(table) if tamed else table)
    except (Exception, pl.exceptions.PanicException) as error:
        # Types that one of the two libraries doesn't know raise various errors. A panic of Polars isn't an
        # ``Exception``.
        raise FrameError(f"{_describe(data)}: Polars can't read its columns: {error}", hint=WRITER_HINT) from error
    if not isinstance(frame, pl.DataFrame):
        raise FrameError(f"{_describe(data)} is not a table", hint=WRITER_HINT)
    return frame


def _describe(data: Bytes) -> str:
    return f"a body of {len(data)} bytes ({_start(data, 0)})"


def _start(data: Bytes, at: int) -> str:
    shown: Iterable[int] = bytes(data[at : at + 16])
    return " ".join(f"{byte:02x}" for byte in shown) or "nothing"

"""Pieces: what moves between the stages of a batch job. A piece is rows of one partition of a stream, in order of time.

A batch job sorts and shuffles pieces, not rows: each is one Arrow batch of some thousand rows, with the times of the
first and the last of them. So a reader who gets the pieces of a partition in the order of their first times only has to
hold those that overlap, however many rows there are.

Pure: bytes in, tables out; nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.core.errors import DataError
from headrace.serdes.ipc import decode_rows

TIME = "__time_in_piece"
"""The column of a piece that has its rows' event times. No column of a user's is likely to have this name."""

SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("last", pa.int64(), nullable=False),
        pa.field("rows", pa.int32(), nullable=False),
        pa.field("writer", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""Pieces as a table. ``number`` counts the pieces of a writer, so that the order of equal times is stable."""


_NUMBERS = {pa.int32(): np.int32, pa.int64(): np.int64}
_BYTES_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """One row of the table."""

    stream: str
    partition: int
    first: int
    last: int
    rows: int
    writer: str
    number: int
    body: bytes

    @property
    def frame(self) -> pl.DataFrame:
        """Its rows; the column ``TIME`` has their times."""
        return decode_rows(self.body, checked=True)


def pieces_in(batch: pa.RecordBatch) -> Iterator[Piece]:
    """The pieces of a part of the table."""
    columns = [batch.column(name).to_pylist() for name in SCHEMA.names[:-1]]
    bodies = batch.column(SCHEMA.names[-1])
    for place, values in enumerate(zip(*columns, strict=True)):
        stream, partition, first, last, rows, writer, number = values
        yield Piece(stream, partition, first, last, rows, writer, number, bodies[place].as_py())


def as_batch(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """Pieces as a part of the table."""
    columns = [_array([getattr(piece, field.name) for piece in pieces], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _array(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """The values as Arrow has them. ``pa.array`` would import pandas, which takes a new worker half a second."""
    if dtype in _NUMBERS:
        buffers = [None, pa.py_buffer(np.array(values, _NUMBERS[dtype]))]
    else:
        parts = [value.encode() if isinstance(value, str) else value for value in values]
        ends = np.cumsum([0, *map(len, parts)])
        if ends[-1] > _BYTES_MAX:
            raise DataError(
                f"{len(values)} pieces of a batch job have {ends[-1]} bytes, but Spark takes at most {_BYTES_MAX} at a "
                "time",
                hint="the messages are too large for a batch job: store large values elsewhere, and send references to "
                "them",
            )
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(dtype, len(values), buffers, 0)

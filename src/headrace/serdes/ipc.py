"""Rows as bytes: one self-describing Arrow IPC stream per message body.

Polars writes: it is fast and writes only the strings that a slice uses. PyArrow reads, although Polars
has a reader too: a damaged length makes that one abort the whole process, and it copies every buffer,
where PyArrow refuses the bytes and hands their memory on.

Pure: bytes in, tables out; nothing here blocks.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import polars as pl
import pyarrow as pa

from headrace.core.errors import DataError, FrameError
from headrace.core.frame import Bytes

# Writing strings in the older layout would copy each of them into another form first.
_LAYOUT = pl.CompatLevel.newest()
_END_OF_IPC = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_UNREADABLE = (pl.Int128, pl.UInt128, pl.Object)
_WRITER_HINT = "the stream was written by something else, or its bytes are damaged; check who writes to it"


def encode_rows(df: pl.DataFrame) -> bytes:
    """The rows as one Arrow IPC stream. Raises ``DataError`` for a column that no reader could read."""
    return encode_rows_into(io.BytesIO(), df)


def encode_rows_into(buffer: io.BytesIO, df: pl.DataFrame) -> bytes:
    """Append the rows to what ``buffer`` holds (a frame's header), and return the whole of it.

    Saves the copy that ``header + encode_rows(df)`` makes of the body.
    """
    for name, dtype in zip(df.columns, df.dtypes, strict=True):
        if dtype in _UNREADABLE:
            raise DataError(
                f"column {name!r} of type {dtype} can't be written to a stream",
                hint=f"cast it before: pl.col({name!r}).cast(pl.Int64), or a Decimal or String",
            )
    buffer.seek(0, io.SEEK_END)  # io.BytesIO(header) begins at its start
    df.write_ipc_stream(buffer, compat_level=_LAYOUT)
    return buffer.getvalue()


def decode_rows(data: Bytes, *, checked: bool = False) -> pl.DataFrame:
    """The rows of one Arrow IPC stream of any number of batches. The table shares ``data``'s memory.

    ``checked=True`` says that the bytes passed a checksum since Headrace wrote them; the look at each
    string and offset is then left out. Bytes from anywhere else need it: Polars trusts what it is given.

    Raises ``FrameError`` when the bytes are not exactly one whole stream.
    """
    source = pa.BufferReader(data)
    try:
        table = pa.ipc.open_stream(source).read_all()
        table.validate(full=not checked)
    except (pa.ArrowException, OSError, ValueError, IndexError, KeyError, MemoryError) as error:
        raise FrameError(f"{_describe(data)} is not an Arrow batch: {error}", hint=_WRITER_HINT) from error
    end = source.tell()
    if end != len(data):
        raise FrameError(
            f"an Arrow batch of {end} bytes is followed by {len(data) - end} more: {_start(data, end)}",
            hint=_WRITER_HINT,
        )
    # Without its end mark, a stream that lost its last batches would look like a shorter one.
    if bytes(data[-len(_END_OF_IPC) :]) != _END_OF_IPC:
        raise FrameError(f"{_describe(data)} is an Arrow batch without its end", hint=_WRITER_HINT)
    return _as_frame(table, data)


def concat_rows(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """All rows in order, in contiguous memory; columns and types must be the same.

    Left as chunks, every later step would pay for each of them: a split of 64 chunks of 1000 rows takes
    four times as long, and the first step already costs more than the copy.
    """
    filled = [frame for frame in frames if frame.height]
    if not filled:
        return frames[0] if frames else pl.DataFrame()
    return filled[0] if len(filled) == 1 else pl.concat(filled, rechunk=True)


def _as_frame(table: pa.Table, data: Bytes) -> pl.DataFrame:
    try:
        frame = pl.from_arrow(table)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, TypeError) as error:
        # A panic of Polars is a BaseException; it must not take the container down.
        raise FrameError(f"{_describe(data)}: Polars can't take its columns: {error}") from error
    if not isinstance(frame, pl.DataFrame):
        raise FrameError(f"{_describe(data)} is no table")
    return frame


def _describe(data: Bytes) -> str:
    return f"a body of {len(data)} bytes ({_start(data, 0)})"


def _start(data: Bytes, at: int) -> str:
    shown: Iterable[int] = bytes(data[at : at + 16])
    return " ".join(f"{byte:02x}" for byte in shown) or "nothing"

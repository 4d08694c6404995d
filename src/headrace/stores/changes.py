"""The changes of a key-value store in the changelog: many entries in one record, in columns.

A change is one byte for the operation, then one Arrow IPC stream of two binary columns, ``key`` and ``value``. A null
value means that the key was deleted. A large set of entries becomes several changes, each below the record size that
brokers accept by default.

Pure: bytes in, entries out; nothing blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.core.errors import CorruptLogError, FrameError
from headrace.serdes.ipc import decode_rows

CHANGE_BYTES_MAX = 900_000
"""Kafka's default limit of a record is 1 MiB. Header, store id and Arrow's own bytes are added to this."""

_OFFSETS_BYTES = 9  # an entry's two offsets, and its share of the null bitmap
_SCHEMA = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])


def encode_changes(
    operation: bytes, entries: Mapping[bytes, bytes | None], bytes_max: int = CHANGE_BYTES_MAX
) -> list[bytes]:
    """Return the entries as changes of at most ``bytes_max`` each, or of one entry if that alone is larger."""
    return encode_entries(operation, list(entries.keys()), list(entries.values()), bytes_max) if entries else []


def encode_entries(
    operation: bytes,
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    bytes_max: int = CHANGE_BYTES_MAX,
) -> list[bytes]:
    """Like ``encode_changes``, of keys and the value at the same position."""
    if not keys:
        return []
    all_keys = pa.array(keys, pa.large_binary())
    all_values = pa.array(values, pa.large_binary())
    changes = []
    for low, high in _cuts(_sizes(all_keys) + _sizes(all_values) + _OFFSETS_BYTES, bytes_max):
        part = pa.record_batch(
            [all_keys[low:high].cast(pa.binary()), all_values[low:high].cast(pa.binary())], schema=_SCHEMA
        )
        sink = pa.BufferOutputStream()
        sink.write(operation)
        with pa.ipc.new_stream(sink, _SCHEMA) as stream:
            stream.write_batch(part)
        changes.append(sink.getvalue().to_pybytes())
    return changes


def decode_change(change: bytes) -> tuple[list[bytes], list[bytes | None]]:
    """Return keys and values (None: deleted) of a change. Ignores its operation. Raises ``CorruptLogError``."""
    try:
        rows = decode_rows(memoryview(change)[1:])
    except FrameError as error:
        raise CorruptLogError(f"a change in the changelog is damaged: {error.message}", hint=error.hint) from error
    if rows.columns != _SCHEMA.names:
        raise CorruptLogError(
            f"a change in the changelog has the columns {rows.columns}, not {_SCHEMA.names}",
            hint="check whether another program writes to the changelog; otherwise its bytes are damaged",
        )
    return rows.get_column("key").to_list(), rows.get_column("value").to_list()


def _sizes(array: pa.LargeBinaryArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    offsets = np.frombuffer(array.buffers()[1], np.int64)[: len(array) + 1]
    return np.diff(offsets)


def _cuts(sizes: np.ndarray[tuple[int], np.dtype[np.int64]], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of entries whose sizes add up to at most ``bytes_max``, or of one larger entry.

    Sizes [4, 4, 9, 1] and 8 bytes give (0, 2), (2, 3), (3, 4).
    """
    ends = sizes.cumsum()
    low = 0
    while low < len(ends):
        before = ends[low - 1] if low else 0
        high = max(low + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        yield low, high
        low = high

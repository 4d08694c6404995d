"""Rows by key as one commit left them, read from a pinned database: of what is kept on disk, and of what is in memory.

Both kinds lie in the local database, each in its own form; what is in memory beside it belongs to the run loop, and
isn't looked at. Answers are bounded, in rows and in bytes. Any thread; reads wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import polars as pl

from headrace.core.errors import DataError
from headrace.plan.queryable import Held
from headrace.serdes.ipc import encode_rows
from headrace.stores.database import KeySpace
from headrace.stores.keyvalue import CommittedKeyValues
from headrace.stores.memory_table import MemoryTable
from headrace.stores.ordered_keys import KeyEncoding
from headrace.stores.pinned import Pin
from headrace.stores.table import Columns, RowReader
from headrace.stores.versions import VERSION_COLUMNS, NewestRows, Versions

ROW_BYTES_MAX = 2 << 20
_FOUND = "__found"


class RowPage(NamedTuple):
    """Rows in the order of keys. ``more``: the bounds left some out, which stand behind the key ``last``."""

    rows: pl.DataFrame
    more: bool
    last: bytes


class CommittedRows(Protocol):
    """The rows of one commit."""

    @property
    def rows(self) -> NewestRows:
        """They, to be looked up."""
        ...

    def get(self, keys: Sequence[bytes], bytes_max: int) -> RowPage:
        """The rows of these keys, which ascend, of those that are there."""
        ...

    def scan(self, low: bytes, high: bytes, rows_max: int, bytes_max: int) -> RowPage:
        """The first rows with ``low <= key < high``."""
        ...


def committed_rows(held: Held, pin: Pin, now_ms: int) -> CommittedRows:
    """What is held; ``now_ms`` decides what has expired. Of versions the newest, with ``VERSION_COLUMNS``."""
    columns = {**held.columns, **({} if held.versions_ms is None else VERSION_COLUMNS)}
    if held.storage == "memory":
        return _InMemory(held, columns, pin, now_ms)
    return _OnDisk(held, columns, pin, now_ms)


def committed_versions(held: Held, newest: NewestRows, pin: Pin) -> Versions:
    """All versions of what is held."""
    versions = Versions(held.id, newest)
    versions.attach_history(KeySpace(pin, f"{held.id}.history"))
    return versions


class _OnDisk:
    def __init__(self, held: Held, columns: Columns, pin: Pin, now_ms: int) -> None:
        self._reads = CommittedKeyValues(held.id, KeySpace(pin, held.id), ttl_ms=held.ttl_ms)
        self._reads.advance(now_ms)
        self.rows = RowReader(self._reads, columns, held.key)

    def get(self, keys: Sequence[bytes], bytes_max: int) -> RowPage:
        values = self._reads.get_many(keys)
        there = ((key, value) for key, value in zip(keys, values, strict=True) if value is not None)
        return self._bounded(there, len(keys), bytes_max)

    def scan(self, low: bytes, high: bytes, rows_max: int, bytes_max: int) -> RowPage:
        return self._bounded(self._reads.range(low, high) if low < high else (), rows_max, bytes_max)

    def _bounded(self, entries: Iterable[tuple[bytes, bytes]], rows_max: int, bytes_max: int) -> RowPage:
        """As many as may be told, but one at least."""
        taken: list[tuple[bytes, bytes]] = []
        size = 0
        more = False
        for entry in entries:
            weight = len(entry[0]) + len(entry[1])
            more = bool(taken) and (len(taken) >= rows_max or size + weight > bytes_max)
            if more:
                break
            _check_size(weight)
            taken.append(entry)
            size += weight
        if not taken:
            return RowPage(pl.DataFrame(schema={**self.rows.key, **self.rows.values}), False, b"")
        return RowPage(self.rows.rows_of(taken), more, taken[-1][0] if more else b"")


class _InMemory:
    def __init__(self, held: Held, columns: Columns, pin: Pin, now_ms: int) -> None:
        self.rows = MemoryTable(held.id, columns, held.key, ttl_ms=held.ttl_ms, in_memory=False)
        self.rows.store.attach(KeySpace(pin, held.id))
        self.rows.advance(now_ms)
        self._keys = KeyEncoding(self.rows.key)

    def get(self, keys: Sequence[bytes], bytes_max: int) -> RowPage:
        asked = self._keys.decode(keys)
        rows = pl.concat([asked, self.rows.get_rows(asked, found=_FOUND)], how="horizontal")
        there = rows.get_column(_FOUND)
        return self._bounded(rows.filter(there).drop(_FOUND), list(pl.Series(keys).filter(there)), False, bytes_max)

    def scan(self, low: bytes, high: bytes, rows_max: int, bytes_max: int) -> RowPage:
        if low >= high:
            return RowPage(pl.DataFrame(schema={**self.rows.key, **self.rows.values}), False, b"")
        rows, keys = self.rows.between(low, high, rows_max + 1)
        return self._bounded(rows.head(rows_max), keys[:rows_max], rows.height > rows_max, bytes_max)

    def _bounded(self, rows: pl.DataFrame, keys: Sequence[bytes], more: bool, bytes_max: int) -> RowPage:
        """As many as may be told, but one at least."""
        told = rows
        while told.height and (size := len(encode_rows(told))) > bytes_max and told.height > 1:
            told = told.head(max(1, min(told.height * bytes_max // size, told.height - 1)))
        if told.height == 1:
            _check_size(size)
        more = more or told.height < rows.height
        return RowPage(told, more, keys[told.height - 1] if more else b"")


def _check_size(size: int) -> None:
    if size > ROW_BYTES_MAX:
        raise DataError(f"a row of {size} bytes is too large to be told; {ROW_BYTES_MAX} bytes are read at most")

"""Rows by key as one commit left them, read from a pinned database: of tables on disk, and of tables in memory.

Both kinds are in the local database, each in its own format. The rows in memory belong to the run loop and aren't
read here. Answers are bounded in rows and in bytes. Any thread may call; reads wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import polars as pl

from headrace.core.errors import DataError
from headrace.plan.queryable import Queryable
from headrace.serdes.dtypes import Columns
from headrace.serdes.ipc import encode_rows
from headrace.stores.database import KeySpace
from headrace.stores.keyvalue import CommittedKeyValues
from headrace.stores.memory_table import MemoryTable
from headrace.stores.ordered_keys import KeyEncoding
from headrace.stores.pinned import Pin
from headrace.stores.table import RowReader
from headrace.stores.versions import VERSION_COLUMNS, NewestRows, Versions

ROW_BYTES_MAX = 2 << 20
_FOUND = "__found"


class RowPage(NamedTuple):
    """Rows in the order of keys. ``more``: the bounds left some out; they come after the key ``last``."""

    rows: pl.DataFrame
    more: bool
    last: bytes


class CommittedRows(Protocol):
    """The rows of one commit."""

    @property
    def rows(self) -> NewestRows:
        """The rows as a table, for look-ups by key."""
        ...

    def get(self, keys: Sequence[bytes], bytes_max: int) -> RowPage:
        """Return the rows of the existing keys; ``keys`` ascend."""
        ...

    def scan(self, low: bytes, high: bytes, rows_max: int, bytes_max: int) -> RowPage:
        """The first rows with ``low <= key < high``."""
        ...


def committed_rows(table: Queryable, pin: Pin, now_ms: int) -> CommittedRows:
    """The rows that haven't expired at ``now_ms``. Of versions only the newest, with ``VERSION_COLUMNS``."""
    columns = {**table.columns, **({} if table.versions_ms is None else VERSION_COLUMNS)}
    if table.storage == "memory":
        return _InMemory(table, columns, pin, now_ms)
    return _OnDisk(table, columns, pin, now_ms)


def committed_versions(table: Queryable, newest: NewestRows, pin: Pin) -> Versions:
    """All versions of a table's rows."""
    versions = Versions(table.id, newest)
    versions.attach_history(KeySpace(pin, f"{table.kept_as}.history"))
    return versions


class _OnDisk:
    def __init__(self, table: Queryable, columns: Columns, pin: Pin, now_ms: int) -> None:
        self._reads = CommittedKeyValues(table.id, KeySpace(pin, table.kept_as), ttl_ms=table.ttl_ms)
        self._reads.advance(now_ms)
        self.rows = RowReader(self._reads, columns, table.key)

    def get(self, keys: Sequence[bytes], bytes_max: int) -> RowPage:
        values = self._reads.get_many(keys)
        there = ((key, value) for key, value in zip(keys, values, strict=True) if value is not None)
        return self._bounded(there, len(keys), bytes_max)

    def scan(self, low: bytes, high: bytes, rows_max: int, bytes_max: int) -> RowPage:
        return self._bounded(self._reads.range(low, high) if low < high else (), rows_max, bytes_max)

    def _bounded(self, entries: Iterable[tuple[bytes, bytes]], rows_max: int, bytes_max: int) -> RowPage:
        """As many rows as the bounds allow, but at least one."""
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
    def __init__(self, table: Queryable, columns: Columns, pin: Pin, now_ms: int) -> None:
        self.rows = MemoryTable(table.id, columns, table.key, ttl_ms=table.ttl_ms, in_memory=False)
        self.rows.store.attach(KeySpace(pin, table.kept_as))
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
        """As many rows as the bounds allow, but at least one."""
        page = rows
        while page.height and (size := len(encode_rows(page))) > bytes_max and page.height > 1:
            page = page.head(max(1, min(page.height * bytes_max // size, page.height - 1)))
        if page.height == 1:
            _check_size(size)
        more = more or page.height < rows.height
        return RowPage(page, more, keys[page.height - 1] if more else b"")


def _check_size(size: int) -> None:
    if size > ROW_BYTES_MAX:
        raise DataError(f"a row of {size} bytes is too large for an answer; a row may have {ROW_BYTES_MAX} bytes")

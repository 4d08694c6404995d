"""A task's cache of a remote table: the keys read most recently, each for a limited time.

It also holds keys that have no row. Keys and rows are tuples: a dict finds a few keys in microseconds, which no
columnar look-up does, and a batch looks up each of its keys once. Pure: the caller has the clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

Key = tuple[Any, ...]
Row = tuple[Any, ...]


class RowCache:
    """Holds at most ``rows`` keys; the least recently used one is evicted."""

    def __init__(self, rows: int, ttl_ms: int) -> None:
        self._most = rows
        self._ttl_ms = ttl_ms
        self._entries: OrderedDict[Key, tuple[int, Row | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, keys: Sequence[Key], now_ms: int) -> tuple[list[Row], list[int]]:
        """The rows of the keys that are cached (some have no row), and the indexes of the keys that aren't."""
        found: list[Row] = []
        unknown: list[int] = []
        entries = self._entries
        for index, key in enumerate(keys):
            entry = entries.get(key)
            if entry is None or not entry[0] - self._ttl_ms <= now_ms < entry[0]:  # a clock may jump back
                unknown.append(index)
                continue
            entries.move_to_end(key)
            if entry[1] is not None:
                found.append(entry[1])
        return found, unknown

    def put(self, key: Key, row: Row | None, now_ms: int) -> None:
        """Cache the row of a key; None: it has no row."""
        self._entries[key] = (now_ms + self._ttl_ms, row)
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def renew(self, rows: Iterable[tuple[Key, Row | None]], now_ms: int) -> None:
        """Replace cached rows by what was written; keys that aren't cached aren't added."""
        for key, row in rows:
            if key in self._entries:
                self.put(key, row, now_ms)

    def forget(self, keys: Iterable[Key]) -> None:
        """Remove these keys."""
        for key in keys:
            self._entries.pop(key, None)

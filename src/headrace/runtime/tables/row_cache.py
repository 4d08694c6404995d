"""What a task remembers of a remote table: the keys asked for last, each for a while. Pure: the caller has the clock.

That a key has no row is remembered as well. Keys and rows are tuples: a dict finds a few keys in microseconds, which
no columnar look-up does, and a batch asks once for each of its keys.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

Key = tuple[Any, ...]
Row = tuple[Any, ...]


class RowCache:
    """At most ``rows`` keys; the one that was asked for longest ago makes room."""

    def __init__(self, rows: int, ttl_ms: int) -> None:
        self._most = rows
        self._ttl_ms = ttl_ms
        self._entries: OrderedDict[Key, tuple[int, Row | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, keys: Sequence[Key], now_ms: int) -> tuple[list[Row], list[int]]:
        """The rows of keys that are known (keys without a row have none), and the indexes of keys that aren't known."""
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
        """What is known of a key now."""
        self._entries[key] = (now_ms + self._ttl_ms, row)
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def renew(self, rows: Iterable[tuple[Key, Row | None]], now_ms: int) -> None:
        """What was written takes the place of what is known of those keys; others aren't taken in."""
        for key, row in rows:
            if key in self._entries:
                self.put(key, row, now_ms)

    def forget(self, keys: Iterable[Key]) -> None:
        """Know nothing of these keys."""
        for key in keys:
            self._entries.pop(key, None)

"""Changes in memory that overlay a database: byte keys with values or deletions, read in key order.

A deleted key stays in the overlay with None, and hides the same key below. Keys are sorted only when a range is read,
and then only those that are new since the last time.

Pure: no database, nothing blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice

_INSERTED_ONE_BY_ONE_MAX = 16


class Absent(Enum):
    """The value of a key that isn't in an overlay. None means that it was deleted."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


class Overlay:
    """A layer of changes. Keys are never removed from it, so the unsorted ones are the last keys of the dict."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes | None] = {}
        """All entries, unsorted. Whoever looks single keys up or sets them does so here: None marks a deleted one."""
        self._ordered: list[bytes] = []

    def __len__(self) -> int:
        return len(self.entries)

    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes | None]) -> None:
        """Set each key to the value at the same position; the last one of equal keys counts."""
        self.entries.update(zip(keys, values, strict=True))

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Mark each key as deleted."""
        self.entries.update(dict.fromkeys(keys))

    def update(self, newer: Overlay) -> None:
        """Merge the layer above into this one."""
        self.entries.update(newer.entries)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | Absent | None]:
        """Return the value of each key: ``ABSENT`` if the overlay doesn't have it, None if it was deleted."""
        get = self.entries.get
        return [get(key, ABSENT) for key in keys]

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes | None]]:
        """Return the entries with ``start <= key < stop``, in key order or reversed.

        Keys added meanwhile don't show; changed values do.
        """
        keys = self._keys(start, stop)
        get = self.entries.get
        return ((key, get(key)) for key in (reversed(keys) if reverse else keys))

    def _keys(self, start: bytes, stop: bytes | None) -> list[bytes]:
        ordered = self._ordered
        new = list(islice(reversed(self.entries), len(self.entries) - len(ordered)))
        if len(new) > _INSERTED_ONE_BY_ONE_MAX:
            new.sort()
            ordered += new
            ordered.sort()  # this merges two sorted runs, in linear time
        else:
            for key in new:
                insort(ordered, key)
        low = bisect_left(ordered, start)
        high = len(ordered) if stop is None else bisect_left(ordered, stop)
        return ordered[low:high]


class MemoryBase:
    """The lowest layer if there is no database. It drops deleted keys when they are the majority."""

    def __init__(self) -> None:
        self._overlay = Overlay()
        self._deleted = 0

    def __len__(self) -> int:
        return len(self._overlay) - self._deleted

    def update(self, newer: Overlay) -> None:
        """Merge the layer above into this one."""
        entries = self._overlay.entries
        for key, value in newer.entries.items():
            was_deleted = entries.get(key, b"") is None
            self._deleted += (value is None) - was_deleted
        self._overlay.update(newer)
        if self._deleted * 2 > len(self._overlay):
            kept = Overlay()
            alive = {key: value for key, value in self._overlay.entries.items() if value is not None}
            kept.put_many(alive.keys(), alive.values())
            self._overlay, self._deleted = kept, 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self._overlay.entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None."""
        return list(map(self._overlay.entries.get, keys))

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries with ``start <= key < stop``, in key order or reversed."""
        entries = self._overlay.range(start, stop, reverse=reverse)
        return ((key, value) for key, value in entries if value is not None)


def merge(
    over: Iterable[tuple[bytes, bytes | None]], base: Iterator[tuple[bytes, bytes | None]], *, reverse: bool
) -> Iterator[tuple[bytes, bytes | None]]:
    """Merge two sorted iterators; of equal keys the entry of ``over`` counts. Both are in key order, or reversed.

    Over [(b, 2), (c, None)] and base [(a, 1), (b, 1), (d, 1)] give [(a, 1), (b, 2), (c, None), (d, 1)].
    """
    below = next(base, None)
    for key, value in over:
        while below is not None and (below[0] > key if reverse else below[0] < key):
            yield below
            below = next(base, None)
        if below is not None and below[0] == key:
            below = next(base, None)
        yield key, value
    if below is not None:
        yield below
        yield from base

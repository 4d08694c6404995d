"""Changes that lie over a database: byte keys to values or to nothing, kept in memory, read in the order of keys.

A key that was deleted stays, with None: it hides the same key below. Keys are put in order when a range of them
is asked for, not before, and only those that are new since the last time.

Pure: no database, nothing blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice

_INSERTED_ONE_BY_ONE_MAX = 16


class Absent(Enum):
    """What a key has that an overlay says nothing of; None says that it was deleted."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


class Overlay:
    """A layer of changes. Keys never leave it, so that those not yet in order are the last ones of the dict."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes | None] = {}
        self._ordered: list[bytes] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Mapping[bytes, bytes | None]:
        """All of it, in no order."""
        return self._entries

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a key, or say that it was deleted."""
        self._entries[key] = value

    def get(self, key: bytes) -> bytes | Absent | None:
        """What is said of a key."""
        return self._entries.get(key, ABSENT)

    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes | None]) -> None:
        """Set each key to the value beside it; the last one of equal keys stays."""
        self._entries.update(zip(keys, values, strict=True))

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Say of each key that it was deleted."""
        self._entries.update(dict.fromkeys(keys))

    def update(self, newer: Overlay) -> None:
        """Take in what a layer above says."""
        self._entries.update(newer._entries)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | Absent | None]:
        """What is said of each key."""
        get = self._entries.get
        return [get(key, ABSENT) for key in keys]

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes | None]]:
        """Entries with ``start <= key < stop`` in the order of keys, or against it.

        Keys that come in meanwhile don't show; values that change do.
        """
        keys = self._keys(start, stop)
        get = self._entries.get
        return ((key, get(key)) for key in (reversed(keys) if reverse else keys))

    def _keys(self, start: bytes, stop: bytes | None) -> list[bytes]:
        ordered = self._ordered
        new = list(islice(reversed(self._entries), len(self._entries) - len(ordered)))
        if len(new) > _INSERTED_ONE_BY_ONE_MAX:
            new.sort()
            ordered += new
            ordered.sort()  # two sorted runs: one merge
        else:
            for key in new:
                insort(ordered, key)
        low = bisect_left(ordered, start)
        high = len(ordered) if stop is None else bisect_left(ordered, stop)
        return ordered[low:high]


class MemoryBase:
    """What lies below the overlays when there is no database. Forgets the deleted when they are the most."""

    def __init__(self) -> None:
        self._overlay = Overlay()
        self._deleted = 0

    def __len__(self) -> int:
        return len(self._overlay) - self._deleted

    def update(self, newer: Overlay) -> None:
        """Take in what a layer above says."""
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
        """The value, or None."""
        return self._overlay.entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None."""
        return list(map(self._overlay.entries.get, keys))

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < stop`` in the order of keys, or against it."""
        entries = self._overlay.range(start, stop, reverse=reverse)
        return ((key, value) for key, value in entries if value is not None)


def merge(
    over: Iterable[tuple[bytes, bytes | None]], base: Iterator[tuple[bytes, bytes | None]], *, reverse: bool
) -> Iterator[tuple[bytes, bytes | None]]:
    """Both in one order; of equal keys, what ``over`` says. Both come in the order of keys, or against it."""
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

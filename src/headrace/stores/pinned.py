"""The local database as of one moment, for a reader that makes several calls and must see a single commit.

A pin is one RocksDB iterator, which sees the contents of the moment when it was made. Single keys are found by seeking,
and ranges are read in portions. (RocksDict's snapshots don't serve: their iterators see later writes.) The folder stays
open while such an iterator exists, so the database closes its pins when it is closed.

Any thread may use a pin, one call at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from rocksdict import RdictIter

_PORTION_ENTRIES = 512


class Pin:
    """All entries as of one moment; ``close`` it soon. ``released`` makes the error that reads raise after that."""

    def __init__(self, entries: RdictIter, released: Callable[[], Exception]) -> None:
        self._entries: RdictIter | None = entries
        self._released = released
        self._lock = threading.Lock()

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        with self._lock:
            return self._get(self._open(), key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None."""
        with self._lock:
            entries = self._open()
            return [self._get(entries, key) for key in keys]

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries whose keys start with ``prefix``, in key order."""
        for key, value in self._all(prefix, backwards=False):
            if not key.startswith(prefix):
                return
            yield key, value

    def range(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries with ``start <= key < stop``, in key order or reversed."""
        for key, value in self._all(stop if reverse else start, backwards=reverse):
            if (key < start) if reverse else (key >= stop):
                return
            if key < stop:
                yield key, value

    def close(self) -> None:
        """Release the iterator. A second call does nothing."""
        with self._lock:
            self._entries = None

    # -- inside

    def _open(self) -> RdictIter:
        if self._entries is None:
            raise self._released()
        return self._entries

    @staticmethod
    def _get(entries: RdictIter, key: bytes) -> bytes | None:
        entries.seek(key)
        if entries.valid() and entries.key() == key:
            value: bytes = entries.value()
            return value
        entries.status()
        return None

    def _all(self, start: bytes, *, backwards: bool) -> Iterator[tuple[bytes, bytes]]:
        """Everything from ``start`` on. Other reads may come between two portions."""
        portion = self._portion(start, _PORTION_ENTRIES, backwards)
        while portion:
            yield from portion
            last = portion[-1][0]
            # The last one is met again, and passed over.
            portion = list(islice(self._portion(last, _PORTION_ENTRIES + 1, backwards), 1, None))

    def _portion(self, start: bytes, count: int, backwards: bool) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        with self._lock:
            entries = self._open()
            if backwards:
                entries.seek_for_prev(start)
            else:
                entries.seek(start)
            while len(found) < count and entries.valid():
                found.append((entries.key(), entries.value()))
                if backwards:
                    entries.prev()
                else:
                    entries.next()
            entries.status()
        return found

"""The local database as it was at one moment, for a reader who looks several times and must see one commit.

It is one iterator of RocksDB, which keeps seeing what was there when it was made: single keys are sought by it, ranges
are read in portions. (A snapshot of RocksDict's doesn't do: its iterators see what is written later.) The folder isn't
given back while such an iterator lives, so the database lets go of them when it is closed.

Any thread may use it, one call at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from rocksdict import RdictIter

_PORTION_ENTRIES = 512


class Pin:
    """A view of everything; ``close`` it soon. What it raises once it is closed, ``released`` makes."""

    def __init__(self, entries: RdictIter, released: Callable[[], Exception]) -> None:
        self._entries: RdictIter | None = entries
        self._released = released
        self._lock = threading.Lock()

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        with self._lock:
            return self._get(self._open(), key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None."""
        with self._lock:
            entries = self._open()
            return [self._get(entries, key) for key in keys]

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys beginning with ``prefix`` and their values, in order."""
        for key, value in self._all(prefix, backwards=False):
            if not key.startswith(prefix):
                return
            yield key, value

    def range(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < stop`` in the order of keys, or against it."""
        for key, value in self._all(stop if reverse else start, backwards=reverse):
            if (key < start) if reverse else (key >= stop):
                return
            if key < stop:
                yield key, value

    def close(self) -> None:
        """Let go of it; a second time does nothing."""
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

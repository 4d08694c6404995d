"""The contract of a state store: it returns its changes, applies them again, and persists itself.

The changelog is the source of truth. A store's part of it is a series of *changes*: bytes that only the store reads,
which start with a format byte. Applied in order to an empty store, they restore its contents. The local database is a
cache of that. ``persist`` writes what has changed since the last call, and ``attach`` continues from it after a
restart. A store without a database keeps everything in memory.

State moves to other tasks in the same changes: ``whole`` gives those that make an empty store equal to this one, or to
a share of it. The shares that a task has in several stores add up, whatever their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import polars as pl

from headrace.stores.share import Share


class View(Protocol):
    """One store's keys in the local database, for reading."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None."""
        ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries whose keys start with ``prefix``, in key order."""
        ...

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries with ``start <= key < stop`` (None: to the end), in key order or reversed.

        They are as of the moment when the first one is taken: later writes don't show.
        """
        ...


class PinnableView(View, Protocol):
    """A view whose present contents can be pinned."""

    def pinned(self) -> AbstractContextManager[PinnableView]:
        """Return the same view, unaffected by later writes. Use it only briefly: it keeps old files on the disk."""
        ...


class Writes(Protocol):
    """One store's writes to the local database. They become visible together with those of all other stores."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        ...

    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Set each key to the value at the same position."""
        ...

    def delete(self, key: bytes) -> None:
        """Delete a key, if it exists."""
        ...

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Delete each key that exists."""
        ...

    def delete_all(self) -> None:
        """Delete all keys of the store. Keys put afterwards remain."""
        ...


class StateStore(Protocol):
    """The state of one operator in one task. One thread uses it."""

    @property
    def id(self) -> str:
        """The durable name of the store, unique in the task: the id that the user gave the operator."""
        ...

    def take_changes(self, version: int) -> list[bytes]:
        """Return the changes since the last call, or since the start. They become part of commit ``version``."""
        ...

    def apply(self, change: bytes) -> None:
        """Apply a change again. ``take_changes`` doesn't return it."""
        ...

    def attach(self, view: View) -> None:
        """Continue from what ``persist`` wrote. Called once, while the store is empty."""
        ...

    def persist(self, writes: Writes) -> None:
        """Write what was committed since the last call. The caller writes the batch after this has returned."""
        ...

    def clear(self) -> None:
        """Make the store empty, as at the start."""
        ...

    def whole(self, share: Share | None = None) -> Iterator[bytes]:
        """Yield the changes that make an empty store equal to what this one has committed, or to a share of it.

        Changes are small, and are made one by one, so neither side needs memory for all rows. The store stays as it
        is, and nothing may be written to it meanwhile. Raises ``UsageError`` for a store that can't be dealt, and for a
        share whose columns its rows don't have.
        """
        ...

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield its committed contents as rows with readable columns, some at a time, for display."""
        ...

    def entries(self) -> int:
        """Return about how many entries the store has, for status pages."""
        ...

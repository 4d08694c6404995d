"""What keeps a task's state: a store that can say what changed, be told it again, and keep itself on disk.

The changelog is the source of truth. A store's part of it is a series of *changes*: bytes that only the
store reads. Applied in order to an empty store they give the same contents. Changes start with a format byte.
The local database is a cache of that: ``persist`` writes what has changed since the last time, and ``attach`` is
where a restart goes on. A store without a database keeps everything in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class View(Protocol):
    """The part of the local database that is one store's own."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None."""
        ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys beginning with ``prefix`` and their values, in order."""
        ...

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < stop`` (None: to the end) in the order of keys, or against it.

        As they are when the first is taken: what is written meanwhile doesn't show.
        """
        ...


class PinnableView(View, Protocol):
    """A view that can be kept as it is at one moment."""

    def pinned(self) -> AbstractContextManager[PinnableView]:
        """The same as it is now, whatever is written meanwhile. For a moment: it keeps old files from going."""
        ...


class Writes(Protocol):
    """Writes to the same part, which become visible together with those of all other stores."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        ...

    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Set each key to the value beside it."""
        ...

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        ...

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Remove each key that is there."""
        ...

    def delete_all(self) -> None:
        """Remove every key of this part, but for what is put afterwards."""
        ...


class StateStore(Protocol):
    """The state of one operator in one task. One thread uses it."""

    @property
    def id(self) -> str:
        """Its durable name, unique in the task: the id that the user gave the step."""
        ...

    def take_changes(self, version: int) -> list[bytes]:
        """What has changed since the last call (or the start): it becomes part of commit ``version``."""
        ...

    def apply(self, change: bytes) -> None:
        """Do again what a change says; never shows up in ``take_changes``."""
        ...

    def attach(self, view: View) -> None:
        """Take up what ``persist`` wrote. Called once, while the store is empty."""
        ...

    def persist(self, writes: Writes) -> None:
        """Write what was committed since the last call. The database is written when this has returned."""
        ...

    def clear(self) -> None:
        """Be empty again, as at first."""
        ...

    def entries(self) -> int:
        """How many entries are held, roughly; for status pages."""
        ...

"""The store of tasks without operators: numbers by name, one change a frame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import polars as pl
from typing_extensions import override

from headrace.stores.base import Share, StateStore, View, Writes
from headrace.stores.database import KeySpace
from simulator.disks import SimDatabase
from simulator.storage import Folder

STORE = "sim"


class BareStore(StateStore):
    """Numbers by name. What isn't in the database yet is in memory."""

    def __init__(self) -> None:
        self.id = STORE
        self._view: View | None = None
        self._new: dict[str, int | None] = {}
        self._changes: list[bytes] = []

    def get(self, name: str) -> int:
        """A value; 0 when there is none."""
        if name in self._new:
            return self._new[name] or 0
        data = None if self._view is None else self._view.get(name.encode())
        return 0 if data is None else int(data)

    def put(self, name: str, value: int | None) -> None:
        """Set a value; None removes it. A change says by how much: one that is applied twice shows."""
        self._changes.append(msgspec.msgpack.encode((name, (value or 0) - self.get(name))))
        self._new[name] = value

    def values(self) -> dict[str, int]:
        """Everything."""
        kept = {} if self._view is None else {key.decode(): int(value) for key, value in self._view.range(b"", None)}
        merged = {**kept, **self._new}
        return {name: value for name, value in merged.items() if value is not None}

    @override
    def take_changes(self, version: int) -> list[bytes]:
        changes, self._changes = self._changes, []
        return changes

    @override
    def apply(self, change: bytes) -> None:
        name, more = msgspec.msgpack.decode(change)
        self._new[name] = self.get(name) + more or None

    @override
    def attach(self, view: View) -> None:
        self._view = view

    @override
    def persist(self, writes: Writes) -> None:
        for name, value in self._new.items():
            if value is None:
                writes.delete(name.encode())
            else:
                writes.put(name.encode(), b"%d" % value)
        self._new.clear()

    @override
    def clear(self) -> None:
        self._view = None
        self._new.clear()

    @override
    def whole(self, share: Share | None = None) -> Iterator[bytes]:
        for frame in self.frames():
            mine = frame if share is None else share.of(STORE, frame)
            yield from (msgspec.msgpack.encode(row) for row in mine.rows())

    @override
    def frames(self) -> Iterator[pl.DataFrame]:
        values = self.values()
        yield pl.DataFrame({"key": list(values), "value": list(values.values())}, {"key": pl.String, "value": pl.Int64})

    @override
    def entries(self) -> int:
        return len(self.values())


def values_in(state: dict[Any, Any]) -> dict[str, int]:
    """What a copy of a task's folder holds."""
    store = BareStore()
    store.attach(KeySpace(SimDatabase(Folder(state)), STORE))
    return store.values()

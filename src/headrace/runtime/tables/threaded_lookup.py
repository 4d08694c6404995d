"""A look-up in a row system for a lane of calls: each of the lane's threads has its own connection."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import cast

import polars as pl

from headrace.systems.base import KeyedSystem, Lookup
from headrace.systems.registry import SystemSpec, open_row_system


class ThreadedLookup:
    """Called with keys, in any thread; closed on the run loop's thread, when no answers are needed any more."""

    def __init__(self, system: SystemSpec, columns: Mapping[str, pl.DataType]) -> None:
        self._system = system
        self._columns = columns
        self._mine = threading.local()
        self._all: list[Lookup] = []
        self._opening = threading.Lock()
        self._closed = False

    def __call__(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows of these keys."""
        lookup: Lookup | None = getattr(self._mine, "lookup", None)
        if lookup is None:
            with self._opening:
                if self._closed:
                    return keys.clear()
                lookup = cast("KeyedSystem", open_row_system(self._system)).lookup(self._columns)
                self._all.append(lookup)
            self._mine.lookup = lookup
        return lookup.read(keys)

    def close(self) -> None:
        """Close all connections. Threads that are reading get an error, which is dropped."""
        with self._opening:
            self._closed = True
            for lookup in self._all:
                lookup.close()
            self._all.clear()

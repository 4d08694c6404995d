"""A remote table as one task reads it. On the run loop's thread; reads go through lanes (``runtime.calls``).

Each thread of a lane that reads a row system has its own connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import polars as pl

from headrace.api.remote import Remote
from headrace.api.specs import TableSpec
from headrace.core.errors import DataError, PlanError
from headrace.core.rate import TokenBucket
from headrace.runtime.calls.lanes import Calls, Lane
from headrace.runtime.metrics import Counters
from headrace.runtime.tables.row_cache import Key, RowCache
from headrace.serdes.given_rows import as_polars
from headrace.serdes.schema import Schema
from headrace.systems.base import KeyedSystem, Lookup
from headrace.systems.registry import SystemSpec, open_row_system


@dataclass(slots=True, eq=False)
class PendingLookup:
    """Keys that are being read, and those that the task has written meanwhile."""

    keys: pl.DataFrame
    written: set[Key] = field(default_factory=set)


class RemoteTable:
    """The cache and the rate of one remote table, shared by the steps of a task that join it."""

    def __init__(self, spec: TableSpec, readers: int, counters: Counters, calls: Calls) -> None:
        """``readers``: how many tasks read the table; each has an equal share of its rate."""
        if spec.remote is None or spec.schema is None:
            raise PlanError(f"table {spec.id!r} ({spec.location}) isn't remote, or its columns aren't known")
        self.id = spec.id
        self.key = spec.key
        self.schema: Schema = spec.schema
        self.remote: Remote = spec.remote
        self.cache = None
        if self.remote.cache is not None:
            self.cache = RowCache(self.remote.cache.rows, self.remote.cache.ttl_ms)
        self._system = spec.system
        self._counters = counters
        self._calls = calls
        rate = self.remote.reads_per_s
        self._limit = None if rate is None else TokenBucket(rate / readers)
        self._lookups: list[ThreadedLookup] = []
        self._open: list[PendingLookup] = []

    def lane(self) -> Lane[pl.DataFrame]:
        """A new lane for the reads of one step."""
        function: Callable[[pl.DataFrame], Any] | None = self.remote.read
        if function is None and self._system is not None:
            lookups = ThreadedLookup(self._system, self.schema.columns)
            self._lookups.append(lookups)
            function = lookups
        if function is None:
            raise PlanError(f"table {self.id!r} can't be read")
        return Lane(self._calls, function, self.remote.calling, self._limit, lambda keys: keys.height)

    def close(self) -> None:
        """Close the connections. The steps have closed their lanes before."""
        for lookups in self._lookups:
            lookups.close()

    # -- what is known

    def known(self, keys: pl.DataFrame, now_ms: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The cached rows of distinct keys, and the keys that must be read."""
        if self.cache is None:
            return self.schema.empty(), keys
        rows, unknown = self.cache.get(keys.rows(), now_ms)
        self._counters.count("cache_hits", keys.height - len(unknown))
        self._counters.count("cache_misses", len(unknown))
        return self._table(rows), keys[unknown] if len(unknown) < keys.height else keys

    def ask(self, keys: pl.DataFrame) -> PendingLookup:
        """Begin to read these keys; ``learn`` takes the answer."""
        question = PendingLookup(keys)
        if self.cache is not None:
            self._open.append(question)
        return question

    def learn(self, question: PendingLookup, rows: pl.DataFrame, now_ms: int) -> None:
        """Put the answer to a read into the cache.

        Keys that the task has written meanwhile are left out: the answer may be older.
        """
        if self.cache is None:
            return
        self._open.remove(question)
        found = self._by_key(rows)
        for key in question.keys.rows():
            if key not in question.written:
                self.cache.put(key, found.get(key), now_ms)

    def written(self, rows: pl.DataFrame, gone: pl.DataFrame | None, now_ms: int) -> None:
        """The task has written rows and deleted keys in the table."""
        if self.cache is None or self.remote.cache is None:
            return
        deleted = [] if gone is None else gone.select(self.key).rows()
        for question in self._open:
            question.written.update(self._by_key(rows), deleted)
        if self.remote.cache.write == "around":
            self.cache.forget([*self._by_key(rows), *deleted])
            return
        self.cache.renew([*self._by_key(rows).items(), *((key, None) for key in deleted)], now_ms)

    def fitted(self, answer: object, keys: pl.DataFrame) -> pl.DataFrame:
        """What a read returned, as at most one row for each key; ``DataError`` if it isn't rows."""
        answer = as_polars(answer)
        if isinstance(answer, pl.DataFrame):
            fitting, mismatch = self.schema.conform(answer)
            if mismatch is not None:
                raise mismatch.error()
        elif answer is None or isinstance(answer, str | bytes | Mapping) or not hasattr(answer, "__iter__"):
            raise DataError(
                f"it returned {type(answer).__name__} {answer!r:.100}, not rows",
                hint="return a polars DataFrame or a list of dicts, including the keys; an empty one if no row is "
                "found",
            )
        else:
            fitting = self.schema.from_records(list(answer))
        return fitting.join(keys, on=self.key, how="semi").unique(subset=self.key, keep="last", maintain_order=True)

    def _by_key(self, rows: pl.DataFrame) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        ordered = rows.select(list(self.schema.columns))
        return dict(zip(rows.select(self.key).rows(), ordered.rows(), strict=True))

    def _table(self, rows: list[tuple[Any, ...]]) -> pl.DataFrame:
        return pl.DataFrame(rows, schema=self.schema.columns, orient="row") if rows else self.schema.empty()


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

"""Rows under a key that are all in memory: a table for those that fit, and are asked more than RocksDB can answer.

The rows are columns in memory (``KeyedRows``), found by binary search over the hashes of their keys, whole batches at a
time. What has changed goes to the changelog and to the local database as ever; after a restart rows are read as they
are asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl

from headrace.core.errors import DeclarationError, UsageError
from headrace.serdes.dtypes import Columns, columns_from_json
from headrace.serdes.ipc import concat_rows
from headrace.stores.conform import check_key, conformed, in_order, other_form
from headrace.stores.keyed import KeyedRows
from headrace.stores.ordered_keys import KeyEncoding
from headrace.stores.table import SCANNED_ROWS, check_types, key_range

_PUT = "__put"
_KEY = "__key"


class MemoryTable:
    """Reads and writes rows as ``TableStore`` does; ``store`` is the task's to checkpoint."""

    def __init__(
        self,
        id_: str,
        columns: Columns,
        key: Sequence[str],
        *,
        ttl_ms: int | None = None,
        in_memory: bool = True,
    ) -> None:
        """With ``ttl_ms`` rows expire that long after they were last put, by the time that ``advance`` states.

        Without ``in_memory`` rows that were read need not stay there: for whoever looks once at what was committed.
        """
        self._id = id_
        self.key: Columns = {name: columns[name] for name in key}
        self.values: Columns = {name: dtype for name, dtype in columns.items() if name not in key}
        self._keys = KeyEncoding(self.key)
        self._ttl_ms = ttl_ms
        self._now: int | None = None
        self._kept = {**self.key, **self.values} | ({} if ttl_ms is None else {_PUT: pl.Int64()})
        self._store = KeyedRows(
            id_,
            list(key),
            (),
            [] if ttl_ms is None else [_PUT],
            self._conform,
            in_memory=in_memory,
            form=msgspec.json.encode(in_order(self.key)).decode(),
            check=lambda form: check_key(id_, columns_from_json(dict(msgspec.json.decode(form))), self.key),
        )

    @property
    def store(self) -> KeyedRows:
        """See ``RowTable``."""
        return self._store

    # -- reading

    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        """See ``TableReader``."""
        check_types(self._id, keys, self.key)
        asked, rows = self._find(keys.select(self.key.keys()))
        place = np.full(keys.height, -1, np.int64)
        place[asked] = np.arange(len(asked))
        is_there = place >= 0
        if not rows.height:
            values = rows.clear(keys.height)
        elif is_there.all():
            values = rows[place]
        else:
            values = rows.select(pl.all().gather(pl.Series(place).set(pl.Series(~is_there), None)))
        if not self.values:
            values = pl.DataFrame(height=keys.height)
        return values if found is None else values.with_columns(pl.Series(found, is_there))

    def scan(
        self,
        *,
        start: Mapping[str, Any] | None = None,
        stop: Mapping[str, Any] | None = None,
        prefix: Mapping[str, Any] | None = None,
        reverse: bool = False,
        batch_rows: int = SCANNED_ROWS,
    ) -> Iterator[pl.DataFrame]:
        """See ``TableReader``. All rows are put in order for it."""
        low, high = key_range(self._id, self.key, start, stop, prefix)
        held = self.store.scan()
        rows = None if held is None else self._living(held)
        if rows is None or not rows.height:
            return
        keys = self._keys.encode(rows)
        order = sorted(range(len(keys)), key=keys.__getitem__)
        ordered = [keys[place] for place in order]
        chosen = order[bisect_left(ordered, low) : bisect_left(ordered, high)]
        whole = rows.select(*self.key, *self.values)[chosen[::-1] if reverse else chosen]
        yield from whole.iter_slices(batch_rows)

    def check(self) -> None:
        """See ``RowTable``. Its store finds out when it is filled."""

    def between(self, low: bytes, high: bytes, most: int) -> tuple[pl.DataFrame, list[bytes]]:
        """The first ``most`` rows with ``low <= key < high`` in the order of keys, and these keys as bytes.

        All rows are looked at, a piece after the other.
        """
        within = pl.col(_KEY).is_between(pl.lit(low), pl.lit(high), closed="left")
        best = pl.DataFrame(schema={**self.key, **self.values, _KEY: pl.Binary()})
        for held in self.store.frames():
            rows = self._living(held).select(*self.key, *self.values)
            keys = pl.Series(_KEY, self._keys.encode(rows), pl.Binary)
            best = concat_rows([best, rows.with_columns(keys).filter(within)])
            best = best[best.get_column(_KEY).arg_sort()[:most]]
        return best.drop(_KEY), best.get_column(_KEY).to_list()

    def entries(self) -> int:
        """How many rows there are; some may have expired."""
        return self.store.entries()

    # -- writing

    def put_rows(self, rows: pl.DataFrame) -> None:
        """See ``TableStore``."""
        check_types(self._id, rows, {**self.key, **self.values})
        latest = rows.select(*self.key, *self.values).unique(list(self.key), keep="last")
        self.store.take(latest.select(self.key.keys()))
        if self._ttl_ms is not None:
            latest = latest.with_columns(pl.lit(self._time(), pl.Int64).alias(_PUT))
        self.store.put(latest)

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """See ``TableStore``."""
        check_types(self._id, keys, self.key)
        self.store.take(keys.select(self.key.keys()).unique())

    # -- time to live

    def advance(self, now_ms: int) -> None:
        """See ``TableStore``."""
        self._now = now_ms if self._now is None else max(self._now, now_ms)

    def sweep(self, now_ms: int, budget: int) -> int:
        """See ``TableStore``. What has expired is found by one comparison of a column, so all of it goes at once."""
        del budget
        self.advance(now_ms)
        before = self.entries()
        self.store.take_due(_PUT, self._last_expired())
        return before - self.entries()

    # -- inside

    def _find(self, keys: pl.DataFrame) -> tuple[np.ndarray[Any, np.dtype[np.int64]], pl.DataFrame]:
        """Which of the keys have a row, and the other columns of these rows."""
        expired = self._last_expired() if self._ttl_ms is not None and self._now is not None else None
        asked, parts = [], []
        for places, held in self.store.find(keys):
            there = np.arange(held.height)
            if expired is not None:
                there = np.flatnonzero(held.get_column(_PUT).to_numpy() > expired)
            asked.append(places[there])
            rows = held if len(there) == held.height else held[there]
            parts.append(rows.select(self.values.keys()) if self.values else pl.DataFrame(height=rows.height))
        if not parts:
            return np.empty(0, np.int64), pl.DataFrame(schema=dict(self.values))
        rows = concat_rows(parts) if self.values else pl.DataFrame(height=sum(part.height for part in parts))
        return np.concatenate(asked), rows

    def _living(self, rows: pl.DataFrame) -> pl.DataFrame:
        if self._ttl_ms is None or self._now is None:
            return rows
        return rows.filter(pl.col(_PUT) > self._last_expired())

    def _time(self) -> int:
        if self._now is None:
            raise UsageError("a store with a time to live wasn't told the time", hint="call advance(now_ms) first")
        return self._now

    def _last_expired(self) -> int:
        """Rows that were put at this time or before have expired."""
        return self._time() - (self._ttl_ms or 0)

    def _conform(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows as they were kept, with the columns that are declared now."""
        if rows.columns == ["key", "value"] and rows.columns != list(self._kept):
            raise other_form(self._id)
        if (_PUT in rows.columns) != (_PUT in self._kept):
            was, now = ("without", "with") if _PUT in self._kept else ("with", "without")
            raise DeclarationError(
                f"store {self._id!r} was kept {was} a time to live, and is now declared {now} one",
                hint="take the change back, or give the step another id (its state begins anew)",
            )
        return conformed(self._id, rows, self._kept, self.key)

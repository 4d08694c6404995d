"""A table whose rows are all in memory: for tables that fit, and are read more often than RocksDB can answer.

The rows are columns in memory (``KeyedRows``). Whole batches of keys are found by binary search over the hashes of the
keys. Changes go to the changelog and to the local database as in any store. After a restart, rows are loaded when they
are first read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from headrace.core.errors import UsageError
from headrace.serdes.dtypes import Columns
from headrace.serdes.rows import concat_rows
from headrace.stores.conform import conformed
from headrace.stores.form import StateForm, described
from headrace.stores.keyed import KeyedRows
from headrace.stores.ordered_keys import KeyEncoding
from headrace.stores.table import check_types

_PUT = "__put"
_KEY = "__key"


def table_form(key: Columns, values: Columns, *, timed: bool) -> StateForm:
    """What a table in memory keeps; ``timed``: its rows have a time to live."""
    what = "a table in memory" + (" with a time to live" if timed else " without a time to live")
    return StateForm(what=what, key=described(key), columns=described(values))


class MemoryTable:
    """Reads and writes rows as ``TableStore`` does. The task checkpoints ``store``."""

    def __init__(
        self,
        id_: str,
        columns: Columns,
        key: Sequence[str],
        *,
        ttl_ms: int | None = None,
        in_memory: bool = True,
    ) -> None:
        """With ``ttl_ms``, a row expires that long after it was last put, in the time that ``advance`` sets.

        Without ``in_memory``, rows that were read need not stay in memory: for a reader that reads committed rows once.
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
            form=table_form(self.key, self.values, timed=ttl_ms is not None),
        )

    @property
    def store(self) -> KeyedRows:
        """The store that holds the rows."""
        return self._store

    # -- reading

    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        """Return the other columns for each row of ``keys``, as ``RowReader.get_rows`` does."""
        check_types(self._id, keys, self.key)
        asked, rows = self._find(keys.select(self.key.keys()))
        # asked[i] is the key that rows[i] belongs to; row_of is the reverse, with -1 for keys without a row.
        # Of three keys, the third and the first found: asked = [2, 0], row_of = [1, -1, 0].
        row_of = np.full(keys.height, -1, np.int64)
        row_of[asked] = np.arange(len(asked))
        is_found = row_of >= 0
        if not rows.height:
            values = rows.clear(keys.height)
        elif is_found.all():
            values = rows[row_of]
        else:
            values = rows.select(pl.all().gather(pl.Series(row_of).set(pl.Series(~is_found), None)))
        if not self.values:
            values = pl.DataFrame(height=keys.height)
        return values if found is None else values.with_columns(pl.Series(found, is_found))

    def check(self) -> None:
        """Do nothing: the store checks key and types when it is filled."""

    def between(self, low: bytes, high: bytes, most: int) -> tuple[pl.DataFrame, list[bytes]]:
        """Return the first ``most`` rows with ``low <= key < high`` in key order, and their keys as bytes.

        This reads all rows, piece by piece.
        """
        within = pl.col(_KEY).is_between(pl.lit(low), pl.lit(high), closed="left")
        best = pl.DataFrame(schema={**self.key, **self.values, _KEY: pl.Binary()})
        for held in self.store.held():
            rows = self._unexpired(held).select(*self.key, *self.values)
            keys = pl.Series(_KEY, self._keys.encode(rows), pl.Binary)
            best = concat_rows([best, rows.with_columns(keys).filter(within)])
            best = best[best.get_column(_KEY).arg_sort()[:most]]
        return best.drop(_KEY), best.get_column(_KEY).to_list()

    def entries(self) -> int:
        """Return the number of rows, including expired ones that haven't been removed."""
        return self.store.entries()

    # -- writing

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Set the rows; of equal keys the last one counts. Columns that the table doesn't have are ignored."""
        check_types(self._id, rows, {**self.key, **self.values})
        latest = rows.select(*self.key, *self.values).unique(list(self.key), keep="last")
        self.store.take(latest.select(self.key.keys()))
        if self._ttl_ms is not None:
            latest = latest.with_columns(pl.lit(self._time(), pl.Int64).alias(_PUT))
        self.store.put(latest)

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Delete the row of each key, if there is one."""
        check_types(self._id, keys, self.key)
        self.store.take(keys.select(self.key.keys()).unique())

    # -- time to live

    def advance(self, now_ms: int) -> None:
        """Set the time, which decides what has expired. It never goes back."""
        self._now = now_ms if self._now is None else max(self._now, now_ms)

    def sweep(self, now_ms: int, budget: int) -> int:
        """Remove all expired rows, and return how many. They are found by one comparison, so ``budget`` is ignored."""
        del budget
        self.advance(now_ms)
        before = self.entries()
        self.store.take_due(_PUT, self._last_expired())
        return before - self.entries()

    # -- inside

    def _find(self, keys: pl.DataFrame) -> tuple[np.ndarray[Any, np.dtype[np.int64]], pl.DataFrame]:
        """Return the positions of the keys that have a row, and the other columns of these rows."""
        expired = self._last_expired() if self._ttl_ms is not None and self._now is not None else None
        asked, parts = [], []
        for places, held in self.store.find(keys):
            unexpired = np.arange(held.height)
            if expired is not None:
                unexpired = np.flatnonzero(held.get_column(_PUT).to_numpy() > expired)
            asked.append(places[unexpired])
            rows = held if len(unexpired) == held.height else held[unexpired]
            parts.append(rows.select(self.values.keys()) if self.values else pl.DataFrame(height=rows.height))
        if not parts:
            return np.empty(0, np.int64), pl.DataFrame(schema=dict(self.values))
        rows = concat_rows(parts) if self.values else pl.DataFrame(height=sum(part.height for part in parts))
        return np.concatenate(asked), rows

    def _unexpired(self, rows: pl.DataFrame) -> pl.DataFrame:
        if self._ttl_ms is None or self._now is None:
            return rows
        return rows.filter(pl.col(_PUT) > self._last_expired())

    def _time(self) -> int:
        if self._now is None:
            raise UsageError(
                f"store {self._id!r} has a time to live, but its clock was never set",
                hint="call advance(now_ms) first",
            )
        return self._now

    def _last_expired(self) -> int:
        """Return the latest put time of a row that has expired."""
        return self._time() - (self._ttl_ms or 0)

    def _conform(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return stored rows with the columns that are declared now."""
        return conformed(self._id, rows, self._kept, self.key)

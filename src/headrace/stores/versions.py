"""A table of versions: the row of each key as of any event time, for joins by event time.

The newest version of each key is a row of an ordinary table. A version that was replaced moves to the *history*: runs
of rows sorted by the hash of their keys and then by time, under the time at which the version ended, or a later one. It
is dropped when no user of the table will ask for that time or an earlier one. A deletion is a version too; when it is
so old that no user can ask for what came before it, the key is deleted altogether. Of two versions with the same key
and time, the one put last counts.

Example: key ``a`` has the versions 1 from time 10, 2 from time 20, and a deletion from time 30. The table holds ``(a,
since 30, gone)``, the history ``(a, 1, since 10, until 20)`` and ``(a, 2, since 20, until 30)``.

Used on the run-loop thread; reads may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.errors import DataError
from headrace.rows.dtypes import Columns
from headrace.rows.given import concat_rows
from headrace.rows.hashing import Hashes, hash_rows
from headrace.stores.base import GONE, SINCE, StateForm, StateStore, View, conformed, described
from headrace.stores.pieces import Places
from headrace.stores.runs import Runs
from headrace.stores.table import MemoryTable, RowReader, RowTable

VERSION_COLUMNS: Columns = {SINCE: pl.Int64(), GONE: pl.Boolean()}
"""The columns that the table of newest versions has in addition to the declared ones."""
_UNTIL = "__until"
_HASH = "__hash"
_NUMBER = "__number"
_NEW = "__new"
_FOUND = "__found"
_NEVER = -(2**63)
_FOREVER = 2**63 - 1
_SLACK_MIN_MS = 1000

# Rows that were put before the table was declared with versions count as having always existed.
_ALWAYS = (pl.col(SINCE).fill_null(_NEVER), pl.col(GONE).fill_null(False))
Times = npt.NDArray[np.int64]


class Versions:
    """Reads versions of rows. ``newest`` has the declared columns and ``VERSION_COLUMNS``."""

    def __init__(self, id_: str, newest: RowReader | MemoryTable) -> None:
        self._id = id_
        self._rows = newest
        self.key = newest.key
        self.values: Columns = {name: dtype for name, dtype in newest.values.items() if name not in VERSION_COLUMNS}
        history, by_hash = f"{id_}.history", [_HASH, SINCE]
        kept = {**self.key, **self.values, **VERSION_COLUMNS, _UNTIL: pl.Int64(), _HASH: pl.UInt64()}
        self._history = Runs(
            history,
            _UNTIL,
            lambda run: run.sort(by_hash, maintain_order=True),
            conform=partial(conformed, history, columns=kept, needed=self.key),
            hashed=_HASH,
            form=StateForm(what="the past of a table", key=described(self.key), columns=described(self.values)),
        )

    @property
    def dropped_through(self) -> int | None:
        """All versions that ended at this time or before were dropped, and perhaps others; None if none was."""
        return self._history.taken

    def attach_history(self, view: View) -> None:
        """From a database, instead of from a task's store."""
        self._history.attach(view)

    def as_of(self, keys: pl.DataFrame, times: Times, *, found: str) -> pl.DataFrame:
        """Return the values of each of ``keys`` as of the time beside it; nulls, and False in ``found``, if none."""
        distinct = keys.unique()
        newest = pl.concat([distinct, self._rows.get_rows(distinct, found=_FOUND)], how="horizontal")
        rows = keys.join(newest, on=keys.columns, how="left", maintain_order="left", nulls_equal=True)
        known = rows.get_column(_FOUND).fill_null(False).to_numpy()
        since = rows.get_column(SINCE).fill_null(_NEVER).to_numpy()
        wanted = [*self.values, GONE]
        rows = rows.select(wanted)
        # Where the newest version is too new, an earlier one is looked up in the history.
        too_new = np.flatnonzero(known & (since > times))
        has_version = known & (since <= times)
        if len(too_new):
            places, versions = self._before(keys[too_new], times[too_new])
            has_version[too_new[places]] = True
            rows = _replace_rows(rows, too_new[places], versions.select(wanted))
        is_found = has_version & ~rows.get_column(GONE).fill_null(False).to_numpy()
        values = rows.select(self.values.keys())
        if not is_found.all():
            values = values.select(pl.when(pl.Series(is_found)).then(pl.all())) if self.values else values
        return values.with_columns(pl.Series(found, is_found)) if self.values else pl.DataFrame({found: is_found})

    def _before(self, keys: pl.DataFrame, times: Times) -> tuple[Places, pl.DataFrame]:
        """The positions in ``keys`` of those that had a version, and these versions."""
        hashes = hash_rows(keys, list(self.key))
        order = np.argsort(hashes)  # the binary search is several times faster for sorted hashes
        keys, hashes, times = keys[order], hashes[order], times[order]
        best = np.full(len(order), _NEVER, np.int64)
        run_of = np.full(len(order), -1, np.int64)
        place_of = np.full(len(order), -1, np.int64)
        runs = []
        for number, run in enumerate(self._history.matching(np.unique(hashes), int(times.min()) + 1, _FOREVER)):
            runs.append(run)
            # Large runs come in ranges of hashes, so only the keys in this range are searched for.
            low = int(np.searchsorted(hashes, run.item(0, _HASH), "left")) if run.height else 0
            high = int(np.searchsorted(hashes, run.item(-1, _HASH), "right")) if run.height else 0
            places = last_versions(run, keys[low:high], hashes[low:high], times[low:high])
            hit = np.flatnonzero(places >= 0)
            since = run.get_column(SINCE).to_numpy()[places[hit]]
            # Runs come in the order in which they were put, so of equal times the version in the later run counts.
            better = since >= best[low + hit]
            hit = hit[better]
            asked = low + hit
            best[asked], run_of[asked], place_of[asked] = since[better], number, places[hit]
        parts, places_of_parts = [], []
        for number, run in enumerate(runs):
            in_run = np.flatnonzero(run_of == number)
            if len(in_run):
                parts.append(run[place_of[in_run]])
                places_of_parts.append(order[in_run])
        if not parts:
            return np.empty(0, np.int64), pl.DataFrame(schema={**self.values, **VERSION_COLUMNS})
        return np.concatenate(places_of_parts), concat_rows(parts)


class VersionedTable(Versions):
    """Reads and writes versions of rows. ``newest`` is as for ``Versions``."""

    def __init__(self, id_: str, newest: RowTable, keep_ms: int) -> None:
        """Versions may be dropped that ended more than ``keep_ms`` before the lowest watermark of all users."""
        super().__init__(id_, newest)
        self._newest = newest
        self._keep_ms = keep_ms
        self._slack_ms = max(_SLACK_MIN_MS, keep_ms // 8)
        self._watermarks: dict[str, int] = {}
        keys = list(self.key)
        form = StateForm(what="the deletions of a table", key=described(self.key))
        self._deletions = Runs(f"{id_}.gone", SINCE, lambda run: run, keys, form=form)
        self.bound = _NEVER  # no user asks for earlier times any more; versions that ended before may have been dropped
        self._dropped = _NEVER

    def stores(self) -> Sequence[StateStore]:
        return (self._newest.store, self._history, self._deletions)

    def check(self) -> None:
        self._newest.check()

    def entries(self) -> int:
        return self._newest.entries() + self._history.entries()

    def put_versions(self, rows: pl.DataFrame) -> None:
        """Add versions, in any order of time. ``rows`` has the declared columns and ``VERSION_COLUMNS``."""
        names = [*self.key, *self.values, *VERSION_COLUMNS]
        if missing := rows.get_column(SINCE).null_count():
            what = f"table {self._id!r}: {missing} of {rows.height} versions have no event time"
            raise DataError(what, hint="fill or filter nulls in the event time column upstream of the table")
        rows = rows.select(names)
        keys = rows.select(self.key.keys())
        distinct = keys.unique().with_row_index(_NUMBER)
        newest = self._newest.get_rows(distinct.select(self.key.keys()), found=_FOUND)
        known = pl.concat([distinct, newest], how="horizontal")
        known = known.filter(_FOUND).with_columns(_ALWAYS).select(_NUMBER, *names, pl.lit(False).alias(_NEW))
        numbers = keys.join(distinct, on=list(self.key), how="left", maintain_order="left", nulls_equal=True)
        new = rows.select(numbers.get_column(_NUMBER), *names, pl.lit(True).alias(_NEW))
        # The known newest versions come first, and the sort is stable, so of equal times the version put last is last.
        # Sorted by key and time, the last version of each key becomes its newest one. Each version before it ended at
        # the time of the next one, unless that has the same time, which means that it was replaced altogether.
        #
        # Known (a, 10), new (a, 30), (a, 20), (b, 5): sorted (a, 10), (a, 20), (a, 30), (b, 5); same_key = [1, 1, 0,
        # 0]. Newest: (a, 30), (b, 5). History: (a, 10 until 20), (a, 20 until 30).
        both = concat_rows([known, new])
        number, since = both.get_column(_NUMBER).to_numpy(), both.get_column(SINCE).to_numpy()
        order = np.lexsort((since, number))
        number, since = number[order], since[order]
        same_key = np.append(number[1:] == number[:-1], False)
        replaced = np.append(same_key[:-1] & (since[1:] == since[:-1]), False)
        if (put := both[order[~same_key]].filter(_NEW).select(names)).height:
            self._newest.put_rows(put)
            self._deletions.add(put.filter(GONE).select(*self.key, SINCE))
        ended = np.flatnonzero(same_key & ~replaced)
        self._add_history(both[order[ended]].select(names), since[ended + 1])

    def put_timeless(self, rows: pl.DataFrame) -> None:
        """Set rows that count as having always existed: a version with a time comes after them."""
        self._newest.put_rows(rows.with_columns(pl.lit(None, dtype).alias(n) for n, dtype in VERSION_COLUMNS.items()))

    def _add_history(self, rows: pl.DataFrame, until: Times) -> None:
        """A version that comes later may fall in between."""
        wanted = until > self.bound
        if not wanted.any():
            return
        rows = rows.with_columns(pl.Series(_UNTIL, until)).filter(pl.Series(wanted))
        hashes = pl.Series(_HASH, hash_rows(rows, list(self.key)), dtype=pl.UInt64)
        self._history.add(rows.with_columns(hashes).sort(_HASH, SINCE, maintain_order=True))

    def used_by(self, user: str) -> None:
        """Register an operator that writes or reads the table. Nothing is dropped before its first watermark."""
        self._watermarks[user] = _NEVER

    def pass_by(self, user: str, watermark: int) -> None:
        """Note a watermark. Drop, in large steps, versions that ended ``keep_ms`` before the lowest of all users."""
        self._watermarks[user] = watermark
        watermark = min(self._watermarks.values())
        # At the end of the inputs nothing is dropped: some messages may still arrive, and nothing grows any more.
        if watermark in (_NEVER, _FOREVER):
            return
        self.bound = max(self.bound, watermark - self._keep_ms)
        if self.bound < self._dropped + self._slack_ms:
            return
        self._dropped = self.bound
        self._history.drop(self.bound)
        # A deletion that is so old means the same as no row, so the row goes, unless a newer version has replaced it.
        for part in self._deletions.take_parts(self.bound):
            keys = part.select(self.key.keys()).unique()
            rows = pl.concat([keys, self._newest.get_rows(keys)], how="horizontal")
            self._newest.delete_rows(rows.filter(pl.col(GONE) & (pl.col(SINCE) <= self.bound)).select(keys.columns))


def last_versions(run: pl.DataFrame, keys: pl.DataFrame, hashes: Hashes, times: Times) -> Places:
    """Return for each key the position in ``run`` of its last version that isn't after its time; -1 if there is none.

    ``run`` is sorted by hash and time, so the versions of a key are a range of it: ``first`` to ``high``. With times
    [10, 20, 30] in that range, the time 25 gives the second, and the time 5 gives -1.
    """
    held = run.get_column(_HASH).to_numpy()
    since = run.get_column(SINCE).to_numpy()
    first = np.searchsorted(held, hashes, "left")
    low, high = first.copy(), np.searchsorted(held, hashes, "right")
    # A binary search for all keys at once: each pass halves the range [low, high) of every key whose search isn't over.
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) // 2
        fits = since[middle] <= times[open_]
        low[open_[fits]] = middle[fits] + 1
        high[open_[~fits]] = middle[~fits]
    places = low - 1
    places[places < first] = -1
    # Another key may have the same hash. Then the search steps back to earlier versions until the keys are equal. With
    # rare exceptions they are equal at once.
    unchecked = np.flatnonzero(places >= 0)
    while len(unchecked):
        equal = np.ones(len(unchecked), np.bool_)
        for name in keys.columns:
            wanted, found = keys.get_column(name).gather(unchecked), run.get_column(name).gather(places[unchecked])
            equal &= wanted.eq_missing(found).to_numpy()
        unchecked = unchecked[~equal]
        places[unchecked] -= 1
        outside = places[unchecked] < first[unchecked]
        places[unchecked[outside]] = -1
        unchecked = unchecked[~outside]
    return places


def _replace_rows(rows: pl.DataFrame, places: Places, others: pl.DataFrame) -> pl.DataFrame:
    if not len(places):
        return rows
    source = np.arange(rows.height)
    source[places] = rows.height + np.arange(len(places))
    return concat_rows([rows, others])[source]

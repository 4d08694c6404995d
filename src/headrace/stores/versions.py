"""Rows under a key as they were at each time: what a join by event time looks its answers up in.

The newest version of each key is a row of a table, as in any other. A version that a newer one has taken the place of
goes into the *history*: runs of such rows, sorted by the hash of their keys and then by their times, so that the
version as of a time is found by binary search, whole batches at a time. Each is kept under the time at which it ended,
or later; when nobody will ask for that time or an earlier one any more, it goes. So what is kept of the past is bounded
by how long it is to be kept, and the newest version of a key stays however old it is.

A deletion is a version too: a row that says so. When it is so old that nobody can ask for what was before it, the key
goes altogether. Of two versions of one key and time the one put last counts.

On the run-loop thread; reads may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.errors import DataError
from headrace.serdes.dtypes import Columns
from headrace.serdes.hashing import Hashes, hash_rows
from headrace.serdes.ipc import concat_rows
from headrace.stores.base import StateStore, View
from headrace.stores.conform import GONE, SINCE, conformed
from headrace.stores.runs import Runs
from headrace.stores.table import RowTable

VERSION_COLUMNS: Columns = {SINCE: pl.Int64(), GONE: pl.Boolean()}
"""What the table of newest versions has beside the declared columns."""

_UNTIL = "__until"
_HASH = "__hash"
_NUMBER = "__number"
_NEW = "__new"
_FOUND = "__found"
_NEVER = -(2**63)
_FOREVER = 2**63 - 1
_SLACK_MIN_MS = 1000

# Rows that were put before the table had versions have always been there.
_ALWAYS = (pl.col(SINCE).fill_null(_NEVER), pl.col(GONE).fill_null(False))

Times = npt.NDArray[np.int64]
Places = npt.NDArray[np.int64]


class NewestRows(Protocol):
    """The newest version of each key, to be read."""

    key: Columns
    values: Columns

    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        """See ``TableReader``."""
        ...


class Versions:
    """Versions of rows, to be read. ``newest`` has the declared columns and ``VERSION_COLUMNS``."""

    def __init__(self, id_: str, newest: NewestRows) -> None:
        self._id = id_
        self._rows = newest
        self.key = newest.key
        self.values: Columns = {name: dtype for name, dtype in newest.values.items() if name not in VERSION_COLUMNS}
        by_hash = [_HASH, SINCE]
        self._history = Runs(
            f"{id_}.history",
            _UNTIL,
            lambda run: run.sort(by_hash, maintain_order=True),
            conform=self._conform,
            hashed=_HASH,
        )

    @property
    def gone_to(self) -> int | None:
        """Versions that ended by then are gone; others may be, too. None: none are."""
        return self._history.taken

    def attach_history(self, view: View) -> None:
        """Read the past from a database, and not from the store of a task."""
        self._history.attach(view)

    # -- reading

    def as_of(self, keys: pl.DataFrame, times: Times, *, found: str) -> pl.DataFrame:
        """The values that each of ``keys`` had at the time beside it; null, and ``found`` false, where it had none."""
        distinct = keys.unique()
        newest = pl.concat([distinct, self._rows.get_rows(distinct, found=_FOUND)], how="horizontal")
        rows = keys.join(newest, on=keys.columns, how="left", maintain_order="left", nulls_equal=True)
        known = rows.get_column(_FOUND).fill_null(False).to_numpy()
        since = rows.get_column(SINCE).fill_null(_NEVER).to_numpy()
        wanted = [*self.values, GONE]
        rows = rows.select(wanted)
        earlier = np.flatnonzero(known & (since > times))
        there = known & (since <= times)
        if len(earlier):
            places, versions = self._before(keys[earlier], times[earlier])
            there[earlier[places]] = True
            rows = _put_in(rows, earlier[places], versions.select(wanted))
        is_found = there & ~rows.get_column(GONE).fill_null(False).to_numpy()
        values = rows.select(self.values.keys())
        if not is_found.all():
            values = values.select(pl.when(pl.Series(is_found)).then(pl.all())) if self.values else values
        return values.with_columns(pl.Series(found, is_found)) if self.values else pl.DataFrame({found: is_found})

    def _before(self, keys: pl.DataFrame, times: Times) -> tuple[Places, pl.DataFrame]:
        """Of keys whose newest version is later: which had an earlier one, and that version."""
        hashes = hash_rows(keys, list(self.key))
        order = np.argsort(hashes)  # in their order they are found several times faster
        keys, hashes, times = keys[order], hashes[order], times[order]
        best = np.full(len(order), _NEVER, np.int64)
        run_of = np.full(len(order), -1, np.int64)
        place_of = np.full(len(order), -1, np.int64)
        runs = []
        for number, run in enumerate(self._history.matching(np.unique(hashes), int(times.min()) + 1, _FOREVER)):
            runs.append(run)
            # Large runs come in ranges of hashes, which not all keys are in.
            low = int(np.searchsorted(hashes, run.item(0, _HASH), "left")) if run.height else 0
            high = int(np.searchsorted(hashes, run.item(-1, _HASH), "right")) if run.height else 0
            places = last_versions(run, keys[low:high], hashes[low:high], times[low:high])
            hit = np.flatnonzero(places >= 0)
            since = run.get_column(SINCE).to_numpy()[places[hit]]
            # Runs come in the order in which they were put: of equal times the later run's counts.
            better = since >= best[low + hit]
            hit = hit[better]
            asked = low + hit
            best[asked], run_of[asked], place_of[asked] = since[better], number, places[hit]
        parts, places_of_parts = [], []
        for number, run in enumerate(runs):
            mine = np.flatnonzero(run_of == number)
            if len(mine):
                parts.append(run[place_of[mine]])
                places_of_parts.append(order[mine])
        if not parts:
            empty = pl.DataFrame(schema={**self.values, **VERSION_COLUMNS})
            return np.empty(0, np.int64), empty
        return np.concatenate(places_of_parts), concat_rows(parts)

    def _conform(self, rows: pl.DataFrame) -> pl.DataFrame:
        kept = {**self.key, **self.values, **VERSION_COLUMNS, _UNTIL: pl.Int64(), _HASH: pl.UInt64()}
        return conformed(f"{self._id}.history", rows, kept, self.key)


class VersionedTable(Versions):
    """Versions of rows, written by one task. ``newest`` is as for ``Versions``."""

    def __init__(self, id_: str, newest: RowTable, keep_ms: int) -> None:
        """Versions that ended more than ``keep_ms`` before the time that ``pass_by`` states may go."""
        super().__init__(id_, newest)
        self._newest = newest
        self._keep_ms = keep_ms
        self._slack_ms = max(_SLACK_MIN_MS, keep_ms // 8)
        self._come_to: dict[str, int] = {}
        keys = list(self.key)
        self._gone = Runs(f"{id_}.gone", SINCE, lambda run: run, keys)
        self.bound = _NEVER
        """Nobody asks for what was before this any more; what ended by then may be gone."""
        self._dropped = _NEVER

    def stores(self) -> Sequence[StateStore]:
        """What a checkpoint has to hold."""
        return (self._newest.store, self._history, self._gone)

    def check(self) -> None:
        """See ``RowTable``."""
        self._newest.check()

    def entries(self) -> int:
        """How many versions there are, roughly."""
        return self._newest.entries() + self._history.entries()

    # -- writing

    def put_versions(self, rows: pl.DataFrame) -> None:
        """Take in versions, in any order of time: the declared columns and ``VERSION_COLUMNS``."""
        names = [*self.key, *self.values, *VERSION_COLUMNS]
        if missing := rows.get_column(SINCE).null_count():
            raise DataError(f"table {self._id!r}: {missing} of {rows.height} versions have no event time")
        rows = rows.select(names)
        keys = rows.select(self.key.keys())
        distinct = keys.unique().with_row_index(_NUMBER)
        newest = self._newest.get_rows(distinct.select(self.key.keys()), found=_FOUND)
        known = pl.concat([distinct, newest], how="horizontal")
        known = known.filter(_FOUND).with_columns(_ALWAYS).select(_NUMBER, *names, pl.lit(False).alias(_NEW))
        numbers = keys.join(distinct, on=list(self.key), how="left", maintain_order="left", nulls_equal=True)
        new = rows.select(numbers.get_column(_NUMBER), *names, pl.lit(True).alias(_NEW))
        # What is known comes first: of equal times the version put last stands last.
        both = concat_rows([known, new])
        number, since = both.get_column(_NUMBER).to_numpy(), both.get_column(SINCE).to_numpy()
        order = np.lexsort((since, number))
        number, since = number[order], since[order]
        same_key = np.append(number[1:] == number[:-1], False)
        replaced = np.append(same_key[:-1] & (since[1:] == since[:-1]), False)
        self._put_newest(both[order[~same_key]].filter(_NEW).select(names))
        ended = np.flatnonzero(same_key & ~replaced)
        self._add_history(both[order[ended]].select(names), since[ended + 1])

    def _put_newest(self, rows: pl.DataFrame) -> None:
        if not rows.height:
            return
        self._newest.put_rows(rows)
        gone = rows.filter(GONE)
        self._gone.add(gone.select(*self.key, SINCE))

    def _add_history(self, rows: pl.DataFrame, until: Times) -> None:
        """Versions that were followed by others at these times, or before them: what lies between may be here too."""
        wanted = until > self.bound
        if not wanted.any():
            return
        rows = rows.with_columns(pl.Series(_UNTIL, until)).filter(pl.Series(wanted))
        hashes = pl.Series(_HASH, hash_rows(rows, list(self.key)), dtype=pl.UInt64)
        self._history.add(rows.with_columns(hashes).sort(_HASH, SINCE, maintain_order=True))

    # -- what nobody asks for any more

    def used_by(self, user: str) -> None:
        """Somebody who fills the table or asks it: nothing goes before it has told how far event time has come."""
        self._come_to[user] = _NEVER

    def pass_by(self, user: str, watermark: int) -> None:
        """Event time has come this far for a user of the table.

        What ended longer than versions are kept before that, for all of them, goes, in large steps.
        """
        self._come_to[user] = watermark
        watermark = min(self._come_to.values())
        if watermark in (_NEVER, _FOREVER):  # at the end some messages are still to come, and nothing grows any more
            return
        self.bound = max(self.bound, watermark - self._keep_ms)
        if self.bound < self._dropped + self._slack_ms:
            return
        self._dropped = self.bound
        self._history.drop(self.bound)
        # A deletion that is so old says no more than no row at all.
        for part in self._gone.take_parts(self.bound):
            keys = part.select(self.key.keys()).unique()
            rows = pl.concat([keys, self._newest.get_rows(keys)], how="horizontal")
            self._newest.delete_rows(rows.filter(pl.col(GONE) & (pl.col(SINCE) <= self.bound)).select(keys.columns))


def last_versions(run: pl.DataFrame, keys: pl.DataFrame, hashes: Hashes, times: Times) -> Places:
    """For each key the place in ``run`` of its last version that isn't later than the time beside it; -1: none.

    ``run`` is sorted by hash and time.
    """
    held = run.get_column(_HASH).to_numpy()
    since = run.get_column(SINCE).to_numpy()
    first = np.searchsorted(held, hashes, "left")
    low, high = first.copy(), np.searchsorted(held, hashes, "right")
    # The highest place in [first, high) that isn't later: binary search, all keys at once.
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) // 2
        fits = since[middle] <= times[open_]
        low[open_[fits]] = middle[fits] + 1
        high[open_[~fits]] = middle[~fits]
    places = low - 1
    places[places < first] = -1
    # Other keys may have the same hash: go on to earlier versions until the keys agree, which is at once as a rule.
    looked_at = np.flatnonzero(places >= 0)
    while len(looked_at):
        agree = np.ones(len(looked_at), np.bool_)
        for name in keys.columns:
            ours, theirs = keys.get_column(name).gather(looked_at), run.get_column(name).gather(places[looked_at])
            agree &= ours.eq_missing(theirs).to_numpy()
        looked_at = looked_at[~agree]
        places[looked_at] -= 1
        outside = places[looked_at] < first[looked_at]
        places[looked_at[outside]] = -1
        looked_at = looked_at[~outside]
    return places


def _put_in(rows: pl.DataFrame, places: Places, others: pl.DataFrame) -> pl.DataFrame:
    """``rows`` with ``others`` at these places."""
    if not len(places):
        return rows
    source = np.arange(rows.height)
    source[places] = rows.height + np.arange(len(places))
    return concat_rows([rows, others])[source]

"""The contents of a task's tables as of its last commit, for threads other than the run loop's.

The local database holds only committed state, and is pinned for each answer, so an answer shows exactly one commit.
This is so for tables on disk and in memory, stores of low-level tasks, and the past of a table of versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from headrace.checkpoint.record import LOCAL_KEY, LocalCheckpoint
from headrace.core.duration import format_ms
from headrace.core.errors import UsageError
from headrace.plan.queryable import Queryable
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.state.task_state import TaskState
from headrace.runtime.tables.committed_rows import CommittedRows, RowPage, committed_rows, committed_versions
from headrace.stores.conform import GONE
from headrace.stores.pinned import Pin
from headrace.stores.table import ROWS_END
from headrace.stores.versions import VERSION_COLUMNS

_FOUND = "__found"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of keys, as of the commit of this version (None: nothing has been committed yet).

    ``more``: the bounds of the answer left some out; they come after the key ``last``.
    """

    version: int | None
    rows: pl.DataFrame
    more: bool
    last: bytes


class CommittedTables:
    """The tables and stores of one task. Any thread may call."""

    def __init__(
        self,
        state: TaskState,
        tables: Mapping[str, Queryable],
        now_ms: Callable[[], int],
        bound_of: Callable[[str], int] = lambda table: NEVER,
    ) -> None:
        """``now_ms`` is the wall clock, which decides what has expired.

        ``bound_of`` returns the event time from which on a table of versions has all of them.
        """
        self._state = state
        self._tables = tables
        self._now_ms = now_ms
        self._bound_of = bound_of

    def get(self, table: str, keys: Sequence[bytes], bytes_max: int, *, at_ms: int | None = None) -> Page:
        """Return the stored rows of the existing keys; with ``at_ms``, as of that time."""
        if not all(b"\x00" <= key < ROWS_END for key in keys):
            raise UsageError(f"one of {len(keys)} keys isn't a key of table {table!r}")
        ordered = sorted(set(keys))
        return self._page(table, lambda rows: rows.get(ordered, bytes_max), at_ms)

    def scan(
        self, table: str, low: bytes, high: bytes, rows_max: int, bytes_max: int, *, at_ms: int | None = None
    ) -> Page:
        """The first rows with ``low <= key < high``; without upper bound if ``high`` is empty."""
        end = min(high or ROWS_END, ROWS_END)
        return self._page(table, lambda rows: rows.scan(low, end, rows_max, bytes_max), at_ms)

    def _page(self, table: str, look: Callable[[CommittedRows], RowPage], at_ms: int | None) -> Page:
        known = self._known(table, at_ms)
        # Ask before and after pinning: if the task restarts meanwhile, one of the bounds is of this commit or later.
        bound = NEVER if at_ms is None else self._bound_of(table)
        with self._state.committed() as pin:
            newest = committed_rows(known, pin, self._now_ms())
            found = look(newest)
            rows = found.rows
            if at_ms is not None:
                bound = max(bound, self._bound_of(table))
                rows = _as_of(known, newest, found.rows, pin, at_ms, bound)
            elif known.versions_ms is not None:
                # The newest version of each row, unless it is a deletion.
                rows = rows.filter(~pl.col(GONE).fill_null(False)).drop(VERSION_COLUMNS)
            commit = pin.get(LOCAL_KEY)
        version = None if commit is None else LocalCheckpoint.decode(commit).version
        return Page(version, rows, found.more, found.last)

    def _known(self, table: str, at_ms: int | None) -> Queryable:
        known = self._tables.get(table)
        if known is None:
            raise UsageError(
                f"this app has no table {table!r}", hint=f"its tables: {', '.join(self._tables) or 'none'}"
            )
        if known.kind == "remote":
            raise UsageError(
                f"table {table!r} is remote: its task has none of its rows", hint="query the system that keeps them"
            )
        if at_ms is not None and known.versions_ms is None:
            raise UsageError(
                f"table {table!r} has no versions: its rows are as they are now", hint="ask without a time"
            )
        return known


def _as_of(
    table: Queryable, newest: CommittedRows, rows: pl.DataFrame, pin: Pin, at_ms: int, bound: int
) -> pl.DataFrame:
    """The rows of the same keys as they were at a time."""
    versions = committed_versions(table, newest.rows, pin)
    bound = max(bound, NEVER if versions.dropped_through is None else versions.dropped_through)
    if at_ms < bound:
        raise UsageError(
            f"table {table.id!r} no longer has all rows as of {_time(at_ms)}: "
            f"versions are kept until they are {format_ms(table.versions_ms or 0)} older than the watermark",
            hint=f"ask for {_time(bound)} or later, or keep versions= for longer",
        )
    keys = rows.select(table.key)
    if not keys.height:
        return rows.drop(VERSION_COLUMNS)
    values = versions.as_of(keys, np.full(keys.height, at_ms, np.int64), found=_FOUND)
    return pl.concat([keys, values], how="horizontal").filter(_FOUND).drop(_FOUND)


def _time(ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{ms} ms"

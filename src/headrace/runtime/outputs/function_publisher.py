"""A task's output into functions of the user: from the outbox of committed rows, version by version, at least once.

Functions keep no position, so a restart writes again what isn't known to be written. Within a version the
last row of a key counts. Pieces of at most the table's batch size are written one after the other, so versions keep
their order. ``runtime.calls`` makes the calls: nothing here blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import polars as pl

from headrace.api.remote import Remote
from headrace.api.specs import StreamSpec, TableSpec
from headrace.core.errors import HeadraceError, UserFunctionError
from headrace.core.rate import TokenBucket
from headrace.runtime.calls.lanes import Calls, Done, Lane
from headrace.runtime.operators.user_code.source_line import users_line
from headrace.serdes.rows import concat_rows
from headrace.stores.outbox import Outbox

Written = Callable[[str, pl.DataFrame, pl.DataFrame | None], None]
"""Receives rows of a table that have been written, and the deleted keys."""
_Way = Literal["write", "delete"]


class FunctionPublisher:
    """One remote table that the task writes. On the run loop's thread."""

    keeps_no_position = True

    def __init__(
        self, table: TableSpec, remote: Remote, spec: StreamSpec, writers: int, calls: Calls, on_written: Written
    ) -> None:
        """``writers`` is the number of tasks that write the table: they share its rate."""
        self.spec = spec
        self.outbox = Outbox(spec.id)
        self._on_written = on_written
        self._table = table
        self._batch = remote.batch
        calling = replace(remote.calling, concurrency=1)
        rate = remote.writes_per_s
        limit = None if rate is None else TokenBucket(rate / max(1, writers))
        functions: dict[_Way, Callable[[Any], Any] | None] = {"write": remote.write, "delete": remote.delete}

        def opened(function: Callable[[Any], Any]) -> Lane[pl.DataFrame]:
            return Lane(calls, function, calling, limit, lambda rows: rows.height)

        self._open = {
            way: (lambda f=function: opened(f)) for way, function in functions.items() if function is not None
        }
        self._lanes: dict[_Way, Lane[pl.DataFrame]] = {}
        self._left: deque[tuple[_Way, pl.DataFrame]] = deque()
        self._version: int | None = None
        self._rows: pl.DataFrame | None = None
        self._gone: pl.DataFrame | None = None

    @property
    def failures(self) -> int:
        """How often in a row the write under way has failed."""
        return max((lane.failing for lane in self._lanes.values()), default=0)

    @property
    def error(self) -> str | None:
        """Why the last attempt failed, until one succeeds."""
        return next((lane.trouble for lane in self._lanes.values() if lane.trouble is not None), None)

    @property
    def calling(self) -> bool:
        """A write is under way. The run loop is woken when it is over."""
        return self._version is not None

    @property
    def next_ms(self) -> float:
        """When there is something to do by the clock."""
        return float("inf") if self.calling else float("-inf")

    def close(self) -> None:
        """Forget the write under way."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        self._left.clear()
        self._version = self._rows = self._gone = None

    def resume(self, version: int) -> None:
        """The outbox has been filled. Nothing is known about the other side."""

    def advance(self, now_ms: float) -> None:
        """Take in what has been written, and begin with what comes next."""
        for done in [done for lane in self._lanes.values() for done in lane.take()]:
            self._check(done)
            self._go_on()
        if self._version is None and (entry := self.outbox.oldest()) is not None:
            self._version = entry[0]
            self._split(concat_rows(entry[1]))
            self._go_on()

    def _split(self, rows: pl.DataFrame) -> None:
        key = self._table.key
        rows = rows.unique(subset=key, keep="last", maintain_order=True)
        self._rows, self._gone = rows, None
        if "delete" in self._open:
            kept = pl.any_horizontal(pl.col(name).is_not_null() for name in rows.columns if name not in key)
            self._rows, self._gone = rows.filter(kept), rows.filter(~kept).select(key)
            self._left.extend(("delete", piece) for piece in self._gone.iter_slices(self._batch) if piece.height)
        self._left.extend(("write", piece) for piece in self._rows.iter_slices(self._batch) if piece.height)

    def _go_on(self) -> None:
        """The next piece; or the version is written."""
        if self._left:
            way, piece = self._left.popleft()
            if way not in self._lanes:
                self._lanes[way] = self._open[way]()
            self._lanes[way].put([(0, piece)])
        elif self._version is not None and self._rows is not None:
            self.outbox.published(self._version)
            self._on_written(self.spec.id, self._rows, self._gone)
            self._version = self._rows = self._gone = None

    def _check(self, done: Done) -> None:
        if done.error is None:
            return
        if isinstance(done.error, HeadraceError):
            done.error.message = f"table {self.spec.id!r} can't be written: {done.error.message}"
            raise done.error
        error = done.error if isinstance(done.error, Exception) else RuntimeError(repr(done.error))
        raise UserFunctionError(
            f"the write function of table {self.spec.id!r} ({self._table.location}) raised "
            f"{type(error).__name__}{users_line(error)} in the last of {done.attempts} attempts: {error}",
            hint="fix it, or let it be tried forever: retry=hr.calls.retry(attempts=None)",
        ) from error

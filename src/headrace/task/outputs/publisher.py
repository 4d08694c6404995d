"""A task's outputs into foreign systems and into functions of the user. All on the run-loop thread.

What a version wrote waits in an outbox until its commit counts; then it is published, version after version. A target
keeps the task's position in the same transaction as the rows, so a version that is published again has no effect. A
target that keeps no position, or a function, gets it again: at least once. In each timeline of the app a task is
another writer. Otherwise rows that were pending in a savepoint would pass for published once another timeline had
published higher versions. ``advance`` blocks while the target works, never while it is away. Functions are called by
``task.calls``: nothing blocks.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import polars as pl

from headrace.api.remote import Remote
from headrace.api.specs import StreamSpec, TableSpec
from headrace.core.calls import TokenBucket
from headrace.core.errors import HeadraceError, InfrastructureError, UserFunctionError
from headrace.core.log import RecentWarnings, logger
from headrace.rows.given import concat_rows
from headrace.stores.outbox import Outbox
from headrace.systems.base import Target
from headrace.systems.registry import keeps_rows
from headrace.task.calls import Calls, Done, Lane
from headrace.task.connections import Connections
from headrace.task.operators.functions import users_line
from headrace.task.scope import TaskScope

Written = Callable[[str, pl.DataFrame, pl.DataFrame | None], None]  # a table, its written rows, its deleted keys
_Way = Literal["write", "delete"]


class FunctionPublisher:
    """One remote table that the task writes."""

    keeps_no_position = True

    def __init__(
        self, table: TableSpec, remote: Remote, spec: StreamSpec, writers: int, calls: Calls, on_written: Written
    ) -> None:
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

        self._open = {way: partial(opened, function) for way, function in functions.items() if function is not None}
        self._lanes: dict[_Way, Lane[pl.DataFrame]] = {}
        self._left: deque[tuple[_Way, pl.DataFrame]] = deque()
        self._version: int | None = None
        self._rows: pl.DataFrame | None = None
        self._gone: pl.DataFrame | None = None

    @property
    def failures(self) -> int:
        return max((lane.failing for lane in self._lanes.values()), default=0)

    @property
    def error(self) -> str | None:
        return next((lane.trouble for lane in self._lanes.values() if lane.trouble is not None), None)

    @property
    def calling(self) -> bool:
        return self._version is not None

    @property
    def next_ms(self) -> float:
        return float("inf") if self.calling else float("-inf")

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        self._left.clear()
        self._version = self._rows = self._gone = None

    def resume(self, version: int) -> None:
        """The outbox has been filled. Nothing is known about the other side."""

    def advance(self, now_ms: float) -> None:
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


FIRST_PAUSE_MS = 100.0
LONGEST_PAUSE_MS = 30_000.0
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class PublishingState:
    """How one output is doing: committed versions (and bytes) that wait, and why the last try failed."""

    waiting: int
    waiting_bytes: int
    failures: int
    error: str | None


class Publisher:
    """All targets of one task, for one attempt. ``on_written`` receives rows and deleted keys once they are there."""

    def __init__(
        self,
        scope: TaskScope,
        connections: Connections,
        warnings: RecentWarnings,
        jitter: random.Random,
        on_written: Written = lambda table, rows, gone: None,
    ) -> None:
        self._limit = scope.settings.ahead_bytes_max
        self._outputs: dict[str, _Output | FunctionPublisher] = {}
        for id_, stream in scope.outputs.items():
            spec, table = stream.spec, scope.output_tables.get(id_)
            if table is not None and table.remote is not None and table.remote.write is not None:
                writers = scope.output_writers[id_]
                calls, remote = connections.calls, table.remote
                self._outputs[id_] = FunctionPublisher(table, remote, spec, writers, calls, on_written)
            elif keeps_rows(spec.system):
                writer = f"{scope.app}/{scope.name}/{id_}"
                listener = None if table is None else on_written
                losses = scope.settings.lost_results == "accept"
                self._outputs[id_] = _Output(spec, writer, connections, warnings, jitter, listener, losses)

    def close(self) -> None:
        for output in self._outputs.values():
            output.close()

    def stores(self) -> Mapping[str, Outbox]:
        return {id_: output.outbox for id_, output in self._outputs.items()}

    def resume(self, version: int) -> None:
        for output in self._outputs.values():
            output.resume(version)

    def takes(self, stream: str) -> bool:
        return stream in self._outputs

    def write(self, stream: str, rows: pl.DataFrame) -> None:
        self._outputs[stream].outbox.add(rows)

    def committed(self) -> None:
        for output in self._outputs.values():
            output.outbox.commit()

    def advance(self, now_ms: float) -> None:
        for output in self._outputs.values():
            output.advance(now_ms)

    def pause(self, now_ms: float) -> float:
        if not self._outputs:
            return float("inf")
        waiting = (output.next_ms for output in self._outputs.values() if output.outbox.entries())
        return max(0.0, min(waiting, default=float("inf")) - now_ms)

    @property
    def idle(self) -> bool:
        return not any(output.outbox.entries() for output in self._outputs.values())

    @property
    def doubtful(self) -> bool:
        return any(output.outbox.doubtful for output in self._outputs.values())

    @property
    def would_repeat(self) -> bool:
        """A restart would write again what is written, unless a commit comes before it."""
        return any(output.keeps_no_position and output.outbox.doubtful for output in self._outputs.values())

    @property
    def calling(self) -> str | None:
        for id_, output in self._outputs.items():
            if output.calling:
                return f"output {id_}" + (f": {output.error}" if output.error else "")
        return None

    @property
    def blocked_by(self) -> str | None:
        for id_, output in self._outputs.items():
            waiting = output.outbox.pending_bytes
            if waiting > self._limit:
                why = f": {output.error}" if output.error else ""
                return f"output {id_}, which has {waiting} bytes committed but not published{why}"
        return None

    def states(self) -> Iterator[tuple[str, PublishingState]]:
        for id_, output in self._outputs.items():
            outbox = output.outbox
            yield id_, PublishingState(outbox.entries(), outbox.pending_bytes, output.failures, output.error)


@dataclass(eq=False)
class _Output:
    spec: StreamSpec
    _writer: str
    _connections: Connections
    _warnings: RecentWarnings
    _jitter: random.Random
    _on_written: Written | None
    _accepts_losses: bool
    calling: ClassVar = False
    next_ms: float = float("-inf")
    failures: int = 0
    error: str | None = None
    _failing_since_ms: float = 0.0
    _asked: str | None = None
    _resumed_at: int = -1

    def __post_init__(self) -> None:
        self.keeps_no_position = bool(self.spec.system.may_repeat)
        self.outbox = Outbox(self.spec.id, self._accept)

    def close(self) -> None:
        """Nothing is under way between two calls."""

    def resume(self, version: int) -> None:
        self._resumed_at = version

    def advance(self, now_ms: float) -> None:
        if now_ms < self.next_ms or not self.outbox.entries():
            return
        try:
            again_ms = self._publish()
        except HeadraceError as error:
            if not error.retry:
                self._name(error)
                raise
            self._failed(error, now_ms)
            pause = min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** min(self.failures - 1, 20))
            # Half of it drawn: the tasks that lost a server together must not come back together.
            self.next_ms = now_ms + pause * (0.5 + self._jitter.random() / 2)
        else:
            if self.failures:
                away_ms = round(now_ms - self._failing_since_ms)
                _log.info("the target takes rows again", writer=self._writer, failures=self.failures, away_ms=away_ms)
            self.failures = 0
            self.error = None
            if again_ms is not None:
                self.next_ms = now_ms + again_ms

    def _accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        try:
            return self._target().accept(rows)
        except HeadraceError as error:
            self._name(error)
            raise

    def _name(self, error: HeadraceError) -> None:
        error.message = f"output {self.spec.id!r} of {self._writer}: {error.message}"

    def _target(self) -> Target:
        return self._connections.target(self.spec.system, self.spec.stream)

    def _failed(self, error: HeadraceError, now_ms: float) -> None:
        if not self.failures:
            self._failing_since_ms = now_ms
            self._warnings.add(
                _log, f"output {self.spec.id!r} can't be published; trying again: {error.message}", writer=self._writer
            )
        self.failures += 1
        self.error = error.message

    def _publish(self) -> float | None:
        """Publish a version. If the target has taken a part of it: return when it wants to be called again."""
        target = self._target()
        while (entry := self.outbox.oldest()) is not None:
            version, rows = entry
            # Rows that replace others mustn't come late from an earlier timeline.
            begun = None if target.replaces else self.outbox.timeline_of(version)
            writer = self._writer if begun is None else f"{self._writer}/{begun}"
            if writer == self._asked:
                again_ms = target.publish(writer, version, rows)
                if again_ms is None:
                    self.outbox.published(version)
                    if self._on_written is not None:
                        self._on_written(self.spec.id, concat_rows(rows), None)
                return again_ms
            logged_to = self.outbox.logged_to if target.replaces else self.outbox.logged_before(version)
            again_ms = target.prepare(writer, logged_to)
            if again_ms is not None:
                return again_ms
            self.outbox.published(self._known(target.position(writer), logged_to))
            self._asked = writer
        return None

    def _known(self, position: int, logged_to: int) -> int:
        """A position that this task can't have reached means that its own next versions would be ignored as old."""
        if position < logged_to and not self.keeps_no_position:
            self._note_loss(position, logged_to)
        if position > self._resumed_at:
            raise InfrastructureError(
                f"the target has version {position} of this writer, and the task has committed only up to "
                f"{self._resumed_at}: its state was deleted, or another app writes under this name",
                hint="use another app name or a new target; or, if repeated rows may be added to the present ones, "
                "delete the writer's position there. (A stale copy of a task also ends like this.)",
            )
        return position

    def _note_loss(self, position: int, logged_to: int) -> None:
        has = f"has version {position}" if position >= 0 else "has no version"
        what = f"the target {has} of this writer, but had version {logged_to} before: it has lost rows"
        if not self._accepts_losses:
            raise InfrastructureError(
                what,
                hint="the target was emptied or restored from an older backup: restore its rows. To continue without "
                'them, start the app with lost_results="accept" once (rows that the target still has may appear twice)',
            )
        self._warnings.add(_log, f"output {self.spec.id!r}: {what}, which lost_results accepts", writer=self._writer)

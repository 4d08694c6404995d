"""A task's outputs into foreign systems: from the outboxes of committed rows into the targets, exactly once.

What a version wrote waits in an outbox until the version's commit counts; then it is published, version after
version. A target keeps the task's position in the same transaction as the rows, so a version that was published
already, by this incarnation or another one, is published again without effect. A target that keeps no position gets
it again: at least once.

In each timeline of the app a task is another writer. Otherwise rows that were pending in a savepoint, and never
published, would pass for published once another timeline had published higher versions.

All on the run-loop thread. ``advance`` publishes one version for each output at most and then returns; it blocks
while the target works, never while it is away: a failure is kept, shown, and tried again when its pause is over.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from headrace.api.specs import StreamSpec
from headrace.core.errors import HeadraceError, InfrastructureError
from headrace.core.log import logger
from headrace.core.recent_warnings import RecentWarnings
from headrace.runtime.connections import Connections
from headrace.runtime.outputs.function_publisher import FunctionPublisher, Written
from headrace.runtime.task_scope import TaskScope
from headrace.serdes.rows import concat_rows
from headrace.stores.outbox import Outbox
from headrace.systems.base import Target
from headrace.systems.registry import keeps_rows

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
    """All targets of one task, for one attempt: the outboxes are empty until the task's state is restored.

    ``on_written`` receives rows that are where they belong, and keys that were deleted there.
    """

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
                self._outputs[id_] = FunctionPublisher(
                    table, table.remote, spec, writers, connections.calls, on_written
                )
            elif keeps_rows(spec.system):
                writer = f"{scope.app}/{scope.name}/{id_}"
                listener = None if table is None else on_written
                accepts = scope.settings.lost_results == "accept"
                self._outputs[id_] = _Output(
                    spec, writer, connections, warnings, jitter, listener, accepts_losses=accepts
                )

    def close(self) -> None:
        """Forget calls under way: what isn't known to be written will be written again."""
        for output in self._outputs.values():
            output.close()

    def stores(self) -> Mapping[str, Outbox]:
        """The outboxes, by the ids of their outputs."""
        return {id_: output.outbox for id_, output in self._outputs.items()}

    def resume(self, version: int) -> None:
        """The outboxes have been filled as of this commit; -1 when there never was one."""
        for output in self._outputs.values():
            output.resume(version)

    def takes(self, stream: str) -> bool:
        """Whether this output goes into a foreign system."""
        return stream in self._outputs

    def write(self, stream: str, rows: pl.DataFrame) -> None:
        """Rows of the version that isn't committed yet."""
        self._outputs[stream].outbox.add(rows)

    def committed(self) -> None:
        """Note that the commit of the last sealed outboxes counts."""
        for output in self._outputs.values():
            output.outbox.commit()

    def advance(self, now_ms: float) -> None:
        """Publish what waits, unless a failure is too recent."""
        for output in self._outputs.values():
            output.advance(now_ms)

    def pause(self, now_ms: float) -> float:
        """Return for how long (ms) nothing is due."""
        if not self._outputs:
            return float("inf")
        waiting = (output.next_ms for output in self._outputs.values() if output.outbox.entries())
        return max(0.0, min(waiting, default=float("inf")) - now_ms)

    @property
    def idle(self) -> bool:
        """Everything committed is known to be in the targets."""
        return not any(output.outbox.entries() for output in self._outputs.values())

    @property
    def doubtful(self) -> bool:
        """A target has something that no commit says it has."""
        return any(output.outbox.doubtful for output in self._outputs.values())

    @property
    def would_repeat(self) -> bool:
        """A restart would write again what is written, unless a commit comes before it."""
        return any(output.keeps_no_position and output.outbox.doubtful for output in self._outputs.values())

    @property
    def calling(self) -> str | None:
        """Return the output whose functions are being called, and why they don't answer; None if there is none."""
        for id_, output in self._outputs.items():
            if output.calling:
                return f"output {id_}" + (f": {output.error}" if output.error else "")
        return None

    @property
    def blocked_by(self) -> str | None:
        """The output that has so much waiting that the task must stop reading, and why."""
        for id_, output in self._outputs.items():
            waiting = output.outbox.pending_bytes
            if waiting > self._limit:
                why = f": {output.error}" if output.error else ""
                return f"output {id_}, which has {waiting} bytes committed but not published{why}"
        return None

    def states(self) -> Iterator[tuple[str, PublishingState]]:
        """For status pages: each output by its id."""
        for id_, output in self._outputs.items():
            outbox = output.outbox
            yield id_, PublishingState(outbox.entries(), outbox.pending_bytes, output.failures, output.error)


class _Output:
    """One output of the task: its outbox, its target, what is known of the target's position."""

    calling = False

    def __init__(
        self,
        spec: StreamSpec,
        writer: str,
        connections: Connections,
        warnings: RecentWarnings,
        jitter: random.Random,
        on_written: Written | None,
        *,
        accepts_losses: bool,
    ) -> None:
        self.spec = spec
        self._accepts_losses = accepts_losses
        self.keeps_no_position = bool(spec.system.may_repeat)
        self.outbox = Outbox(spec.id, self._accept)
        self.next_ms = float("-inf")
        self.failures = 0
        self.error: str | None = None
        self._writer = writer
        self._on_written = on_written
        self._connections = connections
        self._warnings = warnings
        self._jitter = jitter
        self._failing_since_ms = 0.0
        self._asked: str | None = None
        self._resumed_at = -1

    def close(self) -> None:
        """Nothing is under way between two calls."""

    def resume(self, version: int) -> None:
        """The outbox has been filled as of this commit; -1 when there never was one."""
        self._resumed_at = version

    def advance(self, now_ms: float) -> None:
        """Publish the oldest version that waits, unless a failure is too recent."""
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
        """What the target will get of the rows of a version."""
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
        """Keep why it failed. One warning for as long as the target is away; the status counts the failures."""
        if not self.failures:
            self._failing_since_ms = now_ms
            self._warnings.add(
                _log,
                f"output {self.spec.id!r} can't be published; trying again: {error.message}",
                writer=self._writer,
            )
        self.failures += 1
        self.error = error.message

    def _publish(self) -> float | None:
        """Publish a version. If the target has taken a part of it: return when it wants to be called again."""
        target = self._target()
        while (entry := self.outbox.oldest()) is not None:
            version, rows = entry
            writer = self._writer_of(version, target)
            if writer == self._asked:
                return self._publish_version(target, writer, version, rows)
            logged_to = self.outbox.logged_to if target.replaces else self.outbox.logged_before(version)
            again_ms = target.prepare(writer, logged_to)
            if again_ms is not None:
                return again_ms
            self.outbox.published(self._known(target.position(writer), logged_to))
            self._asked = writer
        return None

    def _writer_of(self, version: int, target: Target) -> str:
        """As whom the task publishes a version: rows that replace others mustn't come late from a timeline before."""
        begun = None if target.replaces else self.outbox.timeline_of(version)
        return self._writer if begun is None else f"{self._writer}/{begun}"

    def _publish_version(self, target: Target, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> float | None:
        again_ms = target.publish(writer, version, rows)
        if again_ms is not None:
            return again_ms
        self.outbox.published(version)
        if self._on_written is not None:
            self._on_written(self.spec.id, concat_rows(rows), None)
        return None

    def _known(self, position: int, logged_to: int) -> int:
        """A position that this task can't have reached means that its own next versions would be ignored as old.

        One below what a commit knows of means that the target has lost rows.
        """
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
                "them, "
                'start the app with lost_results="accept" once (rows that the target still has may appear twice)',
            )
        self._warnings.add(_log, f"output {self.spec.id!r}: {what}, which lost_results accepts", writer=self._writer)

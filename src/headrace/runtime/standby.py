"""A standby: the state of a task whose container is on another host, in the folder that the task would have here.

It reads the changelog as a starting task does, with the same rules about what counts, and goes on with what is added.
Only what is committed gets into the database, together with its commit. So the folder is always what a dead task would
have left behind, and a task that begins here needs to know nothing of standbys. A standby only reads the changelog and
the store of snapshots; it trims, sends and fences off nothing.

All on one thread, which ``advance`` may keep as long as reading one portion and writing it to the disk takes.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from typing_extensions import override

from headrace.checkpoint.changelog import Changelog, ReplayStep
from headrace.checkpoint.machine import ProtocolMachine
from headrace.checkpoint.record import LocalCheckpoint
from headrace.core.clock import Clock
from headrace.core.errors import (
    CorruptLogError,
    FrameError,
    InfrastructureError,
    StateCorruptError,
    TrimmedOffsetError,
    UnavailableError,
    UsageError,
)
from headrace.core.frame import body_of, decode_header
from headrace.core.ids import SSP
from headrace.core.recent_warnings import RecentWarnings
from headrace.plan.model import Plan, StagePlan, TaskPlan
from headrace.runtime.connections import Connections
from headrace.runtime.host.attempt import Attempt, Factories
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.state.depot import Depot
from headrace.runtime.state.disk import Disk
from headrace.runtime.state.task_state import TaskState
from headrace.runtime.task import task_factory
from headrace.runtime.task_scope import TaskScope
from headrace.stores.objects.queue import Job
from headrace.stores.objects.sending import Calls, Work
from headrace.systems.base import Consumer, Edge, Polled, Records

T = TypeVar("T")

PORTION_BYTES = 4 << 20
"""How much is read at once. What isn't committed yet is in memory, as in a task that starts."""


class Standby:
    """The standby of one task. ``behind`` is how much it has yet to read, in the system's own offsets."""

    def __init__(
        self,
        plan: Plan,
        stage: StagePlan,
        task: TaskPlan,
        connections: Connections,
        depot: Depot,
        clock: Clock,
        warnings: RecentWarnings,
    ) -> None:
        self.scope = scope = TaskScope.of(plan, stage, task)
        self._clock = clock
        self._connections = connections
        self._consumer: Consumer | None = None
        self._factories = Factories(task_factory(plan, stage, scope))
        self._attempt: Attempt | None = None
        self._ssp: SSP = scope.changelog[0]
        self._depot = _Fetches(depot)
        self._disk = Disk()
        self._state = TaskState(
            self._ssp,
            scope.folders,
            warnings,
            self._disk,
            dropped=scope.dropped,
            depot=self._depot,
            stands_in=lambda: False,
        )
        self._changelog = Changelog(scope.producer, "", None)
        self._base: LocalCheckpoint | None = None
        self._written: LocalCheckpoint | None = None
        self.records = 0
        """How many it has read since it began, or began again."""
        self.behind: int | None = None

    @property
    def locked_out(self) -> bool:
        """Whether another holder has the folder: a task that has just ended here, or that runs here but shouldn't."""
        return self._state.locked_out

    def advance(self) -> bool:
        """Read a portion. Return False if there is nothing to do for now: all is read, or something is awaited."""
        consumer = self._consumer or self._begin()
        if consumer is None:
            return False
        try:
            found = consumer.poll([self._ssp], PORTION_BYTES)
            for polled in found:
                if not self._take(self._changelog, polled):
                    return True
            self.behind = consumer.lag(self._ssp)
            if not found:
                self._write()
        except TrimmedOffsetError as error:
            self._drop_snapshots()  # there are newer ones
            return self._begin_again(error.message)
        except (CorruptLogError, UsageError) as error:
            if self._base is None or self.records:
                raise
            return self._begin_again(error.message)  # no record begins there
        except StateCorruptError:
            self._state.find_damage()  # so that the next one rebuilds it
            raise
        return bool(found)

    def close(self) -> None:
        """Release the folder. Its next holder reads unwritten commits again."""
        with ExitStack() as stack:  # close the rest even if the user's part fails
            stack.callback(self._state.close)
            if self._attempt is not None:
                stack.callback(self._attempt.close)
            self._depot.close()
            self._stop_reading()

    # -- inside

    def _begin(self) -> Consumer | None:
        """Begin with the local state, with a snapshot, or with nothing; None while there is something to wait for."""
        if not self._state.prepared():
            return None
        self._base = base = self._state.begin(self._new_attempt().stores())
        self._changelog = Changelog(self.scope.producer, "", base)
        self.records, self._written = 0, base
        self._consumer = consumer = self._connections.reader(self.scope.changelog[1])
        try:
            consumer.register(self._ssp, Edge.OLDEST if base is None else base.offset)
        except (TrimmedOffsetError, UsageError) as error:
            self._begin_again(error.message)
        return self._consumer

    def _new_attempt(self) -> Attempt:
        """What a starting task makes, for the sake of its stores."""
        if self._attempt is not None:
            self._attempt.close()
        machine = ProtocolMachine(self.scope.machine, writer=uuid.uuid4().hex)
        metrics = TaskMetrics(str(self.scope.name), self._clock)
        now_ms = self._clock.monotonic_ms()
        self._attempt = Attempt(
            self.scope, self._factories, machine, self._connections, metrics, random.Random(), now_ms
        )
        return self._attempt

    def _take(self, changelog: Changelog, polled: Polled) -> bool:
        """Apply records; False when another base is needed."""
        if not isinstance(polled, Records):
            raise CorruptLogError(f"{self._ssp}: a changelog can't end or hold rows, this one does")
        for offset, payload in zip(polled.offsets, polled.payloads, strict=True):
            try:
                header, body = decode_header(payload), body_of(payload)
            except FrameError as error:
                raise CorruptLogError(f"{self._ssp} at offset {offset}: {error.message}", hint=error.hint) from error
            if self._base is None and not self.records and header.seq > 1:
                return self._begin_again("its beginning was trimmed")
            self.records += 1
            step = changelog.take(offset, header, body)
            if step is ReplayStep.MISFIT:
                return self._begin_again("it has another commit there")
            self._state.take(step, body, changelog.local)
        return True

    def _begin_again(self, why: str) -> bool:
        """The base isn't of this changelog, or is older than it: begin with a newer snapshot. Always False."""
        if self._base is None and not self._state.has_snapshot:
            raise InfrastructureError(
                f"the changelog of task {self.scope.name} can't be followed: {why}, and there is no snapshot",
                hint="if the task can't begin either, restore the folder of snapshots",
            )
        self._state.misfit()
        self._stop_reading()
        return False

    def _stop_reading(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = self.behind = None

    def _write(self) -> None:
        """Have the last commit that was read on the disk; then the snapshot from which it began is needed no more."""
        local = self._changelog.local
        if local is None or local == self._written:
            return
        self._state.followed_to(local)
        if self._written == self._base:
            self._drop_snapshots()
        self._written = local

    def _drop_snapshots(self) -> None:
        """Make room: what was fetched is in the store as well."""
        folders = self.scope.folders
        for snapshot in () if folders is None else self._disk.snapshots(folders.snapshots):
            self._disk.discard(snapshot)


class _Fetches(Depot):
    """The store of snapshots for a standby: it fetches until it is closed, and sends nothing."""

    def __init__(self, depot: Depot) -> None:
        self._depot = depot
        self._closed = False
        self.at_once = depot.at_once

    @override
    def calls(self, warn: Callable[[str], None]) -> Calls:
        return self._depot.calls(warn)

    @override
    def send(self, job: Job) -> None:
        """Only a task sends, and looks for what it may trim."""

    @override
    def fetch(self, steps: Work[None], failed: Callable[[Exception], None]) -> None:
        self._depot.fetch(self._while_open(steps), failed)

    @override
    def together(self, works: Sequence[Work[T]]) -> Work[Sequence[T]]:
        return self._depot.together([self._while_open(work) for work in works])

    @override
    def ring(self) -> None:
        self._depot.ring()

    def close(self) -> None:
        """Have a fetch end at its next piece: a task may begin to fetch into the same folder."""
        self._closed = True

    def _while_open(self, steps: Work[T]) -> Work[T]:
        while not self._closed:
            try:
                wait_ms = next(steps)
            except StopIteration as stop:
                value: T = stop.value
                return value
            yield wait_ms
        raise UnavailableError("the standby has been let go")

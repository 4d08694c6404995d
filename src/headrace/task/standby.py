"""Standbys: the state of tasks whose containers are on other hosts, kept ready in the folders they would have here.

A standby reads the changelog by the rules of a starting task, and goes on with what is added. Only what is committed
gets into the database, so the folder is always what a dead task would have left behind. It trims, sends and fences off
nothing. The standbys of a container take turns on a thread of their own, which rests for as long as it has worked. One
that fails is closed and begins again later: nothing here ends the container.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TypeVar

from typing_extensions import override

from headrace.core.calls import Retry
from headrace.core.clock import Clock
from headrace.core.errors import (
    CorruptLogError,
    HeadraceError,
    InfrastructureError,
    StateCorruptError,
    TrimmedOffsetError,
    UnavailableError,
    UsageError,
)
from headrace.core.ids import SSP
from headrace.core.log import RecentWarnings, logger
from headrace.plan.model import Plan, StagePlan, TaskPlan
from headrace.protocol.changelog import Changelog, ReplayStep
from headrace.protocol.machine import ProtocolMachine
from headrace.protocol.record import LocalCheckpoint
from headrace.stores.transfer import Calls, Job, Work, open_objects
from headrace.systems.base import Consumer, Edge, Polled
from headrace.task.connections import Connections
from headrace.task.host.attempt import Attempt, Factories
from headrace.task.metrics import TaskMetrics
from headrace.task.scope import TaskScope
from headrace.task.standby_status import StandbyState, StandbyStatus
from headrace.task.state.changelog import records_in
from headrace.task.state.depot import Depot, LiveDepot
from headrace.task.state.disk import Disk
from headrace.task.state.task_state import TaskState
from headrace.task.task import task_factory

T = TypeVar("T")
PORTION_BYTES = 4 << 20  # what is read at once; what isn't committed yet is in memory, as in a task that starts


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
        self.records = 0  # how many it has read since it began, or began again
        self.behind: int | None = None

    @property
    def locked_out(self) -> bool:
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
        with ExitStack() as stack:  # close the rest even if the user's part fails
            stack.callback(self._state.close)
            if self._attempt is not None:
                stack.callback(self._attempt.close)
            self._depot.close()
            self._stop_reading()

    def _begin(self) -> Consumer | None:
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
        if self._attempt is not None:
            self._attempt.close()
        machine = ProtocolMachine(self.scope.machine, writer=uuid.uuid4().hex)
        metrics = TaskMetrics(str(self.scope.name), self._clock)
        now_ms = self._clock.monotonic_ms()
        randomness = random.Random()
        self._attempt = Attempt(self.scope, self._factories, machine, self._connections, metrics, randomness, now_ms)
        return self._attempt

    def _take(self, changelog: Changelog, polled: Polled) -> bool:
        for offset, header, body in records_in(polled):
            if self._base is None and not self.records and header.seq > 1:
                return self._begin_again("its beginning was trimmed")
            self.records += 1
            step = changelog.take(offset, header, body)
            if step is ReplayStep.MISFIT:
                return self._begin_again("it has another commit there")
            self._state.take(step, body, changelog.local)
        return True

    def _begin_again(self, why: str) -> bool:
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
        """What was fetched is in the store as well."""
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


LOOK_S = 0.25
PORTIONS = 2  # how many a standby reads in its turn, at most
RETRY = Retry(None, 1000.0, 60_000.0)
LOCKED_MS = 30_000.0
LOCKED = "its folder is open in another process: do the machines share the home? Then standbys are of no use"
CLOSING_S = 10.0  # how long ``close`` waits for a call to the disk or a broker that doesn't return
_log = logger(__name__)


class Standbys:
    """The standbys that a container keeps by order, from any thread. Without any it has no thread and opens nothing."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._tasks = {str(task.name): (stage, task) for stage in plan.stages for task in stage.tasks}
        self._ordered: frozenset[str] = frozenset()
        self._kept: dict[str, _Kept] = {}
        self._warnings = RecentWarnings(clock)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.looks: tuple[StandbyStatus, ...] = ()  # how each was doing at the end of its last turn

    def order(self, tasks: Collection[str]) -> None:
        with self._lock:
            wanted = frozenset(tasks) & self._tasks.keys()
            if wanted == self._ordered or self._closing:
                return
            self._ordered = wanted
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-standbys", daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self) -> None:
        with self._lock:
            self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSING_S)

    def _run(self) -> None:
        failures = 0
        while not self._closing:
            try:
                self._keep()
            except Exception as error:  # noqa: BLE001 - the container goes on without standbys, and with them later
                failures += 1
                self._warnings.add(_log, f"no standby can be kept for now: {_said(error)}")
                self._wake.wait((RETRY.pause_ms(failures, random.random()) or 0.0) / 1000)
                self._wake.clear()

    def _keep(self) -> None:
        place = self._plan.graph.settings.snapshots
        if place is None:
            raise InfrastructureError("the app has no store of snapshots", hint="give it one: snapshots=")
        with ExitStack() as stack:
            connections = stack.enter_context(closing(Connections(self._wake.set)))
            store = open_objects(place)
            depot = stack.enter_context(closing(LiveDepot(store, self._wake.set, self._clock, place.bytes_per_s)))
            stack.callback(self._let_go)
            while not self._closing:
                began_ms = self._clock.monotonic_ms()
                busy = self._round(partial(self._made, connections, depot))
                self.looks = tuple(one.look() for one in self._kept.values())
                took_s = (self._clock.monotonic_ms() - began_ms) / 1000
                self._wake.wait(took_s if busy else max(LOOK_S, took_s))
                self._wake.clear()

    def _round(self, make: Callable[[str], Standby]) -> bool:
        ordered = self._ordered
        for task in self._kept.keys() - ordered:
            self._kept.pop(task).close()
            _log.info("let go of a standby", task=task)
        for task in sorted(ordered - self._kept.keys()):
            self._kept[task] = _Kept(task, partial(make, task), self._warnings)
            _log.info("keeping a standby", task=task)
        busy = False
        for one in self._kept.values():
            if self._ordered is not ordered or self._closing:  # a task may wait for one to be let go
                return True
            busy |= one.turn(self._clock.monotonic_ms())
        return busy

    def _made(self, connections: Connections, depot: LiveDepot, task: str) -> Standby:
        stage, plan = self._tasks[task]
        return Standby(self._plan, stage, plan, connections, depot, self._clock, self._warnings)

    def _let_go(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()
        self.looks = ()


class _Kept:
    """A standby that is ordered, made again after it has failed."""

    def __init__(self, task: str, make: Callable[[], Standby], warnings: RecentWarnings) -> None:
        self._task = task
        self._make = make
        self._warnings = warnings
        self._standby: Standby | None = None
        self._failures = 0
        self._again_ms = 0.0
        self._locked_ms: float | None = None
        self._state: StandbyState = "waiting"
        self._trouble = ""

    def turn(self, now_ms: float) -> bool:
        if now_ms < self._again_ms:
            return False
        try:
            return self._advance(now_ms)
        except Exception as error:  # noqa: BLE001 - whatever it is: the container's tasks have nothing to do with it
            self._failures += 1
            self._again_ms = now_ms + (RETRY.pause_ms(self._failures, random.random()) or 0.0)
            self._state, self._trouble = "waiting", _said(error)
            self._warnings.add(_log, f"the standby of task {self._task} begins again later: {_said(error)}")
            self.close()
            return False

    def _advance(self, now_ms: float) -> bool:
        standby = self._standby = self._standby or self._make()
        busy = all(standby.advance() for _ in range(PORTIONS))  # until there is nothing to do for now
        if standby.locked_out:
            self._locked_ms = now_ms if self._locked_ms is None else self._locked_ms
            long = now_ms - self._locked_ms >= LOCKED_MS
            self._state, self._trouble = "waiting", LOCKED if long else ""
        else:
            behind = standby.behind
            self._state = "fetching" if behind is None else "reading" if behind else "current"
            self._locked_ms, self._trouble = None, ""
            self._failures = 0 if behind == 0 else self._failures
        return busy

    def look(self) -> StandbyStatus:
        behind = None if self._standby is None else self._standby.behind
        return StandbyStatus(task=self._task, state=self._state, behind=behind, trouble=self._trouble)

    def close(self) -> None:
        standby, self._standby = self._standby, None
        if standby is None:
            return
        try:
            standby.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._warnings.add(_log, f"the standby of task {self._task} didn't close: {_said(error)}")


def _said(error: Exception) -> str:
    return error.message if isinstance(error, HeadraceError) else repr(error)

"""The standbys that a container keeps, on a thread of their own, with connections of their own.

They take turns, a portion of a changelog each. The thread rests for as long as it has worked, so it takes half of a
processor at most, and looks for news a few times a second. A standby that fails is closed and begins again later:
nothing here ends the container.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from functools import partial

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, InfrastructureError
from headrace.core.log import logger
from headrace.core.recent_warnings import RecentWarnings
from headrace.core.retry import Retry
from headrace.plan.model import Plan
from headrace.runtime.connections import Connections
from headrace.runtime.standby import Standby
from headrace.runtime.standby_status import StandbyState, StandbyStatus
from headrace.runtime.state.depot import LiveDepot
from headrace.stores.objects.opening import open_objects

LOOK_S = 0.25
PORTIONS = 2
"""How many a standby reads in its turn, at most."""
RETRY = Retry(None, 1000.0, 60_000.0)
LOCKED_MS = 30_000.0
LOCKED = "its folder is open in another process: do the machines share the home? Then standbys are of no use"
CLOSING_S = 10.0
"""How long ``close`` waits for a call to the disk or a broker that doesn't return."""

_log = logger(__name__)


class Standbys:
    """What is ordered of a container, and what it has. Without any order it has no thread and opens nothing."""

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
        self.looks: tuple[StandbyStatus, ...] = ()
        """How each was doing at the end of its last turn."""

    # -- from any thread

    def order(self, tasks: Collection[str]) -> None:
        """Keep standbys of these tasks, and let go of all others."""
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
        """Let go of all."""
        with self._lock:
            self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSING_S)

    # -- on the thread

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
        """Open what standbys need, keep those that are ordered until the end, and close everything."""
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
        """Give each a turn, unless another order comes meanwhile; False if there is nothing to do for now."""
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
        """Read some portions; False if there is nothing to do for now."""
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
        """How it is doing."""
        behind = None if self._standby is None else self._standby.behind
        return StandbyStatus(task=self._task, state=self._state, behind=behind, trouble=self._trouble)

    def close(self) -> None:
        """Release its folder."""
        standby, self._standby = self._standby, None
        if standby is None:
            return
        try:
            standby.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._warnings.add(_log, f"the standby of task {self._task} didn't close: {_said(error)}")


def _said(error: Exception) -> str:
    return error.message if isinstance(error, HeadraceError) else repr(error)

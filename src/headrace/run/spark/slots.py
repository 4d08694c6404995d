"""How many containers run in a Spark session: what it can have, what has registered, and what other jobs leave free.

Executors of a cluster register one after another, some seconds apart. Spark doesn't start a container without a slot,
and says nothing. So a start waits for the slots that were asked for, and an error or a note says what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext

from headrace.core.errors import InfrastructureError
from headrace.run.spark import settings
from headrace.run.spark.session import conf_of

WAIT_S = 60.0
"""How long executors may take to register."""
SETTLED_S = 5.0
"""A standalone cluster doesn't say how many executors it starts. These are all, if no other registers for so long."""
FREED_S = 1.0
"""How long the slots of jobs that are just ending may take to become free."""
TOLD_S = 1.0
"""A wait that takes no longer than this isn't worth a word."""
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The task slots of a session: how many have registered, and in how many of them tasks run."""

    registered: int
    taken: int = 0

    @property
    def free(self) -> int:
        return max(0, self.registered - self.taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an app asks for: ``containers``, or one for each task. ``beside``: one slot is left to other code."""

    app: str
    tasks: int
    containers: int | None = None
    beside: bool = False

    @property
    def wanted(self) -> int:
        return self.tasks + self.beside if self.containers is None else self.containers


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is known in advance of a session: how many slots it can have at most (None: nothing says so).

    ``settled_s``: if no slot has registered for so long, no more come. ``grows``: waiting tasks bring executors.
    """

    master: str
    limit: int | None = None
    settled_s: float = WAIT_S
    grows: bool = False

    @classmethod
    def of(cls, master: str, lookup: settings.Lookup) -> Capacity:
        limit = settings.slots_limit(master, lookup)
        settled_s = WAIT_S
        if settings.is_local(master):
            settled_s = 0.0  # the driver is the only executor
        elif limit is None or settings.is_standalone(master):
            settled_s = SETTLED_S
        return cls(settings.without_retries(master), limit, settled_s, settings.grows(lookup))

    def due(self, wanted: int) -> int:
        return wanted if self.limit is None else min(wanted, self.limit)

    def can_have(self, slots: int) -> bool:
        return self.due(slots) == slots


def waits(asked: Asked, capacity: Capacity, slots: Slots, elapsed_s: float, unchanged_s: float) -> bool:
    """Return whether to wait for more slots. ``unchanged_s``: for how long there have been as many as now."""
    if capacity.grows or elapsed_s >= WAIT_S:
        return False
    if not slots.registered:
        return asked.containers is None or capacity.can_have(asked.containers)
    if asked.containers is not None:  # these are waited for however long no other has registered
        possible = capacity.can_have(asked.containers) and capacity.settled_s > 0
        return possible and slots.registered < asked.containers
    due = capacity.due(asked.wanted)
    if slots.registered < due:
        return unchanged_s < capacity.settled_s
    return slots.free < due and unchanged_s < FREED_S


def decided(asked: Asked, capacity: Capacity, slots: Slots, waited_s: float) -> int:
    """Return how many containers to run. Raises if there aren't as many slots as were asked for."""
    registered, on = slots.registered, capacity.master
    if capacity.grows:
        possible = registered if capacity.limit is None else capacity.limit
        return asked.containers or max(1, min(asked.tasks, possible))
    if asked.containers is not None and registered < asked.containers:
        if not capacity.can_have(asked.containers):
            raise _too_few(asked.containers, on, capacity.limit or registered)
        if settings.is_local(on):
            raise _too_few(asked.containers, on, registered)
        if registered:
            raise InfrastructureError(
                f"app needs {asked.containers} container slots, but only {registered} of {on} registered within "
                f"{waited_s:.0f} s",
                hint=f"see on its page whether its workers are alive and have {asked.containers - registered} more "
                f"free cores, and memory for them; or use --containers {registered}",
            )
    if not registered:
        raise InfrastructureError(
            f"no executor of {on} registered within {waited_s:.0f} s",
            hint="check that its master answers, and on its page that it has free cores and memory",
        )
    return asked.containers or max(1, min(asked.tasks, slots.free - asked.beside))


def note_on(asked: Asked, capacity: Capacity, slots: Slots, containers: int) -> str:
    """Return what the user should know of the decision; empty if it is as expected."""
    if capacity.grows:
        return ""
    if not slots.free:
        return (
            f"{asked.app} waits for a slot: other jobs run in all {slots.registered} of {capacity.master}. It starts "
            "when they end"
        )
    if asked.beside and containers >= slots.free:
        remedy = f"containers={slots.free - 1} leaves one free" if slots.free > 1 else "start Spark with more slots"
        return (
            f"{asked.app} takes all free slots of {capacity.master} ({slots.free}), so other Spark jobs of this "
            f"session wait until it ends; {remedy}"
        )
    due = capacity.due(asked.tasks)
    if asked.containers is None and containers < due - asked.beside and not settings.is_local(capacity.master):
        some = "1 container" if containers == 1 else f"{containers} containers"
        return (
            f"{asked.app} has {asked.tasks} tasks in {some}, because {slots.free} of {slots.registered} slots of "
            f"{capacity.master} are free; with containers={due} a start waits for more"
        )
    return ""


def lacking(absent: set[int], placed: set[int], slots: Slots) -> dict[int, str]:
    waiting = absent - placed
    if not waiting or slots.free:
        return {}
    why = f"Spark has {slots.registered}, and all are taken" if slots.registered else "Spark has no executor"
    return dict.fromkeys(waiting, why)


def check_promised_slots(master: str, needed: int) -> None:
    """Raise ``InfrastructureError`` for a master of this machine that says that it has fewer: Spark needn't start."""
    promised = settings.local_slots(master)
    if promised is not None and needed > promised > 0:
        raise _too_few(needed, settings.without_retries(master), promised)


def _too_few(needed: int, master: str, slots: int) -> InfrastructureError:
    bigger = "give the app more cores (spark.cores.max, spark.executor.instances, spark.executor.cores)"
    if settings.is_local(master):
        bigger = f"--master local[{needed}]"
    elif settings.is_local_cluster(master):
        bigger = f"--master local-cluster[{needed},1,1024]"
    return InfrastructureError(
        f"app needs {needed} container slots, {master} has {slots}", hint=f"use --containers {slots} or {bigger}"
    )


def decide(
    context: SparkContext,
    asked: Asked,
    say: Callable[[str], None] = lambda text: None,
    given_up: Callable[[], bool] = lambda: False,
) -> tuple[int, str] | None:
    """Poll for slots; return the number of containers, with a note. None if ``given_up`` meanwhile."""
    jsc: Any = context._jsc
    capacity = Capacity.of(str(context.master), conf_of(context).get)
    began = changed = now = time.monotonic()
    slots = count_slots(context)
    while waits(asked, capacity, slots, now - began, now - changed):
        if given_up():
            return None
        if jsc.sc().isStopped():
            raise InfrastructureError(
                f"Spark has ended the application on {capacity.master} before any container started",
                hint="see Spark's own lines above; perhaps the server there isn't a master of this version of Spark",
            )
        if now - began >= TOLD_S:
            say(
                f"{asked.app} waits for slots of {capacity.master}: {slots.registered} of {capacity.due(asked.wanted)} "
                f"after {now - began:.0f} s"
            )
        time.sleep(_POLL_S)
        before, slots, now = slots, count_slots(context), time.monotonic()
        changed = now if slots != before else changed
    containers = decided(asked, capacity, slots, now - began)
    return containers, note_on(asked, capacity, slots, containers)


def count_slots(context: SparkContext) -> Slots:
    jsc: Any = context._jsc
    executors = jsc.sc().statusStore().executorList(True)
    found = [executors.apply(i) for i in range(executors.size())]
    return Slots(registered=sum(one.maxTasks() for one in found), taken=sum(one.activeTasks() for one in found))

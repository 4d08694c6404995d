"""How many containers a Spark cluster can run at once, and a clear word when an app needs more.

Spark would simply not start the rest, and an app of which one container never starts stands still in silence.
"""

from __future__ import annotations

import time
from typing import Any

from pyspark import SparkContext

from headrace.core.errors import InfrastructureError
from headrace.core.log import logger
from headrace.runners.spark import settings
from headrace.runners.spark.session import conf_of

_POLL_SECONDS = 0.05

_log = logger(__name__)


def check_slots(context: SparkContext, needed: int, wait_seconds_max: float = 60.0) -> None:
    """Return once ``needed`` task slots have registered; raise ``InfrastructureError`` when that can't be."""
    if conf_of(context).get("spark.dynamicAllocation.enabled", "false") == "true":
        return  # the cluster adds executors for waiting tasks: how many there are now says nothing
    expected = _expected_slots(context)
    if expected is not None and needed > expected:
        wait_seconds_max = 0.0
    slots = _await_slots(context, needed, wait_seconds_max)
    if slots >= needed:
        return
    slots = max(slots, expected or 0) if expected is not None and needed > expected else slots
    master = _shown(str(context.master))
    if slots == 0:
        raise InfrastructureError(
            f"no executor of {master} registered within {wait_seconds_max:g} s",
            hint="look whether its master answers, and in its page whether it has free cores and memory",
        )
    raise InfrastructureError(
        f"app needs {needed} container slots, {master} has {slots}",
        hint=f"use --containers {slots} or {_bigger(str(context.master), needed)}",
    )


def usable_slots(context: SparkContext, wanted: int, wait_seconds_max: float = 60.0) -> int:
    """How many containers to run when nobody said: ``wanted`` at most, one at least.

    Executors register one after the other: those that the cluster is set up with are waited for.
    """
    check_slots(context, 1, wait_seconds_max)
    expected = _expected_slots(context)
    due = wanted if expected is None else min(wanted, expected)
    wait = wait_seconds_max if expected is not None else 0.0
    slots = max(1, min(wanted, _await_slots(context, due, wait)))
    if slots < due:
        _log.warning("not all slots have registered; going on with fewer", expected=due, slots=slots)
    return slots


def _await_slots(context: SparkContext, wanted: int, wait_seconds_max: float) -> int:
    """How many slots there are as soon as there are so many, or when the time is up.

    Spark has no event for it that reaches Python, so this polls. Raises when Spark has stopped meanwhile.
    """
    jsc: Any = context._jsc
    deadline = time.monotonic() + wait_seconds_max
    while (slots := count_slots(context)) < wanted and time.monotonic() < deadline:
        if jsc.sc().isStopped():
            raise InfrastructureError(
                f"Spark has ended the application on {_shown(str(context.master))} before any container began",
                hint="the lines above are Spark's own; perhaps what answers there is no master of this Spark",
            )
        time.sleep(_POLL_SECONDS)
    return slots


def count_slots(context: SparkContext) -> int:
    """Task slots of the executors that are registered now."""
    jsc: Any = context._jsc
    executors = jsc.sc().statusStore().executorList(True)
    return sum(executors.apply(i).maxTasks() for i in range(executors.size()))


def _expected_slots(context: SparkContext) -> int | None:
    """What the master's own text or the settings promise, where they do."""
    conf = conf_of(context)
    cores = settings.local_slots(str(context.master))
    instances, each = conf.get("spark.executor.instances"), conf.get("spark.executor.cores")
    if cores is None and instances is not None and each is not None:
        cores = int(instances) * int(each)
    return None if cores is None else cores // int(conf.get("spark.task.cpus", "1") or 1)


def _shown(master: str) -> str:
    """The master as the user wrote it."""
    if not settings.is_local(master):
        return master
    return f"local[{settings.local_slots(master) or '*'}]"


def _bigger(master: str, needed: int) -> str:
    if settings.is_local(master):
        return f"--master local[{needed}]"
    if settings.is_local_cluster(master):
        return f"--master local-cluster[{needed},1,1024]"
    return "give the app more cores (spark.cores.max, spark.executor.instances, spark.executor.cores)"

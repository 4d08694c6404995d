"""How many containers a Spark cluster can run at once, and a clear error when an app needs more.

Spark just doesn't start the others, and an app that misses one container stops without any message.
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
_REGISTERED_SECONDS = 60.0
"""How long executors may take to register."""

_log = logger(__name__)


def check_slots(context: SparkContext, needed: int, wait_seconds_max: float = _REGISTERED_SECONDS) -> None:
    """Return when ``needed`` task slots have registered; raise ``InfrastructureError`` if they don't."""
    if conf_of(context).get("spark.dynamicAllocation.enabled", "false") == "true":
        return  # the cluster adds executors for waiting tasks, so their present number says nothing
    expected = _expected_slots(context)
    if expected is not None and needed > expected:
        wait_seconds_max = 0.0
    slots = _await_slots(context, needed, wait_seconds_max)
    if slots >= needed:
        return
    slots = max(slots, expected or 0) if expected is not None and needed > expected else slots
    master = settings.without_retries(str(context.master))
    if slots == 0:
        raise InfrastructureError(
            f"no executor of {master} registered within {wait_seconds_max:g} s",
            hint="check that its master answers, and on its page that it has free cores and memory",
        )
    raise _too_few(needed, master, slots)


def check_promised_slots(master: str, needed: int) -> None:
    """Raise ``InfrastructureError`` for a master of this machine that says that it has fewer: Spark needn't start."""
    promised = settings.local_slots(master)
    if promised is not None and needed > promised > 0:
        raise _too_few(needed, settings.without_retries(master), promised)


def _too_few(needed: int, master: str, slots: int) -> InfrastructureError:
    return InfrastructureError(
        f"app needs {needed} container slots, {master} has {slots}",
        hint=f"use --containers {slots} or {_bigger(master, needed)}",
    )


def usable_slots(context: SparkContext, wanted: int) -> int:
    """How many containers to run by default: at most ``wanted``, at least one.

    Executors register one after another. This waits for those that the cluster is configured with.
    """
    check_slots(context, 1)
    expected = _expected_slots(context)
    due = wanted if expected is None else min(wanted, expected)
    wait = _REGISTERED_SECONDS if expected is not None else 0.0
    slots = max(1, min(wanted, _await_slots(context, due, wait)))
    if slots < due:
        _log.warning("not all slots have registered; continuing with fewer", expected=due, slots=slots)
    return slots


def _await_slots(context: SparkContext, wanted: int, wait_seconds_max: float) -> int:
    """Wait for this number of slots, or until the time is up; returns how many there are.

    Polls, because Spark has no event for it that reaches Python. Raises if Spark stops meanwhile.
    """
    jsc: Any = context._jsc
    deadline = time.monotonic() + wait_seconds_max
    while (slots := count_slots(context)) < wanted and time.monotonic() < deadline:
        if jsc.sc().isStopped():
            master = settings.without_retries(str(context.master))
            raise InfrastructureError(
                f"Spark has ended the application on {master} before any container started",
                hint="see Spark's own lines above; perhaps the server there isn't a master of this version of Spark",
            )
        time.sleep(_POLL_SECONDS)
    return slots


def count_slots(context: SparkContext) -> int:
    """Task slots of the executors that are registered now."""
    jsc: Any = context._jsc
    executors = jsc.sc().statusStore().executorList(True)
    return sum(executors.apply(i).maxTasks() for i in range(executors.size()))


def _expected_slots(context: SparkContext) -> int | None:
    """The number of slots that the master or the settings promise; None where they don't."""
    conf = conf_of(context)
    cores = settings.local_slots(str(context.master))
    instances, each = conf.get("spark.executor.instances"), conf.get("spark.executor.cores")
    if cores is None and instances is not None and each is not None:
        cores = int(instances) * int(each)
    return None if cores is None else cores // int(conf.get("spark.task.cpus", "1") or 1)


def _bigger(master: str, needed: int) -> str:
    if settings.is_local(master):
        return f"--master local[{needed}]"
    if settings.is_local_cluster(master):
        return f"--master local-cluster[{needed},1,1024]"
    return "give the app more cores (spark.cores.max, spark.executor.instances, spark.executor.cores)"

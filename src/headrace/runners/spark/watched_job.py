"""Run a job of Spark on a thread of its own, and watch it: for signals, and for tasks that fail again and again.

The caller's thread waits. The first Ctrl-C cancels the job. (A signal handler mustn't call Spark: with pinned threads
it would use the connection of the call that it interrupts.) In a session for containers a task may fail any number of
times, so a job that can't be done would never end there; here it ends as it does in other sessions.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from headrace.core.errors import HeadraceError
from headrace.runners.interrupts import Interrupts

_WRITTEN, _INTERRUPTED = "written", "interrupted"
_LOOK_S = 1.0
_FAILURES_MAX = 4
_FAILURES_LISTED = 1000


def run_watched(
    context: SparkContext,
    named: str,
    run: Callable[[], None],
    failed: Callable[[str], HeadraceError],
    interrupts: Interrupts | None = None,
) -> bool:
    """Run ``run``, whose Spark jobs are shown under this name. False if a signal has cancelled it.

    If Spark can't do a job, raises what ``failed`` makes of Spark's reason. Nothing of it runs any more when this
    returns or raises.
    """
    group = f"headrace-{uuid4().hex}"
    news: queue.SimpleQueue[Exception | str] = queue.SimpleQueue()

    def on_thread() -> None:
        try:
            context.setJobGroup(group, named, interruptOnCancel=True)
            run()
        except Exception as error:  # noqa: BLE001  # raised on the thread that waits
            news.put(error)
        else:
            news.put(_WRITTEN)

    if interrupts is not None:
        interrupts.drain_by(lambda: news.put(_INTERRUPTED))
    thread = threading.Thread(target=on_thread, name="spark-job", daemon=True)
    thread.start()
    try:
        heard = _wait(news, context, group)
    except BaseException:
        _cancel(context, group, thread)
        raise
    if isinstance(heard, Exception):
        raise failed(_said(heard)) from heard
    if heard == _WRITTEN:
        return True
    _cancel(context, group, thread)
    if heard == _INTERRUPTED:
        return False
    raise failed(heard)


def _wait(news: queue.SimpleQueue[Exception | str], context: SparkContext, group: str) -> Exception | str:
    """What comes first: news, or why a task of the jobs fails again and again."""
    while True:
        with suppress(queue.Empty):
            return news.get(timeout=_LOOK_S)
        with suppress(Py4JError, OSError):  # Spark has ended, and the thread will say so
            if why := _failing(context, group):
                return why


def _failing(context: SparkContext, group: str) -> str:
    """What a task says that has failed as often as Spark lets one fail by default; empty if there is none.

    In a session for containers a task may fail any number of times, so a job that can't be done would never end.
    """
    tracker, jsc = context.statusTracker(), cast("Any", context._jsc)
    status = cast("Any", context._jvm).org.apache.spark.status.api.v1
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    for number in {stage for job in jobs if job is not None for stage in job.stageIds}:
        stage = tracker.getStageInfo(number)
        if stage is None or stage.numFailedTasks < _FAILURES_MAX:
            continue
        named = (number, stage.currentAttemptId, 0, _FAILURES_LISTED, status.TaskSorting.ID, [status.TaskStatus.FAILED])
        failed = jsc.sc().statusStore().taskList(*named)
        tasks = [failed.apply(i) for i in range(failed.size())]
        counts = Counter(int(task.index()) for task in tasks)
        for task in tasks:
            if counts[int(task.index())] >= _FAILURES_MAX:
                return str(task.errorMessage().get())
    return ""


def _cancel(context: SparkContext, group: str, thread: threading.Thread) -> None:
    """Cancel the jobs that the thread has begun or will begin, and wait for it: then nothing writes any more."""
    jsc: Any = context._jsc
    with suppress(Py4JError, OSError):  # Spark has ended
        jsc.sc().cancelJobGroupAndFutureJobs(group)
    thread.join()


def _said(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getMessage())
    if isinstance(error, OSError):
        return f"Spark has ended, or doesn't answer: {error}"
    return str(error) if isinstance(error, PySparkException | Py4JError) else f"{type(error).__name__}: {error}"

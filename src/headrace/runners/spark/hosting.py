"""One Spark job whose tasks are the app's containers.

Each task is one call of ``main`` in its own Python worker process, and ends when the container ends. The job runs in a
daemon thread of the driver. It isn't a barrier job: barrier mode restarts all tasks when one fails, whereas the
protocol restarts a single one. Spark restarts a worker that dies, with the next attempt number, in the same or another
executor.

It is a job over an RDD. ``mapInArrow`` over a DataFrame would do the same, but needs Spark SQL's planner and pandas in
the driver, and takes about two seconds longer until the first container runs.

In a session of the user's on plain ``local[N]``, Spark never starts a failed task again: it ends the whole job. Then
the job is submitted again, with attempt numbers that continue, so all containers resume from their checkpoints.

A container must not outlive its app. The JVM ends when the driver does, because it reads the driver's end of a pipe.
Spark's Python daemon ends in the same way when the JVM does, and closes the connections of its workers. In case the
daemon itself is killed, each worker asks the kernel to be killed with its parent.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext, TaskContext

from headrace.core.errors import HeadraceError, InfrastructureError, UsageError
from headrace.core.log import logger
from headrace.runners.spark import settings
from headrace.runners.spark.jvm_loss import calling_jvm, is_loss, jvm_lost
from headrace.runners.spark.slots import Slots, count_slots

_log = logger(__name__)

_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_SECONDS = 1.0
_MESSAGE_LINES_MAX = 40
_ATTEMPTS_LISTED = 10_000
_GIVEN_UP = re.compile(r"Task \d+ in stage \S+ failed \d+ times")
"""What Spark says when it ends a job because a task failed as often as it may."""


@dataclass(frozen=True, slots=True)
class ContainerArgs:
    """What a container starts with; the coordinator says the rest."""

    container: int
    attempt: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """What Spark reports of a failed attempt of a container."""

    container: int
    attempt: int
    message: str


Report = Mapping[str, Any]
ContainerMain = Callable[[ContainerArgs], Report]


class ContainerJob:
    """The containers of one app, as one Spark job. Start it once; call the other methods from any thread."""

    def __init__(
        self, context: SparkContext, count: int, main: ContainerMain, payload: bytes, description: str
    ) -> None:
        """``main`` has to be importable in workers; each gets ``payload``; Spark's UI shows ``description``."""
        if count < 1:
            raise UsageError(f"an app needs at least one container, not {count}")
        if "<locals>" in main.__qualname__ or "<lambda>" in main.__qualname__:
            raise UsageError(f"{main.__qualname__} can't be imported by a container: define it in a module")
        self.group = f"headrace-{uuid4().hex}"
        self._context = context
        self._count = count
        self._main = main
        self._payload = payload
        self._description = description
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._error: HeadraceError | None = None
        self._reports: list[Report] = []
        self._firsts = [(-1, 0)]
        """For the jobs after this one of Spark's numbers: the number of the first attempt of each container."""
        self._thread = threading.Thread(target=self._run, name="spark-containers", daemon=True)

    def start(self) -> None:
        """Submit the job to Spark; returns at once."""
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the job has ended, after waiting ``timeout`` seconds at most."""
        return self._ended.wait(timeout)

    def cancel(self) -> None:
        """Kill what still runs; Spark gives each worker two seconds. An orderly stop is up to the coordinator."""
        self._cancelled.set()
        if self._thread.is_alive():
            _log.info("cancelling Spark's job; what still runs is killed", group=self.group)
            jsc: Any = self._context._jsc
            with suppress(InfrastructureError), calling_jvm():  # if it has gone, nothing runs any more
                # Future jobs, too: this job may be on its way to Spark.
                jsc.sc().cancelJobGroupAndFutureJobs(self.group)

    def error(self) -> HeadraceError | None:
        """Why the job failed; None while it runs, after success, and after ``cancel``."""
        return self._error

    def reports(self) -> list[Report]:
        """What each container returned, by container, once the job has ended well."""
        return list(self._reports)

    def kill(self, container: int, attempt: int, why: str) -> bool:
        """Have Spark kill this attempt and start the next one; False if it isn't running.

        A healthy executor kills the process within about a second, even a frozen one. Spark gives up an executor that
        doesn't answer after ``spark.network.timeout``.
        """
        jsc: Any = self._context._jsc
        with calling_jvm():
            for first, task in self._tasks():
                if (task.index(), first + task.attempt(), task.status()) == (container, attempt, "RUNNING"):
                    return bool(jsc.sc().killTaskAttempt(task.taskId(), True, why))
        return False

    def failure_count(self) -> int:
        """How many attempts of containers have failed so far."""
        with calling_jvm():
            tracker = self._context.statusTracker()
            stages = (tracker.getStageInfo(stage) for _, stage in self._stages())
            return sum(stage.numFailedTasks for stage in stages if stage is not None)

    def failures(self) -> list[AttemptFailure]:
        """The attempts that have failed, in the order of their starts, without those that were killed on purpose."""
        with calling_jvm():
            failed = [(first, task) for first, task in self._tasks() if task.status() == "FAILED"]
            failed.sort(key=lambda found: int(found[1].taskId()))
            return [
                AttemptFailure(task.index(), first + task.attempt(), _readable(task.errorMessage().get()))
                for first, task in failed
            ]

    def placed(self) -> set[int]:
        """The containers to which Spark has given a slot, as far as it knows."""
        with calling_jvm():
            return {int(task.index()) for _, task in self._tasks() if task.status() == "RUNNING"}

    def slots(self) -> Slots:
        """The slots that there are."""
        with calling_jvm():
            return count_slots(self._context)

    def _tasks(self) -> list[tuple[int, Any]]:
        """Spark's own record of each attempt, with the number of the first attempt of its job."""
        jsc: Any = self._context._jsc
        store = jsc.sc().statusStore()
        found: list[tuple[int, Any]] = []
        for job, stage in self._stages():
            first = next(first for after, first in reversed(self._firsts) if job > after)
            tasks = store.taskList(stage, 0, _ATTEMPTS_LISTED)
            found += [(first, tasks.apply(i)) for i in range(tasks.size())]
        return found

    def _stages(self) -> list[tuple[int, int]]:
        """The numbers of each job that was submitted and of its stage."""
        tracker = self._context.statusTracker()
        jobs = {number: tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(self.group)}
        return [(number, stage) for number, job in jobs.items() if job is not None for stage in job.stageIds]

    def _run(self) -> None:
        # Group and call site are properties of the submitting thread, so they are set here.
        try:
            self._context.setJobGroup(self.group, self._description, interruptOnCancel=True)
            self._context.setLocalProperty("callSite.short", self._description)
            while not self._host():
                pass
        except (Py4JError, OSError) as error:
            if not self._cancelled.is_set():
                said = f"Spark ended the containers of {self._description!r}: {_cause(error)}"
                hint = "see the log lines above for what happened to each container"
                self._error = jvm_lost(error) if is_loss(error) else InfrastructureError(said, hint=hint)
        finally:
            self._ended.set()

    def _host(self) -> bool:
        """Submit the job and wait for its end; False if it has to be submitted again."""
        _, first = self._firsts[-1]
        tasks = self._context.parallelize(range(self._count), self._count)
        if self._cancelled.is_set():
            return True  # cancelled before there was a job to cancel
        try:
            self._reports = tasks.mapPartitionsWithIndex(
                partial(_run_container, self._main, self._payload, first)
            ).collect()
        except Py4JJavaError as error:
            given_up = _GIVEN_UP.search(str(error.java_exception.getMessage()))
            if self._cancelled.is_set() or given_up is None or settings.retries_enough(str(self._context.master)):
                raise
            self._start_again(first)
            return False
        return True

    def _start_again(self, first: int) -> None:
        """Spark has ended the job, whose attempts began with this number, because a container failed."""
        jsc: Any = self._context._jsc
        jsc.sc().listenerBus().waitUntilEmpty()  # until Spark has recorded the task's end
        attempts = [number + task.attempt() for number, task in self._tasks() if number == first]
        following = max(attempts, default=first) + 1
        _log.warning(
            "a container failed, and Spark ended all of them, as local[N] does; they start again",
            master=str(self._context.master),
            attempt=following,
        )
        ended = max((job for job, _ in self._stages()), default=self._firsts[-1][0])
        self._firsts.append((ended, following))


def _run_container(main: ContainerMain, payload: bytes, first: int, index: int, _: Iterable[int]) -> Iterator[Report]:
    """The body of one Spark task, in a Python worker. ``first`` is the number of its job's first attempt."""
    die_with_parent()
    task = TaskContext.get()
    if task is None:
        raise InfrastructureError("a container was started outside a Spark task")
    yield main(ContainerArgs(container=index, attempt=first + task.attemptNumber(), payload=payload))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even if it is frozen."""
    parent = os.getppid()
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0:
        if os.getppid() != parent:  # the parent ended before prctl took effect
            os.kill(os.getpid(), signal.SIGKILL)
        return
    threading.Thread(target=_watch_parent, args=(parent,), name="parent-watch", daemon=True).start()


def _watch_parent(parent: int) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_PARENT_CHECK_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _cause(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):
        return _readable(str(error.java_exception.getMessage()))
    return str(error)


def _readable(message: str) -> str:
    """A Java error message without stack frames."""
    lines = [line for line in message.splitlines() if not line.lstrip().startswith(("at ", "... ")) and line.strip()]
    return "\n".join(lines[:_MESSAGE_LINES_MAX])

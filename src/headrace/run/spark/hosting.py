"""One Spark job whose tasks are the app's containers, watched and supervised.

Each task is one call of ``main`` in its own Python worker process, and ends when the container ends. The job runs in a
daemon thread of the driver. It isn't a barrier job, which would restart all tasks when one fails. Spark restarts a
worker that dies, with the next attempt number, in the same or another executor. It is a job over an RDD: ``mapInArrow``
over a DataFrame needs Spark SQL's planner and pandas in the driver, and two seconds more until the first container
runs.

In a session of the user's on plain ``local[N]``, Spark ends the whole job when a task fails. Then the job is submitted
again, with attempt numbers that continue, so all containers resume from their checkpoints.

A container must not outlive its app. The JVM ends when the driver does, because it reads the driver's end of a pipe.
Spark's Python daemon ends in the same way when the JVM does, and closes the connections of its workers. In case the
daemon itself is killed, each worker asks the kernel to be killed with its parent.

A container that sends no heartbeat is lost, and one that doesn't return from a function of the app hangs. Spark starts
no other attempt while the old task runs, so the driver has the attempt killed. A container that fails before it
registers can't report why. Spark knows the reason, and would try again forever. All of that runs on the driver's
watching thread, which blocks in ``watch``.
"""

from __future__ import annotations

import ctypes
import os
import queue
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException

from headrace.coordinator.messages import OVER, AppStatus
from headrace.coordinator.server import Coordinator
from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, InfrastructureError, UsageError
from headrace.core.log import logger
from headrace.run.coordinated import Interrupts
from headrace.run.spark import settings
from headrace.run.spark.launch import calling_jvm, is_loss, jvm_lost
from headrace.run.spark.slots import Slots, count_slots, lacking

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
        self.error: HeadraceError | None = None
        """Why the job failed; None while it runs, after success, and after ``cancel``."""
        self.reports: list[Report] = []
        """What each container returned, by container, once the job has ended well."""
        self._context, self._count = context, count
        self._main, self._payload = main, payload
        self._description = description
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._firsts = [(-1, 0)]
        """For the jobs after this one of Spark's numbers: the number of the first attempt of each container."""
        self._thread = threading.Thread(target=self._run, name="spark-containers", daemon=True)

    def start(self) -> None:
        """Submit the job to Spark; returns at once."""
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
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
        with calling_jvm():
            tracker = self._context.statusTracker()
            stages = (tracker.getStageInfo(stage) for _, stage in self._stages())
            return sum(stage.numFailedTasks for stage in stages if stage is not None)

    def failures(self) -> list[AttemptFailure]:
        with calling_jvm():
            failed = [(first, task) for first, task in self._tasks() if task.status() == "FAILED"]
            failed.sort(key=lambda found: int(found[1].taskId()))
            return [
                AttemptFailure(task.index(), first + task.attempt(), _readable(task.errorMessage().get()))
                for first, task in failed
            ]

    def placed(self) -> set[int]:
        with calling_jvm():
            return {int(task.index()) for _, task in self._tasks() if task.status() == "RUNNING"}

    def slots(self) -> Slots:
        with calling_jvm():
            return count_slots(self._context)

    def _tasks(self) -> list[tuple[int, Any]]:
        jsc: Any = self._context._jsc
        store = jsc.sc().statusStore()
        found: list[tuple[int, Any]] = []
        for job, stage in self._stages():
            first = next(first for after, first in reversed(self._firsts) if job > after)
            tasks = store.taskList(stage, 0, _ATTEMPTS_LISTED)
            found += [(first, tasks.apply(i)) for i in range(tasks.size())]
        return found

    def _stages(self) -> list[tuple[int, int]]:
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
                said = f"Spark ended the containers of {self._description!r}: {_readable(_said(error))}"
                hint = "see the log lines above for what happened to each container"
                self.error = jvm_lost(error) if is_loss(error) else InfrastructureError(said, hint=hint)
        finally:
            self._ended.set()

    def _host(self) -> bool:
        _, first = self._firsts[-1]
        tasks = self._context.parallelize(range(self._count), self._count)
        if self._cancelled.is_set():
            return True  # cancelled before there was a job to cancel
        try:
            body = partial(_run_container, self._main, self._payload, first)
            self.reports = tasks.mapPartitionsWithIndex(body).collect()
        except Py4JJavaError as error:
            given_up = _GIVEN_UP.search(str(error.java_exception.getMessage()))
            if self._cancelled.is_set() or given_up is None or settings.retries_enough(str(self._context.master)):
                raise
            self._start_again(first)
            return False
        return True

    def _start_again(self, first: int) -> None:
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


def _readable(message: str) -> str:
    lines = [line for line in message.splitlines() if not line.lstrip().startswith(("at ", "... ")) and line.strip()]
    return "\n".join(lines[:_MESSAGE_LINES_MAX])


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
    """Run ``run`` on a thread; its Spark jobs are shown under this name. False if the first Ctrl-C has cancelled it.

    If Spark can't do a job, raises what ``failed`` makes of its reason. At the end nothing of it runs. (A signal
    handler mustn't call Spark: with pinned threads it would use the connection of the call that it interrupts.)
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
    while True:
        with suppress(queue.Empty):
            return news.get(timeout=_LOOK_S)
        with suppress(Py4JError, OSError):  # Spark has ended, and the thread will say so
            if why := _failing(context, group):
                return why


def _failing(context: SparkContext, group: str) -> str:
    """What a task says that has failed as often as Spark lets one fail by default; empty if there is none."""
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


WATCH_S = 0.25
"""How often the job is checked; the end of the app is noticed at once."""
GRACE_MS = 1000.0
"""How long the driver itself must see a container as stuck: perhaps only the driver was suspended."""
_WHY: Mapping[str, str] = {
    "lost": "has sent no heartbeat for too long",
    "hung": "has been in one call of the app's own code for too long",
}
"""The states of containers that are killed."""
EXPLAINED_MAX = 3
UNEXPLAINED_MAX = 30
"""How many attempts in a row may end before they register: with a reason (a traceback), or because they were lost."""
_LOSS = re.compile(r"ExecutorLostFailure|Python worker exited unexpectedly|TaskKilled|killed|FetchFailed")
_TRACEBACK = "Traceback (most recent call last)"
ABSENT_MS = 3000.0
"""How long a container may be absent before Spark is asked whether there is a slot for it."""
SLOTS_EVERY_MS = 1000.0
"""How often Spark is asked about slots, while containers are absent."""
_ABSENT = frozenset({"waiting", "lost", "failed"})
Seat = tuple[int, int]
"""A container's number and its attempt."""


def watch(coordinator: Coordinator, job: ContainerJob, show: Callable[[AppStatus], None] | None = None) -> AppStatus:
    """Supervise the app until it is over; returns its last status. Raises if Spark ends the job before that."""
    supervisor = Supervisor(job, coordinator.fail, coordinator.lack)
    while True:
        coordinator.wait(WATCH_S)
        # Asked before the app is: containers report their end to the coordinator before they end for Spark.
        job_is_over = job.wait(0)
        status = coordinator.status()
        if show is not None:
            show(status)
        if status.state in OVER:
            return status
        if job_is_over:
            raise job.error or InfrastructureError(
                "Spark's job has ended, but the app hasn't", hint="see Spark's log for what happened to the containers"
            )
        supervisor.look(status, WallClock().monotonic_ms())


class Supervisor:
    """Supervises one job. ``give_up`` ends the app with an error, and ``lack`` hears which containers have no slot."""

    def __init__(
        self,
        job: ContainerJob,
        give_up: Callable[[Exception], None],
        lack: Callable[[Mapping[int, str]], None] = lambda reasons: None,
    ) -> None:
        self._job, self._give_up, self._lack = job, give_up, lack
        self._absent: dict[int, float] = {}
        self._asked_ms = float("-inf")
        self._stuck: dict[Seat, float] = {}
        self._killed: set[Seat] = set()
        self._failures_seen = 0

    def look(self, status: AppStatus, now_ms: float) -> None:
        self._kill_stuck(status, now_ms)
        self._absent = {c.id: self._absent.get(c.id, now_ms) for c in status.containers if c.state in _ABSENT}
        long = {id_ for id_, since_ms in self._absent.items() if now_ms - since_ms >= ABSENT_MS}
        if long and now_ms - self._asked_ms >= SLOTS_EVERY_MS:
            self._asked_ms = now_ms
            self._lack(lacking(long, self._job.placed(), self._job.slots()))
        count = self._job.failure_count()
        if count != self._failures_seen:
            _log.info("Spark reports failed attempts at containers", failures=count)
            self._failures_seen = count
            registered = {c.id: -1 if c.attempt is None else c.attempt for c in status.containers}
            if error := why_hopeless(self._job.failures(), registered):
                self._give_up(error)

    def _kill_stuck(self, status: AppStatus, now_ms: float) -> None:
        stuck = {(c.id, c.attempt): c.state for c in status.containers if c.state in _WHY and c.attempt is not None}
        self._stuck = {seat: self._stuck.get(seat, now_ms) for seat in stuck}
        self._killed &= stuck.keys()
        for (container, attempt), since_ms in self._stuck.items():
            if now_ms - since_ms >= GRACE_MS:
                why = _WHY[stuck[container, attempt]]
                if (container, attempt) not in self._killed:
                    _log.warning(f"killing a container that {why}", container=container, attempt=attempt)
                self._killed.add((container, attempt))
                self._job.kill(container, attempt, f"container {container} {why}")
                self._stuck[container, attempt] = now_ms  # if that doesn't help, it is killed again later


def why_hopeless(failures: Sequence[AttemptFailure], registered: dict[int, int]) -> InfrastructureError | None:
    """Return the error to end the app with, if a container's last attempts all failed before they could register."""
    for container, attempt in registered.items():
        early = [f for f in failures if f.container == container and f.attempt > attempt]
        explained = [f for f in early if _TRACEBACK in f.message or not _LOSS.search(f.message)]
        if len(explained) >= EXPLAINED_MAX or len(early) >= UNEXPLAINED_MAX:
            last = (explained or early)[-1]
            return InfrastructureError(
                f"container {container} failed {len(early)} times in a row before it could register:\n{last.message}",
                hint="every executor needs the same Python, Headrace and your app's own modules (the folder of the "
                "script is on the path of local containers; on a cluster use spark.submit.pyFiles or an image)",
            )
    return None

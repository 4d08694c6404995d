"""One container of a run: its session with the coordinator, its reports, and its log lines.

Statuses are snapshots, taken on the run-loop thread a few times a second. Log lines wait, a bounded number of them, for
the next heartbeat; those above the limits are dropped and counted.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec
from typing_extensions import override

from headrace.coordinator import messages
from headrace.coordinator.messages import CutStatus, LogLine, OutcomeReport, OutputStatus, Series, TaskStatus, What
from headrace.core.clock import WallClock
from headrace.core.files import make_room
from headrace.core.ids import SSP, TaskName, stage_of
from headrace.core.log import ROOT, LogSettings, fields_of, logger
from headrace.core.metrics import entered
from headrace.core.secrets import hide_passwords
from headrace.plan.model import Plan
from headrace.run.holdups import STILL_MS, Doing, InputFacts, Standstill, held_by_run_loop, holding_all, holdups, older
from headrace.run.progress import SET_ASIDE
from headrace.run.tables import TableAnswers
from headrace.systems.slot_reports import Shards
from headrace.systems.startpoints import Grant, Outcome
from headrace.task.calls import Blocked
from headrace.task.container import Container
from headrace.task.event_time import FOREVER, NEVER, PartitionTime
from headrace.task.host.task_host import TaskHost
from headrace.task.metrics import Histogram, TaskMetrics
from headrace.task.operators.functions import in_debugger, line_now
from headrace.task.scope import AtWork, Movement, Work
from headrace.task.standby import Standbys

# -- log outbox --------------------------------------------------------------------------------------
WAITING_MAX = 200
"""How many lines wait. Only a loop logs more."""
BATCH_MAX = 50
"""How many lines a heartbeat takes along: of a container about 100 a second."""
CHARS_MAX = 4000
FIELDS_MAX = 20
FIELD_CHARS_MAX = 200
_TRACEBACKS = logging.Formatter()


class LogOutbox(logging.Handler):
    """Takes records on any thread. ``take`` is called by the thread that sends heartbeats."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._waiting: deque[LogLine] = deque()
        self._taken: list[LogLine] = []
        """Those of the last heartbeat, which may not have arrived."""
        self._dropped = self._numbers = 0
        self.takes_own = False
        """Whether it takes Headrace's own lines."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if _is_own(record) and not self.takes_own:
            return
        try:
            line = _line(record)
        except Exception:  # noqa: BLE001 - logging's own contract: errors of a handler go to handleError
            self.handleError(record)
            return
        with self._guard:
            if len(self._waiting) < WAITING_MAX:
                self._numbers += 1
                self._waiting.append(msgspec.structs.replace(line, number=self._numbers))
            else:
                self._dropped += 1

    def take(self, *, again: bool = False) -> tuple[list[LogLine], int]:
        """Return the next lines, and how many were dropped since the last call. ``again`` repeats the last lines."""
        with self._guard:
            lines = self._taken if again else []
            lines = lines + [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            self._taken = lines
            dropped, self._dropped = self._dropped, 0
        return lines, dropped

    def arrived(self) -> None:
        """Forget what was taken last: the driver has it."""
        with self._guard:
            self._taken = []

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._taken and not self._dropped


@contextmanager
def sending_logs(outbox: LogOutbox, settings: LogSettings) -> Iterator[None]:
    """Have records of the app's loggers go into the outbox, and of Headrace's if they are wanted."""
    loggers = [logging.getLogger()] if settings.others != "off" else []
    outbox.takes_own = settings.sent and settings.level != "off"
    if outbox.takes_own:  # they don't reach the root logger: see ``logging_to``
        loggers.append(logging.getLogger(ROOT))
    before = logging.getLogger().level
    if settings.others != "off":
        logging.getLogger().setLevel(settings.others.upper())
    for one in loggers:
        one.addHandler(outbox)
    try:
        yield
    finally:
        for one in loggers:
            one.removeHandler(outbox)
        logging.getLogger().setLevel(before)


def _is_own(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == ROOT


def _line(record: logging.LogRecord) -> LogLine:
    fields = {name: str(value)[:FIELD_CHARS_MAX] for name, value in list(fields_of(record).items())[:FIELDS_MAX]}
    if not _is_own(record) and (metrics := entered()) is not None and metrics.task:
        fields = {"stage": stage_of(metrics.task), "task": metrics.task, **fields}
    text = record.getMessage()
    if record.exc_info:
        text = f"{text}\n{_TRACEBACKS.formatException(record.exc_info)}"
    if len(text) > CHARS_MAX:
        text = f"{text[:CHARS_MAX]}…"
    fields = {name: hide_passwords(value) for name, value in fields.items()}
    return LogLine(
        number=0,
        at_ms=int(record.created * 1000),
        level=record.levelno,
        logger=record.name,
        message=hide_passwords(text),
        fields=fields,
    )


# -- metering ----------------------------------------------------------------------------------------
OF_COUNTERS: Mapping[str, str] = {
    "late": "headrace_late_messages_total",
    "skipped": "headrace_skipped_messages_total",
    "failed_skipped": "headrace_failed_messages_total",
    "dead_lettered": "headrace_dead_lettered_messages_total",
    "duplicates": "headrace_duplicate_frames_total",
    "lost": "headrace_lost_messages_total",
    "gaps": "headrace_gaps_total",
    "misplaced": "headrace_misplaced_messages_total",
    "missing": "headrace_missing_rows_total",
    "backfilled": "headrace_backfilled_messages_total",
    "silenced": "headrace_silenced_messages_total",
    "rollbacks": "headrace_rollbacks_total",
    "calls": "headrace_calls_total",
    "call_failures": "headrace_call_failures_total",
    "call_retries": "headrace_call_retries_total",
    "call_timeouts": "headrace_call_timeouts_total",
    "cache_hits": "headrace_call_cache_hits_total",
    "cache_misses": "headrace_call_cache_misses_total",
    "timers_fired": "headrace_timers_fired_total",
    "timers_dropped": "headrace_timers_dropped_total",
    "commits_asked_for": "headrace_checkpoints_asked_for_total",
}
"""The metric of each counter of a task that is shown as it is."""


def series_of(host: TaskHost) -> list[Series]:
    """The counters, histograms and some gauges of a task, since its process began."""
    found = list(counted(host.metrics))
    for step, rows in host.task.rows_into().items():
        found.append(Series(name="headrace_step_messages_total", labels={"step": step}, value=rows))
    if (size := host.state.size()) is not None:
        found.append(Series(name="headrace_state_bytes", kind="gauge", value=size))
    for step, keys in host.task.chain.sizes().items():
        found.append(Series(name="headrace_state_keys", kind="gauge", labels={"step": step}, value=keys))
    return found + of_users(host.metrics)


def of_users(metrics: TaskMetrics) -> list[Series]:
    return [Series(**asdict(cell) | {"bounds": list(cell.bounds)}) for cell in metrics.user.cells()]


def counted(metrics: TaskMetrics) -> Iterator[Series]:
    yield Series(name="headrace_task_messages_in_total", value=metrics.rows_in)
    yield Series(name="headrace_task_messages_out_total", value=metrics.rows_out)
    yield Series(name="headrace_task_bytes_in_total", value=metrics.bytes_in)
    yield Series(name="headrace_task_bytes_out_total", value=metrics.bytes_out)
    yield Series(name="headrace_checkpoints_total", value=metrics.commits)
    for inputs, name in ((metrics.rows_of, "messages"), (metrics.bytes_of, "bytes")):
        for ssp, number in inputs.items():
            where = {"input": str(ssp.stream), "partition": str(ssp.partition)}
            yield Series(name=f"headrace_input_{name}_total", labels=where, value=number)
    for outputs, name in ((metrics.rows_to, "messages"), (metrics.bytes_to, "bytes")):
        for output, number in outputs.items():
            yield Series(name=f"headrace_output_{name}_total", labels={"output": output}, value=number)
    shares = metrics.shares
    for state, seconds in (("busy", shares.busy), ("waiting", shares.waiting), ("idle", shares.idle)):
        yield Series(name="headrace_task_time_seconds_total", labels={"state": state}, value=seconds)
    for step, seconds in metrics.function_seconds.items():
        yield Series(name="headrace_function_seconds_total", labels={"step": step}, value=seconds)
    for part, histogram in metrics.commit_parts.items():
        yield _histogram("headrace_checkpoint_duration_seconds", {"part": part}, histogram)
    yield _histogram("headrace_latency_seconds", {"until": "sent"}, metrics.latency.sent)
    yield _histogram("headrace_latency_seconds", {"until": "committed"}, metrics.latency.committed)
    for counter, name in OF_COUNTERS.items():
        yield Series(name=name, value=metrics.counters.get(counter, 0))
    yield Series(name="headrace_warnings_total", value=metrics.warnings.total)
    yield Series(name="headrace_call_seconds_total", value=metrics.counters.get("call_ms", 0) / 1000)
    yield Series(name="headrace_calls_in_flight", kind="gauge", value=metrics.counters.get("calls_in_flight", 0))


def _histogram(name: str, labels: dict[str, str], histogram: Histogram) -> Series:
    return Series(name=name, kind="histogram", labels=labels, value=histogram.seconds, buckets=list(histogram.buckets))


# -- reporting ---------------------------------------------------------------------------------------
LATE_INTERVALS, LATE_MS = 3, 2000
"""A version is overdue when this many checkpoint intervals plus ``LATE_MS`` have passed since the last commit."""


def task_status(
    host: TaskHost, now_ms: float, still: Standstill | None = None, epoch_ms: int = 0, *, traced: bool = False
) -> TaskStatus:
    """Return the task's present status. ``now_ms`` is monotonic, ``epoch_ms`` the time of day.

    ``still`` remembers since when something stands still. ``traced``: with the latest commits.
    """
    series = series_of(host)
    if traced:
        series.append(Series(name="headrace_otel_untraced_commits_total", value=host.metrics.commit_times.left_out))
    holder = _holder(host)
    inputs = {str(ssp): _input(host, ssp, holds=ssp == holder) for ssp in host.task.specs}
    lags = [status.lag for status in inputs.values()]
    committed = host.committed_ms
    overdue_ms = overdue(host, now_ms)
    in_memory, in_stream = host.receiver.buffer.memory_bytes, host.receiver.buffer.stream_bytes
    checkpoint = cut = None
    if committed is not None:
        age_ms = int(now_ms - committed)
        checkpoint = messages.CheckpointStatus(
            version=host.machine.version, age_ms=age_ms, duration_ms=host.commit_took_ms
        )
    if host.keeper.state is not None:
        cut = CutStatus(id=host.keeper.state[0], state=host.keeper.state[1])
    status = TaskStatus(
        name=str(host.name),
        state=_state(host),
        generation=host.generation,
        watermark=_time(host.task.progress.watermark),
        idle=host.attempt.idle and not host.finished,
        rows_in=host.metrics.rows_in,
        rows_out=host.metrics.rows_out,
        bytes_in=host.metrics.bytes_in,
        lag=None if None in lags else sum(lag or 0 for lag in lags),
        inputs=inputs,
        outputs=_outputs(host),
        counters=_counters(host),
        checkpoint=checkpoint,
        waits_for=_waits_for(host) if overdue_ms else {},
        overdue_ms=overdue_ms,
        early_bytes=in_memory + in_stream,
        early_stream_bytes=in_stream,
        blocked_by=host.blocked_by,
        uptime_ms=int(now_ms - host.started_ms),
        side_inputs_percent=host.attempt.bootstrap.percent(host.positions),
        caught_up=host.catching_up.version,
        cut=cut,
        slots={str(ssp): report for ssp, report in host.slots.reports(host.task).items()},
        warnings=host.metrics.warnings.latest(),
        commits=list(_commits(host.metrics, now_ms, epoch_ms)) if traced else [],
        series=series,
    )
    still = still or Standstill()
    facts = [_input_facts(host, ssp, now_ms, still) for ssp in host.scope.inputs]
    held = holdups(status, epoch_ms, facts, _blocked(host, now_ms, still), timed=host.scope.timed)
    return msgspec.structs.replace(status, holdups=held)


def _commits(metrics: TaskMetrics, now_ms: float, epoch_ms: int) -> Iterator[messages.CommitParts]:
    for commit in metrics.commit_times.latest(now_ms):
        times = commit.parts.items()
        first = min((began for _, (began, _) in times), default=now_ms)
        since = {part: (round(began - first, 3), round(ended - first, 3)) for part, (began, ended) in times}
        yield messages.CommitParts(version=commit.version, began_ms=round(epoch_ms - now_ms + first, 3), parts=since)


def _counters(host: TaskHost) -> dict[str, int]:
    sizes = {f"rows_of_{id_}": rows for id_, rows in host.task.chain.sizes().items()}
    warnings = {"warnings": host.metrics.warnings.total} if host.metrics.warnings.total else {}
    return host.metrics.counters | sizes | warnings


def overdue(host: TaskHost, now_ms: float) -> int:
    """Return how long ago the last commit (or the start) was if that is too long ago, else 0."""
    since = now_ms - (host.started_ms if host.committed_ms is None else host.committed_ms)
    late = since > LATE_INTERVALS * host.scope.interval_ms + LATE_MS
    return int(since) if late and not host.finished else 0


def _waits_for(host: TaskHost) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for ssp, producer in host.machine.waiting_for():
        found.setdefault(str(ssp), []).append(str(host.scope.producers[ssp][producer]))
    return found


def _state(host: TaskHost) -> messages.TaskState:
    if host.finished:
        return "finished"
    if host.beginning.fetching or host.replay.progress is not None:
        return "restoring"
    return "blocked" if host.blocked_by is not None else "running"


def _holder(host: TaskHost) -> SSP | None:
    """The input partition whose watermark is that of the task: the first of several; None if no one is waited for."""
    if host.finished or not host.scope.timed:
        return None
    said = {ssp: time.progress for ssp, time in host.task.times.partitions.items()}
    awake = {str(ssp): ssp for ssp, progress in said.items() if not progress.idle and not progress.ended}
    first = min(awake, key=lambda name: (said[awake[name]].watermark, name), default=None)
    return None if first is None else awake[first]


def _input(host: TaskHost, ssp: SSP, *, holds: bool) -> messages.InputStatus:
    if ssp in host.task.side_inputs:
        return messages.InputStatus(position=host.positions.get(ssp), lag=0 if host.finished else host.lag(ssp))
    partition = host.task.times[ssp]
    return messages.InputStatus(
        position=host.positions.get(ssp),
        lag=0 if host.finished else host.lag(ssp),
        watermark=None if partition.progress.ended else _time(partition.progress.watermark),
        ended=partition.progress.ended,
        idle=partition.progress.idle,
        holds=holds,
        held_by=next(iter(_slowest(partition)[0]), "") if holds else "",
    )


def _blocked(host: TaskHost, now_ms: float, still: Standstill) -> dict[What, tuple[str, float]]:
    known: dict[What, str | None] = {"readers": host.backpressure.blocked_by, "target": host.publishing.blocked_by}
    found = {what: where for what, where in known.items() if where is not None}
    if not found and (step := host.blocked_by) is not None:
        found["calls"] = step
    return {
        what: (where, still.for_ms((host.name, what), where.partition(",")[0], now_ms)) for what, where in found.items()
    }


def _input_facts(host: TaskHost, ssp: SSP, now_ms: float, still: Standstill) -> InputFacts:
    partition = host.task.times[ssp]
    slowest, uneven = _slowest(partition)
    metrics, stands = host.metrics, (partition.progress.watermark, partition.progress.idle)
    return InputFacts(
        name=str(ssp),
        watermark=_time(partition.progress.watermark),
        still_ms=still.for_ms((host.name, ssp), stands, now_ms),
        quiet_ms=still.for_ms((host.name, ssp, "bytes"), metrics.bytes_of.get(ssp, 0), now_ms),
        aside=still.counted((host.name, ssp), {name: metrics.counters.get(name, 0) for name in SET_ASIDE}),
        timed=host.task.specs[ssp].event_time is not None,
        lag=host.lag(ssp),
        idle=partition.progress.idle,
        ended=partition.progress.ended,
        idle_timeout_ms=host.task.timeouts.get(ssp),
        missing=partition.missing(),
        slowest=slowest,
        uneven=uneven,
    )


def _slowest(partition: PartitionTime) -> tuple[tuple[str, ...], bool]:
    """Return the upstream tasks that hold a partition's watermark back, and whether others are ahead of them."""
    tasks = partition.save("").tasks
    awake = {task: said.watermark for task, said in tasks.items() if not said.idle and not said.ended}
    if not awake:
        return (), False
    lowest = min(awake.values())
    uneven = any(said.watermark > lowest for said in tasks.values())
    return tuple(sorted(task for task, time in awake.items() if time == lowest)), uneven


def _outputs(host: TaskHost) -> dict[str, OutputStatus]:
    states = {id_: asdict(state) for id_, state in host.publishing.states()}
    return {
        id_: OutputStatus(delivery=delivery, **states.get(id_, {})) for id_, delivery in host.scope.deliveries.items()
    }


def _time(watermark: int) -> int | None:
    return None if watermark in (NEVER, FOREVER) else watermark


# -- container session -------------------------------------------------------------------------------
_log = logger(__name__)
FILES_A_TASK = 2
"""At least: a lock, and until the first commit an input in a log. A database takes ten more."""
TASKS_MEASURED = 5000
"""The largest number of tasks in one container that was tried."""
STATUS_MS_MAX = 5000.0
STATUS_MS_A_TASK = 25.0
"""The maximum age of an idle task's status grows with the number of tasks: they cost at most 40 statuses a second."""


class _Link(Protocol):
    """The coordinator itself, or its client."""

    def register(self, message: messages.Register) -> messages.Assignment: ...
    def generation(self, message: messages.GenerationRequest) -> messages.TaskGrant: ...
    def outcomes(self, message: OutcomeReport) -> messages.Orders: ...
    def finished(self, message: messages.Finished) -> messages.Orders: ...


class ContainerSession:
    """A registered container. ``open`` creates its tasks, ``run`` runs them, ``finish`` reports the ended ones."""

    def __init__(
        self,
        link: _Link,
        container: int = 0,
        attempt: int = 0,
        left: Mapping[str, messages.LastWords] = MappingProxyType({}),
        outbox: LogOutbox | None = None,
    ) -> None:
        """Register with the coordinator. ``assignment`` has the tasks to run, perhaps none.

        ``left`` are the last words of former incarnations here. ``outbox`` has log lines for the driver.
        """
        self._link, self._outbox, self.number = link, outbox or LogOutbox(), container
        self._clock = WallClock()
        self.incarnation = uuid.uuid4().hex
        self.assignment = link.register(
            messages.Register(
                container=container,
                attempt=attempt,
                host=socket.gethostname(),
                pid=os.getpid(),
                incarnation=self.incarnation,
                left=dict(left),
            )
        )
        tasks = " ".join(grant.name for grant in self.assignment.tasks)
        _log.info("the container has registered", incarnation=self.incarnation, tasks=tasks, host=socket.gethostname())
        self._granted = {TaskName.parse(grant.name): _grant(grant) for grant in self.assignment.tasks}
        self._lock = threading.Lock()
        self._statuses: list[TaskStatus] = []
        self._observed_ms = self._clock.monotonic_ms()
        self._still = Standstill()
        self._taken: dict[TaskHost, tuple[float, int, TaskStatus]] = {}
        """When, and after how many turns, the last status of each task was taken."""
        # Until the container is created, which takes a while, the heartbeat has no calls to report.
        self._at_work = AtWork()
        self._blocked: Callable[[float], Blocked | None] = lambda now: None
        self._movement = Movement()
        self._runs_in = 0  # the thread of the run loop
        self._wants_shutdown = False
        self._cut: str | None = None
        """The id of the ordered cut, and whether the container can't take part in it."""
        self._apart = False
        self._shards: list[list[Shards]] = []
        self.has_news = False
        """Whether the coordinator should get the latest snapshot at once, because tasks wait for its consequences."""
        self._lost: Exception | None = None
        self._standbys: Standbys | None = None

    def open(self, plan: Plan, keep: Callable[[Work | None], None] = lambda work: None) -> None:
        """Create the container and its tasks. ``keep`` is given each call of the app's own code."""
        make_room(FILES_A_TASK * len(self._granted), f"{len(self._granted)} tasks in a container")
        if len(self._granted) > TASKS_MEASURED:
            _log.warning(
                "the container has more tasks than was ever measured: use more containers",
                tasks=len(self._granted),
                measured=TASKS_MEASURED,
            )
        self._container = Container(
            plan, list(self._granted), self._next_generation, self._clock, keep, self._report_outcomes
        )
        self._at_work = self._container.connections.at_work
        self._blocked = self._container.connections.calls.blocked
        if plan.graph.settings.standby:
            self._standbys = Standbys(plan, self._clock)
        self.obey(self.assignment.orders)

    def answers(self) -> TableAnswers:
        return TableAnswers(self._container.hosts, self._clock)

    def close(self) -> None:
        """Close the opened container, after the threads beside it."""
        with closing(self._container):
            if self._standbys is not None:
                self._standbys.close()

    def run(self, observed: Callable[[], None] | None = None) -> None:
        """Run until all tasks have finished, or until an order ends it. Raises what ``lose`` was called with.

        ``observed`` is called on this thread whenever there is a new snapshot for ``heartbeat``.
        """

        def observe(hosts: Sequence[TaskHost]) -> None:
            self._take_snapshot(hosts)
            if observed is not None:
                observed()

        self._runs_in = threading.get_ident()
        self._observed_ms = self._clock.monotonic_ms()
        self._container.run(observe)
        if self._lost is not None:
            raise self._lost

    def finish(self) -> list[str]:
        container = self._container
        over = [str(host.name) for host in container.hosts if host.finished or container.drained]
        if over and not container.stopped:
            self._link.finished(messages.Finished(container=self.number, incarnation=self.incarnation, tasks=over))
        return over

    # -- from any thread

    def heartbeat(self, *, last: bool = False) -> messages.Heartbeat:
        """Return the last snapshot of the tasks. ``last``: with the log lines of the heartbeat before, too."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        now = self._clock.monotonic_ms()
        with self._lock:
            statuses, observed_ms, wants_shutdown = self._statuses, self._observed_ms, self._wants_shutdown
        if self._apart and (cut := self._cut) is not None:
            mark = CutStatus(id=cut, state="apart")
            statuses = [msgspec.structs.replace(status, cut=mark) for status in statuses]
        statuses = [older(one, round(now - observed_ms)) for one in statuses]
        if (holdup := held_by_run_loop(self._doing(now, observed_ms), self._clock.now_ms())) is not None:
            starting = (
                TaskStatus(name=g.name, state="starting", generation=g.generation) for g in self.assignment.tasks
            )
            statuses = holding_all(statuses or list(starting), holdup)
        lines, dropped = self._outbox.take(again=last)
        return messages.Heartbeat(
            container=self.number,
            incarnation=self.incarnation,
            sent_ms=now,
            tasks=statuses,
            cpu_ms=int((usage.ru_utime + usage.ru_stime) * 1000),
            rss_bytes=usage.ru_maxrss * 1024,
            wants_shutdown=wants_shutdown,
            logs=lines,
            logs_dropped=dropped,
            standbys=[] if self._standbys is None else list(self._standbys.looks),
        )

    def observed_within(self, ms: float) -> bool:
        """Whether the run loop has turned, and there was a new snapshot, in this time."""
        return self._clock.monotonic_ms() - self._observed_ms < ms

    def obey(self, orders: messages.Orders) -> None:
        cut = orders.cut
        if cut is None or cut.id != self._cut:
            self._cut = None if cut is None else cut.id
            # The folder gets its final name later. Where it isn't there, this is another machine.
            self._apart = cut is not None and not Path(cut.folder).is_dir()
        self._container.cut(None if self._apart else cut)
        self._container.direct(
            {TaskName.parse(task): (one.generation, one.number, one.slots) for task, one in orders.slots.items()}
        )
        self._container.restart({TaskName.parse(task): number for task, number in orders.restart.items()})
        if self._standbys is not None:
            self._standbys.order([] if orders.stop else orders.keep)
        if orders.stop:
            self._container.stop()
        elif orders.drain:
            self._container.drain()

    @property
    def calling(self) -> bool:
        """Whether a function of the app is being called, or a turn of the run loop takes long."""
        return self._at_work.now is not None or self._clock.monotonic_ms() - self._observed_ms >= STILL_MS

    def drain(self) -> None:
        self._container.drain()

    def lose(self, error: Exception) -> None:
        """Stop: the coordinator can't be reached, or another incarnation is current. ``run`` raises the error."""
        _log.warning("no heartbeat reaches the coordinator; the container stops", error=str(error))
        self._lost = self._lost or error
        if self._standbys is not None:  # another container may be told to keep them
            self._standbys.order([])
        self._container.stop()

    def _doing(self, now: float, observed_ms: float) -> Doing:
        work, runs_in = self._at_work.now, self._runs_in
        blocked = self._blocked(now)
        blocked_in = runs_in if blocked is None else blocked.thread
        return Doing(
            now_ms=now,
            turned_ms=observed_ms,
            work=work,
            moved_ms=None if work is None else self._movement.moved_ms(work, now),
            line=partial(line_now, runs_in, called=work is not None),
            debugged=in_debugger(runs_in) or in_debugger(blocked_in),
            calls_since_ms=None if blocked is None else blocked.since_ms,
            calls_line=partial(line_now, blocked_in),
        )

    def _take_snapshot(self, hosts: Sequence[TaskHost]) -> None:
        now, epoch_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        statuses = [self._status_of(host, now, epoch_ms) for host in hosts]
        shards = [[slot.shards for slot in status.slots.values()] for status in statuses]
        # It has taken a while for thousands of tasks, and they aren't older for that.
        observed_ms = self._clock.monotonic_ms()
        with self._lock:
            self.has_news = shards != self._shards or any(host.slots.unsettled(host.task) for host in hosts)
            self._shards = shards
            self._statuses, self._observed_ms = statuses, observed_ms
            self._wants_shutdown = any(host.task.chain.wants_shutdown for host in hosts)

    def _status_of(self, host: TaskHost, now: float, epoch_ms: int) -> TaskStatus:
        """The status of a task: for a while the last one, if the run loop hasn't visited the task since then."""
        taken_ms, turns, status = self._taken.get(host, (0.0, -1, None))
        age_ms_max = max(STATUS_MS_MAX, STATUS_MS_A_TASK * len(self._container.hosts))
        if status is None or turns != host.turns or now - taken_ms > age_ms_max:
            status = task_status(host, now, self._still, epoch_ms, traced=self.assignment.traced)
            self._taken[host] = now, host.turns, status
        return status

    def _next_generation(self, task: TaskName) -> Grant:
        if task in self._granted:
            return self._granted.pop(task)
        request = messages.GenerationRequest(container=self.number, incarnation=self.incarnation, task=str(task))
        return _grant(self._link.generation(request))

    def _report_outcomes(self, task: TaskName, outcomes: Sequence[Outcome]) -> None:
        self._link.outcomes(
            OutcomeReport(container=self.number, incarnation=self.incarnation, task=str(task), outcomes=tuple(outcomes))
        )


def _grant(granted: messages.TaskGrant) -> Grant:
    return Grant(generation=granted.generation, orders=granted.orders, silent=granted.silent)

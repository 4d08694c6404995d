"""Every metric that Headrace has, once; and the series that users' code adds.

``/metrics``, the documentation, alert rules and boards are made from the table, or checked against it. Names and
units are Prometheus': seconds and bytes, and ``_total`` at the end of what only grows.

The code of users that counts doesn't know its task. Whoever calls it says so by ``enter``, in the context of the
calling thread; calls that run elsewhere take that context along. Outside of tasks nothing is counted.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from headrace.core.errors import UsageError

Kind = Literal["counter", "gauge", "histogram"]

APP = ("app",)
TASK = ("app", "stage", "task")
INPUT = (*TASK, "input", "partition")
OUTPUT = (*TASK, "output")
STEP = (*TASK, "step")
CONTAINER = ("app", "container")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``worry`` says when to look into it; empty: it explains others."""

    name: str
    labels: tuple[str, ...]
    help: str
    worry: str = ""
    histogram: bool = False

    @property
    def kind(self) -> Kind:
        """What Prometheus makes of it; by its name, a counter ends with ``_total``."""
        return "histogram" if self.histogram else "counter" if self.name.endswith("_total") else "gauge"

    @property
    def unit(self) -> str:
        """What it counts, by its name; empty if that has no unit."""
        return next((unit for unit in ("seconds", "bytes") if unit in self.name.split("_")), "")


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the buckets of durations; one for what is longer follows."""


METRICS: tuple[Metric, ...] = (
    # -- the app
    Metric(
        "headrace_app_up",
        (*APP, "state"),
        "1 for the state that the app is in.",
        "The state is failed, or the series is missing.",
    ),
    Metric(
        "headrace_app_start_time_seconds",
        APP,
        "When this run began, since the epoch.",
        "It changes although the app wasn't restarted.",
    ),
    Metric("headrace_query_waiting", APP, "Questions about tables that wait for an answer.", "It keeps growing."),
    Metric(
        "headrace_queries_total",
        (*APP, "outcome"),
        "Questions about tables by how they ended: answered, timed_out or refused.",
        "timed_out or refused grows.",
    ),
    Metric("headrace_pages_watching", APP, "Live pages that watch the app."),
    Metric(
        "headrace_pages_refused_total",
        APP,
        "Live pages that were refused because too many were open.",
        "It grows: pages are left open somewhere.",
    ),
    Metric(
        "headrace_otel_exports_total",
        (*APP, "signal", "outcome"),
        "Attempts to send metrics or traces to OpenTelemetry's collector, if that is on: sent or failed.",
        "failed grows: the collector is away, or refuses them.",
    ),
    Metric(
        "headrace_otel_dropped_traces_total",
        APP,
        "Traces of versions that were dropped, because they couldn't be sent or too many waited for that.",
        "It grows, and you need them.",
    ),
    Metric(
        "headrace_otel_untraced_commits_total",
        TASK,
        "Commits that are in no trace, because traces are limited to ten versions a second.",
    ),
    # -- containers
    Metric(
        "headrace_container_up",
        (*CONTAINER, "state"),
        "1 for the state that the container is in.",
        "The state is lost, hung or failed for longer than a restart takes.",
    ),
    Metric(
        "headrace_container_restarts_total",
        CONTAINER,
        "Processes of the container after the first one.",
        "It grows: headrace status says what the last one died of.",
    ),
    Metric(
        "headrace_container_failures",
        CONTAINER,
        "Lives in a row that have failed without a commit.",
        "It is above 1: the app ends when it exceeds the allowed restarts.",
    ),
    Metric(
        "headrace_container_cpu_seconds_total",
        CONTAINER,
        "Processor time of the container.",
        "It grows by 1 a second: the run loop is one thread.",
    ),
    Metric(
        "headrace_container_memory_bytes",
        CONTAINER,
        "Peak resident memory of the container's process.",
        "It comes close to what the executor may use.",
    ),
    Metric(
        "headrace_container_standby_lag_offsets",
        CONTAINER,
        "Of all standbys that the container keeps, how far the last one is from the end of its changelog.",
        "It grows: a task that begins there reads that much.",
    ),
    Metric(
        "headrace_container_heartbeat_age_seconds",
        CONTAINER,
        "Time since the last message of the container.",
        "It is above some seconds.",
    ),
    # -- messages
    Metric(
        "headrace_task_messages_in_total",
        TASK,
        "Messages that the task has read.",
        "It stands still while there is lag.",
    ),
    Metric("headrace_task_messages_out_total", TASK, "Messages that the task has written."),
    Metric("headrace_task_bytes_in_total", TASK, "Bytes of messages that the task has read."),
    Metric("headrace_task_bytes_out_total", TASK, "Bytes of messages that the task has written to streams."),
    Metric(
        "headrace_input_messages_total",
        INPUT,
        "Messages read of an input partition; they are read again after a rollback.",
        "One partition stands still while others of the input move.",
    ),
    Metric("headrace_input_bytes_total", INPUT, "Bytes read of an input partition, as they are stored."),
    Metric(
        "headrace_output_messages_total",
        OUTPUT,
        "Messages written to an output.",
        "It stands still while messages come in.",
    ),
    Metric("headrace_output_bytes_total", OUTPUT, "Bytes written to a stream; targets that take rows aren't counted."),
    Metric(
        "headrace_step_messages_total",
        STEP,
        "Messages that a step has taken.",
        "A step behind a filter takes far more, or fewer, than expected.",
    ),
    Metric(
        "headrace_input_lag_offsets",
        INPUT,
        "How far the task is from the end of the partition, in what its offsets count: messages, or bytes for logs.",
        "It keeps growing.",
    ),
    Metric(
        "headrace_input_lag_seconds",
        INPUT,
        "How far the event time of what was read is behind the clock; 0 if all was read.",
        "It exceeds what results may be late by.",
    ),
    Metric(
        "headrace_late_messages_total",
        TASK,
        "Messages that came too late and had no effect.",
        "It grows faster than you accept: raise the lateness.",
    ),
    Metric(
        "headrace_skipped_messages_total",
        TASK,
        "Messages that were skipped because they couldn't be read.",
        "It grows.",
    ),
    Metric(
        "headrace_failed_messages_total",
        TASK,
        "Messages that were skipped because a function failed on them.",
        "It grows.",
    ),
    Metric(
        "headrace_dead_lettered_messages_total",
        TASK,
        "Messages that were written to a dead-letter stream.",
        "It grows.",
    ),
    Metric(
        "headrace_duplicate_frames_total", TASK, "Frames that came again after a restart upstream, and were ignored."
    ),
    Metric(
        "headrace_lost_messages_total",
        TASK,
        "Messages that the source has deleted before they were read.",
        "It grows at all.",
    ),
    Metric(
        "headrace_gaps_total",
        TASK,
        "Places in shards where Kinesis may have deleted messages before they were read; it doesn't say how many.",
        "It grows at all.",
    ),
    Metric(
        "headrace_misplaced_messages_total",
        TASK,
        "Messages that were left out, because the Kinesis Producer Library had aggregated them for another shard.",
        "It grows though no shard has split or merged: the producer doesn't write them again.",
    ),
    Metric(
        "headrace_backfilled_messages_total",
        TASK,
        "Messages that were left out because a backfill had processed them.",
        "It still grows long after the start: new messages are older than the end of the backfill, and have no effect.",
    ),
    Metric(
        "headrace_silenced_messages_total",
        TASK,
        "Results that weren't written to an output, because the app repeats silently after a restore.",
        "It still grows after the app has caught up: nothing leaves the app.",
    ),
    # -- times of messages and of tasks
    Metric(
        "headrace_latency_seconds",
        (*TASK, "until"),
        "Time from the arrival of a message in the task until its results were sent, and until they were committed.",
        "The slowest hundredth exceeds what results may be late by. Committed includes the checkpoint interval.",
        histogram=True,
    ),
    # -- event time
    Metric("headrace_task_watermark_seconds", TASK, "The watermark, since the epoch."),
    Metric(
        "headrace_task_watermark_behind_seconds",
        TASK,
        "How far the watermark is behind the clock.",
        "It keeps growing: headrace_input_holds_watermarks says where, headrace_task_held_up_seconds why.",
    ),
    Metric(
        "headrace_input_holds_watermarks",
        INPUT,
        "How many tasks, this one included, have their watermark from this partition: it is the one furthest behind on "
        "their way to the sources. 0: no task waits for it.",
        "Watermarks are far behind the clock: the partition of a source where it is highest holds most of them.",
    ),
    Metric(
        "headrace_task_idle",
        TASK,
        "1: no input has sent anything for its idle timeout, and no step keeps anything, so that no other task waits.",
    ),
    # -- what holds it up
    Metric(
        "headrace_task_held_up_seconds",
        (*TASK, "by"),
        "For how long the task has been held up, by what: user code, readers, target, calls, checkpoint, "
        "watermark, ...",
        "It is above a minute; headrace status names the place and the remedy.",
    ),
    Metric(
        "headrace_task_blocked",
        TASK,
        "1: back-pressure, a target or calls keep the task from reading.",
        "It is 1 most of the time.",
    ),
    Metric(
        "headrace_task_blocks_others_seconds",
        TASK,
        "For how long other tasks have been waiting for this one, at the end of their chain of waits.",
        "It is above a few checkpoint intervals.",
    ),
    # -- time
    Metric(
        "headrace_task_time_seconds_total",
        (*TASK, "state"),
        "What the task does with its time: busy; waiting, for targets, readers, calls, or other tasks of its "
        "container; idle.",
        "busy grows by 1 a second: the task is the bottleneck. waiting does: headrace_task_held_up_seconds "
        "says for what.",
    ),
    Metric(
        "headrace_function_seconds_total",
        STEP,
        "Time in functions of the app, by step.",
        "One step takes most of what its task is busy.",
    ),
    # -- checkpoints
    Metric("headrace_checkpoint_version", TASK, "The version of the last commit, a time in milliseconds."),
    Metric(
        "headrace_checkpoint_age_seconds",
        TASK,
        "Time since the last commit.",
        "It exceeds several checkpoint intervals: a restart repeats all since then.",
    ),
    Metric("headrace_checkpoints_total", TASK, "Versions that the task has committed.", "It stands still."),
    Metric(
        "headrace_checkpoints_asked_for_total",
        TASK,
        "Commits that a low-level task of the app asked for.",
        "It grows as fast as headrace_checkpoints_total, and tasks are busy with commits: ask less often.",
    ),
    Metric(
        "headrace_checkpoint_duration_seconds",
        (*TASK, "part"),
        "How long commits take, by part: flush (outputs), changes, changelog, store, snapshot; and the whole.",
        "The whole comes close to the checkpoint interval; the longest part says why.",
        histogram=True,
    ),
    Metric(
        "headrace_checkpoint_overdue_seconds",
        TASK,
        "Time since the last commit if that is too long ago, else 0.",
        "It is above 0.",
    ),
    Metric(
        "headrace_early_bytes",
        (*TASK, "where"),
        "Frames that came early and wait for their version: in memory, or left in their stream.",
        "It keeps growing: a task upstream is late.",
    ),
    Metric(
        "headrace_task_generation", TASK, "The generation of the task; each start and each rollback takes a new one."
    ),
    Metric(
        "headrace_rollbacks_total",
        TASK,
        "Rollbacks to the last commit, because a task upstream did so, or stays away.",
        "It grows without restarts of containers.",
    ),
    Metric(
        "headrace_output_waiting_versions",
        OUTPUT,
        "Committed versions that the target doesn't have yet.",
        "It keeps growing.",
    ),
    Metric(
        "headrace_output_waiting_bytes", OUTPUT, "Bytes that wait to be written to the target.", "It keeps growing."
    ),
    Metric(
        "headrace_output_failures",
        OUTPUT,
        "Attempts in a row at which the target could not be written.",
        "It is above 0 for minutes.",
    ),
    # -- state
    Metric(
        "headrace_state_bytes",
        TASK,
        "Size of the local database of the task's state, roughly.",
        "It comes close to the disk's size.",
    ),
    Metric(
        "headrace_state_keys",
        STEP,
        "Keys, or rows of a table, that a step keeps, roughly.",
        "It grows without a bound: give the state a time to live.",
    ),
    # -- calls and timers
    Metric("headrace_calls_total", TASK, "Calls to other services."),
    Metric(
        "headrace_calls_in_flight", TASK, "Calls whose answers are outstanding.", "It stays at the step's concurrency."
    ),
    Metric("headrace_call_failures_total", TASK, "Calls that failed.", "It grows."),
    Metric("headrace_call_retries_total", TASK, "Calls that were repeated.", "It grows as fast as the calls."),
    Metric("headrace_call_timeouts_total", TASK, "Calls that took too long.", "It grows."),
    Metric("headrace_call_seconds_total", TASK, "Time that calls have taken; divide it by the calls."),
    Metric("headrace_call_cache_hits_total", TASK, "Answers that a cache had."),
    Metric("headrace_call_cache_misses_total", TASK, "Answers that a cache didn't have."),
    Metric("headrace_timers_fired_total", TASK, "Timers that have fired."),
    Metric(
        "headrace_timers_dropped_total",
        TASK,
        "Timers that won't fire, because they were set when all inputs had ended.",
        "It grows, and results depend on these timers.",
    ),
    Metric(
        "headrace_warnings_total", TASK, "Warnings of the task; headrace status lists the latest ones.", "It grows."
    ),
)

BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in METRICS})


# -- user metrics ------------------------------------------------------------------------------------
Labels = tuple[tuple[str, str], ...]

SERIES_MAX = 100
"""How many series the user's code has in one task. More are left out, with a warning."""

VALUE_CHARS_MAX = 100


@dataclass(slots=True)
class Cell:
    """One series. A histogram has ``buckets``, and ``value`` is the sum of what was observed."""

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, str]
    bounds: Sequence[float] = ()
    value: float = 0.0
    buckets: list[int] = field(default_factory=list)


class UserMetrics:
    """The series of one task. ``complain`` gets a message about what is left out."""

    def __init__(self, task: str | None = None, complain: Callable[[str], None] = lambda message: None) -> None:
        self.task = task
        self._complain = complain
        self._lock = threading.Lock()
        self._cells: dict[tuple[str, Labels], Cell] = {}
        self._kinds: dict[str, Kind] = {}

    def add(self, like: Cell, labels: Mapping[str, object], by: float) -> None:
        """Add to a counter."""
        with self._lock:
            if (cell := self._cell(like, labels)) is not None:
                cell.value += by

    def set(self, like: Cell, labels: Mapping[str, object], value: float) -> None:
        """Set a gauge."""
        with self._lock:
            if (cell := self._cell(like, labels)) is not None:
                cell.value = value

    def observe(self, like: Cell, labels: Mapping[str, object], value: float) -> None:
        """Count a value of a histogram."""
        with self._lock:
            if (cell := self._cell(like, labels)) is not None:
                cell.buckets[bisect_left(cell.bounds, value)] += 1
                cell.value += value

    def cells(self) -> list[Cell]:
        """All series."""
        with self._lock:
            return list(self._cells.values())

    def _cell(self, like: Cell, labels: Mapping[str, object]) -> Cell | None:
        key = (like.name, tuple((name, str(labels[name])) for name in sorted(labels)) if labels else ())
        if (cell := self._cells.get(key)) is not None and cell.kind == like.kind:
            return cell
        if (kind := self._kinds.setdefault(like.name, like.kind)) != like.kind:
            raise UsageError(
                f"the metric {like.name!r} is a {kind} here, but a {like.kind} elsewhere", hint="rename one of them"
            )
        if len(self._cells) >= SERIES_MAX:
            self._complain(f"the app's own metrics have more than {SERIES_MAX} series in one task; more are left out")
            return None
        found = {name: str(value)[:VALUE_CHARS_MAX] for name, value in labels.items()}
        buckets = [0] * (len(like.bounds) + 1) if like.kind == "histogram" else []
        cell = self._cells[key] = Cell(like.name, like.kind, like.help, found, like.bounds, buckets=buckets)
        return cell


_entered: ContextVar[UserMetrics | None] = ContextVar("headrace_user_metrics", default=None)


def enter(metrics: UserMetrics) -> None:
    """From now on, code that is called on this thread counts for this task."""
    _entered.set(metrics)


def entered() -> UserMetrics | None:
    """The metrics of the task that the calling code works for; None outside of tasks."""
    return _entered.get()

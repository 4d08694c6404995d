"""Every metric that Headrace has, once; and the series that users' code adds.

``/metrics``, the documentation, alert rules and boards are made from the table, or checked against it. Names and
units are Prometheus'. A user's code that counts doesn't know its task. Whoever calls it says so by ``enter``, in the
context of the calling thread; calls that run elsewhere take that context along.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from headrace.core.errors import UsageError

Kind = Literal["counter", "gauge", "histogram"]


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
        return "histogram" if self.histogram else "counter" if self.name.endswith("_total") else "gauge"

    @property
    def unit(self) -> str:
        """What it counts, by its name; empty if that has no unit."""
        return next((unit for unit in ("seconds", "bytes") if unit in self.name.split("_")), "")


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the buckets of durations; one for what is longer follows."""
_TABLE = """
# the app
headrace_app_up{app,state}
    1 for the state that the app is in.
    Worry: The state is failed, or the series is missing.
headrace_app_start_time_seconds{app}
    When this run began, since the epoch.
    Worry: It changes although the app wasn't restarted.
headrace_query_waiting{app}
    Questions about tables that wait for an answer.
    Worry: It keeps growing.
headrace_queries_total{app,outcome}
    Questions about tables by how they ended: answered, timed_out or refused.
    Worry: timed_out or refused grows.
headrace_pages_watching{app}
    Live pages that watch the app.
headrace_pages_refused_total{app}
    Live pages that were refused because too many were open.
    Worry: It grows: pages are left open somewhere.
headrace_otel_exports_total{app,signal,outcome}
    Attempts to send metrics or traces to OpenTelemetry's collector, if that is on: sent or failed.
    Worry: failed grows: the collector is away, or refuses them.
headrace_otel_dropped_traces_total{app}
    Traces of versions that were dropped, because they couldn't be sent or too many waited for that.
    Worry: It grows, and you need them.
headrace_otel_untraced_commits_total{app,stage,task}
    Commits that are in no trace, because traces are limited to ten versions a second.
# containers
headrace_container_up{app,container,state}
    1 for the state that the container is in.
    Worry: The state is lost, hung or failed for longer than a restart takes.
headrace_container_restarts_total{app,container}
    Processes of the container after the first one.
    Worry: It grows: headrace status says what the last one died of.
headrace_container_failures{app,container}
    Lives in a row that have failed without a commit.
    Worry: It is above 1: the app ends when it exceeds the allowed restarts.
headrace_container_cpu_seconds_total{app,container}
    Processor time of the container.
    Worry: It grows by 1 a second: the run loop is one thread.
headrace_container_memory_bytes{app,container}
    Peak resident memory of the container's process.
    Worry: It comes close to what the executor may use.
headrace_container_standby_lag_offsets{app,container}
    Of all standbys that the container keeps, how far the last one is from the end of its changelog.
    Worry: It grows: a task that begins there reads that much.
headrace_container_heartbeat_age_seconds{app,container}
    Time since the last message of the container.
    Worry: It is above some seconds.
# messages
headrace_task_messages_in_total{app,stage,task}
    Messages that the task has read.
    Worry: It stands still while there is lag.
headrace_task_messages_out_total{app,stage,task}
    Messages that the task has written.
headrace_task_bytes_in_total{app,stage,task}
    Bytes of messages that the task has read.
headrace_task_bytes_out_total{app,stage,task}
    Bytes of messages that the task has written to streams.
headrace_input_messages_total{app,stage,task,input,partition}
    Messages read of an input partition; they are read again after a rollback.
    Worry: One partition stands still while others of the input move.
headrace_input_bytes_total{app,stage,task,input,partition}
    Bytes read of an input partition, as they are stored.
headrace_output_messages_total{app,stage,task,output}
    Messages written to an output.
    Worry: It stands still while messages come in.
headrace_output_bytes_total{app,stage,task,output}
    Bytes written to a stream; targets that take rows aren't counted.
headrace_step_messages_total{app,stage,task,step}
    Messages that a step has taken.
    Worry: A step behind a filter takes far more, or fewer, than expected.
headrace_input_lag_offsets{app,stage,task,input,partition}
    How far the task is from the end of the partition, in what its offsets count: messages, or bytes for logs.
    Worry: It keeps growing.
headrace_input_lag_seconds{app,stage,task,input,partition}
    How far the event time of what was read is behind the clock; 0 if all was read.
    Worry: It exceeds what results may be late by.
headrace_late_messages_total{app,stage,task}
    Messages that came too late and had no effect.
    Worry: It grows faster than you accept: raise the lateness.
headrace_skipped_messages_total{app,stage,task}
    Messages that were skipped because they couldn't be read.
    Worry: It grows.
headrace_failed_messages_total{app,stage,task}
    Messages that were skipped because a function failed on them.
    Worry: It grows.
headrace_dead_lettered_messages_total{app,stage,task}
    Messages that were written to a dead-letter stream.
    Worry: It grows.
headrace_duplicate_frames_total{app,stage,task}
    Frames that came again after a restart upstream, and were ignored.
headrace_lost_messages_total{app,stage,task}
    Messages that the source has deleted before they were read.
    Worry: It grows at all.
headrace_gaps_total{app,stage,task}
    Places in shards where Kinesis may have deleted messages before they were read; it doesn't say how many.
    Worry: It grows at all.
headrace_misplaced_messages_total{app,stage,task}
    Messages that were left out, because the Kinesis Producer Library had aggregated them for another shard.
    Worry: It grows though no shard has split or merged: the producer doesn't write them again.
headrace_missing_rows_total{app,stage,task}
    Rows that a flow of changes took away, and that weren't there: a join's ttl= had forgotten them, or they never came.
    Worry: It grows though no step has ttl=: a stream of changes is read from its middle, or its writer is wrong.
headrace_backfilled_messages_total{app,stage,task}
    Messages that were left out because a backfill had processed them.
    Worry: It still grows long after the start: new messages are older than the end of the backfill, and have no effect.
headrace_silenced_messages_total{app,stage,task}
    Results that weren't written to an output, because the app repeats silently after a restore.
    Worry: It still grows after the app has caught up: nothing leaves the app.
# times of messages and of tasks
headrace_latency_seconds{app,stage,task,until} histogram
    Time from the arrival of a message in the task until its results were sent, and until they were committed.
    Worry: The slowest hundredth exceeds what results may be late by. Committed includes the checkpoint interval.
# event time
headrace_task_watermark_seconds{app,stage,task}
    The watermark, since the epoch.
headrace_task_watermark_behind_seconds{app,stage,task}
    How far the watermark is behind the clock.
    Worry: It keeps growing: headrace_input_holds_watermarks says where, headrace_task_held_up_seconds why.
headrace_input_holds_watermarks{app,stage,task,input,partition}
    How many tasks, this one included, have their watermark from this partition: it is the one furthest behind on their
    way to the sources. 0: no task waits for it.
    Worry: Watermarks are far behind the clock: the partition of a source where it is highest holds most of them.
headrace_task_idle{app,stage,task}
    1: no input has sent anything for its idle timeout, and no step keeps anything, so that no other task waits.
# what holds it up
headrace_task_held_up_seconds{app,stage,task,by}
    For how long the task has been held up, by what: user code, readers, target, calls, checkpoint, watermark, ...
    Worry: It is above a minute; headrace status names the place and the remedy.
headrace_task_blocked{app,stage,task}
    1: back-pressure, a target or calls keep the task from reading.
    Worry: It is 1 most of the time.
headrace_task_blocks_others_seconds{app,stage,task}
    For how long other tasks have been waiting for this one, at the end of their chain of waits.
    Worry: It is above a few checkpoint intervals.
# time
headrace_task_time_seconds_total{app,stage,task,state}
    What the task does with its time: busy; waiting, for targets, readers, calls, or other tasks of its container; idle.
    Worry: busy grows by 1 a second: the task is the bottleneck. waiting does: headrace_task_held_up_seconds says for
    what.
headrace_function_seconds_total{app,stage,task,step}
    Time in functions of the app, by step.
    Worry: One step takes most of what its task is busy.
# checkpoints
headrace_checkpoint_version{app,stage,task}
    The version of the last commit, a time in milliseconds.
headrace_checkpoint_age_seconds{app,stage,task}
    Time since the last commit.
    Worry: It exceeds several checkpoint intervals: a restart repeats all since then.
headrace_checkpoints_total{app,stage,task}
    Versions that the task has committed.
    Worry: It stands still.
headrace_checkpoints_asked_for_total{app,stage,task}
    Commits that a low-level task of the app asked for.
    Worry: It grows as fast as headrace_checkpoints_total, and tasks are busy with commits: ask less often.
headrace_checkpoint_duration_seconds{app,stage,task,part} histogram
    How long commits take, by part: flush (outputs), changes, changelog, store, snapshot; and the whole.
    Worry: The whole comes close to the checkpoint interval; the longest part says why.
headrace_checkpoint_overdue_seconds{app,stage,task}
    Time since the last commit if that is too long ago, else 0.
    Worry: It is above 0.
headrace_early_bytes{app,stage,task,where}
    Frames that came early and wait for their version: in memory, or left in their stream.
    Worry: It keeps growing: a task upstream is late.
headrace_task_generation{app,stage,task}
    The generation of the task; each start and each rollback takes a new one.
headrace_rollbacks_total{app,stage,task}
    Rollbacks to the last commit, because a task upstream did so, or stays away.
    Worry: It grows without restarts of containers.
headrace_output_waiting_versions{app,stage,task,output}
    Committed versions that the target doesn't have yet.
    Worry: It keeps growing.
headrace_output_waiting_bytes{app,stage,task,output}
    Bytes that wait to be written to the target.
    Worry: It keeps growing.
headrace_output_failures{app,stage,task,output}
    Attempts in a row at which the target could not be written.
    Worry: It is above 0 for minutes.
# state
headrace_state_bytes{app,stage,task}
    Size of the local database of the task's state, roughly.
    Worry: It comes close to the disk's size.
headrace_state_keys{app,stage,task,step}
    Keys, or rows of a table, that a step keeps, roughly.
    Worry: It grows without a bound: give the state a time to live.
# calls and timers
headrace_calls_total{app,stage,task}
    Calls to other services.
headrace_calls_in_flight{app,stage,task}
    Calls whose answers are outstanding.
    Worry: It stays at the step's concurrency.
headrace_call_failures_total{app,stage,task}
    Calls that failed.
    Worry: It grows.
headrace_call_retries_total{app,stage,task}
    Calls that were repeated.
    Worry: It grows as fast as the calls.
headrace_call_timeouts_total{app,stage,task}
    Calls that took too long.
    Worry: It grows.
headrace_call_seconds_total{app,stage,task}
    Time that calls have taken; divide it by the calls.
headrace_call_cache_hits_total{app,stage,task}
    Answers that a cache had.
headrace_call_cache_misses_total{app,stage,task}
    Answers that a cache didn't have.
headrace_timers_fired_total{app,stage,task}
    Timers that have fired.
headrace_timers_dropped_total{app,stage,task}
    Timers that won't fire, because they were set when all inputs had ended.
    Worry: It grows, and results depend on these timers.
headrace_warnings_total{app,stage,task}
    Warnings of the task; headrace status lists the latest ones.
    Worry: It grows.
"""


def _metrics() -> Iterator[Metric]:
    for name, labels, histogram, text in re.findall(r"(?m)^(\w+)\{([\w,]+)\}( histogram)?((?:\n    .*)+)", _TABLE):
        meaning, _, worry = " ".join(text.split()).partition(" Worry: ")
        yield Metric(name, tuple(labels.split(",")), meaning, worry, bool(histogram))


METRICS = tuple(_metrics())

BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in METRICS})


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

    def record(self, like: Cell, labels: Mapping[str, object], value: float) -> None:
        with self._lock:
            if (cell := self._cell(like, labels)) is None:
                return
            cell.value = value if cell.kind == "gauge" else cell.value + value
            if cell.kind == "histogram":
                cell.buckets[bisect_left(cell.bounds, value)] += 1

    def cells(self) -> list[Cell]:
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
    _entered.set(metrics)


def entered() -> UserMetrics | None:
    """The metrics of the task that the calling code works for; None outside of tasks."""
    return _entered.get()

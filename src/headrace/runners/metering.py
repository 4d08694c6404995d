"""What a task has counted, as series for its status. On the run-loop thread, a few times a second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from headrace.runners.coordination.messages import Series
from headrace.runtime.host.task_host import TaskHost
from headrace.runtime.metrics import Histogram, TaskMetrics

OF_COUNTERS: Mapping[str, str] = MappingProxyType(
    {
        "late": "headrace_late_messages_total",
        "skipped": "headrace_skipped_messages_total",
        "failed_skipped": "headrace_failed_messages_total",
        "dead_lettered": "headrace_dead_lettered_messages_total",
        "duplicates": "headrace_duplicate_frames_total",
        "lost": "headrace_lost_messages_total",
        "gaps": "headrace_gaps_total",
        "misplaced": "headrace_misplaced_messages_total",
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
)
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
    found += of_users(host.metrics)
    return found


def untraced(metrics: TaskMetrics) -> Series:
    """What isn't traced, if commits are."""
    return Series(name="headrace_otel_untraced_commits_total", value=metrics.commit_times.left_out)


def of_users(metrics: TaskMetrics) -> list[Series]:
    """What the app's own code counts."""
    return [
        Series(
            name=cell.name,
            kind=cell.kind,
            labels=dict(cell.labels),
            value=cell.value,
            buckets=list(cell.buckets),
            bounds=list(cell.bounds),
            help=cell.help,
        )
        for cell in metrics.user.cells()
    ]


def counted(metrics: TaskMetrics) -> Iterator[Series]:
    """What is in the metrics of a task."""
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
    in_flight = metrics.counters.get("calls_in_flight", 0)
    yield Series(name="headrace_calls_in_flight", kind="gauge", value=in_flight)


def _histogram(name: str, labels: dict[str, str], histogram: Histogram) -> Series:
    buckets = list(histogram.buckets)
    return Series(name=name, kind="histogram", labels=labels, value=histogram.seconds, buckets=buckets)

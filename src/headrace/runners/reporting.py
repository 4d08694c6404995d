"""What a task's host tells the coordinator: a snapshot, taken on the run-loop thread."""

from __future__ import annotations

from headrace.core.ids import SSP
from headrace.runners.coordination.messages import CheckpointStatus, InputStatus, TaskState, TaskStatus
from headrace.runtime.host import TaskHost
from headrace.runtime.watermark import FOREVER, NEVER


def task_status(host: TaskHost, now_ms: float) -> TaskStatus:
    """How this task is doing now."""
    inputs = {str(ssp): _input(host, ssp) for ssp in host.task.specs}
    lags = [status.lag for status in inputs.values()]
    committed = host.committed_ms
    return TaskStatus(
        name=str(host.name),
        state=_state(host),
        generation=host.generation,
        watermark=_time(host.task.watermark),
        rows_in=host.metrics.rows_in,
        rows_out=host.metrics.rows_out,
        bytes_in=host.metrics.bytes_in,
        lag=None if None in lags else sum(lag or 0 for lag in lags),
        inputs=inputs,
        counters=dict(host.metrics.counters),
        checkpoint=None
        if committed is None
        else CheckpointStatus(
            version=host.node.version, age_ms=int(now_ms - committed), duration_ms=host.commit_took_ms
        ),
        blocked_by=host.blocked_by,
        uptime_ms=int(now_ms - host.started_ms),
    )


def _state(host: TaskHost) -> TaskState:
    if host.finished:
        return "finished"
    if host.replay.progress is not None:
        return "restoring"
    return "blocked" if host.blocked_by is not None else "running"


def _input(host: TaskHost, ssp: SSP) -> InputStatus:
    partition = host.task.times[ssp]
    return InputStatus(
        position=host.positions.get(ssp),
        lag=0 if host.finished else host.lag(ssp),
        watermark=_time(partition.watermark),
        ended=partition.closed,
        idle=partition.idle,
        missing=partition.missing(),
    )


def _time(watermark: int) -> int | None:
    return None if watermark in (NEVER, FOREVER) else watermark

"""A task's status for the coordinator: a snapshot, taken on the run-loop thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.core.ids import SSP
from headrace.runners.coordination.messages import (
    CheckpointStatus,
    CommitParts,
    CutStatus,
    InputStatus,
    OutputStatus,
    TaskState,
    TaskStatus,
    What,
)
from headrace.runners.holdups import InputFacts, Standstill, TaskFacts, holdups
from headrace.runners.metering import series_of, untraced
from headrace.runners.progress import SET_ASIDE
from headrace.runtime.event_time.watermark import FOREVER, NEVER, PartitionTime
from headrace.runtime.host.task_host import TaskHost
from headrace.runtime.metrics import TaskMetrics

LATE_INTERVALS, LATE_MS = 3, 2000
"""A version is overdue when this many checkpoint intervals plus ``LATE_MS`` have passed since the last commit."""


def task_status(
    host: TaskHost, now_ms: float, still: Standstill | None = None, epoch_ms: int = 0, *, traced: bool = False
) -> TaskStatus:
    """Return the task's present status. ``now_ms`` is monotonic, ``epoch_ms`` the time of day.

    ``still`` remembers what it was in earlier calls, so that the status says since when something stands still.
    ``traced``: with the latest commits.
    """
    holder = _holder(host)
    inputs = {str(ssp): _input(host, ssp, holds=ssp == holder) for ssp in host.task.specs}
    lags = [status.lag for status in inputs.values()]
    committed = host.committed_ms
    overdue_ms = overdue(host, now_ms)
    in_memory, in_stream = host.receiver.buffer.memory_bytes, host.receiver.buffer.stream_bytes
    waits_for = _waits_for(host) if overdue_ms else {}
    facts = _facts(host, now_ms, still or Standstill(), epoch_ms, waits_for, overdue_ms)
    return TaskStatus(
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
        checkpoint=None
        if committed is None
        else CheckpointStatus(
            version=host.machine.version, age_ms=int(now_ms - committed), duration_ms=host.commit_took_ms
        ),
        waits_for=waits_for,
        overdue_ms=overdue_ms,
        early_bytes=in_memory + in_stream,
        early_stream_bytes=in_stream,
        blocked_by=host.blocked_by,
        holdups=[] if host.finished else holdups(facts),
        uptime_ms=int(now_ms - host.started_ms),
        side_inputs_percent=host.attempt.bootstrap.percent(host.positions),
        caught_up=host.catching_up.version,
        cut=None if host.keeper.state is None else CutStatus(id=host.keeper.state[0], state=host.keeper.state[1]),
        slots={str(ssp): report for ssp, report in host.slots.reports(host.task).items()},
        warnings=host.metrics.warnings.latest(),
        commits=list(_commits(host.metrics, now_ms, epoch_ms)) if traced else [],
        series=series_of(host) + ([untraced(host.metrics)] if traced else []),
    )


def _commits(metrics: TaskMetrics, now_ms: float, epoch_ms: int) -> Iterator[CommitParts]:
    for commit in metrics.commit_times.latest(now_ms):
        times = commit.parts.items()
        first = min((began for _, (began, _) in times), default=now_ms)
        since = {part: (round(began - first, 3), round(ended - first, 3)) for part, (began, ended) in times}
        yield CommitParts(version=commit.version, began_ms=round(epoch_ms - now_ms + first, 3), parts=since)


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


def _state(host: TaskHost) -> TaskState:
    if host.finished:
        return "finished"
    if _restoring(host):
        return "restoring"
    return "blocked" if host.blocked_by is not None else "running"


def _restoring(host: TaskHost) -> bool:
    return host.beginning.fetching or host.replay.progress is not None


def _holder(host: TaskHost) -> SSP | None:
    """The input partition whose watermark is that of the task: the first of several; None if no one is waited for."""
    if host.finished or not host.scope.timed:
        return None
    said = {ssp: time.progress for ssp, time in host.task.times.partitions.items()}
    awake = {str(ssp): ssp for ssp, progress in said.items() if not progress.idle and not progress.ended}
    first = min(awake, key=lambda name: (said[awake[name]].watermark, name), default=None)
    return None if first is None else awake[first]


def _input(host: TaskHost, ssp: SSP, *, holds: bool) -> InputStatus:
    if ssp in host.task.side_inputs:
        return InputStatus(position=host.positions.get(ssp), lag=0 if host.finished else host.lag(ssp))
    partition = host.task.times[ssp]
    return InputStatus(
        position=host.positions.get(ssp),
        lag=0 if host.finished else host.lag(ssp),
        watermark=None if partition.progress.ended else _time(partition.progress.watermark),
        ended=partition.progress.ended,
        idle=partition.progress.idle,
        holds=holds,
        held_by=next(iter(_slowest(partition)[0]), "") if holds else "",
    )


def _facts(
    host: TaskHost,
    now_ms: float,
    still: Standstill,
    epoch_ms: int,
    waits_for: Mapping[str, Sequence[str]],
    overdue_ms: int,
) -> TaskFacts:
    blocked: dict[What, tuple[str, float]] = {
        what: (where, still.for_ms((host.name, what), where.partition(",")[0], now_ms))
        for what, where in _blockers(host).items()
    }
    return TaskFacts(
        now_ms=epoch_ms,
        up_ms=now_ms - host.started_ms,
        timed=host.scope.timed,
        restoring=_restoring(host),
        side_inputs_percent=host.attempt.bootstrap.percent(host.positions),
        blocked=blocked,
        waits_for=waits_for,
        overdue_ms=overdue_ms,
        inputs=[_input_facts(host, ssp, now_ms, still) for ssp in host.scope.inputs],
    )


def _blockers(host: TaskHost) -> dict[What, str]:
    """Return the causes that keep a task from reading, by kind."""
    known: dict[What, str | None] = {"readers": host.backpressure.blocked_by, "target": host.publishing.blocked_by}
    found = {what: where for what, where in known.items() if where is not None}
    if not found and (step := host.blocked_by) is not None:
        found["calls"] = step
    return found


def _input_facts(host: TaskHost, ssp: SSP, now_ms: float, still: Standstill) -> InputFacts:
    partition = host.task.times[ssp]
    slowest, uneven = _slowest(partition)
    metrics, stands = host.metrics, (partition.progress.watermark, partition.progress.idle)
    still_ms = still.for_ms((host.name, ssp), stands, now_ms)
    counts = {name: metrics.counters.get(name, 0) for name in SET_ASIDE}
    return InputFacts(
        name=str(ssp),
        watermark=_time(partition.progress.watermark),
        still_ms=still_ms,
        quiet_ms=still.for_ms((host.name, ssp, "bytes"), metrics.bytes_of.get(ssp, 0), now_ms),
        aside=still.counted((host.name, ssp), counts),
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
    states = dict(host.publishing.states())
    found = {}
    for id_, delivery in host.scope.deliveries.items():
        state = states.get(id_)
        found[id_] = (
            OutputStatus(delivery=delivery)
            if state is None
            else OutputStatus(
                delivery=delivery,
                waiting=state.waiting,
                waiting_bytes=state.waiting_bytes,
                failures=state.failures,
                error=state.error,
            )
        )
    return found


def _time(watermark: int) -> int | None:
    return None if watermark in (NEVER, FOREVER) else watermark

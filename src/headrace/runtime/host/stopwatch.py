"""Measure the duration of the parts of a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.checkpoint import instructions as do
from headrace.core.clock import Clock
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.pauses import Steps

if TYPE_CHECKING:
    from headrace.runtime.host.task_host import TaskHost

_log = logger(__name__)

_PARTS: dict[type[do.Instruction], str] = {
    do.FlushOutputs: "flush",
    do.AppendChanges: "changes",
    do.AppendCommit: "changelog",
    do.WriteLocal: "store",
}


def part_of(instruction: do.Instruction) -> str | None:
    """The part of a commit that this instruction is."""
    return _PARTS.get(type(instruction))


def timed(part: str | None, steps: Steps[None], metrics: TaskMetrics, clock: Clock) -> Steps[None]:
    """Run the steps. If they are a part of a commit, record their duration, including pauses."""
    if part is None:
        yield from steps
        return
    began_ms = clock.monotonic_ms()
    yield from steps
    ended_ms = clock.monotonic_ms()
    metrics.commit_parts[part].observe((ended_ms - began_ms) / 1000)
    metrics.commit_times.took(part, began_ms, ended_ms)


def wants_to_work(host: TaskHost) -> bool:
    """Note that something waits to be processed or committed, for whatever reason."""
    return not host.finished and (host.attempt.settling or host.attempt.chooser.ready or host.blocked_by is not None)


def committed(task: TaskName, version: int, metrics: TaskMetrics, took_ms: float, now_ms: float) -> None:
    """Note that a version is committed, ``took_ms`` after its outputs were flushed."""
    _log.debug("committed", task=str(task), version=version, took_ms=round(took_ms, 1))
    metrics.commits += 1
    metrics.commit_times.committed(version)
    metrics.commit_parts["whole"].observe(took_ms / 1000)
    metrics.latency.commit(now_ms)

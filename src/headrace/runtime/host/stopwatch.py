"""Measures what a commit's parts take."""

from __future__ import annotations

from headrace.checkpoint import instructions as do
from headrace.core.clock import Clock
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.pauses import Steps

_PARTS: dict[type[do.Instruction], str] = {
    do.FlushOutputs: "flush",
    do.AppendChanges: "changes",
    do.AppendCommit: "changelog",
    do.WriteLocal: "store",
}


def part_of(instruction: do.Instruction) -> str | None:
    """The part of a commit that it is."""
    return _PARTS.get(type(instruction))


def timed(part: str | None, steps: Steps[None], metrics: TaskMetrics, clock: Clock) -> Steps[None]:
    """Take the steps; if they are a part of a commit, note how long that takes, pauses included."""
    if part is None:
        yield from steps
        return
    began_ms = clock.monotonic_ms()
    yield from steps
    metrics.commit_parts[part].observe((clock.monotonic_ms() - began_ms) / 1000)


def committed(metrics: TaskMetrics, took_ms: float, now_ms: float) -> None:
    """A version is committed, ``took_ms`` after its outputs were flushed."""
    metrics.commits += 1
    metrics.commit_parts["whole"].observe(took_ms / 1000)
    metrics.latency.commit(now_ms)

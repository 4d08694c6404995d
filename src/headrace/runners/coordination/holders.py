"""Which input partitions hold the watermarks of which tasks, followed upstream to the sources. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.runners.coordination.messages import TaskStatus


def holders(tasks: Iterable[TaskStatus]) -> Mapping[tuple[str, str], int]:
    """How many tasks have their watermark from an input partition, by task and partition; all partitions are there.

    Each task counts once on each step of its way: at its own partition that holds it, at that of the upstream task
    which holds the partition, and so on. A task that isn't among these ends the way.
    """
    found: dict[tuple[str, str], int] = {}
    holding: dict[str, tuple[str, str]] = {}
    for task in tasks:
        for partition, input_ in task.inputs.items():
            found[task.name, partition] = 0
            if input_.holds:
                holding[task.name] = partition, input_.held_by
    for name in holding:
        seen: set[str] = set()
        at = name
        while at in holding and at not in seen:
            seen.add(at)
            partition, upstream = holding[at]
            found[at, partition] += 1
            at = upstream
    return found

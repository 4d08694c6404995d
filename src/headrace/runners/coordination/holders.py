"""Find the input partitions that hold back the tasks' watermarks, upstream to the sources. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.runners.coordination.messages import TaskStatus


def holders(tasks: Iterable[TaskStatus]) -> Mapping[tuple[str, str], int]:
    """Return how many tasks have their watermark from each input partition, by task and partition.

    Each task counts once on each step of its path: at its own partition that holds it, at the partition of the
    upstream task that holds that partition, and so on. A task that isn't among these ends the path.
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

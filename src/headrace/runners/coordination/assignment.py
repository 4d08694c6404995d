"""Assign tasks to containers: pure, deterministic and balanced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.core.errors import UsageError
from headrace.core.ids import TaskName


def assign(stages: Mapping[str, Sequence[TaskName]], containers: int) -> tuple[tuple[TaskName, ...], ...]:
    """Return the tasks of each container.

    The tasks of each stage are dealt out in turn. So the containers' numbers of tasks differ by at most one, within
    each stage and in total. Stages start at different containers. Otherwise task n of every stage would be in the same
    container, and a partition that is busy in one stage tends to be busy in the next.
    """
    if containers < 1:
        raise UsageError(f"an app can't run in {containers} containers", hint="give at least 1")
    seats: list[list[TaskName]] = [[] for _ in range(containers)]
    fullest = 0  # where the next remaining task goes, to keep the totals balanced
    for number, tasks in enumerate(stages.values()):
        odd = len(tasks) % containers
        # Without a remainder every start is equally balanced, so the stage's number decides.
        first = fullest if odd else number
        for n, task in enumerate(tasks):
            seats[(first + n) % containers].append(task)
        fullest += odd
    return tuple(tuple(seat) for seat in seats)

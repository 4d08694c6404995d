"""Which container runs which tasks: pure, deterministic, balanced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.core.errors import UsageError
from headrace.core.ids import TaskName


def assign(stages: Mapping[str, Sequence[TaskName]], containers: int) -> tuple[tuple[TaskName, ...], ...]:
    """The tasks of each container.

    Each stage is dealt out in turn, so that its tasks differ by one between containers at most, and so do all
    tasks together. Stages begin at different containers: task n of every stage would else sit in one place,
    and a partition that is busy in one stage tends to be busy in the next.
    """
    if containers < 1:
        raise UsageError(f"{containers} containers can't run anything", hint="give at least 1")
    seats: list[list[TaskName]] = [[] for _ in range(containers)]
    fullest = 0  # where the next odd task belongs, to keep the sum balanced
    for number, tasks in enumerate(stages.values()):
        odd = len(tasks) % containers
        # Without odd tasks every beginning is as balanced, so the stage's number chooses it.
        first = fullest if odd else number
        for n, task in enumerate(tasks):
            seats[(first + n) % containers].append(task)
        fullest += odd
    return tuple(tuple(seat) for seat in seats)

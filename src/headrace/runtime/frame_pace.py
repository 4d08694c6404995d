"""How often the tasks of a container commit and announce watermarks if they are many, or write many partitions. Pure.

A task tells every partition that it writes of each commit and watermark, so that *n* tasks write *n x m* frames each
time, and as many are read. With wide shuffles that would take all the time of a container, and so would the commits of
thousands of tasks. So these are less frequent than wanted: for each of both, a container writes at most
``FRAMES_A_SECOND`` frames.

The protocol allows that. A commit may always be late, because a process may freeze, and versions are milliseconds of
the clock, so tasks needn't have the same interval. A watermark says what won't come any more, and stays true.
"""

from __future__ import annotations

from math import ceil

from headrace.api.specs import Role
from headrace.plan.model import Plan

FRAMES_A_SECOND = 5_000
"""They cost a quarter to a third of a processor to write and to read."""
WATERMARK_INTERVAL_MS = 10


COMMIT_FRAMES = 10
"""A commit costs as much as so many frames, apart from those that it sends."""

FREE_FRAMES = 1_000
"""With so few, the checkpoint interval is that of the app, however short."""


def commit_interval_ms(wanted_ms: int, tasks: int, frames: int) -> int:
    """Return the checkpoint interval of ``tasks`` that write ``frames`` for a commit: a multiple of what is wanted."""
    work = frames + COMMIT_FRAMES * tasks
    if work <= FREE_FRAMES:
        return wanted_ms
    return wanted_ms * max(1, ceil(work * 1000 / FRAMES_A_SECOND / wanted_ms))


def longest_interval_ms(plan: Plan) -> int:
    """Return the checkpoint interval of tasks that are all in one container. With several it may be shorter."""
    tasks = sum(len(stage.tasks) for stage in plan.stages)
    streams = [plan.streams[id_] for stage in plan.stages for id_ in stage.outputs for _ in stage.tasks]
    frames = sum(stream.partitions for stream in streams if stream.spec.role is Role.INTERMEDIATE)
    return commit_interval_ms(plan.graph.settings.checkpoint_interval_ms, tasks, frames)


def watermark_interval_ms(frames: int) -> float:
    """Return how long the announcements of a task are apart at least."""
    return max(WATERMARK_INTERVAL_MS, frames * 1000 / FRAMES_A_SECOND)

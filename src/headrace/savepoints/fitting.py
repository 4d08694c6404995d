"""Whether what tasks have kept at a cut fits together: what one has committed, the next has processed. Pure.

That all have committed the version of the cut isn't enough. A task that starts takes its first label from the clock. If
that is above the cut, because it hasn't learned of it, its readers take the label for a promise: nothing more comes up
to the cut. They commit it. If the task then starts again before its first commit, and knows the cut by now, it commits
the cut as well. What it sends before that is late at its readers: they get it all, but only after what they have kept.

A commit record says both: up to which frame the task has written each partition, and up to which it has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.checkpoint.record import CommitRecord, OutputSeq
from headrace.core.ids import TaskName


class Misfit(NamedTuple):
    """Frames that ``writer`` has sent by the cut, and ``reader`` has processed only after it."""

    writer: TaskName
    reader: TaskName
    partition: str


def misfit(kept: Mapping[TaskName, CommitRecord], producers: Mapping[int, TaskName]) -> Misfit | None:
    """What doesn't fit together in the commits that tasks have kept; None if they all do.

    ``producers`` are the tasks by the numbers under which they write.
    """
    sent: dict[tuple[int, str, int], OutputSeq] = {
        (producer, output.stream, output.partition): output
        for producer, task in producers.items()
        if task in kept
        for output in kept[task].outputs
    }
    for reader, record in kept.items():
        for entry in record.inputs:
            for parent in entry.parents:
                last = sent.get((parent.producer, entry.stream, entry.partition))
                if last is not None and (parent.generation, parent.seq) < (last.generation, last.seq):
                    return Misfit(producers[parent.producer], reader, f"{entry.stream}[{entry.partition}]")
    return None

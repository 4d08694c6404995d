"""Check that the states kept at a cut fit together: each task has processed what the tasks before it committed. Pure.

It isn't enough that all have committed the version of the cut. A starting task takes its first label from the clock. If
it doesn't know the cut yet and the label is above it, its readers take the label as a promise that nothing more up to
the cut follows, and commit the cut. If the task then starts again before its first commit, and now knows the cut, it
commits the cut, too. The frames that it sends before that reach its readers only after the states that they have kept.

A commit record has both numbers: the last frame written to each partition, and the last frame read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.checkpoint.record import CommitRecord, OutputSeq
from headrace.core.ids import TaskName


class Misfit(NamedTuple):
    """Frames that ``writer`` sent before the cut but ``reader`` processed only after it."""

    writer: TaskName
    reader: TaskName
    partition: str


def misfit(kept: Mapping[TaskName, CommitRecord], producers: Mapping[int, TaskName]) -> Misfit | None:
    """Return the first mismatch in the commits that tasks have kept; None if all fit.

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

"""What a task writes: the identity of its outgoing frames, as pure state.

A frame is known by (generation, seq): ``seq`` counts the task's frames for each output partition through all
its generations; a new generation goes on behind what the last commit covers, so numbers of void frames are
used again. The label says to which version of the task the frame belongs. It is chosen once, at a commit or
a restore, and never follows the clock in between: all frames of one commit are labelled at or below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.checkpoint.instructions import ControlFrame
from headrace.checkpoint.record import OutputSeq
from headrace.core.errors import ProtocolError
from headrace.core.frame import UNVERSIONED, Checkpoint, Header, Kind, Restore
from headrace.core.ids import StreamId, TaskName


class FrameStamper:
    """Stamps outgoing frames. ``barriers`` off (at-least-once): nothing is labelled, no checkpoint is sent."""

    def __init__(
        self, task: TaskName, task_count: int, producer: int, outputs: Mapping[StreamId, int], barriers: bool
    ) -> None:
        self.producer = producer
        self.generation = 0
        self.label = 0
        self._task = str(task)
        self._task_count = task_count
        self._barriers = barriers
        self._seqs: dict[StreamId, list[int]] = {stream: [0] * count for stream, count in outputs.items()}

    def stamp(self, stream: StreamId, partition: int, kind: Kind) -> Header:
        """The header of the next frame to a partition."""
        seqs = self._seqs[stream]
        seqs[partition] = seq = seqs[partition] + 1
        return Header(kind, self.producer, self.generation, self.label if self._barriers else UNVERSIONED, seq)

    def restores(self, version: int, committed_by: int, next_version: int) -> tuple[ControlFrame, ...]:
        """The restore frames of a generation that has just begun from the commit of ``version``."""
        version, next_version = (version, next_version) if self._barriers else (UNVERSIONED, UNVERSIONED)
        frames = []
        for stream, partition, covered in self._partitions():
            header = self._control(Kind.RESTORE, stream, partition, version)
            message = Restore(
                task_name=self._task,
                task_count=self._task_count,
                seq=covered,
                next_version=next_version,
                committed_by=committed_by,
            )
            frames.append(ControlFrame(stream, partition, header, message))
        return tuple(frames)

    def checkpoints(self, version: int, next_version: int) -> tuple[ControlFrame, ...]:
        """The checkpoint frames of a commit; none without barriers: nobody waits for them."""
        if not self._barriers:
            return ()
        message = Checkpoint(task_name=self._task, task_count=self._task_count, next_version=next_version)
        return tuple(
            ControlFrame(stream, partition, self._control(Kind.CHECKPOINT, stream, partition, version), message)
            for stream, partition, _ in self._partitions()
        )

    def save(self) -> tuple[OutputSeq, ...]:
        """How far each output partition is written."""
        return tuple(OutputSeq(stream=str(s), partition=p, seq=seq) for s, p, seq in self._partitions())

    def load(self, saved: Iterable[OutputSeq]) -> None:
        """Go on behind what a commit covers; what it doesn't name begins at nothing."""
        for seqs in self._seqs.values():
            seqs[:] = [0] * len(seqs)
        by_name = {str(stream): seqs for stream, seqs in self._seqs.items()}
        for entry in saved:
            seqs_of = by_name.get(entry.stream)
            if seqs_of is None or entry.partition >= len(seqs_of):
                raise ProtocolError(
                    f"task {self._task} committed frames to {entry.stream}[{entry.partition}], "
                    "which the plan no longer has",
                    hint="an output can't be taken away from an app that has state; start it under a new app id",
                )
            seqs_of[entry.partition] = entry.seq

    def _partitions(self) -> list[tuple[StreamId, int, int]]:
        return [(s, p, seq) for s, seqs in self._seqs.items() for p, seq in enumerate(seqs)]

    def _control(self, kind: Kind, stream: StreamId, partition: int, version: int) -> Header:
        seqs = self._seqs[stream]
        seqs[partition] += 1
        return Header(kind, self.producer, self.generation, version if self._barriers else UNVERSIONED, seqs[partition])

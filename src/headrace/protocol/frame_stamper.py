"""Give a task's outgoing frames their identity and label. Pure.

(generation, seq) identifies a frame. ``seq`` counts the task's frames to each output partition across its generations.
A new generation continues after the last seq that the last commit covers, so it reuses the seqs of void frames. The
label names the task's version that the frame belongs to. It is chosen once, at a commit or a restore, and never
follows the clock in between: every frame that a commit covers is labelled at or below the commit's version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from headrace.core.errors import ProtocolError
from headrace.core.frame import UNVERSIONED, Checkpoint, Header, Kind, Restore
from headrace.core.ids import StreamId, TaskName
from headrace.protocol.instructions import ControlFrame
from headrace.protocol.record import OutputSeq


class FrameStamper:
    """Stamps a task's outgoing frames. ``outputs`` maps each framed stream to its number of partitions.

    ``own`` names the only partition that the task writes in some of them: no reader waits for its commits in the
    others. With ``barriers`` off (at-least-once) frames are not labelled and no checkpoint frames are sent.
    """

    def __init__(
        self,
        task: TaskName,
        task_count: int,
        producer: int,
        outputs: Mapping[StreamId, int],
        barriers: bool,
        own: Mapping[StreamId, int] = MappingProxyType({}),
    ) -> None:
        self.producer = producer
        self.generation = 0
        self.label = 0
        self._task = str(task)
        self._task_count = task_count
        self._barriers = barriers
        self._counts = outputs
        self._seqs: dict[StreamId, dict[int, int]] = {
            stream: dict.fromkeys([own[stream]] if stream in own else range(count), 0)
            for stream, count in outputs.items()
        }
        self._committed_by: dict[tuple[StreamId, int], int] = {}
        """The generation that has made the last commit of each partition: a reader has seen its restore there."""
        self._former: list[OutputSeq] = []
        """The seqs in what the task doesn't write any more: it goes on from there if it writes it again."""

    def stamp(self, stream: StreamId, partition: int, kind: Kind) -> Header:
        seqs = self._seqs[stream]
        seqs[partition] = seq = seqs[partition] + 1
        return Header(kind, self.producer, self.generation, self.label if self._barriers else UNVERSIONED, seq)

    def restores(self, version: int, next_version: int) -> tuple[ControlFrame, ...]:
        version, next_version = (version, next_version) if self._barriers else (UNVERSIONED, UNVERSIONED)
        frames = []
        for stream, partition, covered in self._partitions():
            header = self._control(Kind.RESTORE, stream, partition, version)
            message = Restore(
                task_name=self._task,
                task_count=self._task_count,
                seq=covered,
                next_version=next_version,
                committed_by=self._committed_by.get((stream, partition), 0),
            )
            frames.append(ControlFrame(stream, partition, header, message))
        return tuple(frames)

    def checkpoints(self, version: int, next_version: int) -> tuple[ControlFrame, ...]:
        """Return the checkpoint frames of a commit; none without barriers, since no reader waits for them."""
        if not self._barriers:
            return ()
        message = Checkpoint(task_name=self._task, task_count=self._task_count, next_version=next_version)
        return tuple(
            ControlFrame(stream, partition, self._control(Kind.CHECKPOINT, stream, partition, version), message)
            for stream, partition, _ in self._partitions()
        )

    def save(self) -> tuple[OutputSeq, ...]:
        generation = self.generation
        written = (
            OutputSeq(stream=str(stream), partition=partition, seq=seq, generation=generation)
            for stream, partition, seq in self._partitions()
        )
        return (*written, *self._former)

    def load(self, saved: Iterable[OutputSeq]) -> None:
        for seqs in self._seqs.values():
            seqs.update(dict.fromkeys(seqs, 0))
        by_name = {str(stream): stream for stream in self._seqs}
        self._former, self._committed_by = [], {}
        for entry in saved:
            stream = by_name.get(entry.stream)
            if stream is None:
                self._former.append(entry)
            elif entry.partition >= self._counts[stream]:
                raise ProtocolError(
                    f"task {self._task} has committed frames to {entry.stream}[{entry.partition}], "
                    f"which now has {self._counts[stream]} partitions",
                    hint="the stream was deleted and created with fewer partitions: start the app under another name",
                )
            elif entry.partition not in self._seqs[stream]:
                self._former.append(entry)
            else:
                self._seqs[stream][entry.partition] = entry.seq
                self._committed_by[stream, entry.partition] = entry.generation

    def _partitions(self) -> list[tuple[StreamId, int, int]]:
        return [(s, p, seq) for s, seqs in self._seqs.items() for p, seq in seqs.items()]

    def _control(self, kind: Kind, stream: StreamId, partition: int, version: int) -> Header:
        seqs = self._seqs[stream]
        seqs[partition] += 1
        return Header(kind, self.producer, self.generation, version if self._barriers else UNVERSIONED, seqs[partition])

"""Watermarks and ends of streams: pure bookkeeping, saved and restored with checkpoints.

There are two levels. A ``PartitionTime`` tracks one input partition. A source partition is set directly (``advance``,
``end``). A partition of an intermediate stream reconciles the control messages of all upstream tasks: it has ended when
the *set* of tasks that ended has the stated size, and its watermark is the minimum over all tasks once every task has
reported. ``InputTimes`` takes the minimum over a task's partitions.

At both levels a watermark never decreases, is reported only when it rises, and isn't held back by what has ended or is
idle. A watermark W means that no message older than W will arrive.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.core.errors import ProtocolError
from headrace.core.ids import SSP, TaskName

NEVER = -(2**63)
"""No watermark yet."""

FOREVER = 2**63 - 1
"""The watermark of what has ended."""


class WatermarkCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The durable form of one partition's watermark bookkeeping."""

    stream_id: str
    partition: int
    total_tasks: dict[str, int]
    tasks_to_event_time: dict[str, int]
    idle_tasks: list[str]
    timestamp_of_last_emission: int
    idle: bool


class EndOfStreamCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The durable form of one partition's end-of-stream bookkeeping; ``ended`` is set for a source's end."""

    stream_id: str
    partition: int
    total_tasks: dict[str, int]
    tasks: list[str]
    ended: bool


class TimesCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The durable form of a task's whole bookkeeping."""

    watermark: int
    watermarks: list[WatermarkCheckpoint]
    ends: list[EndOfStreamCheckpoint]


class PartitionTime:
    """Event time and end of one input partition. ``stages`` are those that write it; a source has none."""

    __slots__ = (
        "_counts",
        "_ended",
        "_idle_tasks",
        "_names",
        "_stages",
        "_times",
        "closed",
        "idle",
        "seen",
        "ssp",
        "watermark",
    )

    def __init__(self, ssp: SSP, stages: Iterable[str] = ()) -> None:
        self.ssp = ssp
        self.watermark = NEVER
        self.closed = False
        self.seen = NEVER
        """The watermark when it ended."""
        self.idle = False
        self._stages = frozenset(stages)
        self._counts: dict[str, int] = {}
        self._times: dict[str, int] = {}
        self._idle_tasks: set[str] = set()
        self._ended: set[str] = set()
        self._names: dict[str, set[str]] = {}
        """The tasks that have reported, by stage."""

    # -- a source sets it directly

    def advance(self, timestamp: int) -> None:
        """Everything older than ``timestamp`` has arrived; a lower value than before changes nothing."""
        self.idle = False
        self.watermark = max(self.watermark, timestamp)

    def end(self) -> None:
        """The partition has ended."""
        if not self.closed:
            self.seen = self.watermark
        self.closed = True
        self.watermark = FOREVER

    # -- upstream tasks report it in the stream

    def on_watermark(self, task: str, task_count: int, timestamp: int, *, idle: bool = False) -> None:
        """Process an upstream task's watermark."""
        new = self._name(task, task_count)
        before = self._times.get(task, NEVER)
        self._times[task] = max(before, timestamp)
        woken = idle is not (task in self._idle_tasks)
        (self._idle_tasks.add if idle else self._idle_tasks.discard)(task)
        # Most watermarks come from tasks that don't hold back the minimum: then it stays as it is.
        if new or woken or self.idle or before <= self.watermark:
            self._reconcile()

    def on_end_of_stream(self, task: str, task_count: int) -> None:
        """Process an upstream task's end-of-stream; a repeated one changes nothing."""
        self._name(task, task_count)
        self._ended.add(task)
        self._reconcile()

    def missing(self) -> str:
        """Which tasks have not reported, as text for status pages: the usual reason why a watermark doesn't rise."""
        missing = sorted(self._stages - self._counts.keys())
        parts = [f"any task of stage {stage}" for stage in missing]
        for stage, count in sorted(self._counts.items()):
            reported = len(self._names.get(stage, ()))
            if reported < count:
                parts.append(f"{count - reported} of {count} tasks of stage {stage}")
        return ", ".join(parts)

    def _name(self, task: str, task_count: int) -> bool:
        """Note that a task has reported. Return whether it is the first time."""
        stage = TaskName.parse(task).stage
        if self._stages and stage not in self._stages:
            raise ProtocolError(
                f"{self.ssp}: control message of task {task!r}, but this stream is written by "
                f"{', '.join(sorted(self._stages))}",
                hint="two apps write the same intermediate stream; give one of them another id",
            )
        known = self._counts.setdefault(stage, task_count)
        if known != task_count:
            raise ProtocolError(
                f"{self.ssp}: task {task!r} says that its stage has {task_count} tasks; others said {known}",
                hint="a stage's task count can't change under a running app; drain it first",
            )
        names = self._names.setdefault(stage, set())
        if task in names:
            return False
        if len(names) == task_count:
            raise ProtocolError(
                f"{self.ssp}: {len(names) + 1} tasks of stage {stage!r} have reported "
                f"({', '.join(sorted(names | {task}))}), but it says to have {task_count}",
                hint="two versions of the stage are running; stop one of them",
            )
        names.add(task)
        return True

    def _reconcile(self) -> None:
        if not self._counts.keys() >= self._stages:
            return
        total = sum(self._counts.values())
        if len(self._ended) == total:
            self.end()
            return
        if sum(map(len, self._names.values())) < total:
            return
        running = [t for t in self._times if t not in self._ended]
        awake = [self._times[t] for t in running if t not in self._idle_tasks]
        self.idle = bool(running) and not awake
        # If all tasks that haven't ended are idle, there is none to wait for: take the highest watermark of all tasks,
        # including those that have ended.
        self.watermark = max(self.watermark, min(awake) if awake else max(self._times.values(), default=NEVER))

    # -- durable form

    def save(self) -> tuple[WatermarkCheckpoint, EndOfStreamCheckpoint]:
        """The bookkeeping as data."""
        stream, partition = str(self.ssp.stream), self.ssp.partition
        return (
            WatermarkCheckpoint(
                stream_id=stream,
                partition=partition,
                total_tasks=dict(self._counts),
                tasks_to_event_time=dict(self._times),
                idle_tasks=sorted(self._idle_tasks),
                timestamp_of_last_emission=self.seen if self.closed else self.watermark,
                idle=self.idle,
            ),
            EndOfStreamCheckpoint(
                stream_id=stream,
                partition=partition,
                total_tasks=dict(self._counts),
                tasks=sorted(self._ended),
                ended=self.closed,
            ),
        )

    def load(self, times: WatermarkCheckpoint, ends: EndOfStreamCheckpoint) -> None:
        """Restore what ``save`` returned."""
        self._counts = dict(times.total_tasks)
        self._times = dict(times.tasks_to_event_time)
        self._idle_tasks = set(times.idle_tasks)
        self._ended = set(ends.tasks)
        self._names = {}
        for task in self._times.keys() | self._ended:
            self._names.setdefault(TaskName.parse(task).stage, set()).add(task)
        self.closed = ends.ended
        self.seen = times.timestamp_of_last_emission
        self.watermark = FOREVER if self.closed else times.timestamp_of_last_emission
        # An idle upstream task reports it only once: if it were lost here, the task would hold back time forever.
        self.idle = times.idle


class InputTimes:
    """The event time of a task: the minimum over the input partitions that it is given."""

    def __init__(self, partitions: Iterable[PartitionTime]) -> None:
        self.partitions = {partition.ssp: partition for partition in partitions}
        self.watermark = NEVER

    def __getitem__(self, ssp: SSP) -> PartitionTime:
        return self.partitions[ssp]

    @property
    def ended(self) -> bool:
        """All inputs have ended."""
        return all(p.closed for p in self.partitions.values())

    @property
    def idle(self) -> bool:
        """All inputs that have not ended are idle."""
        running = [p for p in self.partitions.values() if not p.closed]
        return bool(running) and all(p.idle for p in running)

    def rise(self) -> int | None:
        """The task's watermark if it has risen since the last call, else None."""
        running = [p for p in self.partitions.values() if not p.closed]
        awake = [p.watermark for p in running if not p.idle]
        # All partitions that haven't ended are idle, so there is none to wait for: take the highest watermark.
        reached = (
            min(awake) if awake else max((self._seen(p) for p in self.partitions.values() if running), default=NEVER)
        )
        if reached <= self.watermark:
            return None
        self.watermark = reached
        return reached

    def _seen(self, partition: PartitionTime) -> int:
        # FOREVER marks an end, and is no event time.
        seen = partition.seen if partition.closed else partition.watermark
        return NEVER if seen == FOREVER else seen

    def save(self) -> TimesCheckpoint:
        """The bookkeeping as data, in the order of the partitions' names."""
        saved = [self.partitions[ssp].save() for ssp in sorted(self.partitions)]
        return TimesCheckpoint(watermark=self.watermark, watermarks=[w for w, _ in saved], ends=[e for _, e in saved])

    def load(self, saved: TimesCheckpoint) -> None:
        """Restore what ``save`` returned; partitions that are new since then start empty."""
        self.watermark = saved.watermark
        by_name = {(str(ssp.stream), ssp.partition): p for ssp, p in self.partitions.items()}
        for times, ends in zip(saved.watermarks, saved.ends, strict=True):
            partition = by_name.get((times.stream_id, times.partition))
            if partition is not None:
                partition.load(times, ends)

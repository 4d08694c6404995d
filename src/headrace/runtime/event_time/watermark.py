"""Watermarks, idleness and ends: pure bookkeeping, saved and restored with checkpoints.

A ``Progress`` says how far event time has come. One rule, ``combined``, combines several, and applies at every level:
the tasks that write a partition, the partitions of an input stream, the inputs of an operator, the operators that write
a stream. ``PartitionTime`` is the first level: a source partition is set directly (``advance``, ``end``), and a
partition of an intermediate stream receives the control messages of all upstream tasks. ``InputTimes`` is the second
level. The others belong to the chain of operators.

At every level, a watermark never decreases, and parts that have ended or are idle don't hold it back. A watermark W
means that no message older than W will arrive.

**Idleness starts at a source, and travels.** A source that sends nothing is idle. So is a task that hears only of such
sources and keeps nothing that a later watermark would emit. When the source wakes, the news reaches the tasks behind it
one after the other. The first to hear goes on, and its readers must not follow it before the others have heard: what
they will emit isn't late. So each progress says what it has ``heard`` of the sources behind it. An idle part isn't
waited for only while all parts have heard the same of the sources that they share. If they have not, the news is on its
way, so the wait is short.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from headrace.core.errors import ProtocolError
from headrace.core.ids import SSP, TaskName
from headrace.core.records import UNREADABLE

NEVER = -(2**63)
"""No watermark yet."""

FOREVER = 2**63 - 1
"""Later than any event time."""

TIMES_FORMAT = 4

AWAKE, OVER = None, FOREVER
"""What is known of a source instead of the watermark with which it is idle: it isn't, or it has ended."""

Heard = Mapping[str, int | None]
"""What is known of sources that can fall idle, by their ids."""

NOTHING_HEARD: Heard = {}


class Progress(NamedTuple):
    """The progress of event time in a partition, in a stream, or at an operator.

    What is idle sends nothing at present, and promises nothing. What has ended keeps the watermark that it had.
    ``heard`` is of the sources of which all tasks of the stage hear alike, through intermediate streams. ``own`` is of
    the source partitions that only this task of the stage reads.
    """

    watermark: int = NEVER
    idle: bool = False
    ended: bool = False
    heard: Heard = NOTHING_HEARD
    own: Heard = NOTHING_HEARD

    def woken(self) -> Progress:
        """The progress of the same part if it isn't idle, whatever it was; which source has woken isn't known."""
        heard, own = dict.fromkeys(self.heard, AWAKE), dict.fromkeys(self.own, AWAKE)
        return self if self.ended else Progress(self.watermark, False, False, heard, own)

    def after_the_end(self) -> Progress:
        """The progress of the same part once it has ended."""
        return Progress(self.watermark, False, True, dict.fromkeys(self.heard, OVER), dict.fromkeys(self.own, OVER))


UNHEARD = Progress()
"""Nothing is known yet: it is waited for."""


def combined(parts: Iterable[Progress], before: int = NEVER) -> Progress:
    """Return the combined progress of these parts; ``before`` is the former watermark.

    The watermark is the lowest of the parts that send. If none of them sends at present, there is none to wait for, and
    it is the highest of all, including those that have ended. Without parts, nothing more can arrive. An idle part that
    has heard something else of a source than another part counts as sending: it will hear, and then send.
    """
    parts = tuple(parts)
    heard, disputed = _agreed(parts)
    lowest, highest, idle, ended = FOREVER, before, True, True
    for part in parts:
        highest = max(highest, part.watermark)
        if not part.ended:
            ended = False
            if not part.idle or (disputed and not disputed.isdisjoint(part.heard)):
                idle = False
                lowest = min(lowest, part.watermark)
    own = _pooled(parts)
    if ended:
        return Progress(highest, False, True, heard, own)
    return Progress(highest if idle else max(before, lowest), idle, False, heard, own)


def _agreed(parts: Iterable[Progress]) -> tuple[Heard, set[str]]:
    """What all parts have heard, and the sources of which they have heard different things: these count as awake."""
    heard: Heard = NOTHING_HEARD
    disputed: set[str] = set()
    for part in parts:
        if part.heard is heard or part.heard == heard:  # almost always, and there may be thousands of parts
            continue
        disputed.update(source for source in heard.keys() & part.heard.keys() if heard[source] != part.heard[source])
        heard = {**heard, **part.heard} if heard else part.heard
    return ({**heard, **dict.fromkeys(disputed, AWAKE)} if disputed else heard), disputed


def _pooled(parts: Iterable[Progress]) -> Heard:
    """What is known of sources whose partitions the parts share out: a source is idle if all that goes on of it is."""
    own: Heard = NOTHING_HEARD
    for part in parts:
        if part.own is own or part.own == own:
            continue
        both = ((source, own.get(source, OVER), stood) for source, stood in part.own.items())
        own = {**own, **{source: _of_both(one, other) for source, one, other in both}}
    return own


def _of_both(one: int | None, other: int | None) -> int | None:
    if one is AWAKE or other is AWAKE:
        return AWAKE
    return min(one, other) if OVER in (one, other) else max(one, other)


NOTHING = combined(())
"""The progress of an empty set of parts: it has ended."""


class PartitionCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The durable form of one partition's bookkeeping.

    ``total_tasks`` and ``tasks`` are of the stages that write it: how many tasks each has, and what each task has said.
    ``shards`` are those of a slot.
    """

    stream_id: str
    partition: int
    progress: Progress
    total_tasks: dict[str, int]
    tasks: dict[str, Progress]
    shards: dict[str, Progress] = {}


class TimesCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The durable form of a task's whole bookkeeping.

    ``watermark`` is the task's own. ``streams`` has those of its input streams, and ``operators`` those that operators
    with state have received. ``ended_operators`` have emitted what was open at their end. ``ended_streams`` are the
    intermediate streams whose end this task has written. All keys are the stored names.
    """

    format: int = TIMES_FORMAT
    watermark: int
    partitions: list[PartitionCheckpoint]
    streams: dict[str, int] = {}
    operators: dict[str, int] = {}
    ended_operators: list[str] = []
    ended_streams: list[str] = []


class _Format(msgspec.Struct, frozen=True):
    format: int = 1


def decode_times(data: bytes | msgspec.Raw) -> TimesCheckpoint:
    """The bookkeeping of a commit record; raises ``ProtocolError`` if this version of Headrace can't read it."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found == TIMES_FORMAT:
            return _DECODER.decode(data)
    except UNREADABLE as error:
        raise ProtocolError(f"the watermarks in a commit record can't be read: {error}") from error
    raise ProtocolError(
        f"the watermarks in a commit record have format {found}; this version of Headrace reads {TIMES_FORMAT}",
        hint="run the version of Headrace that wrote the record",
    )


_DECODER = msgspec.json.Decoder(TimesCheckpoint)


class PartitionTime:
    """Event time and end of one input partition. ``writers``: the stages that write it, each with its number of tasks.

    A source has no writers. If it is a slot, its time is that of its shards. A stage may get more tasks while its
    readers run: the number that its messages state counts if it is higher than the known one. Messages from before that
    state the lower one.
    """

    __slots__ = ("_counts", "_holding", "_saved_shards", "_shards", "_source", "_tasks", "progress", "ssp")

    def __init__(self, ssp: SSP, writers: Mapping[str, int] | None = None, source: str | None = None) -> None:
        """``source`` is the id of a source that can fall idle."""
        self.ssp = ssp
        self._source = source
        self.progress = UNHEARD
        self._counts = dict(writers or {})
        self._tasks: dict[str, dict[str, Progress]] = {stage: {} for stage in self._counts}
        """What each task has said, by stage."""
        self._shards: dict[str, Progress] | None = None
        self._saved_shards: Mapping[str, Progress] = {}
        """Those of the last commit, until it is known again which shards there are."""
        self._holding: frozenset[str] = frozenset()

    @property
    def told(self) -> Progress:
        """The progress that operators get: that of a source says whether the source is idle."""
        now = self.progress
        if self._source is None:
            return now
        stood = OVER if now.ended else now.watermark if now.idle else AWAKE
        return now._replace(own={self._source: stood})

    # -- a source sets it directly

    def advance(self, timestamp: int, shard: str = "") -> None:
        """Everything older than ``timestamp`` has arrived; a lower value than before changes nothing."""
        before = self.progress if self._shards is None else self._shards[shard]
        if not before.ended and (before.idle or timestamp > before.watermark):
            self._set(before.woken()._replace(watermark=max(before.watermark, timestamp)), shard)

    def wake(self, shard: str = "") -> None:
        """Messages have arrived: it isn't idle."""
        self.advance(NEVER, shard)

    def fall_idle(self, shard: str = "") -> None:
        """It sends nothing at present."""
        before = self.progress if self._shards is None else self._shards[shard]
        if not before.ended:
            self._set(before._replace(idle=True), shard)

    def _set(self, progress: Progress, shard: str) -> None:
        if self._shards is None:
            self.progress = progress
        else:
            self._shards[shard] = progress
            self.progress = combined(self._shards.values(), self.progress.watermark)

    def has_shards(self, shards: Collection[str], holding: Collection[str] = ()) -> None:
        """It is a slot, and has these shards now. A new one begins at the slot's watermark; without any it is idle.

        Shards that are ``holding`` wait for the progress of others, and never fall idle.
        """
        known, new = self._shards or self._saved_shards, Progress(self.progress.watermark)
        self._saved_shards = {}
        self._holding = frozenset(holding)
        self._shards = {shard: known.get(shard, new) for shard in shards}
        for shard in self._holding & self._shards.keys():
            self._shards[shard] = self._shards[shard]._replace(idle=False)
        if self._shards:
            self.progress = combined(self._shards.values(), self.progress.watermark)
        else:
            self.progress = self.progress._replace(idle=True)

    @property
    def holds(self) -> bool:
        """Whether it has shards that can't be read before others have made progress."""
        return bool(self._holding)

    @property
    def sending(self) -> list[str]:
        """What may fall idle: the shards of a slot that are being read; of other partitions, the whole of them."""
        if self._shards is None:
            return [] if self.progress.idle or self.progress.ended else [""]
        return [shard for shard, time in self._shards.items() if not time.idle and shard not in self._holding]

    def end(self) -> None:
        """The partition has ended."""
        self.progress = self.progress.after_the_end()

    # -- upstream tasks report it in the stream

    def on_watermark(
        self,
        task: str,
        task_count: int,
        timestamp: int,
        *,
        idle: bool = False,
        heard: Heard = NOTHING_HEARD,
        own: Heard = NOTHING_HEARD,
    ) -> None:
        """Process an upstream task's watermark."""
        said = self._said(task, task_count)
        before = said.get(task)
        if before is None:
            said[task] = Progress(timestamp, idle, False, self._same(heard), own)
        elif before.ended:
            return
        else:
            said[task] = now = Progress(max(before.watermark, timestamp), idle, False, self._same(heard), own)
            # Most watermarks come from tasks that don't hold back the minimum: then it stays as it is.
            same = now[1:] == before[1:]
            if same and not self.progress.idle and before.watermark > self.progress.watermark:
                return
        self._reconcile()

    def _same(self, heard: Heard) -> Heard:
        """The same, in the memory of the partition's: most tasks have heard the same, and there may be thousands."""
        return self.progress.heard if heard == self.progress.heard else heard

    def on_restart(self, task: str, task_count: int) -> None:
        """Process an upstream task's restart: it will say whether it is idle now."""
        said = self._said(task, task_count)
        if task in said:
            said[task] = said[task].woken()
            self._reconcile()

    def on_end_of_stream(self, task: str, task_count: int) -> None:
        """Process an upstream task's end-of-stream; a repeated one changes nothing."""
        said = self._said(task, task_count)
        said[task] = said.get(task, UNHEARD).after_the_end()
        self._reconcile()

    def missing(self) -> str:
        """Which tasks have not reported, as text for status pages: the usual reason why a watermark doesn't rise."""
        parts = [f"any task of stage {stage}" for stage, said in sorted(self._tasks.items()) if not said]
        for stage, said in sorted(self._tasks.items()):
            count = self._counts[stage]
            if 0 < len(said) < count:
                parts.append(f"{count - len(said)} of {count} tasks of stage {stage}")
        return ", ".join(parts)

    def _said(self, task: str, task_count: int) -> dict[str, Progress]:
        """What the tasks of this task's stage have said."""
        stage = TaskName.parse(task).stage
        said = self._tasks.get(stage)
        if said is None:
            raise ProtocolError(
                f"{self.ssp}: control message of task {task!r}, but by this app's plan the stream is written by "
                f"{', '.join(sorted(self._counts)) or 'no stage'}",
                hint="another version of the app writes it: deploy the stage that reads it again, with the present "
                "version of the app. If another app writes it, give the intermediate stream of one of them another id",
            )
        if task_count > self._counts[stage]:
            self._counts[stage] = task_count  # the stage has grown; the new tasks are unheard
            self._reconcile()
        count = self._counts[stage]
        if task not in said and len(said) == count:
            raise ProtocolError(
                f"{self.ssp}: {len(said) + 1} tasks of stage {stage!r} have reported "
                f"({', '.join(sorted([*said, task]))}), but it says to have {count}",
                hint="two versions of the stage are running; stop one of them",
            )
        return said

    def _reconcile(self) -> None:
        stages = [self._of_stage(said.values(), self._counts[stage]) for stage, said in self._tasks.items()]
        self.progress = combined(stages, self.progress.watermark)

    @staticmethod
    def _of_stage(said: Collection[Progress], count: int) -> Progress:
        """The progress of a whole stage: to its readers, what its tasks share out is what they have all heard."""
        whole = combined(said if len(said) == count else (*said, UNHEARD))
        if not whole.own:
            return whole
        heard, disputed = _agreed((whole, Progress(heard=whole.own)))
        return whole._replace(heard=heard, own=NOTHING_HEARD, idle=whole.idle and not disputed)

    # -- durable form

    def save(self, stream_id: str) -> PartitionCheckpoint:
        """The bookkeeping as data, under this name of the stream."""
        return PartitionCheckpoint(
            stream_id=stream_id,
            partition=self.ssp.partition,
            progress=self.progress,
            total_tasks=dict(self._counts),
            tasks={task: progress for said in self._tasks.values() for task, progress in said.items()},
            shards=dict(self._saved_shards if self._shards is None else self._shards),
        )

    def load(self, saved: PartitionCheckpoint) -> None:
        """Restore what ``save`` returned.

        The plan may have changed since: it says which stages write the partition now, and how many tasks each has.
        The watermark waits for tasks that are new since then, and forgets removed ones. A source that was idle may have
        messages by now, so it isn't idle until it has been silent for its timeout again.
        """
        if not self._counts:
            self.progress = saved.progress.woken()
            self._saved_shards = {shard: progress.woken() for shard, progress in saved.shards.items()}
            return
        self.progress = saved.progress
        for task, progress in saved.tasks.items():
            name = TaskName.parse(task)
            if name.number < self._counts.get(name.stage, 0):
                self._tasks[name.stage][task] = progress
        if saved.total_tasks != self._counts:
            self._reconcile()


class InputTimes:
    """The event time of a task's inputs: a stream's is that of the partitions that the task reads."""

    def __init__(self, partitions: Iterable[tuple[str, PartitionTime]]) -> None:
        """Each partition comes with the id of its stream."""
        self.partitions: dict[SSP, PartitionTime] = {}
        self._streams: dict[str, list[PartitionTime]] = {}
        for stream, partition in partitions:
            self.partitions[partition.ssp] = partition
            self._streams.setdefault(stream, []).append(partition)
        self._told: list[Progress] | None = None

    def __getitem__(self, ssp: SSP) -> PartitionTime:
        return self.partitions[ssp]

    def wake(self, ssp: SSP, shard: str = "") -> None:
        """Messages have arrived. If the partition was idle, that is news, even if it is idle again by the next turn.

        An operator may keep something since, and isn't idle then.
        """
        partition = self.partitions[ssp]
        if partition.progress.idle:
            self._told = None
        partition.wake(shard)

    @property
    def ended(self) -> bool:
        """All inputs have ended."""
        return all(partition.progress.ended for partition in self.partitions.values())

    def news(self) -> dict[str, Progress] | None:
        """The progress of each stream, by id; None if nothing has changed since the last call."""
        now = [partition.progress for partition in self.partitions.values()]
        if now == self._told:
            return None
        self._told = now
        return self.streams()

    def streams(self) -> dict[str, Progress]:
        """The progress of each stream, by id."""
        return {
            stream: partitions[0].told if len(partitions) == 1 else combined([p.told for p in partitions])
            for stream, partitions in self._streams.items()
        }

    def save(self, name: Callable[[SSP], str]) -> list[PartitionCheckpoint]:
        """The bookkeeping as data, in order; ``name`` gives the names under which the streams are kept."""
        return [self.partitions[ssp].save(name(ssp)) for ssp in sorted(self.partitions)]

    def load(self, saved: Iterable[PartitionCheckpoint], name: Callable[[SSP], str]) -> None:
        """Restore what ``save`` returned; partitions that are new since then start empty, old ones are forgotten."""
        by_name = {(name(ssp), ssp.partition): partition for ssp, partition in self.partitions.items()}
        for one in saved:
            partition = by_name.get((one.stream_id, one.partition))
            if partition is not None:
                partition.load(one)

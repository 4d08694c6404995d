"""Compute how the tasks of a new timeline begin, from a savepoint, before the app starts. Pure.

State and positions in sources are those of the savepoint. Facts that readers outside the app know continue from the
present: the version is as high as any that the app has committed, and the seqs of outputs continue after the last
commit. Intermediate streams are new and empty, so every task begins with a fresh view of its upstream tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.checkpoint.founding import Donor, Founding
from headrace.checkpoint.record import CommitRecord, OutputSeq
from headrace.core.frame import END_VERSION
from headrace.core.ids import Offset, TaskName
from headrace.plan.inventory import Inventory, StageRecord
from headrace.runtime.event_time.watermark import (
    PartitionCheckpoint,
    Progress,
    TimesCheckpoint,
    combined,
    decode_times,
)
from headrace.savepoints.rescaling import Commits


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled:
    """A stage whose number of working tasks changes.

    The first ``worked`` tasks had partitions at the savepoint. ``streams`` are the old names of the streams whose
    messages are redistributed.
    """

    worked: int
    streams: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The beginning of a new timeline.

    ``kept`` are the commits in the savepoint, and ``folder`` says where each task has its state. ``latest`` are the
    last commits of the timeline before: empty for an app that never ran. ``inventory`` is the new one. ``streams`` are
    the new names of intermediate streams by their old ones, both with their system. ``former_streams`` are all
    intermediate streams that any timeline has had. ``silent``: outputs aren't written until each input has been read to
    its former position.
    """

    version: int
    kept: Commits
    latest: Commits
    inventory: Inventory
    streams: Mapping[str, str]
    former_streams: frozenset[str]
    folder: Mapping[TaskName, Path]
    rescaled: Mapping[str, Rescaled] = field(default_factory=dict)
    """By name the stages whose number of working tasks changes."""
    silent: bool = False


def version_of(savepoint_version: int, latest: Iterable[CommitRecord], before: int = 0) -> int:
    """The version with which a timeline begins; ``before`` is that of the timeline before.

    It is no lower than any that a task of the app has committed: targets and readers ignore lower ones as old.
    """
    return max([savepoint_version, before, *(record.version for record in latest)])


def foundings(restored: Restored) -> dict[TaskName, Founding]:
    """Return how each task of the new timeline begins."""
    return {
        TaskName(name, number): _founding(restored, record, TaskName(name, number))
        for name, record in restored.inventory.stages.items()
        for number in range(record.tasks)
    }


def _founding(restored: Restored, record: StageRecord, task: TaskName) -> Founding:
    dealt = record.stage in restored.rescaled
    donors = _donors(restored, record, task)
    first = _first_record(restored, task, donors)
    return Founding(
        record=first,
        donors=tuple(Donor(donor.number, restored.folder[donor]) for donor in donors),
        shares={part.kept_as: part.dealing.by for part in record.parts.values()} if dealt else None,
        copied=frozenset(part.kept_as for part in record.parts.values() if dealt and part.dealing.copied),
        tasks=record.active if dealt else 1,
        silent_until=_until(restored, task) if restored.silent else {},
    )


def _donors(restored: Restored, record: StageRecord, task: TaskName) -> list[TaskName]:
    """Return the tasks whose state this task takes over, completely or in part."""
    if record.stage not in restored.rescaled:
        return [task] if task in restored.kept else []
    if task.number >= record.active:  # it reads nothing, and ends when its outbox is empty
        return [task] if task in restored.kept else []
    return sorted(name for name in restored.kept if name.stage == record.stage)


def _until(restored: Restored, task: TaskName) -> dict[tuple[str, int], Offset | None]:
    """Return the former positions in the task's sources; None for sources that had ended."""
    latest, kept = restored.latest.get(task), restored.kept.get(task)
    records = [record for record in (kept, latest) if record is not None]
    until = {
        (entry.stream, entry.partition): entry.offset
        for record in records
        for entry in record.sources
        if entry.offset is not None
    }
    times = decode_times(latest.bookkeeping).partitions if latest is not None else []
    ended = {(one.stream_id, one.partition) for one in times if one.progress.ended}
    return {place: None if place in ended else offset for place, offset in until.items()}


# -- the first record ---------------------------------------------------------------------------------------


def _first_record(restored: Restored, task: TaskName, donors: Sequence[TaskName]) -> CommitRecord:
    latest = restored.latest.get(task)
    kept = [restored.kept[donor] for donor in donors]
    whole = donors == [task] and task.stage not in restored.rescaled
    alone = kept[0] if whole else None
    ended = alone is not None and alone.ended
    return CommitRecord(
        generation=0,
        version=restored.version,
        next_version=END_VERSION if ended else restored.version + 1,
        outputs=() if latest is None else _outputs(restored, latest),
        sources=kept[0].sources if kept else (),
        parents_version=restored.version,
        end_of_stream_sent=alone is not None and alone.end_of_stream_sent,
        bookkeeping=msgspec.Raw(msgspec.json.encode(_times(restored, task, donors))),
    )


def _outputs(restored: Restored, latest: CommitRecord) -> tuple[OutputSeq, ...]:
    """The seqs in outputs. Intermediate streams are new; those of the timeline before are left alone."""
    return tuple(entry for entry in latest.outputs if entry.stream not in restored.former_streams)


# -- event time ---------------------------------------------------------------------------------------------


def _times(restored: Restored, task: TaskName, donors: Sequence[TaskName]) -> TimesCheckpoint:
    """Return the event time: the task's own, or the progress on which all donors of its state agree.

    A donor without partitions has made no progress since, and its rows had moved to the others. So it doesn't hold them
    back, because they would emit results again.
    """
    dealt = restored.rescaled.get(task.stage)
    if dealt is not None:
        donors = [donor for donor in donors if donor.number < dealt.worked] or donors
    all_times = [decode_times(restored.kept[donor].bookkeeping) for donor in donors]
    if not all_times:
        return TimesCheckpoint(watermark=Progress().watermark, partitions=[])
    partitions = all_times[0].partitions if dealt is None else list(_merged(all_times, dealt.streams, task.number))
    return TimesCheckpoint(
        watermark=min(times.watermark for times in all_times),
        partitions=[_renamed(restored, partition) for partition in partitions],
        streams={restored.streams.get(n, n): w for n, w in _lowest([times.streams for times in all_times]).items()},
        operators=_lowest([times.operators for times in all_times]),
        ended_operators=_common([times.ended_operators for times in all_times]),
        ended_streams=[restored.streams.get(name, name) for name in _ended_streams(restored, task, all_times)],
    )


def _ended_streams(restored: Restored, task: TaskName, all_times: Sequence[TimesCheckpoint]) -> list[str]:
    """Return the intermediate streams whose readers know that the task has ended them.

    For a rescaled stage, they know only what holds for all of its tasks (``_renamed``). So a task that had ended
    because it had no partition announces this again, because they would wait for it forever.
    """
    if task.stage in restored.rescaled:
        all_times = [decode_times(kept.bookkeeping) for name, kept in restored.kept.items() if name.stage == task.stage]
    return _common([times.ended_streams for times in all_times])


def _merged(all_times: Sequence[TimesCheckpoint], dealt: frozenset[str], number: int) -> Iterator[PartitionCheckpoint]:
    """Return the announcements of upstream tasks to all partitions, as those of partition ``number`` of each stream."""
    by_stream: dict[tuple[str, int], list[PartitionCheckpoint]] = {}
    for times in all_times:
        for partition in times.partitions:
            now = number if partition.stream_id in dealt else partition.partition
            by_stream.setdefault((partition.stream_id, now), []).append(partition)
    for (stream, now), told in by_stream.items():
        tasks = _common([list(one.tasks) for one in told])
        yield PartitionCheckpoint(
            stream_id=stream,
            partition=now,
            progress=_agreed([one.progress for one in told]),
            total_tasks={stage: max(one.total_tasks.get(stage, 0) for one in told) for stage in told[0].total_tasks},
            tasks={task: _agreed([one.tasks[task] for one in told]) for task in tasks},
        )


def _renamed(restored: Restored, partition: PartitionCheckpoint) -> PartitionCheckpoint:
    """Return the progress of a partition under its new name. A rescaled stage that writes it counts as one.

    Each of its tasks may have got rows of each former task, so none promises more than all of them did.
    """
    tasks, totals = dict(partition.tasks), dict(partition.total_tasks)
    for stage in totals.keys() & restored.rescaled.keys():
        said = [progress for task, progress in partition.tasks.items() if TaskName.parse(task).stage == stage]
        for task in [task for task in tasks if TaskName.parse(task).stage == stage]:
            del tasks[task]
        totals[stage] = restored.inventory.stages[stage].tasks
        if len(said) == partition.total_tasks[stage]:
            tasks |= {str(TaskName(stage, n)): _agreed(said) for n in range(totals[stage])}
    for stage in totals.keys() & restored.inventory.stages.keys():  # some may have been added after the savepoint
        totals[stage] = max(totals[stage], restored.inventory.stages[stage].tasks)
    return msgspec.structs.replace(
        partition,
        stream_id=restored.streams.get(partition.stream_id, partition.stream_id),
        total_tasks=totals,
        tasks=tasks,
    )


def _agreed(parts: Sequence[Progress]) -> Progress:
    """Return the progress that holds for all of them."""
    whole = combined(parts)
    return whole._replace(
        watermark=min(part.watermark for part in parts), idle=whole.idle and all(part.idle for part in parts)
    )


def _lowest(watermarks: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = _common([list(one) for one in watermarks])
    return {name: min(one[name] for one in watermarks) for name in names}


def _common(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return the common elements of all of them, in the order of the first."""
    return [one for one in lists[0] if all(one in other for other in lists[1:])]

"""How the tasks of a new timeline begin, from a savepoint, also with other partition counts. Pure.

At a savepoint no message is in flight, so the messages of an intermediate stream, and the state of the stage that reads
it, can be assigned to partitions again. That is exact only if the key alone determines the task of a row. All other
cases are refused with the reason.

State and positions in sources are those of the savepoint. Facts that readers outside the app know continue from the
present: the version is as high as any that the app has committed, and the seqs of outputs continue after the last
commit. Intermediate streams are new and empty, so every task begins with a fresh view of its upstream tasks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import msgspec

from headrace.core.errors import DataError, UsageError
from headrace.core.files import UNREADABLE, format_of
from headrace.core.frame import END_VERSION
from headrace.core.ids import MAX_PARTITIONS, Offset, TaskName
from headrace.plan.inventory import Inventory, Part, StageRecord
from headrace.plan.stages import producer_ids
from headrace.protocol.record import CommitRecord, Donor, Founding, OutputSeq
from headrace.task.event_time import PartitionCheckpoint, Progress, TimesCheckpoint, combined, decode_times

Commits = Mapping[TaskName, CommitRecord]
NO_COMMITS: Commits = MappingProxyType({})

TO_ALL = "to all"
"""The key of a broadcast stream in the inventory."""
_WAY = re.compile(r" over [0-9]+ partitions$")


def rescaled(app: str, inventory: Inventory, counts: Mapping[str, int], kept: Commits = NO_COMMITS) -> Inventory:
    """Return the inventory with new partition counts for intermediate streams, by their ids or their readers' ids.

    Raises ``UsageError`` if a stream can't be rescaled. Stages never have fewer tasks: readers wait for all of them.
    """
    streams = _streams(inventory, counts)
    for id_, count in streams.items():
        _check(inventory, id_, count, streams, kept)
    tasks = {_reader(inventory, id_).stage: count for id_, count in streams.items()}
    known = {TaskName(name, n): p for name, r in inventory.stages.items() for n, p in enumerate(r.producers)}
    names = [*known, *(TaskName(stage, n) for stage, count in tasks.items() for n in range(count))]
    producers = producer_ids(app, dict.fromkeys(names), known)
    stages = {name: _record(inventory, record, streams, tasks, producers) for name, record in inventory.stages.items()}
    return Inventory(stages, inventory.gone)


def with_tasks_of(inventory: Inventory, before: Inventory) -> Inventory:
    """Let no stage have fewer tasks than ``before``: readers of outputs would wait for a removed task forever."""
    more = {
        name: before.stages[name].producers[record.tasks :]
        for name, record in inventory.stages.items()
        if name in before.stages and before.stages[name].tasks > record.tasks
    }
    stages = {}
    for name, record in inventory.stages.items():
        parts = {id_: _with_writers(part, inventory, more) for id_, part in record.parts.items()}
        producers = record.producers + more.get(name, ())
        stages[name] = msgspec.structs.replace(record, producers=producers, parts=parts)
    return Inventory(stages, inventory.gone)


def _with_writers(part: Part, inventory: Inventory, more: Mapping[str, tuple[int, ...]]) -> Part:
    writers = {
        name: max(number, inventory.stages[name].tasks + len(more[name])) if name in more else number
        for name, number in part.writers.items()
    }
    return msgspec.structs.replace(part, writers=writers)


def _record(
    inventory: Inventory,
    record: StageRecord,
    streams: Mapping[str, int],
    tasks: Mapping[str, int],
    producers: Mapping[TaskName, int],
) -> StageRecord:
    active = tasks.get(record.stage, record.active)
    count = max(active, record.tasks)
    parts = {}
    for id_, part in record.parts.items():
        if part.kind == "stream":
            fixed = dict(part.fixed) | ({"partitions": str(streams[id_])} if id_ in streams else {})
            writers = {
                name: max(number, tasks.get(name, 0), inventory.stages[name].tasks)
                for name, number in part.writers.items()
            }
            parts[id_] = msgspec.structs.replace(part, fixed=fixed, writers=writers)
        elif "partitioning" in part.fixed and record.stage in tasks:
            ways = part.fixed["partitioning"].split("; ")
            there = f" over {active} partitions"
            ways = [way if way.startswith(f"{TO_ALL} over ") else _WAY.sub(there, way) for way in ways]
            fixed = dict(part.fixed) | {"partitioning": "; ".join(sorted(ways))}
            parts[id_] = msgspec.structs.replace(part, fixed=fixed)
        else:
            parts[id_] = part
    return msgspec.structs.replace(
        record, producers=tuple(producers[TaskName(record.stage, n)] for n in range(count)), active=active, parts=parts
    )


def _streams(inventory: Inventory, counts: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for id_, count in counts.items():
        for stream in _meant(inventory, id_):
            if found.setdefault(stream, count) != count:
                what = f"intermediate stream {stream!r} is given both {found[stream]} and {count} partitions"
                raise UsageError(what, hint="give one count for each stream")
    return found


def _meant(inventory: Inventory, id_: str) -> list[str]:
    if inventory.stream(id_) is not None:
        return [id_]
    mine = [(record, part) for record, part in inventory.parts() if id_ in (part.id, part.owner)]
    owned = [record for record, part in mine if part.kind in ("step", "table")]
    if owned:
        streams = [part.id for part in owned[0].streams(reads=True).values() if part.fixed.get("key") != TO_ALL]
        if streams:
            return sorted(streams)
        raise UsageError(
            f"{id_!r} can't have another number of partitions: its stage {owned[0].stage!r} reads no intermediate "
            "stream, but the inputs directly",
            hint="put a partition_by before it",
        )
    known = sorted(part.id for _, part in inventory.parts() if part.kind == "stream" and part.reads)
    there = f"the app has {', '.join(known)}" if known else "the app has no intermediate stream"
    if mine:
        what = f"{id_!r} is an {mine[0][1].kind} of the app, whose partition count the app can't change"
        raise UsageError(what, hint=f"only intermediate streams can be rescaled: {there}")
    raise UsageError(f"the app has no intermediate stream {id_!r}", hint=there)


def _reader(inventory: Inventory, id_: str) -> StageRecord:
    for record, part in inventory.parts():
        if part.id == id_ and part.kind == "stream" and part.reads:
            return record
    raise UsageError(
        f"intermediate stream {id_!r} can't have another number of partitions: no stage reads it", hint="leave it out"
    )


def _check(inventory: Inventory, id_: str, count: int, streams: Mapping[str, int], kept: Commits) -> None:
    if type(count) is not int or not 1 <= count <= MAX_PARTITIONS:
        raise UsageError(f"{id_!r} can't have {count!r} partitions", hint=f"give a number from 1 to {MAX_PARTITIONS}")
    what = f"{id_!r} can't have {count} partitions"
    record = _reader(inventory, id_)
    if (key := record.parts[id_].fixed.get("key")) in (None, TO_ALL):
        why = "it is a broadcast stream, of which every task reads all"
        if key is None:
            why = "its messages have no key to divide them by"
        raise UsageError(f"{what}: {why}", hint="leave it out")
    reasons = [_why_not_read(record, count, streams), *map(_why_not_kept, record.parts.values())]
    workers = {task: kept[task] for task in sorted(kept) if task.stage == record.stage and task.number < record.active}
    reasons.append(_why_not_at_that_time(workers))
    for reason in reasons:
        if reason is not None:
            raise UsageError(f"{what}: stage {record.stage!r}, which reads it, {reason[0]}", hint=reason[1])


def _why_not_read(record: StageRecord, count: int, streams: Mapping[str, int]) -> tuple[str, str] | None:
    for part in record.parts.values():
        if part.kind == "input":
            return (
                f"also reads input {part.id!r}, whose partitions give the number of its tasks",
                f"put a partition_by between {part.id!r} and the steps where they meet",
            )
        if part.kind == "side input" and not _all_copied(record, part):
            return (
                f"keeps a table current by side input {part.id!r}, as that is partitioned",
                "fill the table by send_to instead of side_inputs=, with a partition_by before it",
            )
        others = part.kind == "stream" and part.reads and part.fixed.get("key") != TO_ALL
        if others and streams.get(part.id) != count:
            return (
                f"also reads intermediate stream {part.id!r}, and messages of the same key must meet in one task",
                f"give both the same count: --partitions {part.id}={count}",
            )
    return None


def _all_copied(record: StageRecord, side_input: Part) -> bool:
    tables = [part for part in record.parts.values() if part.kind == "table"]
    fed = side_input.fixed.get("tables", "").split(", ")
    return all(table.dealing.copied for table in tables if table.id in fed)


def _why_not_at_that_time(workers: Commits) -> tuple[str, str] | None:
    """Return why the tasks' state at the savepoint can't be divided, if so.

    Each step of a new task has one watermark. Below a donor's, results would be emitted again; above it, some would be
    lost. Watermarks differ only if inputs were idle, because each task learns in its own order how far the others are.
    """
    over = [task for task, record in workers.items() if record.ended]
    if over:
        return f"had ended in task {over[0]}", "keep the count: the state of an ended task can't move to other tasks"
    times: dict[str, tuple[TaskName, int]] = {}
    for task, record in workers.items():
        for step, watermark in decode_times(record.bookkeeping).operators.items():
            first, known = times.setdefault(step, (task, watermark))
            if watermark != known:
                return (
                    f"had reached different event times in its step {step!r} in {first} and {task}, which "
                    "happens for moments while an input is idle",
                    "restore it with the present count, let the app continue, and take another savepoint",
                )
    return None


def _why_not_kept(part: Part) -> tuple[str, str] | None:
    if not part.dealing.why_not:
        return None
    return (
        f"keeps state of {part.kind} {part.owner!r} that can't be divided: {part.dealing.why_not}",
        f"keep the count, or start without that state: run the app with --drop-state {part.owner} first",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled:
    """A stage of which ``worked`` tasks had partitions, and the former names of the streams that are dealt again."""

    worked: int
    streams: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The beginning of a new timeline.

    ``kept`` are the commits in the savepoint, ``latest`` the last ones of the timeline before. ``streams`` are the new
    names of intermediate streams, ``former_streams`` those of any timeline. ``silent``: outputs aren't written until
    each input has been read to its former position.
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
    """The version with which a timeline begins, no lower than any committed: targets and readers ignore lower ones."""
    return max([savepoint_version, before, *(record.version for record in latest)])


def foundings(restored: Restored) -> dict[TaskName, Founding]:
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
    # A task without a partition reads nothing, and ends when its outbox is empty.
    if record.stage not in restored.rescaled or task.number >= record.active:
        return [task] if task in restored.kept else []
    return sorted(name for name in restored.kept if name.stage == record.stage)


def _until(restored: Restored, task: TaskName) -> dict[tuple[str, int], Offset | None]:
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


def _first_record(restored: Restored, task: TaskName, donors: Sequence[TaskName]) -> CommitRecord:
    latest = restored.latest.get(task)
    kept = [restored.kept[donor] for donor in donors]
    alone = kept[0] if donors == [task] and task.stage not in restored.rescaled else None
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
    # Intermediate streams are new; those of the timeline before are left alone.
    return tuple(entry for entry in latest.outputs if entry.stream not in restored.former_streams)


def _times(restored: Restored, task: TaskName, donors: Sequence[TaskName]) -> TimesCheckpoint:
    """Return the task's own event time, or that on which all donors with partitions agree: the others hold no rows."""
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
    """Return the intermediate streams whose readers know that the task, or all of a rescaled stage, has ended them."""
    if task.stage in restored.rescaled:
        all_times = [decode_times(kept.bookkeeping) for name, kept in restored.kept.items() if name.stage == task.stage]
    return _common([times.ended_streams for times in all_times])


def _merged(all_times: Sequence[TimesCheckpoint], dealt: frozenset[str], number: int) -> Iterator[PartitionCheckpoint]:
    """Return what upstream tasks have announced to any partition, as announced to partition ``number``."""
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
    """Return the progress of a partition under its new name. Of a rescaled stage, it is what all tasks agree on."""
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
    stream = restored.streams.get(partition.stream_id, partition.stream_id)
    return msgspec.structs.replace(partition, stream_id=stream, total_tasks=totals, tasks=tasks)


def _agreed(parts: Sequence[Progress]) -> Progress:
    whole = combined(parts)
    return whole._replace(
        watermark=min(part.watermark for part in parts), idle=whole.idle and all(part.idle for part in parts)
    )


def _lowest(watermarks: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = _common([list(one) for one in watermarks])
    return {name: min(one[name] for one in watermarks) for name in names}


def _common(lists: Sequence[Sequence[str]]) -> list[str]:
    return [one for one in lists[0] if all(one in other for other in lists[1:])]


FORMAT = 1
FILE = "savepoint.json"


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a savepoint: its size in bytes, and the SHA-256 of its contents."""

    size: int
    sha256: str


class TaskCopy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A task in a savepoint. ``files`` are by their paths in the task's folder."""

    task: str
    ended: bool = False
    files: Mapping[str, FileSum]

    @property
    def name(self) -> TaskName:
        return TaskName.parse(self.task)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``savepoint.json``: every task had committed exactly ``version``. ``written``: it was made of rows."""

    format: int = FORMAT
    app: str
    name: str
    version: int
    created_ms: int
    timeline: int = 1
    grouping: str = "partition"
    system: str
    written: bool = False
    stages: tuple[StageRecord, ...]
    gone: tuple[str, ...] = ()
    tasks: tuple[TaskCopy, ...]

    @property
    def inventory(self) -> Inventory:
        return Inventory({record.stage: record for record in self.stages}, frozenset(self.gone))

    @property
    def size(self) -> int:
        return sum(task.size for task in self.tasks)

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def decode(cls, data: bytes, where: str) -> Manifest:
        try:
            found = format_of(data)
            if found != FORMAT:
                what = f"{where} is a savepoint of format {found}; this version of Headrace reads {FORMAT}"
                raise DataError(what, hint="use the version of Headrace that took it, or a newer one")
            return _DECODER.decode(data)
        except UNREADABLE as error:
            what = f"{where} isn't the manifest of a savepoint, or is damaged: {error}: {data[:100]!r}"
            raise DataError(what, hint="export the savepoint again from its home") from error


_DECODER = msgspec.json.Decoder(Manifest)


def new_streams(app: str, inventory: Inventory, timeline: int, taken: Collection[str] = ()) -> dict[str, str]:
    used = {*taken, *inventory.gone, *(part.kept_as for _, part in inventory.parts() if part.kind == "stream")}
    names: dict[str, str] = {}
    for _, part in inventory.parts():
        if part.kind == "stream" and part.kept_as not in names:
            name = f"{app}-{part.id}.{timeline}"
            while name in used:
                name += f".{timeline}"
            names[part.kept_as] = name
            used.add(name)
    return names


def renamed(inventory: Inventory, streams: Mapping[str, str], gone: Collection[str] = ()) -> Inventory:
    stages = {}
    for name, record in inventory.stages.items():
        moved = {id_: part for id_, part in record.parts.items() if part.kind == "stream"}
        parts = {id_: msgspec.structs.replace(part, kept_as=streams[part.kept_as]) for id_, part in moved.items()}
        former = tuple(sorted(streams[one] for one in record.former if one in streams))
        stages[name] = msgspec.structs.replace(record, parts={**record.parts, **parts}, former=former)
    return Inventory(stages, frozenset({*inventory.gone, *streams, *gone}))


def for_app(app: str, inventory: Inventory) -> Inventory:
    """Return the inventory for an app of another name, whose tasks write under other ids."""
    names = [TaskName(name, n) for name, record in inventory.stages.items() for n in range(record.tasks)]
    producers = producer_ids(app, names)
    stages = {
        name: msgspec.structs.replace(
            record, producers=tuple(producers[TaskName(name, n)] for n in range(record.tasks))
        )
        for name, record in inventory.stages.items()
    }
    return Inventory(stages, inventory.gone)

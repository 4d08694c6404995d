"""Change partition counts of an app's intermediate streams: check whether that is possible, and adapt the inventory.

A key assigns the messages of an intermediate stream to its partitions, and with them the state of the stage that reads
it. At a savepoint, no message is in flight, so both can be assigned again. That is exact only if the key alone
determines the task of a row. All other cases are refused with the reason. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec

from headrace.checkpoint.record import CommitRecord
from headrace.core.errors import UsageError
from headrace.core.ids import MAX_PARTITIONS, TaskName
from headrace.plan.inventory import Inventory, Part, StageRecord
from headrace.plan.tasks import producer_ids
from headrace.runtime.event_time.watermark import decode_times

Commits = Mapping[TaskName, CommitRecord]
"""The commit records of tasks."""

NO_COMMITS: Commits = MappingProxyType({})

TO_ALL = "to all"
"""The key of a broadcast stream in the inventory."""

_WAY = re.compile(r"^(?P<key>.*) over [0-9]+ partitions$")


def rescaled(app: str, inventory: Inventory, counts: Mapping[str, int], kept: Commits = NO_COMMITS) -> Inventory:
    """Return the inventory with new partition counts for some intermediate streams, by their ids or their readers' ids.

    ``kept`` are the commits in the savepoint. Raises ``UsageError`` for streams that can't be rescaled. A stage never
    has fewer tasks, because readers wait for all of them; tasks without a partition just end.
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
    """Return the inventory in which no stage has fewer tasks than ``before``, in the timeline that is left.

    A removed task couldn't announce its last commit to readers of outputs, which would wait for it forever.
    """
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
    """Return the record of a stage, which may have other tasks, read rescaled streams, and write rescaled ones."""
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
            ways = (_other_way(way, active) for way in part.fixed["partitioning"].split("; "))
            fixed = dict(part.fixed) | {"partitioning": "; ".join(sorted(ways))}
            parts[id_] = msgspec.structs.replace(part, fixed=fixed)
        else:
            parts[id_] = part
    return msgspec.structs.replace(
        record,
        producers=tuple(producers[TaskName(record.stage, n)] for n in range(count)),
        active=active,
        parts=parts,
    )


def _other_way(way: str, count: int) -> str:
    matched = _WAY.match(way)
    if matched is None or matched["key"] == TO_ALL:
        return way
    return f"{matched['key']} over {count} partitions"


# -- streams ------------------------------------------------------------------------------------------------


def _streams(inventory: Inventory, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts by the ids of streams; a step or a table stands for the streams that its stage reads."""
    found: dict[str, int] = {}
    for id_, count in counts.items():
        for stream in _meant(inventory, id_):
            if found.setdefault(stream, count) != count:
                raise UsageError(
                    f"intermediate stream {stream!r} is given both {found[stream]} and {count} partitions",
                    hint="give one count for each stream",
                )
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
    known = sorted(_reading(inventory))
    there = f"the app has {', '.join(known)}" if known else "the app has no intermediate stream"
    if mine:
        raise UsageError(
            f"{id_!r} is an {mine[0][1].kind} of the app, whose partition count the app can't change",
            hint=f"only intermediate streams can be rescaled: {there}",
        )
    raise UsageError(f"the app has no intermediate stream {id_!r}", hint=there)


def _reading(inventory: Inventory) -> Iterator[str]:
    return (part.id for _, part in inventory.parts() if part.kind == "stream" and part.reads)


def _reader(inventory: Inventory, id_: str) -> StageRecord:
    """Return the only stage that reads a stream."""
    for record, part in inventory.parts():
        if part.id == id_ and part.kind == "stream" and part.reads:
            return record
    raise UsageError(
        f"intermediate stream {id_!r} can't have another number of partitions: no stage reads it",
        hint="leave it out",
    )


# -- refusals -----------------------------------------------------------------------------------------------


def _check(inventory: Inventory, id_: str, count: int, streams: Mapping[str, int], kept: Commits) -> None:
    if type(count) is not int or not 1 <= count <= MAX_PARTITIONS:
        raise UsageError(f"{id_!r} can't have {count!r} partitions", hint=f"give a number from 1 to {MAX_PARTITIONS}")
    what = f"{id_!r} can't have {count} partitions"
    record = _reader(inventory, id_)
    if (why := _why_not_dealt(record.parts[id_])) is not None:
        raise UsageError(f"{what}: {why}", hint="leave it out")
    reasons = [_why_not_read(record, count, streams), *map(_why_not_kept, record.parts.values())]
    workers = {task: kept[task] for task in sorted(kept) if task.stage == record.stage and task.number < record.active}
    reasons.append(_why_not_at_that_time(workers))
    for reason in reasons:
        if reason is not None:
            raise UsageError(f"{what}: stage {record.stage!r}, which reads it, {reason[0]}", hint=reason[1])


def _why_not_dealt(stream: Part) -> str | None:
    if stream.fixed.get("key") == TO_ALL:
        return "it is a broadcast stream, of which every task reads all"
    return None if "key" in stream.fixed else "its messages have no key to divide them by"


def _why_not_read(record: StageRecord, count: int, streams: Mapping[str, int]) -> tuple[str, str] | None:
    """Return why another input of the stage fixes its number of tasks, if one does."""
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
    """Return whether every task reads all of a side input, for tables of which each has a copy."""
    tables = [part for part in record.parts.values() if part.kind == "table"]
    fed = side_input.fixed.get("tables", "").split(", ")
    return all(table.dealing.copied for table in tables if table.id in fed)


def _why_not_at_that_time(workers: Commits) -> tuple[str, str] | None:
    """Return why the tasks' state at the savepoint can't be divided, if so.

    Each step of a new task has one watermark. Below a donor's, the donor's results would be emitted again; above it,
    results that the donor still has to emit would be lost. Watermarks differ only if inputs were idle, because each
    task learns in its own order when an input falls idle and how far the others are then.
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
    """Return why state can't be divided, if so: because it belongs to a task rather than to the keys of the stream."""
    if not part.dealing.why_not:
        return None
    return (
        f"keeps state of {part.kind} {part.owner!r} that can't be divided: {part.dealing.why_not}",
        f"keep the count, or start without that state: run the app with --drop-state {part.owner} first",
    )

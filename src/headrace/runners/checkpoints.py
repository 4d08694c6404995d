"""Read what the tasks of apps have committed from their changelogs and folders, whether the apps run or not.

Nothing is opened that a running task has locked. The last commit that counts is in the changelog; of local state and
snapshots only the sizes of files are read. Reading starts at the newest snapshot that fits, else at the changelog's
beginning.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.checkpoint.changelog import Changelog, ReplayStep
from headrace.checkpoint.record import CommitRecord, LocalCheckpoint, OutputSeq
from headrace.core.errors import HeadraceError, ProtocolError, UsageError
from headrace.core.frame import Header, Kind, body_of, decode_header
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.core.log import logger
from headrace.metadata.generations import Generations
from headrace.metadata.store import MetadataStore
from headrace.metadata.timelines import current_timeline
from headrace.runtime.naming import changelog_name, state_folders_at
from headrace.runtime.state.task_state import Snapshot
from headrace.systems.base import Edge, Extent, Records
from headrace.systems.log.layout import StreamFolder
from headrace.systems.log.system import LogSystem
from headrace.systems.whole import polled_to

_CHANGELOG = re.compile(r"(.+)-changelog(?:\.[0-9]+)?")
_READ_BYTES = 8 << 20

_log = logger(__name__)


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of the results, which commands print as JSON."""


class Position(_Part, frozen=True, kw_only=True):
    """A task's position in one input partition. ``lag`` is the distance to the end of the partition (None: unknown).

    ``shards``: the partition is a slot, and how far each of its shards has come.
    """

    stream: str
    partition: int
    offset: Offset | None
    lag: int | None
    shards: dict[str, str] = {}


class SnapshotFacts(_Part, frozen=True, kw_only=True):
    """A snapshot: its commit, and its size on disk, including files that it shares with the state."""

    offset: Offset
    generation: int
    version: int
    bytes: int


class TaskCheckpoint(_Part, frozen=True, kw_only=True):
    """The last commit of a task that counts, and what is kept for it.

    ``generation`` made the commit; ``current_generation`` is the newest one that has started. ``version`` is None
    without a commit. ``age_ms`` is the time since the changelog was last written. ``problem`` says why nothing else is
    known.
    """

    app: str
    task: str
    version: int | None = None
    next_version: int | None = None
    generation: int | None = None
    current_generation: int | None = None
    ended: bool = False
    age_ms: int | None = None
    inputs: tuple[Position, ...] = ()
    outputs: tuple[OutputSeq, ...] = ()
    changelog: str = ""
    changelog_bytes: int = 0
    changes_bytes: int = 0
    """How much of the changelog was written after the last commit, or after the fence of a restart."""
    state_bytes: int = 0
    snapshots: tuple[SnapshotFacts, ...] = ()
    problem: str | None = None


class Committed(NamedTuple):
    """A commit, and where it is in the changelog."""

    local: LocalCheckpoint
    record: CommitRecord


def apps_with_checkpoints(home: Path, metadata: MetadataStore) -> list[str]:
    """Return the apps that have ever run on this home."""
    found: set[str] = set()
    for stream in _embedded_log(home).admin().list():
        matched = _CHANGELOG.fullmatch(stream)
        words = matched[1].split("-") if matched is not None else []
        # The names of apps and stages may both contain dashes. Tasks that were granted generations resolve that.
        for n in range(1, len(words)):
            app, stage = "-".join(words[:n]), "-".join(words[n:])
            if any(task.stage == stage for task in Generations(metadata, app).latest()):
                found.add(app)
    return sorted(found)


def read_checkpoints(home: Path, metadata: MetadataStore, app: str, task: str | None = None) -> list[TaskCheckpoint]:
    """Return the checkpoints of an app's tasks, or of one. Raises ``UsageError`` if there is no such app or task."""
    tasks = sorted(Generations(metadata, app).latest())
    timeline = current_timeline(metadata, app)
    if not tasks:
        known = ", ".join(apps_with_checkpoints(home, metadata))
        raise UsageError(
            f"app {app!r} has never run on {metadata.place}",
            hint=f"apps that have: {known}"
            if known
            else "name the home folder that it uses with --home, or its metadata store with --metadata",
        )
    wanted = [name for name in tasks if task in (None, str(name))]
    if not wanted:
        raise UsageError(f"app {app!r} has no task {task!r}", hint=f"it has {', '.join(map(str, tasks))}")
    return [_task(home, app, name, timeline) for name in wanted]


def last_commits(home: Path, app: str, timeline: int, tasks: Iterable[TaskName]) -> dict[TaskName, Committed]:
    """The last commit that counts of each of these tasks that has made one in this timeline."""
    system = _embedded_log(home)
    found = {task: _last_commit(system, home, app, task, timeline) for task in tasks}
    return {task: commit for task, commit in found.items() if commit is not None}


def _last_commit(system: LogSystem, home: Path, app: str, task: TaskName, timeline: int) -> Committed | None:
    name = changelog_name(app, task.stage, timeline)
    info = system.admin().describe(name)
    if info is None or task.number >= info.partitions:
        return None
    extent = system.admin().extents(name)[task.number]
    snapshots = Snapshot.all(state_folders_at(home, app, task, timeline).snapshots)
    read = _read(system, SSP(StreamId("log", name), task.number), extent, snapshots).changelog
    return None if read.record is None or read.local is None else Committed(read.local, read.record)


def _embedded_log(home: Path) -> LogSystem:
    return LogSystem(home / "streams")


def _task(home: Path, app: str, task: TaskName, timeline: int) -> TaskCheckpoint:
    name = changelog_name(app, task.stage, timeline)
    facts = TaskCheckpoint(app=app, task=str(task), changelog=f"log.{name}[{task.number}]")
    folders = state_folders_at(home, app, task, timeline)
    snapshots = Snapshot.all(folders.snapshots)
    facts = msgspec.structs.replace(
        facts,
        state_bytes=_size(folders.local),
        snapshots=tuple(_snapshot(snapshot) for snapshot in snapshots),
    )
    system = _embedded_log(home)
    try:
        extent = system.admin().extents(name)[task.number]
        read = _read(system, SSP(StreamId("log", name), task.number), extent, snapshots)
    except HeadraceError as error:
        return msgspec.structs.replace(facts, problem=error.message)
    facts = msgspec.structs.replace(
        facts,
        changelog_bytes=extent.upcoming - extent.oldest,
        age_ms=_age_ms(home, name, task.number),
        current_generation=read.changelog.generation or None,
        changes_bytes=read.changes_bytes,
    )
    record = read.changelog.record
    return facts if record is None else _committed(facts, record, system)


def messages_wait(home: Path, app: str, tasks: Iterable[TaskName], stream: StreamId, timeline: int) -> bool:
    """Whether messages wait in an intermediate stream of the embedded log that these tasks, which read it, don't cover.

    Nothing may be running. Messages that a restart would take back count, too.
    """
    system = _embedded_log(home)
    covered: dict[int, tuple[Offset | None, dict[int, tuple[int, int]]]] = {}
    for task in tasks:
        found = _last_commit(system, home, app, task, timeline)
        for entry in found.record.inputs if found is not None else ():
            if entry.stream == str(stream):
                parents = {parent.producer: (parent.generation, parent.seq) for parent in entry.parents}
                covered[entry.partition] = (entry.offset, parents)
    for partition, extent in enumerate(system.admin().extents(stream.name)):
        offset, parents = covered.get(partition, (None, {}))
        start = extent.oldest if offset is None else offset
        for _, header, _ in _records(system, SSP(stream, partition), start, extent.upcoming):
            if header.kind is Kind.USER and (header.generation, header.seq) > parents.get(header.producer, (0, 0)):
                return True
    return False


def _committed(facts: TaskCheckpoint, record: CommitRecord, system: LogSystem) -> TaskCheckpoint:
    positions = [
        *((entry.stream, entry.partition, entry.offset, dict[str, str]()) for entry in record.inputs),
        *((entry.stream, entry.partition, entry.offset, entry.shards or {}) for entry in record.sources),
    ]
    return msgspec.structs.replace(
        facts,
        version=record.version,
        next_version=None if record.ended else record.next_version,
        generation=record.generation,
        ended=record.ended,
        inputs=tuple(
            Position(
                stream=stream,
                partition=partition,
                offset=offset,
                lag=_lag(system, stream, partition, offset),
                shards=shards,
            )
            for stream, partition, offset, shards in positions
        ),
        outputs=record.outputs,
    )


# -- the changelog ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    changelog: Changelog
    changes_bytes: int = 0


def _read(system: LogSystem, ssp: SSP, extent: Extent, snapshots: Sequence[Snapshot]) -> _Reading:
    for snapshot in reversed(snapshots):
        if extent.oldest <= snapshot.local.offset < extent.upcoming:
            found = _read_from(system, ssp, extent, snapshot.local)
            if found is not None:
                return found
    found = _read_from(system, ssp, extent, _oldest_commit(system, ssp, extent))
    if found is None:
        raise ProtocolError(f"{ssp} changed while it was read")
    return found


def _oldest_commit(system: LogSystem, ssp: SSP, extent: Extent) -> LocalCheckpoint | None:
    """Return the commit that the changelog was trimmed at. One that was never trimmed begins with a fence: None."""
    for offset, header, _ in _records(system, ssp, extent.oldest, extent.upcoming):
        if header.kind is Kind.COMMIT:
            return LocalCheckpoint(offset, header.generation, header.version)
        break
    return None


def _read_from(system: LogSystem, ssp: SSP, extent: Extent, base: LocalCheckpoint | None) -> _Reading | None:
    reading: _Reading | None = None
    start = extent.oldest if base is None else base.offset
    try:
        for offset, header, payload in _records(system, ssp, start, extent.upcoming):
            if reading is None:
                reading = _Reading(Changelog(header.producer, "", base))
            match reading.changelog.take(offset, header, body_of(payload)):
                case ReplayStep.MISFIT:
                    _log.info(
                        "a snapshot doesn't fit the changelog; trying an older one", changelog=str(ssp), offset=start
                    )
                    return None
                case ReplayStep.HOLD:
                    reading.changes_bytes += len(payload)
                case ReplayStep.APPLY | ReplayStep.FORGET:
                    reading.changes_bytes = 0
                case ReplayStep.SKIP:
                    pass
    except HeadraceError:
        if base is None or reading is not None:
            raise
        _log.info("a snapshot doesn't fit the changelog; trying an older one", changelog=str(ssp), offset=base.offset)
        return None  # a snapshot of another changelog, whose commit would be where no record begins
    return reading or _Reading(Changelog(0, "", None))


def _records(system: LogSystem, ssp: SSP, start: Offset, end: Offset) -> Iterator[tuple[Offset, Header, bytes]]:
    consumer = system.consumer()
    try:
        consumer.register(ssp, Edge.OLDEST if start == 0 else start)
        for records in polled_to(consumer, ssp, end, _READ_BYTES):
            if isinstance(records, Records):
                for offset, payload in zip(records.offsets, records.payloads, strict=True):
                    yield offset, decode_header(payload), payload
    finally:
        consumer.close()


# -- sizes and ages -----------------------------------------------------------------------------------------


def _lag(system: LogSystem, stream: str, partition: int, offset: Offset | None) -> int | None:
    """Return the distance from a position in the embedded log to its end. Of other systems nothing is known here."""
    name = StreamId.parse(stream)
    admin = system.admin()
    if name.system != "log" or offset is None or admin.describe(name.name) is None:
        return None
    return max(0, admin.extents(name.name)[partition].upcoming - offset)


def _snapshot(snapshot: Snapshot) -> SnapshotFacts:
    local = snapshot.local
    return SnapshotFacts(
        offset=local.offset, generation=local.generation, version=local.version, bytes=_size(snapshot.folder)
    )


def _size(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # a running task has just deleted it
    return total


def _age_ms(home: Path, changelog: str, partition: int) -> int | None:
    try:
        written = StreamFolder(home / "streams", changelog).log(partition).stat().st_mtime
    except FileNotFoundError:
        return None
    return max(0, round((time.time() - written) * 1000))

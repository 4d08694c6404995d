"""The commits of apps' tasks and the data kept for them, whether or not the apps are running, for commands.

The last commit that counts is in the changelog. For local state and snapshots in this home, only the sizes of files are
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from headrace.checkpoint.record import CommitRecord, InputEntry, OutputSeq, SourceEntry
from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, UnavailableError, UsageError
from headrace.core.ids import Offset, StreamId, TaskName
from headrace.metadata.generations import Generations
from headrace.metadata.store import MetadataStore
from headrace.metadata.timelines import current_timeline
from headrace.runners.app_systems import all_systems, snapshots_place
from headrace.runners.changelogs import Changelogs, Reading, opened_changelogs
from headrace.runners.stored_snapshots import stored_snapshots
from headrace.runtime.connections import Connections
from headrace.runtime.naming import changelog_name, state_folders_at
from headrace.runtime.state.snapshots import Snapshot
from headrace.stores.objects.layout import Manifest
from headrace.stores.objects.opening import open_objects
from headrace.stores.objects.place import ObjectPlace
from headrace.systems.base import Extent
from headrace.systems.home_log import home_log
from headrace.systems.registry import offsets_are_bytes


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of the results, which commands print as JSON."""


class Position(_Part, frozen=True, kw_only=True):
    """A task's position in one input partition. ``lag`` is the distance to the end of the partition (None: unknown).

    ``shards``: the positions in the shards of a slot. While a startpoint with an end is under way, ``until`` is that
    end, and ``back`` where the task then goes on.
    """

    stream: str
    partition: int
    offset: Offset | None
    lag: int | None
    shards: dict[str, str] = {}
    until: Offset | UnsetType = UNSET
    back: Offset | UnsetType = UNSET


class SnapshotFacts(_Part, frozen=True, kw_only=True):
    """A snapshot: its commit, and its size, including files that it shares with the state or with other snapshots.

    ``stored``: it is in the object store rather than in a folder.
    """

    offset: Offset
    generation: int
    version: int
    bytes: int
    stored: bool = False


class TaskCheckpoint(_Part, frozen=True, kw_only=True):
    """The last commit of a task that counts, and the data kept for it. ``changelog_bytes`` may be an estimate.

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
    """The size of the changelog after the last commit, or after the fence of a restart."""
    state_bytes: int = 0
    snapshots: tuple[SnapshotFacts, ...] = ()
    problem: str | None = None
    store_problem: str | None = None
    """The reason why ``snapshots`` lacks those in the object store."""


def apps_with_checkpoints(home: Path, metadata: MetadataStore) -> list[str]:
    """Return the apps that have ever run in this home, or whose changelogs can be read without it."""
    embedded = home_log(home)
    with closing(Connections()) as connections:
        in_home = set(connections.admin(embedded).list())

    def is_here(app: str) -> bool:
        timeline = current_timeline(metadata, app)
        names = (changelog_name(app, task.stage, timeline) for task in Generations(metadata, app).latest())
        return any(name in in_home for name in names)

    all_apps = dict(all_systems(metadata))
    return [app for app, used in all_apps.items() if used.spec(used.own, home) != embedded or is_here(app)]


def read_checkpoints(
    home: Path, metadata: MetadataStore, app: str, task: str | None = None, snapshots: ObjectPlace | None = None
) -> list[TaskCheckpoint]:
    """Return the checkpoints of an app's tasks, or of one. Raises ``UsageError`` if there is no such app or task.

    ``snapshots`` is the object store with its snapshots, if it isn't the recorded one.
    """
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
    try:
        with opened_changelogs(metadata, home, app, timeline) as changelogs:
            found = [_task(changelogs, home, app, name, timeline) for name in wanted]
    except UsageError as error:  # only the app's program can open them
        found = [TaskCheckpoint(app=app, task=str(name), problem=error.message) for name in wanted]
    place = snapshots or snapshots_place(metadata, app, timeline)
    return found if place is None else _with_stored(place, found, timeline)


def _task(changelogs: Changelogs | None, home: Path, app: str, task: TaskName, timeline: int) -> TaskCheckpoint:
    folders = state_folders_at(home, app, task, timeline)
    facts = TaskCheckpoint(
        app=app,
        task=str(task),
        state_bytes=_size(folders.local),
        snapshots=tuple(_snapshot(snapshot) for snapshot in Snapshot.all(folders.snapshots)),
    )
    if changelogs is None:
        return msgspec.structs.replace(facts, problem="the app hasn't run since a savepoint was restored")
    ssp = changelogs.ssp(task)
    facts = msgspec.structs.replace(facts, changelog=str(ssp))
    if changelogs.away is not None:
        return msgspec.structs.replace(facts, problem=changelogs.away)
    try:
        extent = changelogs.admin.extents(ssp.stream.name)[task.number]
        read = changelogs.read(task, extent)
        return _read(facts, changelogs, task, extent, read)
    except HeadraceError as error:
        if isinstance(error, UnavailableError):
            changelogs.away = error.message
        return msgspec.structs.replace(facts, problem=error.message)


def _read(
    facts: TaskCheckpoint, changelogs: Changelogs, task: TaskName, extent: Extent, read: Reading
) -> TaskCheckpoint:
    ssp = changelogs.ssp(task)
    written = None if read.last is None else changelogs.admin.time_of(ssp, read.last)
    facts = msgspec.structs.replace(
        facts,
        changelog_bytes=round((extent.upcoming - extent.oldest) * changelogs.admin.bytes_per_offset(ssp.stream.name)),
        age_ms=None if written is None else max(0, WallClock().now_ms() - written),
        current_generation=read.changelog.generation or None,
        changes_bytes=read.changes_bytes,
    )
    record = read.changelog.record
    return facts if record is None else _committed(facts, record, changelogs)


def _with_detour(position: Position, entry: SourceEntry) -> Position:
    position = msgspec.structs.replace(position, shards=entry.shards or {})
    if entry.detour is UNSET:
        return position
    return msgspec.structs.replace(position, until=entry.detour.until, back=entry.detour.offset)


def _committed(facts: TaskCheckpoint, record: CommitRecord, changelogs: Changelogs) -> TaskCheckpoint:
    def position(entry: InputEntry | SourceEntry) -> Position:
        lag = _lag(changelogs, StreamId.parse(entry.stream), entry.partition, entry.offset)
        return Position(stream=entry.stream, partition=entry.partition, offset=entry.offset, lag=lag)

    return msgspec.structs.replace(
        facts,
        version=record.version,
        next_version=None if record.ended else record.next_version,
        generation=record.generation,
        ended=record.ended,
        inputs=(
            *(position(entry) for entry in record.inputs),
            *(_with_detour(position(entry), entry) for entry in record.sources),
        ),
        outputs=record.outputs,
    )


# -- sizes and ages -----------------------------------------------------------------------------------------


def _lag(changelogs: Changelogs, stream: StreamId, partition: int, offset: Offset | None) -> int | None:
    """Return the distance from a position to the end; None where offsets aren't bytes."""
    known = changelogs.known(stream.system)
    if known is None or offset is None or not offsets_are_bytes(known[0]) or known[1].describe(stream.name) is None:
        return None
    return max(0, known[1].extents(stream.name)[partition].upcoming - offset)


def _snapshot(snapshot: Snapshot) -> SnapshotFacts:
    local = snapshot.local
    return SnapshotFacts(
        offset=local.offset, generation=local.generation, version=local.version, bytes=_size(snapshot.folder)
    )


def _with_stored(place: ObjectPlace, found: Sequence[TaskCheckpoint], timeline: int) -> list[TaskCheckpoint]:
    """Add the snapshots in the object store. If the store fails, the checkpoints say why, and it isn't asked again."""
    stored: list[tuple[SnapshotFacts, ...]] = []
    try:
        objects = open_objects(place)
        for one in found:
            manifests = stored_snapshots(objects, one.app, TaskName.parse(one.task), timeline)
            stored.append(tuple(_stored_facts(manifest) for manifest in manifests))
    except HeadraceError as error:
        return [msgspec.structs.replace(one, store_problem=error.message) for one in found]
    pairs = zip(found, stored, strict=True)
    return [msgspec.structs.replace(one, snapshots=(*one.snapshots, *facts)) for one, facts in pairs]


def _stored_facts(m: Manifest) -> SnapshotFacts:
    return SnapshotFacts(offset=m.offset, generation=m.generation, version=m.version, bytes=m.size, stored=True)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # a running task deleted it just now
    return total

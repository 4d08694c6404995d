"""The commits of an app's tasks, read from its changelogs, whether or not the app is running.

Reading starts at the newest matching snapshot in this home, or else at the changelog's beginning. It opens nothing
that a running task has locked.

What an app remembers of the streams that it reads in slots (*memos*), its first run writes into the driver's home
(``connectors/kinesis/system.py``). From here it goes into the options of the system, and so with the plan, because
others may be on machines without that home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from headrace.api.specs import Graph
from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, ProtocolError, StorageError, UnavailableError, UsageError
from headrace.core.frame import Header, Kind, body_of, decode_header
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.core.log import logger
from headrace.life.apps import AppSystems, all_systems, recorded_systems, snapshots_place
from headrace.life.inputs import AppInput
from headrace.life.metadata import Generations, MetadataStore
from headrace.life.timelines import current_timeline
from headrace.plan.model import Plan
from headrace.protocol.changelog import Changelog, ReplayStep
from headrace.protocol.record import CommitRecord, InputEntry, LocalCheckpoint, OutputSeq, SourceEntry
from headrace.stores.snapshots import Manifest, ObjectPlace, ObjectStore, manifest_names, read_manifest, snapshot_of
from headrace.stores.transfer import open_objects
from headrace.systems.base import Admin, Edge, Extent, Records, polled_to
from headrace.systems.registry import SystemSpec, home_log, offsets_are_bytes
from headrace.task.connections import Connections
from headrace.task.naming import changelog_name, remote_folder, remote_timeline, state_folders_at
from headrace.task.state.disk import Snapshot

_READ_BYTES = 8 << 20
_NO_MATCH = "a snapshot doesn't match the changelog; trying an older one"

_log = logger(__name__)


class ReadCommit(NamedTuple):
    """A commit and its offset in the changelog. ``bare``: no state was ever committed, so there is no database."""

    local: LocalCheckpoint
    record: CommitRecord
    bare: bool = False


@dataclass(slots=True)
class Reading:
    """What a changelog says: bytes after its last commit, its last offset. ``bare``: no commit in it has changes."""

    changelog: Changelog
    bare: bool
    changes_bytes: int = 0
    last: Offset | None = None


class Changelogs:
    """The changelogs and intermediate streams of an app in one timeline, as it has recorded where they are."""

    def __init__(self, home: Path, app: str, timeline: int, systems: AppSystems, connections: Connections) -> None:
        """Raises ``UsageError`` if only the app's program can open them."""
        self.system = systems.own_spec(app, home)
        self._systems = systems.record_systems(home)
        self._home, self._app, self._timeline = home, app, timeline
        self._connections = connections
        self.admin = connections.admin(self.system)
        self.away: str | None = None
        """The error of a system that doesn't answer, so that readers of many changelogs needn't wait for each."""

    def ssp(self, task: TaskName) -> SSP:
        return SSP(StreamId(self.system.name, changelog_name(self._app, task.stage, self._timeline)), task.number)

    def known(self, system: str) -> tuple[SystemSpec, Admin] | None:
        spec = self._systems.get(system)
        return None if spec is None else (spec, self._connections.admin(spec))

    def read(self, task: TaskName, extent: Extent) -> Reading:
        folders = state_folders_at(self._home, self._app, task, self._timeline)
        ssp = self.ssp(task)
        for snapshot in reversed(Snapshot.all(folders.snapshots)):
            if extent.oldest <= snapshot.local.offset < extent.upcoming:
                found = self._read_from(ssp, extent, snapshot.local)
                if found is not None:
                    return found
        found = self._read_from(ssp, extent, self._oldest_commit(ssp, extent))
        if found is None:
            raise ProtocolError(f"{ssp} changed while it was read")
        return found

    def last_commits(self, tasks: Iterable[TaskName]) -> dict[TaskName, ReadCommit]:
        found: dict[TaskName, ReadCommit] = {}
        for task in tasks:
            name = self.ssp(task).stream.name
            info = self.admin.describe(name)
            if info is None or task.number >= info.partitions:
                continue
            reading = self.read(task, self.admin.extents(name)[task.number])
            read = reading.changelog
            if read.record is not None and read.local is not None:
                found[task] = ReadCommit(read.local, read.record, reading.bare)
        return found

    def messages_wait(self, name: str, readers: Sequence[TaskName]) -> bool:
        """Return whether readers' commits leave out messages of a stream, void ones included. The app must not run."""
        stream = StreamId(self.system.name, name)
        covered: dict[int, tuple[Offset | None, dict[int, tuple[int, int]]]] = {}
        for commit in self.last_commits(readers).values():
            for entry in commit.record.inputs:
                if entry.stream == str(stream):
                    parents = {parent.producer: (parent.generation, parent.seq) for parent in entry.parents}
                    covered[entry.partition] = (entry.offset, parents)
        for partition, extent in enumerate(self.admin.extents(name)):
            offset, parents = covered.get(partition, (None, {}))
            start = extent.oldest if offset is None else offset
            for _, header, _ in self._records(SSP(stream, partition), start, extent.upcoming):
                if header.kind is Kind.USER and (header.generation, header.seq) > parents.get(header.producer, (0, 0)):
                    return True
        return False

    def _oldest_commit(self, ssp: SSP, extent: Extent) -> LocalCheckpoint | None:
        """Return the commit that the changelog was trimmed at. One that was never trimmed begins with a fence: None."""
        for offset, header, _ in self._records(ssp, extent.oldest, extent.upcoming):
            if header.kind is Kind.COMMIT:
                return LocalCheckpoint(offset, header.generation, header.version)
            break
        return None

    def _read_from(self, ssp: SSP, extent: Extent, base: LocalCheckpoint | None) -> Reading | None:
        reading: Reading | None = None
        start = extent.oldest if base is None else base.offset
        try:
            for offset, header, payload in self._records(ssp, start, extent.upcoming):
                if reading is None:
                    reading = Reading(Changelog(header.producer, "", base), bare=base is None)
                reading.last = offset
                match reading.changelog.take(offset, header, body_of(payload)):
                    case ReplayStep.MISFIT:
                        _log.info(_NO_MATCH, changelog=str(ssp), offset=start)
                        return None
                    case ReplayStep.HOLD:
                        reading.changes_bytes += len(payload)
                    case ReplayStep.APPLY:
                        reading.bare = reading.bare and not reading.changes_bytes
                        reading.changes_bytes = 0
                    case ReplayStep.FORGET:
                        reading.changes_bytes = 0
                    case ReplayStep.SKIP:
                        pass
        except HeadraceError:
            if base is None or reading is not None:
                raise
            _log.info(_NO_MATCH, changelog=str(ssp), offset=base.offset)
            return None  # a snapshot of another changelog, whose commit would be where no record begins
        return reading or Reading(Changelog(0, "", None), bare=base is None)

    def _records(self, ssp: SSP, start: Offset, end: Offset) -> Iterator[tuple[Offset, Header, bytes]]:
        with closing(self._connections.consumer(self.system)) as consumer:
            consumer.register(ssp, Edge.OLDEST if start == 0 else start)
            for records in polled_to(consumer, ssp, end, _READ_BYTES):
                if isinstance(records, Records):
                    for offset, payload in zip(records.offsets, records.payloads, strict=True):
                        yield offset, decode_header(payload), payload


@contextmanager
def opened_changelogs(metadata: MetadataStore, home: Path, app: str, timeline: int) -> Iterator[Changelogs | None]:
    """The changelogs of an app in a timeline; None if it never ran there. Raises ``UsageError`` like ``Changelogs``."""
    systems = recorded_systems(metadata, app, timeline)
    with closing(Connections()) as connections:
        yield None if systems is None else Changelogs(home, app, timeline, systems, connections)


def last_commits(
    metadata: MetadataStore, home: Path, app: str, timeline: int, tasks: Iterable[TaskName]
) -> dict[TaskName, ReadCommit]:
    with opened_changelogs(metadata, home, app, timeline) as changelogs:
        return {} if changelogs is None else changelogs.last_commits(tasks)


_DELETED_AT_ONCE = 500


def stored_snapshots(store: ObjectStore, app: str, task: TaskName, timeline: int) -> list[Manifest]:
    folder = remote_folder(app, task, timeline)
    listing = {name.removeprefix(folder): size for name, size in store.list(folder).items()}
    complete = []
    for name in reversed(manifest_names(listing)):
        if (data := store.get(folder + name)) is None:
            continue
        if (manifest := read_manifest(data)) is None:
            _log.warning("a snapshot in the store is damaged", folder=folder, snapshot=snapshot_of(name))
        elif manifest.whole(listing):
            complete.append(manifest)
    return complete


def delete_stored(store: ObjectStore, app: str, timeline: int) -> None:
    """Delete all snapshots of a timeline. May be repeated if it is interrupted."""
    names = list(store.list(remote_timeline(app, timeline)))
    for first in range(0, len(names), _DELETED_AT_ONCE):
        store.delete(names[first : first + _DELETED_AT_ONCE])
    _log.info("deleted the snapshots of a timeline", app=app, timeline=timeline, objects=len(names))


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of the results, which commands print as JSON."""


class InputPosition(_Part, frozen=True, kw_only=True):
    """A task's position in one input partition. ``lag`` is the distance to the end of the partition (None: unknown).

    ``shards``: the positions in the shards of a slot. ``until`` is the end of a startpoint, ``back`` what follows it.
    """

    stream: str
    partition: int
    offset: Offset | None
    lag: int | None
    shards: dict[str, str] = {}
    until: Offset | UnsetType = UNSET
    back: Offset | UnsetType = UNSET


class SnapshotFacts(_Part, frozen=True, kw_only=True):
    """A snapshot: its commit, and its size, including shared files. ``stored``: it is in the object store."""

    offset: Offset
    generation: int
    version: int
    bytes: int
    stored: bool = False


class TaskCheckpoint(_Part, frozen=True, kw_only=True):
    """The last commit of a task that counts, if any, and the data kept for it. ``changelog_bytes`` may be an estimate.

    ``current_generation`` is the newest one that has started. ``age_ms``: since the changelog was last written.
    """

    app: str
    task: str
    version: int | None = None
    next_version: int | None = None
    generation: int | None = None
    current_generation: int | None = None
    ended: bool = False
    age_ms: int | None = None
    inputs: tuple[InputPosition, ...] = ()
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
    """The checkpoints of an app's tasks, or of one. Raises ``UsageError`` if there is no such app or task."""
    tasks = sorted(Generations(metadata, app).latest())
    timeline = current_timeline(metadata, app)
    if not tasks:
        hint = "name the home folder that it uses with --home, or its metadata store with --metadata"
        if known := apps_with_checkpoints(home, metadata):
            hint = f"apps that have: {', '.join(known)}"
        raise UsageError(f"app {app!r} has never run on {metadata.place}", hint=hint)
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
    snapshots = tuple(_facts(one.local, _size(one.folder)) for one in Snapshot.all(folders.snapshots))
    facts = TaskCheckpoint(app=app, task=str(task), state_bytes=_size(folders.local), snapshots=snapshots)
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


def _committed(facts: TaskCheckpoint, record: CommitRecord, changelogs: Changelogs) -> TaskCheckpoint:
    def position(entry: InputEntry | SourceEntry) -> InputPosition:
        lag = _lag(changelogs, StreamId.parse(entry.stream), entry.partition, entry.offset)
        found = InputPosition(stream=entry.stream, partition=entry.partition, offset=entry.offset, lag=lag)
        if isinstance(entry, SourceEntry):
            found = msgspec.structs.replace(found, shards=entry.shards or {})
            if entry.detour is not UNSET:
                found = msgspec.structs.replace(found, until=entry.detour.until, back=entry.detour.offset)
        return found

    return msgspec.structs.replace(
        facts,
        version=record.version,
        next_version=None if record.ended else record.next_version,
        generation=record.generation,
        ended=record.ended,
        inputs=(*map(position, record.inputs), *map(position, record.sources)),
        outputs=record.outputs,
    )


def _lag(changelogs: Changelogs, stream: StreamId, partition: int, offset: Offset | None) -> int | None:
    known = changelogs.known(stream.system)
    if known is None or offset is None or not offsets_are_bytes(known[0]) or known[1].describe(stream.name) is None:
        return None
    return max(0, known[1].extents(stream.name)[partition].upcoming - offset)


def _facts(of: LocalCheckpoint | Manifest, size: int, *, stored: bool = False) -> SnapshotFacts:
    return SnapshotFacts(offset=of.offset, generation=of.generation, version=of.version, bytes=size, stored=stored)


def _with_stored(place: ObjectPlace, found: Sequence[TaskCheckpoint], timeline: int) -> list[TaskCheckpoint]:
    """Add the snapshots in the object store. If the store fails, the checkpoints say why, and it isn't asked again."""
    stored: list[tuple[SnapshotFacts, ...]] = []
    try:
        objects = open_objects(place)
        for one in found:
            manifests = stored_snapshots(objects, one.app, TaskName.parse(one.task), timeline)
            stored.append(tuple(_facts(manifest, manifest.size, stored=True) for manifest in manifests))
    except HeadraceError as error:
        return [msgspec.structs.replace(one, store_problem=error.message) for one in found]
    pairs = zip(found, stored, strict=True)
    return [msgspec.structs.replace(one, snapshots=(*one.snapshots, *facts)) for one, facts in pairs]


def _size(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # a running task deleted it just now
    return total


LastCommits = Callable[[str], TaskCheckpoint | None]


def committed_in(home: Path, metadata: MetadataStore, app: str) -> LastCommits:
    @cache
    def find(task: str) -> TaskCheckpoint | None:
        try:
            return read_checkpoints(home, metadata, app, task)[0]
        except UsageError:  # the app, or this task of it, has never run
            return None

    return find


def found_in(checkpoint: TaskCheckpoint | None, one: AppInput, partition: int) -> InputPosition | None:
    inputs = () if checkpoint is None else checkpoint.inputs
    return next((at for at in inputs if (at.stream, at.partition) == (one.kept_as, partition)), None)


FILE, CONTENTS = "memo", "remembered"
"""The options of a system: in which file it remembers something, and what it has remembered."""


def with_memos(metadata: MetadataStore, graph: Graph) -> Graph:
    known = {id_: entry.value.decode() for id_, entry in metadata.scan(_namespace(graph.app)).items()}
    streams = dict(graph.streams)
    for id_, spec in streams.items():
        if id_ in known and FILE in spec.system.options:  # the input may have been of another system before
            options = {**spec.system.options, CONTENTS: known[id_]}
            streams[id_] = replace(spec, system=replace(spec.system, options=options))
    return replace(graph, streams=streams)


def record_memos(metadata: MetadataStore, plan: Plan) -> Plan:
    namespace = _namespace(plan.graph.app)
    for id_, stream in plan.streams.items():
        options = stream.spec.system.options
        if FILE in options and CONTENTS not in options and (data := _read_memos(Path(options[FILE]))) is not None:
            metadata.put_if(namespace, id_, data, None)  # another start may have been quicker, with the same
    graph = with_memos(metadata, plan.graph)
    streams = {id_: replace(stream, spec=graph.streams[id_]) for id_, stream in plan.streams.items()}
    return replace(plan, graph=graph, streams=streams)


def _read_memos(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None  # these stages don't read it
    except OSError as error:
        raise StorageError(f"can't read {path}: {error}", hint="check who may read the folder") from error


def _namespace(app: str) -> str:
    return f"memos/{app}"

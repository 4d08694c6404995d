"""Restore a savepoint: begin a new timeline of the app, and delete old ones.

It is safe to stop anywhere. First, everything that the new timeline begins with is written, under a number that was
never used. Then one compare-and-set makes it the current one. What comes before is overwritten by the next attempt, and
what comes after only tidies up. Changelogs, state and streams of the timeline before stay as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import UNSET

from headrace.coordinator.publication import SPACE, all_ended, find_all
from headrace.core.clock import WallClock
from headrace.core.errors import DataError, HeadraceError, StorageError, UnavailableError, UsageError
from headrace.core.files import UNREADABLE
from headrace.core.frame import Header, Kind
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.core.log import logger
from headrace.life.apps import forget_systems, recorded_systems, snapshots_place
from headrace.life.changelogs import delete_stored, last_commits, opened_changelogs
from headrace.life.folder import (
    DONORS,
    Progress,
    Shelf,
    copy_tree,
    kept_commit,
    locked,
    new_founding_folder,
    read_foundings,
    verify,
    write_foundings,
)
from headrace.life.founding import (
    Manifest,
    Rescaled,
    Restored,
    for_app,
    foundings,
    new_streams,
    renamed,
    rescaled,
    version_of,
    with_tasks_of,
)
from headrace.life.metadata import Change, Delete, Entry, Generations, MetadataStore, Put
from headrace.life.timelines import Outputs, Timeline, Timelines
from headrace.plan.inventory import Inventory, StageRecord
from headrace.protocol.record import AbortRecord, CommitRecord, encode_record
from headrace.stores.snapshots import ObjectPlace
from headrace.stores.transfer import open_objects
from headrace.systems.log.layout import StreamFolder
from headrace.systems.registry import SystemSpec, home_log, open_system
from headrace.task.connections import Connections
from headrace.task.naming import changelog_name, folder_name, founding_folder, inventory_namespace, task_folder
from headrace.task.state.changelog import ChangelogPartition

_log = logger(__name__)
GONE = ".gone"
"""The key of the former names; no stage has such a name."""


class _Gone(msgspec.Struct, frozen=True, kw_only=True):
    format: int = 1
    names: tuple[str, ...] = ()


def encode_gone(names: Iterable[str]) -> bytes:
    return msgspec.json.encode(_Gone(names=tuple(sorted(names))))


def read_inventory(entries: Mapping[str, Entry]) -> Inventory:
    stages = {name: StageRecord.decode(entry.value) for name, entry in entries.items() if name != GONE}
    gone: frozenset[str] = frozenset()
    if GONE in entries:
        try:
            gone = frozenset(msgspec.json.decode(entries[GONE].value, type=_Gone).names)
        except UNREADABLE as error:
            raise DataError(f"the list of the app's former names is unreadable: {error}") from error
    return Inventory(stages, gone)


def recorded(store: MetadataStore, app: str, timeline: int) -> Inventory:
    return read_inventory(store.scan(inventory_namespace(app, timeline)))


def replace_inventory(store: MetadataStore, app: str, timeline: int, inventory: Inventory) -> None:
    """Write the inventory of a timeline that isn't current, whatever an interrupted restore has left of it."""
    namespace = inventory_namespace(app, timeline)
    known = store.scan(namespace)
    wanted = {name: record.encode() for name, record in inventory.stages.items()}
    if inventory.gone:
        wanted[GONE] = encode_gone(inventory.gone)
    changes: list[Change] = [
        Put(key, value, known[key].version if key in known else None) for key, value in wanted.items()
    ]
    changes += [Delete(key, entry.version) for key, entry in known.items() if key not in wanted]
    if changes and store.write(namespace, changes) is None:
        raise UnavailableError(f"another command writes timeline {timeline} of app {app!r}", hint="try again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """What to restore, and how. ``partitions`` are new partition counts of intermediate streams."""

    home: Path
    app: str
    metadata: MetadataStore
    name: str
    outputs: Outputs = "again"
    partitions: Mapping[str, int] = field(default_factory=dict)
    progress: Progress = lambda what: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """How far a source partition goes back. ``before`` is where the app was; None if that isn't known.

    Offsets of a ``slot`` count rows. Whether it was elsewhere, ``moved``, is for its shards to say.
    """

    task: TaskName
    stream: str
    partition: int
    to: Offset | None
    before: Offset | None
    slot: bool = False
    moved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a restore does; ``tasks`` are counts before and after a rescaling. ``ran``: the app has committed here."""

    manifest: Manifest
    timeline: Timeline
    rewinds: tuple[Rewind, ...]
    outputs: tuple[str, ...]
    tasks: Mapping[str, tuple[int, int]]
    ran: bool

    @property
    def repeats(self) -> bool:
        return self.ran and any(
            one.moved if one.slot else one.before is None or one.to is None or one.before > one.to
            for one in self.rewinds
        )

    @property
    def can_be_silent(self) -> bool:
        """Whether what is processed again comes in the same order, so that it needn't be written again."""
        return not any(one.slot for one in self.rewinds)


def preview(restoring: Restoring) -> Outlook:
    """Return what a restore would do. Changes nothing; the app may run."""
    return _Restore(restoring, Timelines(restoring.metadata, restoring.app)).outlook()


def restore(restoring: Restoring) -> Outlook:
    """Restore a savepoint. If it fails or is interrupted, nothing has changed, or everything has."""
    home, app = restoring.home, restoring.app
    check_stopped(restoring.metadata, app)
    with locked(home / "timelines" / app, f"the timelines of app {app!r}"):
        timelines = Timelines(restoring.metadata, app)
        job = _Restore(restoring, timelines)
        verify(job.folder, job.manifest, restoring.progress)
        job.fence()
        job.check_silence()
        outlook = job.outlook()
        job.write()
        timelines.begin(outlook.timeline)
        if find_all(restoring.metadata, app):  # a run that began meanwhile may have read the former timeline
            timelines.take_back()
            raise UnavailableError(
                f"app {app!r} was started while the savepoint was being restored; the restore was undone",
                hint="stop the app, then restore the savepoint again",
            )
        forget_endings(restoring.metadata, app)
    _log.info("restored a savepoint", app=app, savepoint=restoring.name, timeline=outlook.timeline.number)
    return outlook


def undo(home: Path, app: str, metadata: MetadataStore) -> Timeline:
    """Go back to the timeline before the current one, in which nothing may have run; return the current one's data."""
    check_stopped(metadata, app)
    with locked(home / "timelines" / app, f"the timelines of app {app!r}"):
        timelines = Timelines(metadata, app)
        number = timelines.current
        begun = last_commits(metadata, home, app, number, tasks_in(recorded(metadata, app, number)))
        if begun and timelines.get(number) is not None:
            raise UsageError(
                f"app {app!r} has run since the savepoint was restored: {len(begun)} tasks have committed, "
                "and others may have read their results",
                hint="restore another savepoint instead; what this timeline has written remains",
            )
        found = timelines.take_back()
        forget_systems(metadata, app, number)
        forget_endings(metadata, app)
    return found


def check_stopped(metadata: MetadataStore, app: str) -> None:
    if running := find_all(metadata, app):
        raise UsageError(
            f"app {app!r} is running {running[0].deployment}: {running[0].driver}",
            hint="stop it first, with Ctrl-C or SIGTERM",
        )


def check_order_comes_again(app: str, record: CommitRecord) -> None:
    """Raise ``UsageError`` if a task reads slots or a past range again, because it can't silently repeat its work."""
    slotted = [entry.stream for entry in record.sources if entry.shards is not UNSET]
    detoured = [entry.stream for entry in record.sources if entry.detour is not UNSET]
    if slotted:
        why = f"its input {slotted[0]} can't be read again in the same order, because its shards change"
    elif detoured:
        why = (
            "at the savepoint or now, a startpoint with an end makes it read a part of its input "
            f"{detoured[0]} again, so its former position there isn't a single one"
        )
    else:
        return
    raise UsageError(
        f"app {app!r} can't be restored with --outputs silent: {why}",
        hint="use --outputs again: it writes the results of repeated input a second time",
    )


def forget_endings(metadata: MetadataStore, app: str) -> None:
    """Delete how the runs of the timeline before have ended: an app that had ended may run again."""
    for one in all_ended(metadata, app):
        metadata.delete_if(SPACE, one.key, one.version)


def tasks_in(inventory: Inventory) -> list[TaskName]:
    return [TaskName(stage, n) for stage, record in inventory.stages.items() for n in range(record.tasks)]


class _Restore:
    def __init__(self, restoring: Restoring, timelines: Timelines) -> None:
        self._asked, self._timelines = restoring, timelines
        shelf = Shelf(restoring.home, restoring.app)
        self.folder, self.manifest = shelf.path(restoring.name), shelf.manifest(restoring.name)
        self._before = recorded(restoring.metadata, restoring.app, timelines.current)
        self._systems = recorded_systems(restoring.metadata, restoring.app, timelines.current)
        self._system = self.manifest.system if self._systems is None else self._systems.own
        self._kept = {copy.name: kept_commit(self.folder, copy.name).record for copy in self.manifest.tasks}
        self._latest_records: dict[TaskName, CommitRecord] | None = None
        self._check()
        own = self.manifest.app == restoring.app
        inventory = self.manifest.inventory if own else for_app(restoring.app, self.manifest.inventory)
        inventory = with_tasks_of(inventory, self._before)
        counts = restoring.partitions
        new = rescaled(restoring.app, inventory, counts, self._kept) if counts else inventory
        self._dealt = {name: r for name, r in new.stages.items() if r.active != inventory.stages[name].active}
        taken = {part.kept_as for _, part in self._before.parts() if part.kind == "stream"} | self._before.gone
        self._streams = new_streams(restoring.app, inventory, timelines.next, taken)
        gone = {*taken, *(self._before.stages.keys() - new.stages.keys())} - new.stages.keys()
        self._old = inventory
        self._inventory = renamed(new, self._streams, gone)

    def _check(self) -> None:
        asked = self._asked
        if asked.partitions and self.manifest.grouping != "partition":
            raise UsageError(
                f"app {asked.app!r} has a task for each container (grouping='container'), and no state by partition",
                hint="leave out --partitions",
            )
        if asked.outputs == "silent" and not self._before:
            raise UsageError(
                f"app {asked.app!r} has never run here, so there is no former position until which it could be silent",
                hint="leave out --outputs silent",
            )
        if asked.outputs == "silent":
            for record in (*self._kept.values(), *self._latest().values()):
                check_order_comes_again(asked.app, record)

    def _latest(self) -> dict[TaskName, CommitRecord]:
        if self._latest_records is None:
            asked, number, tasks = self._asked, self._timelines.current, tasks_in(self._before)
            committed = last_commits(asked.metadata, asked.home, asked.app, number, tasks)
            unbegun = [task for task in tasks if task not in committed]
            begun = read_foundings(asked.home, asked.app, number, unbegun)
            self._latest_records = {task: founding.record for task, founding in begun.items()}
            self._latest_records |= {task: commit.record for task, commit in committed.items()}
        return self._latest_records

    def outlook(self) -> Outlook:
        asked, latest = self._asked, self._latest()
        timeline = Timeline(
            number=self._timelines.next,
            before=self._timelines.current,
            savepoint=asked.name,
            from_app=self.manifest.app,
            savepoint_version=self.manifest.version,
            created_ms=WallClock().now_ms(),
            version=self._version(),
            outputs=asked.outputs,
            partitions=dict(asked.partitions),
            system=self._system,
        )
        outputs = {part.id for _, part in self._inventory.parts() if part.kind in ("output", "target")}
        return Outlook(
            manifest=self.manifest,
            timeline=timeline,
            rewinds=tuple(self._rewinds(latest)),
            outputs=tuple(sorted(outputs)),
            tasks={name: (self._old.stages[name].active, record.active) for name, record in self._dealt.items()},
            ran=bool(latest),
        )

    def _version(self) -> int:
        before = max((one.version for one in self._timelines.all), default=0)
        return version_of(self.manifest.version, self._latest().values(), before)

    def _rewinds(self, latest: Mapping[TaskName, CommitRecord]) -> Iterator[Rewind]:
        for task, record in sorted(self._kept.items()):
            now = latest.get(task)
            places = {(one.stream, one.partition): one for one in now.sources} if now is not None else {}
            for entry in record.sources:
                there = places.get((entry.stream, entry.partition))
                yield Rewind(
                    task=task,
                    stream=entry.stream,
                    partition=entry.partition,
                    to=entry.offset,
                    before=None if there is None else there.offset,
                    slot=entry.shards is not UNSET,
                    moved=there is None or there.shards != entry.shards,
                )

    def fence(self) -> None:
        """Append to each changelog of the current timeline what a start of its task would. So stale copies stop.

        Otherwise a container that is cut off from the driver could go on, and write what the new timeline doesn't know.
        """
        asked, number = self._asked, self._timelines.current
        if self._systems is None:  # nothing has run in it
            return
        system = self._systems.own_spec(asked.app, asked.home)
        with closing(Connections()) as connections:
            admin = connections.admin(system)
            known = {stage: admin.describe(changelog_name(asked.app, stage, number)) for stage in self._before.stages}
            counts = {stage: 0 if info is None else info.partitions for stage, info in known.items()}
            tasks = [task for task in tasks_in(self._before) if task.number < counts[task.stage]]
            begun = last_commits(asked.metadata, asked.home, asked.app, number, tasks)
            generations = Generations(asked.metadata, asked.app).issue(sorted(tasks))
            for task, generation in generations.items():
                producer = self._before.stages[task.stage].producers[task.number]
                ssp = SSP(StreamId(system.name, changelog_name(asked.app, task.stage, number)), task.number)
                changelog = ChangelogPartition(ssp, system, connections)
                record = AbortRecord(generation=generation, writer=f"restore-{self._timelines.next}")
                version = begun[task].record.version if task in begun else -1
                changelog.append(Header(Kind.ABORT, producer, generation, version, 1), encode_record(record))
                changelog.flush()
                connections.sync_records()
                changelog.close()
        self._latest_records = None  # what was committed until now counts

    def check_silence(self) -> None:
        """Refuse silence if a stage has still to process what stages before it committed: it would never be written."""
        asked, number = self._asked, self._timelines.current
        if asked.outputs != "silent":
            return
        with opened_changelogs(asked.metadata, asked.home, asked.app, number) as changelogs:
            for record, part in self._before.parts():
                if changelogs is None or part.kind != "stream" or not part.reads:
                    continue
                readers = [TaskName(record.stage, n) for n in range(record.tasks)]
                if changelogs.messages_wait(part.kept_as, readers):
                    raise UsageError(
                        f"app {asked.app!r} was stopped before stage {record.stage!r} had processed all messages that "
                        f"wait in {part.id!r}: restored with --outputs silent, the app would never write their results",
                        hint="start the app, and end it with headrace run --savepoint NAME: then nothing waits. Or "
                        "restore with --outputs again",
                    )

    def write(self) -> None:
        asked, number = self._asked, self._timelines.next
        with new_founding_folder(asked.home, asked.app, number) as draft:
            for copy in self.manifest.tasks:
                asked.progress(f"copying the state of task {copy.task}")
                copy_tree(self.folder / task_folder(copy.name), draft / DONORS / task_folder(copy.name))
            write_foundings(draft, foundings(self._restored(draft)))
        replace_inventory(asked.metadata, asked.app, number, self._inventory)

    def _restored(self, draft: Path) -> Restored:
        kept, now = self.manifest.system, self._system
        formers = {*self._inventory.gone, *self._before.gone, *self._streams}
        dealt = {}
        for name in self._dealt:
            old, counts = self._old.stages[name], self._inventory.stages[name].parts
            changed = {
                id_
                for id_, part in old.parts.items()
                if part.kind == "stream" and part.fixed.get("partitions") != counts[id_].fixed.get("partitions")
            }
            streams = {f"{kept}.{kept_as}" for kept_as, part in old.streams(reads=True).items() if part.id in changed}
            dealt[name] = Rescaled(worked=old.active, streams=frozenset(streams))
        return Restored(
            version=self._version(),
            kept=self._kept,
            latest=self._latest(),
            inventory=self._inventory,
            streams={f"{kept}.{old}": f"{now}.{new}" for old, new in self._streams.items()},
            former_streams=frozenset(f"{now}.{name}" for name in formers),
            folder={task: draft / DONORS / task_folder(task) for task in self._kept},
            rescaled=dealt,
            silent=self._asked.outputs == "silent",
        )


def delete_timeline(
    home: Path, app: str, metadata: MetadataStore, number: int, snapshots: ObjectPlace | None = None
) -> None:
    """Delete a timeline that isn't current. A command that is interrupted can be repeated.

    Streams that aren't in the embedded log are only emptied, because nothing deletes a stream there. ``snapshots`` is
    the object store with its snapshots, if it isn't the recorded one. If that can't be used, nothing is deleted.
    """
    with locked(home / "timelines" / app, f"the timelines of app {app!r}"):
        timelines = Timelines(metadata, app)
        if number not in timelines.numbers:
            there = ", ".join(map(str, timelines.numbers))
            raise UsageError(f"app {app!r} has no timeline {number}", hint=f"it has {there}")
        if number == timelines.current:
            raise UsageError(
                f"timeline {number} of app {app!r} is the current one", hint="only older ones can be deleted"
            )
        kept = {part.kept_as for _, part in recorded(metadata, app, timelines.current).parts() if part.kind == "stream"}
        inventory = recorded(metadata, app, number)
        streams = {changelog_name(app, stage, number) for stage in inventory.stages}
        streams |= {part.kept_as for _, part in inventory.parts() if part.kind == "stream"} - kept
        systems = recorded_systems(metadata, app, number)
        own = home_log(home) if systems is None else systems.own_spec(app, home)
        folders = [home / kind / folder_name(app, number) for kind in ("state", "snapshots")]
        if own.kind == "log":
            folders += [StreamFolder(Path(own.options["root"]), stream).path for stream in sorted(streams)]
        folders.append(founding_folder(home, app, number))
        _delete_snapshots(snapshots or snapshots_place(metadata, app, number), app, number)
        for folder in folders:
            try:
                if folder.exists():
                    shutil.rmtree(folder)
            except OSError as error:
                raise StorageError(f"{folder} can't be deleted: {error}", hint="fix this, then try again") from error
        if own.kind != "log":
            _empty(own, streams)
        replace_inventory(metadata, app, number, Inventory())
        forget_systems(metadata, app, number)
        timelines.forget(number)


def _delete_snapshots(place: ObjectPlace | None, app: str, number: int) -> None:
    if place is None:
        return
    try:
        if place.scheme == "file" and not Path(place.url.removeprefix("file://")).is_dir():
            raise StorageError("there is no such folder on this machine")
        delete_stored(open_objects(place), app, number)
    except HeadraceError as error:
        raise StorageError(
            f"timeline {number} of app {app!r} stays, because its snapshots in {place} can't be deleted: "
            f"{error.message}",
            hint="run the command where the store can be reached, with the credentials that the app has; if "
            "the store has moved, give its new place with --snapshots",
        ) from error


def _empty(system: SystemSpec, streams: Iterable[str]) -> None:
    with closing(open_system(system).admin()) as admin:
        for name in sorted(streams):
            if admin.describe(name) is not None:
                for partition, extent in enumerate(admin.extents(name)):
                    admin.trim(SSP(StreamId(system.name, name), partition), extent.upcoming)

"""Read the commits of an app's tasks from its changelogs, in any system.

The last commit that counts is in the changelog. Reading starts at the newest matching snapshot in this home, or else at
the changelog's beginning. It opens nothing that a running task has locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace.checkpoint.changelog import Changelog, ReplayStep
from headrace.checkpoint.record import CommitRecord, LocalCheckpoint
from headrace.core.errors import HeadraceError, ProtocolError
from headrace.core.frame import Header, Kind, body_of, decode_header
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.core.log import logger
from headrace.metadata.store import MetadataStore
from headrace.runners.app_systems import recorded_systems
from headrace.runtime.connections import Connections
from headrace.runtime.naming import changelog_name, state_folders_at
from headrace.runtime.state.snapshots import Snapshot
from headrace.systems.app_systems import AppSystems
from headrace.systems.base import Admin, Edge, Extent, Records
from headrace.systems.registry import SystemSpec
from headrace.systems.whole import polled_to

_READ_BYTES = 8 << 20

_log = logger(__name__)


class Committed(NamedTuple):
    """A commit and its offset in the changelog. ``bare``: no state was ever committed, so there is no database."""

    local: LocalCheckpoint
    record: CommitRecord
    bare: bool = False


@dataclass(slots=True)
class Reading:
    """The facts from a changelog. ``changes_bytes`` follow its last commit; ``last`` is the offset of its last record.

    ``bare``: it was read from its beginning, and no commit in it has changes.
    """

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
        """The changelog partition of a task."""
        return SSP(StreamId(self.system.name, changelog_name(self._app, task.stage, self._timeline)), task.number)

    def known(self, system: str) -> tuple[SystemSpec, Admin] | None:
        """A record system that the app uses; None if it isn't one, or if only the app's program can open it."""
        spec = self._systems.get(system)
        return None if spec is None else (spec, self._connections.admin(spec))

    def read(self, task: TaskName, extent: Extent) -> Reading:
        """Read a task's changelog."""
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

    def last_commits(self, tasks: Iterable[TaskName]) -> dict[TaskName, Committed]:
        """Return the last commit that counts of each of these tasks, if it has one."""
        found = {task: self._last_commit(task) for task in tasks}
        return {task: commit for task, commit in found.items() if commit is not None}

    def _last_commit(self, task: TaskName) -> Committed | None:
        name = self.ssp(task).stream.name
        info = self.admin.describe(name)
        if info is None or task.number >= info.partitions:
            return None
        reading = self.read(task, self.admin.extents(name)[task.number])
        read = reading.changelog
        return None if read.record is None or read.local is None else Committed(read.local, read.record, reading.bare)

    def messages_wait(self, name: str, readers: Sequence[TaskName]) -> bool:
        """Return whether an intermediate stream has messages that its readers' commits don't cover.

        The app must not be running. Messages that a restart would void count, too.
        """
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
                        _log.info(
                            "a snapshot doesn't match the changelog; trying an older one",
                            changelog=str(ssp),
                            offset=start,
                        )
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
            _log.info(
                "a snapshot doesn't match the changelog; trying an older one", changelog=str(ssp), offset=base.offset
            )
            return None  # a snapshot of another changelog, whose commit would be where no record begins
        return reading or Reading(Changelog(0, "", None), bare=base is None)

    def _records(self, ssp: SSP, start: Offset, end: Offset) -> Iterator[tuple[Offset, Header, bytes]]:
        consumer = self._connections.consumer(self.system)
        try:
            consumer.register(ssp, Edge.OLDEST if start == 0 else start)
            for records in polled_to(consumer, ssp, end, _READ_BYTES):
                if isinstance(records, Records):
                    for offset, payload in zip(records.offsets, records.payloads, strict=True):
                        yield offset, decode_header(payload), payload
        finally:
            consumer.close()


@contextmanager
def opened_changelogs(metadata: MetadataStore, home: Path, app: str, timeline: int) -> Iterator[Changelogs | None]:
    """The changelogs of an app in a timeline, with connections of their own; None if it has never run there.

    Raises ``UsageError`` if only the app's program can open them.
    """
    systems = recorded_systems(metadata, app, timeline)
    with closing(Connections()) as connections:
        yield None if systems is None else Changelogs(home, app, timeline, systems, connections)


def last_commits(
    metadata: MetadataStore, home: Path, app: str, timeline: int, tasks: Iterable[TaskName]
) -> dict[TaskName, Committed]:
    """Return the last commit that counts of each of these tasks in this timeline, if it has one."""
    with opened_changelogs(metadata, home, app, timeline) as changelogs:
        return {} if changelogs is None else changelogs.last_commits(tasks)

"""Take a savepoint: choose a cut, order it of all deployments, and publish what the tasks have kept.

Nothing is published until every task has kept its state. If a task misses the cut, the whole attempt is cancelled and
tried again with a later version. If the app ends meanwhile, or this process dies, only a draft is left.

At the end of a run the cut comes first, nothing is processed after it, and then the app drains. A thread of the driver
waits until then, and the coordinator holds the order back until the savepoint is taken. An app that ends by itself
leaves its last state behind, which is copied then.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from headrace.coordinator.books import CutOrder, CutReport, CutState, choose
from headrace.coordinator.publication import find_all
from headrace.coordinator.server import Coordinator
from headrace.core.clock import WallClock
from headrace.core.errors import (
    HeadraceError,
    InfrastructureError,
    ProtocolError,
    StateLockedError,
    UnavailableError,
    UsageError,
)
from headrace.core.files import make_private_folder, write_private
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.core.worker import WorkerThread
from headrace.life.apps import recorded_systems
from headrace.life.changelogs import ReadCommit, last_commits
from headrace.life.folder import Progress, Shelf, copies, copy_tree, kept_commit, misfit, write_manifest
from headrace.life.founding import Manifest
from headrace.life.metadata import MetadataStore
from headrace.life.timelines import current_timeline
from headrace.plan.inventory import Inventory
from headrace.protocol.record import COMMIT_FILE, DATABASE_FOLDER, LOCAL_KEY, Cut, KeptCommit, LocalCheckpoint
from headrace.run.savepoints.restoring import recorded, tasks_in
from headrace.stores.database import Database, FolderLock
from headrace.task.naming import state_folders_at, task_folder

ATTEMPTS = 3
PATIENCE_S = 60.0
"""How long after its time a cut may take."""
_POLL_S = 0.1
_log = logger(__name__)


class _Link(Protocol):
    """A deployment of the app: its coordinator, or a client of it."""

    def cut(self, message: CutOrder) -> CutReport: ...


@dataclass(frozen=True, slots=True)
class Taking:
    """What a savepoint is taken of. ``last``: nothing is processed after the cut, which may take ``patience_s``."""

    home: Path
    app: str
    metadata: MetadataStore
    links: Sequence[_Link]
    last: bool = False
    patience_s: float = PATIENCE_S
    progress: Progress = lambda what: None


class _MissedError(Exception):
    """A task has passed over the version of the cut, or what the tasks have kept doesn't fit together."""


def take(taking: Taking, name: str) -> Manifest:
    """Take a savepoint. After an error, nothing has happened."""
    shelf = Shelf(taking.home, taking.app)
    shelf.check_free(name)
    with shelf.locked():
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return _attempt(taking, shelf, name)
            except _MissedError as error:
                _give_up(taking.links)
                _log.info("a task missed the cut of a savepoint", app=taking.app, attempt=attempt, why=str(error))
                taking.progress(f"{error}; trying again")
    raise UnavailableError(
        f"took no savepoint of app {taking.app!r}: {ATTEMPTS} times in a row, a task skipped the version at "
        "which all tasks should commit",
        hint="tasks are restarting or waiting: headrace status shows the cause. Try again when they commit steadily",
    )


def take_running(
    home: Path,
    app: str,
    metadata: MetadataStore,
    name: str,
    patience_s: float = PATIENCE_S,
    progress: Progress = lambda what: None,
) -> Manifest:
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(address.client())) for address in find_all(metadata, app)]
        return take(Taking(home, app, metadata, clients, patience_s=patience_s, progress=progress), name)


def _attempt(taking: Taking, shelf: Shelf, name: str) -> Manifest:
    timeline = current_timeline(taking.metadata, taking.app)
    inventory = recorded(taking.metadata, taking.app, timeline)
    if not inventory:
        raise UsageError(
            f"app {taking.app!r} has never run in {taking.home}", hint="name the home folder that it uses with --home"
        )
    reports = [link.cut(CutOrder(ask=True)) for link in taking.links]
    _check_reports(taking.app, reports)
    with shelf.draft(name) as draft:
        version = choose(reports) if reports else None
        states: dict[str, CutState] = {}
        if version is not None:
            cut = Cut(id=uuid.uuid4().hex, version=version, folder=str(draft.absolute()), last=taking.last)
            states = _cut(taking, cut)
        idle = [task for task in tasks_in(inventory) if states.get(str(task)) != "kept"]
        ended = _keep_ended(taking, timeline, idle, draft)
        for task, final in ended.items():
            if version is not None and final > version:
                raise _MissedError(f"task {task} has ended at version {final}, above {version}")
        manifest = _manifest(taking, name, timeline, inventory, draft, version or max(ended.values(), default=0))
        if recorded(taking.metadata, taking.app, timeline) != inventory:
            raise UnavailableError(
                f"app {taking.app!r} changed while its savepoint was being taken", hint="take it again"
            )
        write_manifest(draft, manifest)
    return manifest


def _check_reports(app: str, reports: Collection[CutReport]) -> None:
    if any(report.guarantee != "exactly_once" for report in reports):
        raise UsageError(
            f"app {app!r} runs with guarantee='at_least_once': its tasks don't commit together, so their "
            "states don't match",
            hint="run it with guarantee='exactly_once'",
        )
    if any(report.scattered for report in reports):
        raise UsageError(
            f"app {app!r} can't have savepoints on this cluster: they are kept in the home, and its machines share no "
            "disk, since its snapshots are in an object store",
            hint="drain it, and run it on one machine, which fetches its state: headrace run --master 'local[2]' "
            "--savepoint NAME. Or leave snapshots= out if the home is shared",
        )


def _manifest(taking: Taking, name: str, timeline: int, inventory: Inventory, draft: Path, version: int) -> Manifest:
    kept = {task: kept_commit(draft, task).record for task in tasks_in(inventory)}
    for task, record in kept.items():
        if record.version != version and not (record.ended and record.version < version):
            raise ProtocolError(f"task {task} has kept version {record.version} for a savepoint of version {version}")
    producers = {p: TaskName(name, n) for name, r in inventory.stages.items() for n, p in enumerate(r.producers)}
    if (wrong := misfit(kept, producers)) is not None:
        raise _MissedError(
            f"task {wrong.writer} was started again below version {version}, and wrote to {wrong.partition} when task "
            f"{wrong.reader} had passed that version already"
        )
    systems = recorded_systems(taking.metadata, taking.app, timeline)
    assert systems is not None  # it has committed
    taking.progress("computing checksums")
    return Manifest(
        app=taking.app,
        name=name,
        version=version,
        created_ms=WallClock().now_ms(),
        timeline=timeline,
        system=systems.own,
        stages=tuple(inventory.stages[stage] for stage in sorted(inventory.stages)),
        gone=tuple(sorted(inventory.gone)),
        tasks=copies(draft, list(kept)),
    )


def _cut(taking: Taking, cut: Cut) -> dict[str, CutState]:
    """Have all running tasks keep their state; return what has happened to it in each. A last cut stays ordered."""
    done = False
    try:
        states = _wait(taking, cut, [link.cut(CutOrder(cut=cut)) for link in taking.links])
        done = True
    finally:
        if not (done and cut.last):
            _give_up(taking.links)
    return states


def _wait(taking: Taking, cut: Cut, reports: list[CutReport]) -> dict[str, CutState]:
    wait_ms = max(max(0, cut.version - report.now_ms) for report in reports)
    deadline = time.monotonic() + wait_ms / 1000 + taking.patience_s
    never, said = threading.Event(), ""
    while True:
        left_s = deadline - time.monotonic()
        states = {task: state for report in reports for task, state in report.states.items()}
        if missed := sorted(task for task, state in states.items() if state == "missed"):
            raise _MissedError(f"task {missed[0]} had passed version {cut.version} already")
        if apart := sorted(task for task, state in states.items() if state == "apart"):
            raise UsageError(
                f"took no savepoint: task {apart[0]} runs on a machine, or in a container, that doesn't see "
                f"{Path(cut.folder).parent}",
                hint="a savepoint needs a home that all containers of the app share with this command",
            )
        if any(report.id != cut.id for report in reports):
            raise UnavailableError(
                "another savepoint of the app is being taken", hint="wait until it is done, then try again"
            )
        waiting = sorted(task for task, state in states.items() if state == "waiting")
        if not waiting:
            return states
        if (now := f"waiting for {len(waiting)} of {len(states)} tasks to commit version {cut.version}") != said:
            said = now
            taking.progress(f"{now}, for {left_s:.0f} seconds at most")
        if left_s < 0:
            raise UnavailableError(
                f"took no savepoint: {', '.join(waiting[:5])} didn't commit version {cut.version} in time",
                hint="headrace status shows what they wait for",
            )
        never.wait(_POLL_S)
        reports = [link.cut(CutOrder(ask=True)) for link in taking.links]


def _give_up(links: Sequence[_Link]) -> None:
    for link in links:
        try:
            link.cut(CutOrder())
        except HeadraceError as error:
            _log.info("can't take an order back: the deployment has ended", error=error.message)


def _keep_ended(taking: Taking, timeline: int, tasks: Sequence[TaskName], draft: Path) -> dict[TaskName, int]:
    commits = last_commits(taking.metadata, taking.home, taking.app, timeline, tasks)
    running = {task for task, commit in commits.items() if not commit.record.ended} | (set(tasks) - commits.keys())
    if running:
        stages = ", ".join(sorted({task.stage for task in running}))
        raise UsageError(
            f"stage {stages} of app {taking.app!r} isn't running, and hasn't ended",
            hint="start it: a savepoint is taken while the whole app runs, or at its end with headrace run --savepoint",
        )
    for task, commit in commits.items():
        if not (draft / task_folder(task) / COMMIT_FILE).exists():
            taking.progress(f"copying the state of task {task}, which has ended")
            _copy_state(taking, timeline, task, commit, draft / task_folder(task))
    return {task: commit.record.version for task, commit in commits.items()}


def _copy_state(taking: Taking, timeline: int, task: TaskName, commit: ReadCommit, target: Path) -> None:
    local = state_folders_at(taking.home, taking.app, task, timeline).local
    try:
        lock = FolderLock(local)
    except StateLockedError as error:
        raise UnavailableError(f"task {task} is still running: {error.message}", hint="try again") from error
    try:
        if commit.bare:
            make_private_folder(target)
            with closing(Database(target / DATABASE_FOLDER)) as database:  # a task without state has made none
                batch = database.batch()
                batch.put(LOCAL_KEY, commit.local.encode())
                database.write(batch)
        elif not local.exists():
            raise _not_here(task, local)
        else:
            copy_tree(local, target / DATABASE_FOLDER)
    finally:
        lock.release()
    if _held(target / DATABASE_FOLDER) != commit.local:
        raise _not_here(task, local)
    kept = KeptCommit(task=str(task), offset=commit.local.offset, record=commit.record)
    write_private(target / COMMIT_FILE, kept.encode())


def _held(folder: Path) -> LocalCheckpoint | None:
    with closing(Database(folder)) as database:
        data = database.get(LOCAL_KEY)
        return None if data is None else LocalCheckpoint.decode(data)


def _not_here(task: TaskName, local: Path) -> InfrastructureError:
    return InfrastructureError(
        f"the state of task {task} as it ended isn't in {local}",
        hint="start the app again: it restores its state from its changelog, and ends. Then take the savepoint",
    )


_WAIT_S = 1.0


class SavepointAtEnd(WorkerThread):
    """Takes the savepoint ``name`` when the run ends. Use it as a context manager around the run."""

    def __init__(self, coordinator: Coordinator, home: Path, app: str, metadata: MetadataStore, name: str) -> None:
        super().__init__("headrace-savepoint")
        Shelf(home, app).check_free(name)
        self._coordinator = coordinator
        self._home, self._app, self._metadata, self._name = home, app, metadata, name
        self._taken = False
        self._error: HeadraceError | None = None

    def __enter__(self) -> SavepointAtEnd:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is not None:
            return  # the app has failed: that is what counts
        if not self._taken and self._error is None:
            self._take(running=False)
        if self._error is not None:
            self._error.message = f"the app has ended, but its savepoint wasn't taken: {self._error.message}"
            raise self._error

    @override
    def work(self) -> None:
        while not self.closing.is_set():
            if self._coordinator.wait_for_drain(_WAIT_S):
                try:
                    self._take(running=True)
                finally:
                    self._coordinator.release_drain()
                return

    def _take(self, *, running: bool) -> None:
        links = [self._coordinator] if running else []
        try:
            take(Taking(self._home, self._app, self._metadata, links, last=True), self._name)
            self._taken = True
            _log.info("took a savepoint at the end", app=self._app, savepoint=self._name)
        except HeadraceError as error:
            self._error = error

"""Write a savepoint from rows or from a batch job, and read what one holds.

To write one, the app is planned as at a start, so each row goes to the task that would keep it, into the app's own
stores. For reading, they are opened on copies of the tasks' databases; the savepoint doesn't change.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl

from headrace.api.app import Declarations
from headrace.api.specs import Graph, TableSpec
from headrace.core.clock import WallClock
from headrace.core.errors import DataError, UsageError
from headrace.core.files import make_private_folder, write_private
from headrace.core.ids import TaskName
from headrace.life.folder import Shelf, copies, copy_tree, verify, write_manifest
from headrace.life.founding import Manifest
from headrace.life.metadata import existing_metadata
from headrace.plan.inventory import NO_CONSENT, Dealing, Inventory, inventory_of
from headrace.plan.model import Plan, StagePlan, TaskPlan
from headrace.protocol.machine import ProtocolMachine
from headrace.protocol.record import COMMIT_FILE, DATABASE_FOLDER, LOCAL_KEY, CommitRecord, KeptCommit, LocalCheckpoint
from headrace.rows.given import Rows, given_rows
from headrace.run.planning import Deployment, Planned, planned_against
from headrace.stores.base import Share
from headrace.stores.database import Database, KeySpace, PartOfBatch
from headrace.stores.versions import VersionedTable
from headrace.task.batch import Left
from headrace.task.connections import Connections
from headrace.task.event_time import Progress, TimesCheckpoint
from headrace.task.host.attempt import Attempt, Factories
from headrace.task.metrics import TaskMetrics
from headrace.task.naming import task_folder
from headrace.task.scope import TaskScope
from headrace.task.state.disk import Disk
from headrace.task.tables import LocalTable
from headrace.task.task import task_factory

ROWS_AT_ONCE = 1 << 16


@contextmanager
def attempt_at_rest(plan: Plan, stage: StagePlan, task: TaskPlan) -> Iterator[Attempt]:
    """An attempt of a task that never begins. Its stores are empty and have no database."""
    scope = TaskScope.of(plan, stage, task)
    with closing(Connections()) as connections:
        machine = ProtocolMachine(scope.machine, writer="at rest")
        make = Factories(task_factory(plan, stage, scope))
        metrics = TaskMetrics(str(task.name))
        with closing(Attempt(scope, make, machine, connections, metrics, random.Random(), 0.0)) as attempt:
            yield attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    plan: Plan
    inventory: Inventory
    rows: Mapping[str, pl.DataFrame]
    version: int
    base: tuple[Path, Manifest] | None
    """The savepoint that keeps what isn't replaced."""


def write_state(app: Declarations, name: str, tables: Mapping[str, Rows], base: str | None) -> Manifest:
    """Write a savepoint that holds these tables and otherwise what ``base`` holds; without one, nothing."""
    graph = app.graph()
    shelf = Shelf(Path(graph.settings.home), graph.app)
    shelf.check_free(name)
    check_can_be_saved(graph)
    if not isinstance(tables, Mapping) or not tables:
        raise UsageError(
            f"tables={tables!r:.80} doesn't name a table to write", hint='pass rows by table: tables={"accounts": df}'
        )
    with shelf.locked():
        kept = None if base is None else shelf.manifest(base)
        planned, before, timeline = _planned(graph, kept)
        planned.changes.check()
        writing = _Writing(
            plan=planned.plan,
            inventory=inventory_of(planned.plan).after(before),
            rows={id_: _rows(_table(planned.plan.graph, id_), rows) for id_, rows in tables.items()},
            version=WallClock().now_ms() if kept is None else kept.version,
            base=None if base is None or kept is None else (shelf.path(base), kept),
        )
        if writing.base is not None:
            verify(*writing.base)
        with shelf.draft(name) as draft:
            for stage in planned.plan.stages:
                for task in stage.tasks:
                    _write_task(writing, stage, task, draft / task_folder(task.name))
            return _manifest(draft, name, planned.plan, writing.inventory, timeline, writing.version)


def _planned(graph: Graph, base: Manifest | None) -> tuple[Planned, Inventory, int]:
    if base is not None:
        return planned_against(graph, base.inventory), base.inventory, base.timeline
    with existing_metadata(Path(graph.settings.home), graph.settings.metadata) as metadata:
        deployment = Deployment(graph, metadata, NO_CONSENT)
        return deployment.planned(), deployment.inventory, deployment.timeline


def _manifest(draft: Path, name: str, plan: Plan, inventory: Inventory, timeline: int, version: int) -> Manifest:
    manifest = Manifest(
        app=plan.graph.app,
        name=name,
        version=version,
        created_ms=WallClock().now_ms(),
        timeline=timeline,
        system=plan.graph.settings.internal_system().name,
        written=True,
        stages=tuple(inventory.stages[stage] for stage in sorted(inventory.stages)),
        gone=tuple(sorted(inventory.gone)),
        tasks=copies(draft, [task.name for stage in plan.stages for task in stage.tasks]),
    )
    write_manifest(draft, manifest)
    return manifest


def check_can_be_saved(graph: Graph) -> None:
    if graph.settings.guarantee != "exactly_once":
        raise UsageError(
            f"app {graph.app!r} has guarantee={graph.settings.guarantee!r}, and savepoints need 'exactly_once'",
            hint="declare the app with guarantee='exactly_once'",
        )
    if graph.settings.grouping != "partition":
        raise UsageError(
            f"app {graph.app!r} has a task for each container (grouping='container'), so the task that keeps "
            "a row isn't known yet",
            hint="declare the app with grouping='partition'",
        )


def _table(graph: Graph, id_: str) -> TableSpec:
    table = graph.tables.get(id_)
    if table is None:
        known = sorted(name for name, spec in graph.tables.items() if spec.remote is None and not spec.side_inputs)
        what = "state of a step, which can't be written" if id_ in graph.nodes else "not a table of the app"
        raise UsageError(
            f"{id_!r} is {what}", hint=f"it has {', '.join(known)}" if known else "declare it with app.table"
        )
    if table.remote is not None:
        raise UsageError(
            f"table {id_!r} ({table.location}) is remote: a savepoint doesn't hold its rows",
            hint="write them to the system that stores it",
        )
    if table.side_inputs:
        sides = " and ".join(map(repr, table.side_inputs))
        raise UsageError(
            f"table {id_!r} ({table.location}) is a copy of side input {sides}, which decides what it holds",
            hint="write the rows to that stream",
        )
    return table


def _rows(table: TableSpec, given: Rows) -> pl.DataFrame:
    if table.schema is None:
        raise UsageError(
            f"the columns of table {table.id!r} ({table.location}) aren't known", hint="give the table a schema="
        )
    try:
        rows, misfit = table.schema.conform(given_rows(given, table.schema, f"table {table.id!r}"))
        if misfit is not None:
            raise misfit.error()
    except DataError as error:
        where = "" if table.id in error.message else f"the rows for table {table.id!r}: "
        raise UsageError(f"{where}{error.message}", hint="give rows with the columns of the table") from error
    for name in table.key:
        if missing := rows.get_column(name).null_count():
            raise UsageError(
                f"the rows for table {table.id!r} have no key in {missing} of {rows.height}: {name!r} is null",
                hint=f"leave them out: .filter(pl.col({name!r}).is_not_null())",
            )
    return rows


def _write_task(writing: _Writing, stage: StagePlan, task: TaskPlan, folder: Path) -> None:
    base = writing.base
    kept = base is not None and any(copy.name == task.name for copy in base[1].tasks)
    if base is not None and kept:
        copy_tree(base[0] / task_folder(task.name), folder)
    else:
        make_private_folder(folder)
    tables = [id_ for id_ in stage.tables if id_ in writing.rows]
    if kept and not tables:
        return
    with closing(Disk().open(folder / DATABASE_FOLDER)) as database:
        if not kept:
            _begin(task.name, writing.version, database, folder / COMMIT_FILE)
        if tables:
            with attempt_at_rest(writing.plan, stage, task) as attempt:
                names = {store.id: name for name, store in attempt.stores().items()}
                for id_ in tables:
                    _replace(attempt.task.chain.tables[id_], names, database, _share(writing, stage, task.name, id_))


def _begin(task: TaskName, version: int, database: Database, about: Path) -> None:
    times = TimesCheckpoint(watermark=Progress().watermark, partitions=[])
    record = CommitRecord(
        generation=0,
        version=version,
        next_version=version + 1,
        parents_version=version,
        bookkeeping=msgspec.Raw(msgspec.json.encode(times)),
    )
    batch = database.batch()
    batch.put(LOCAL_KEY, LocalCheckpoint(0, record.generation, record.version).encode())
    database.write(batch)
    write_private(about, KeptCommit(task=str(task), offset=0, record=record).encode())


def _share(writing: _Writing, stage: StagePlan, task: TaskName, id_: str) -> pl.DataFrame:
    record, rows = writing.inventory.stages[stage.name], writing.rows[id_]
    dealing: Dealing = record.parts[id_].dealing
    if task.number >= record.active:
        return rows.clear()
    if dealing.copied or record.active == 1:
        return rows
    if dealing.why_not:
        raise UsageError(
            f"table {id_!r} can't be written, because it isn't known which of its {record.active} tasks keeps a row: "
            f"{dealing.why_not}",
            hint="fill it from a partition_by on columns of its key",
        )
    return Share(task.number, record.active, dealing.by).of(id_, rows)


def _replace(table: LocalTable, names: Mapping[str, str], database: Database, rows: pl.DataFrame) -> None:
    """Give a table these rows instead of those that it has in the database. ``names`` are the names of stores."""
    stores = list(table.stores()) if isinstance(table, VersionedTable) else [table.store]
    batch = database.batch()
    for store in stores:
        PartOfBatch(batch, names[store.id]).delete_all()
    database.write(batch)
    for store in stores:
        store.attach(KeySpace(database, names[store.id]))
    if not isinstance(table, VersionedTable):
        table.advance(WallClock().now_ms())  # rows with a time to live begin it now
    put = table.put_timeless if isinstance(table, VersionedTable) else table.put_rows
    database.begin_rebuilding()
    for part in rows.iter_slices(ROWS_AT_ONCE):
        put(part)
        batch = database.batch()
        for store in stores:
            store.take_changes(0)
            store.persist(PartOfBatch(batch, names[store.id]))
        database.write(batch)
    database.end_rebuilding()


@dataclass(frozen=True, slots=True, kw_only=True)
class FromBatch:
    """What becomes a savepoint. ``before`` is the app's inventory in its present ``timeline``."""

    plan: Plan
    before: Inventory
    timeline: int
    version: int
    left: Mapping[TaskName, Left]


def save(shelf: Shelf, name: str, job: FromBatch) -> Manifest:
    """Write a savepoint of the state of a batch job's tasks at its seam, from which a live run can continue."""
    tasks = [task.name for stage in job.plan.stages for task in stage.tasks]
    missing = [str(task) for task in tasks if task not in job.left]
    if missing:
        raise DataError(
            f"the results of the batch job lack the state of task {missing[0]}",
            hint="the files of the run were changed: delete them, and run the job again",
        )
    inventory = inventory_of(job.plan).after(job.before)
    with shelf.locked(), shelf.draft(name) as draft:
        for task in tasks:
            copy_tree(Path(job.left[task].folder), draft / task_folder(task))
        return _manifest(draft, name, job.plan, inventory, job.timeline, job.version)


def read_state(app: Declarations, name: str) -> tuple[Manifest, dict[str, pl.DataFrame]]:
    """Return the manifest of a savepoint, and by id the rows that all tasks together kept."""
    graph = app.graph()
    shelf = Shelf(Path(graph.settings.home), graph.app)
    folder, manifest = shelf.path(name), shelf.manifest(name)
    planned = planned_against(graph, manifest.inventory).plan
    found: dict[str, list[pl.DataFrame]] = {}
    for copy in manifest.tasks:
        for id_, rows in _rows_kept(planned, copy.name, folder / task_folder(copy.name) / DATABASE_FOLDER):
            if rows.height:
                found.setdefault(id_, []).append(rows)
    return manifest, {id_: pl.concat(frames, how="diagonal_relaxed") for id_, frames in sorted(found.items())}


def _rows_kept(planned: Plan, task: TaskName, database: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    stage = next((stage for stage in planned.stages if stage.name == task.stage), None)
    if stage is None or not stage.tasks:
        raise UsageError(
            f"the app has no stage {task.stage!r}, but the savepoint holds state for it",
            hint="read it with the version of the app from which it was taken",
        )
    known = stage.tasks[min(task.number, len(stage.tasks) - 1)]
    with closing(Disk().open_copy(database)) as opened, attempt_at_rest(planned, stage, known) as attempt:
        for name, store in attempt.stores().items():
            store.attach(KeySpace(opened, name))
            for rows in store.frames():
                yield store.id, rows

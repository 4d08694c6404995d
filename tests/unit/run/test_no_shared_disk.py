"""What is refused on machines that share no disk, before anything is created there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import HeadraceError, PlanError, UsageError
from headrace.life.apps import record_systems
from headrace.life.metadata import MemoryMetadata, MetadataStore
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.protocol.record import CommitRecord, Donor, Founding
from headrace.run.no_shared_disk import check_no_shared_disk, check_standby
from headrace.systems.base import StreamInfo

COLUMNS = {"n": pl.Int64}
KAFKA = hr.io.kafka_log("a:9092")
Change = Callable[[hr.App], object]


def planned(
    home: Path, snapshots: str | None = "s3://bucket/prefix", change: Change | None = None, **given: object
) -> Plan:
    """An app that counts numbers; ``change`` adds to it."""
    app = hr.App("counts", home=home, **{"system": KAFKA, "snapshots": snapshots} | given)  # type: ignore[arg-type]
    numbers = app.input("numbers", COLUMNS).partition_by("n", id="dealt")
    numbers.send_to(app.output("copies"))
    if change is not None:
        change(app)
    graph = app.graph()
    return plan(graph, {id_: StreamInfo(id_, 1) for id_ in graph.streams})


def add_files(app: hr.App) -> None:
    app.input("more", COLUMNS, system=hr.io.files("in/*.csv")).send_to(app.output("others"))


def add_log(app: hr.App) -> None:
    app.input("more", COLUMNS, system=hr.io.log(f"{app.settings.home}/streams")).send_to(app.output("others"))


def add_report(app: hr.App) -> None:
    report = hr.io.files(f"{app.settings.home}/report", format="jsonl")
    app.input("more", COLUMNS).send_to(app.output("report", system=report))


def add_kinesis(app: hr.App) -> None:
    orders = hr.io.kinesis("orders", endpoint_url="memory://", slots=1)
    app.input("more", COLUMNS, system=orders).send_to(app.output("others"))


@pytest.mark.parametrize(
    ("change", "given", "error", "said"),
    [
        (
            None,
            {"system": None},
            PlanError,
            "app 'counts' keeps its own streams in the embedded log of its home, and its",
        ),
        (
            add_files,
            {},
            PlanError,
            "source stream 'more' .* needs the home of app 'counts', where the list of its files is",
        ),
        (add_log, {}, PlanError, "source stream 'more' .* where the embedded log is, and its machines share no disk"),
        (add_report, {}, PlanError, "sink stream 'report' .* needs the home of app 'counts'"),
    ],
)
def test_what_needs_the_home_is_refused(
    tmp_path: Path, change: Change | None, given: dict[str, object], error: type[HeadraceError], said: str
) -> None:
    with pytest.raises(error, match=said):
        check_no_shared_disk(planned(tmp_path, change=change, **given), MemoryMetadata())
    for shared in (None, f"file://{tmp_path}/snapshots"):
        check_no_shared_disk(planned(tmp_path, shared, change, **given), MemoryMetadata())


def test_stages_that_run_elsewhere_may_need_it(tmp_path: Path) -> None:
    found = planned(tmp_path, change=add_files)
    check_no_shared_disk(found, MemoryMetadata(), ["numbers", "dealt"])
    with pytest.raises(PlanError):
        check_no_shared_disk(found, MemoryMetadata(), ["more"])


def test_what_other_systems_hold_is_fine(tmp_path: Path) -> None:
    check_no_shared_disk(planned(tmp_path), MemoryMetadata())
    check_no_shared_disk(planned(tmp_path, change=add_kinesis), MemoryMetadata())


def test_a_savepoint_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="app 'counts' can't have savepoints, which are kept in the home"):
        check_no_shared_disk(planned(tmp_path), MemoryMetadata(), savepoint="monday")
    check_no_shared_disk(planned(tmp_path, None), MemoryMetadata(), savepoint="monday")


def test_an_app_that_begins_with_a_savepoint(tmp_path: Path) -> None:
    founding = Founding(CommitRecord(generation=0, version=1, next_version=2), (Donor(0, tmp_path),))
    found = planned(tmp_path)
    tasks = [replace(stage, tasks=tuple(replace(t, founding=founding) for t in stage.tasks)) for stage in found.stages]
    found = replace(found, stages=tuple(tasks))
    metadata: MetadataStore = MemoryMetadata()
    with pytest.raises(
        PlanError, match="app 'counts' begins with a savepoint, whose copies are in the home of this mac"
    ):
        check_no_shared_disk(found, metadata)
    record_systems(metadata, found)
    check_no_shared_disk(found, metadata)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"snapshots": None}, "app 'counts' has standby=1, but keeps its snapshots in its home, which its machines"),
        ({"snapshots": "file:///shared", "system": None}, "standby=1, but keeps its own streams in its home"),
    ],
)
def test_standbys_need_homes_of_their_own(tmp_path: Path, given: dict[str, object], said: str) -> None:
    plan = planned(tmp_path, **{"standby": 1} | given)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=said):
        check_standby(plan)
    check_standby(planned(tmp_path, standby=1))
    check_standby(planned(tmp_path, snapshots=None))

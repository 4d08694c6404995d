"""An app of two stages, and statuses of its tasks."""

from __future__ import annotations

import polars as pl

import headrace as hr
from headrace.coordinator import messages as m
from headrace.coordinator.ledger import Ledger
from headrace.core.ids import TaskName
from headrace.plan.planner import plan
from headrace.plan.render import RenderedPlan, render
from headrace.systems.base import StreamInfo

NOW = 1_800_000_000_000


def rendered(tasks: int = 2) -> RenderedPlan:
    """Views are filtered, shuffled, and counted in windows."""
    app = hr.App("views")
    (
        app.input("views", {"member": pl.String, "ts": pl.Datetime("ms")}, event_time="ts")
        .filter(pl.col("member") != "")
        .partition_by("member", id="by-member", partitions=tasks)
        .window(hr.tumbling("10s"), key="member", id="per-10s")
        .agg(views=pl.len())
        .send_to(app.output("counts", partitions=1))
    )
    return render(plan(app.graph(), {"views": StreamInfo("views", tasks)}))


def ledger(tasks: int = 2) -> Ledger:
    """The ledger of its run, in one container."""
    stages = {stage: [TaskName(stage, number) for number in range(tasks)] for stage in ("views", "by-member")}
    return Ledger("views", stages, 1, started_at=NOW - 60_000, guarantee="exactly-once")


def counter(name: str, value: float, **labels: str) -> m.Series:
    return m.Series(name=f"headrace_{name}", value=value, labels=labels)


def task(name: str, *series: m.Series, state: m.TaskState = "running", **rest: object) -> m.TaskStatus:
    return m.TaskStatus(name=name, state=state, series=list(series), **rest)


def holdup(what: m.What, where: str, *by: str, ago_ms: int = 10_000, remedy: str = "do it") -> m.Holdup:
    return m.Holdup(what=what, where=where, since_ms=NOW - ago_ms, remedy=remedy, by=list(by))


def container(number: int, *tasks: str, state: m.ContainerState = "running", **rest: object) -> m.ContainerStatus:
    return m.ContainerStatus(id=number, state=state, tasks=list(tasks), host="box", **rest)


def status(*tasks: m.TaskStatus, containers: list[m.ContainerStatus] | None = None, **rest: object) -> m.AppStatus:
    """A status of these tasks; all are in one container unless others are given."""
    stages: dict[str, list[m.TaskStatus]] = {}
    for one in tasks:
        stages.setdefault(one.name.rpartition("/")[0], []).append(one)
    return m.AppStatus(
        app="views",
        state="running",
        started_at=NOW - 60_000,
        guarantee="exactly-once",
        stages=[
            m.StageStatus(
                name=name,
                tasks=len(found),
                finished=sum(one.state == "finished" for one in found),
                watermark=None,
                rows_per_second=0.0,
                lag=0,
            )
            for name, found in stages.items()
        ],
        tasks=list(tasks),
        containers=[container(0, *(one.name for one in tasks))] if containers is None else containers,
        **rest,
    )

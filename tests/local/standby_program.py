"""A container of an app on a host of its own: a process with another host name and a home that nobody else has."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import polars as pl

import headrace as hr
from headrace.core.log import LogSettings
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.run.planning import gather_facts
from headrace.run.spark.container_main import ContainerPayload, container_main
from headrace.run.spark.hosting import ContainerArgs
from headrace.run.spark.shipping import ship
from headrace.task.state import task_state

COLUMNS = {"n": pl.Int64, "ts": pl.Datetime("ms")}
SNAPSHOT_AFTER_BYTES = 200_000


def planned(shared: Path, home: Path) -> Plan:
    """An app whose log and store of snapshots are where all hosts reach them."""
    log = hr.io.log(shared / "streams")
    app = hr.App(
        "counting", home=home, checkpoint_interval="50ms", system=log, snapshots=f"file://{shared}/store", standby=1
    )
    numbers = app.input("numbers", COLUMNS, event_time="ts", system=log)
    by_number = numbers.partition_by("n", id="by-number", partitions=2)
    per_hour = by_number.window(hr.tumbling("1h"), key="n", id="per-hour").agg(times=hr.count())
    per_hour.send_to(app.output("counts", system=log))
    graph = app.graph()
    return plan(graph, gather_facts(graph))


if __name__ == "__main__":
    host, shared, url, token, number, attempt = sys.argv[1:]
    socket.gethostname = lambda: host
    task_state.SNAPSHOT_AFTER_BYTES = SNAPSHOT_AFTER_BYTES
    payload = ContainerPayload(planned(Path(shared), Path(shared) / host), url, token, (), LogSettings("info", "json"))
    container_main(ContainerArgs(int(number), int(attempt), ship(payload)))

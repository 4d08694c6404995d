"""How time and memory grow with messages, keys, tasks, stages and partitions: ``python -m bench --only growth``.

Every point is a process of its own, ``python -m bench.growth WHAT SIZE FOLDER``, that runs one app in one container.
The app counts messages of each key in windows, behind one or more shuffles. Time is processor time, without the start
of Python; memory is the peak. On logarithmic axes the slope is 1 for linear growth. A slope over sizes at which fixed
costs still count is too small, so that of each step is shown too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr
from bench.budget import Deadline
from bench.data import HEALTH, SCHEMA, kept_views, page_views
from bench.life import memory_mb
from bench.measure import CutShortError, WrongResultError
from bench.plots import slope
from bench.report import Report
from bench.turns import folder

SIZES = {
    "messages": (100_000, 1_000_000, 10_000_000),
    "keys": (1_000, 10_000, 100_000),
    "tasks": (1, 4, 16, 64),
    "stages": (1, 2, 4, 8),
    "partitions": (1, 4, 16, 64),
}
LARGE = {
    "messages": (1_000_000, 10_000_000, 100_000_000, 1_000_000_000),
    "keys": (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    "tasks": (1, 4, 16, 64, 256),
    "stages": (1, 2, 4, 8),
    "partitions": (1, 10, 100, 1_000, 5_000),
}
LIMIT_S = 7200.0
_AS_MESSAGES = 100_000
"""A task or a partition takes about as long as so many messages."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One app and its input."""

    messages: int = 1_000_000
    keys: int = 10_000
    tasks: int = 2
    stages: int = 1
    partitions: int = 2


def shape_of(what: str, size: int) -> Shape:
    """Return the usual shape with one size changed. For many keys there are more messages."""
    shape = replace(Shape(), **{what: size})
    return replace(shape, messages=max(shape.messages, 2 * shape.keys)) if what == "keys" else shape


def measured(what: str, size: int, base: Path) -> dict[str, float]:
    """Run one app in this process, over page views that are in the folder."""
    views = base / "views"
    began, cpu = time.perf_counter(), time.process_time()
    _app(base, views, shape_of(what, size)).run(local=True, progress=False)
    cost = {
        "size": size,
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "peak_mb": memory_mb("VmHWM"),
    }
    found = hr.streams.read_stream("counts", home=base).get_column("views").sum()
    if found != (expected := int(kept_views(views)["rows"].item())):
        raise WrongResultError(f"{size} {what}: {found} views, expected {expected}")
    return cost


def _app(home: Path, views: Path, shape: Shape) -> hr.App:
    app = hr.App("bench-growth", home=str(home))
    source: Any = hr.io.files(views / "*.parquet", partitions=shape.partitions)
    rows = app.input("views", SCHEMA, event_time="ts", lateness="1s", system=source).filter(pl.col("url") != HEALTH)
    for stage in range(shape.stages):
        rows = rows.partition_by("member", id=f"by-member-{stage}", partitions=shape.tasks)
    rows.window(hr.tumbling("10s"), key="member", id="w").agg(views=hr.count()).send_to(app.output("counts"))
    return app


def points(sizes: Mapping[str, Sequence[int]]) -> list[tuple[str, int]]:
    """What to measure, in this order: what takes longest comes last, since time may run out."""

    def work(point: tuple[str, int]) -> tuple[int, int]:
        shape = shape_of(*point)
        return shape.messages + _AS_MESSAGES * (shape.tasks + shape.partitions), point[1]

    return sorted(((what, size) for what in sizes for size in sizes[what]), key=work)


def _in_a_process(what: str, size: int, base: Path) -> dict[str, float]:
    with folder(base) as place:
        shape = shape_of(what, size)
        page_views(place / "views", shape.messages, shape.keys, shape.partitions)
        command = [sys.executable, "-m", "bench.growth", what, str(size), str(place)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=LIMIT_S, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(base: Path, to: Report, deadline: Deadline, *, large: bool) -> None:
    """Measure all sizes, those that take longest last, and show slopes."""
    sizes = LARGE if large else SIZES
    kept: dict[str, list[dict[str, float]]] = {what: [] for what in sizes}
    try:
        for what, size in deadline.each(points(sizes), lambda point: f"{point[1]:,} {point[0]}"):
            kept[what].append(_in_a_process(what, size, base))
            to.say(f"{size:,} {what}: {kept[what][-1]}")
    except CutShortError as error:
        deadline.cut.append(str(error))
    to.keep("growth", kept)
    rows: list[list[object]] = []
    for what, found in kept.items():
        for number, one in enumerate(found):
            steps = found[number - 1 : number + 1] if number else []
            rows.append(
                [what, int(one["size"]), one["cpu_s"], _slope(steps, "cpu_s"), one["peak_mb"], _slope(steps, "peak_mb")]
            )
        rows.append([f"{what}, slope", None, _slope(found, "cpu_s"), None, _slope(found, "peak_mb"), None])
    columns = ["", "size", "processor s", "slope of the step", "peak MB", "slope of the step"]
    to.table("growth of time and memory; 1 is linear", columns, rows)


def _slope(found: list[dict[str, float]], figure: str) -> float | None:
    return slope([(one["size"], one[figure]) for one in found]) if len(found) > 1 else None


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))

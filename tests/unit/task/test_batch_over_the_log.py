"""A batch over streams of the log, sealed or not: what it computes, publishes, and leaves to a live run.

Everything is as on Spark, but the stages run in this process.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.api.specs import Role
from headrace.core.errors import PlanError
from headrace.life.folder import Shelf
from headrace.life.metadata import open_metadata
from headrace.plan.inventory import Inventory
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.rows.pieces import SCHEMA, Piece, as_batch
from headrace.run.batch_ends import Until, ends_of
from headrace.run.planning import gather_facts, prepare_outputs
from headrace.run.savepoints.restoring import Restoring, restore
from headrace.run.savepoints.writing import FromBatch, save
from headrace.spark.batch.runner import publish
from headrace.streams.ranges import stream_of_results
from headrace.task.batch import Seam
from seams.in_process_batch import InProcess

VIEWS = {"id": pl.Int64(), "member": pl.String(), "ts": pl.Int64()}
ROWS = 12
SHAPES = [(sealed, until) for sealed in (True, False) for until in (None, "now", "time", "offsets")]


def declare(home: Path, source: str = "views", name: str = "visits") -> hr.App:
    app = hr.App(name, home=home)
    views = app.input(source, VIEWS, event_time="ts", lateness="1s")
    views.send_to(app.output(f"{name}-seen"))
    counts = views.partition_by("member", id="by-member", partitions=2).window(
        hr.tumbling("1m"), key="member", id="per-minute"
    )
    counts.agg(n=hr.count()).send_to(app.output(f"{name}-counts"))
    return app


class Written:
    """A stream that is written in two halves; ``ends`` say by kind where the first one stops."""

    def __init__(self, home: Path, partitions: int, rows: int, *, sealed: bool) -> None:
        self.home, self.rows = home, rows
        hr.streams.create_stream("views", partitions, VIEWS, home=home)
        self.write(range(rows // 2))
        first = ends_of(planned(declare(home)), Until())
        self.half = ",".join(f"views/{ssp.partition}={offset}" for ssp, offset in first.items())
        self.half_ms = time.time_ns() // 1_000_000 + 1
        while time.time_ns() // 1_000_000 <= self.half_ms:
            pass  # what is appended from now on has a later time
        self.write(range(rows // 2, rows), seal=sealed)

    def write(self, ids: range, *, seal: bool = False) -> None:
        with hr.streams.StreamWriter("views", key="member", home=self.home) as writer:
            if ids:  # members m0 and m1 are in one of three partitions or in two, so that at least one is empty
                writer.write([{"id": n, "member": f"m{n % 2}", "ts": 40_000 * n} for n in ids])
            if seal:
                writer.seal()

    def until(self, kind: str | None) -> Until | None:
        text = {"now": "now", "time": str(self.half_ms), "offsets": self.half}.get(kind or "")
        return None if text is None else Until.of(text)

    def read(self, kind: str | None) -> range:
        return range(self.rows if kind in (None, "now") else self.rows // 2)


def planned(app: hr.App) -> Plan:
    graph = app.graph()
    return plan(graph, gather_facts(graph))


def counts_of(ids: range) -> list[tuple[int, str, int]]:
    frame = pl.DataFrame({"member": [f"m{n % 2}" for n in ids], "start": [40_000 * n // 60_000 * 60_000 for n in ids]})
    rows = frame.group_by("start", "member").len().rows()
    return sorted((start, member, n) for start, member, n in rows)


def publish_all(the_plan: Plan, pieces: dict[str, list[Piece]], folder: Path) -> None:
    """Publish what was computed, from files as Spark leaves them."""
    folder.mkdir()
    prepare_outputs(the_plan)
    for id_ in (spec.id for spec in the_plan.graph.streams.values() if spec.role is Role.SINK):
        by_partition = sorted(pieces[id_], key=lambda piece: piece.partition)
        pq.write_table(pa.Table.from_batches([as_batch(by_partition)], SCHEMA), folder / f"{id_}.parquet")
        publish(the_plan, id_, 1, folder, stream_of_results)


def batch(app: hr.App, until: Until | None) -> None:
    """Run an app as a batch job, and publish its results."""
    home, the_plan = Path(app.settings.home), planned(app)
    job = InProcess(the_plan, ends_of(the_plan, until), home / f"{app.name}-state", 0)
    publish_all(the_plan, job.run(), home / app.name)


def results(home: Path, name: str = "visits") -> tuple[list[int], list[tuple[int, str, int]]]:
    seen = hr.streams.read_stream(f"{name}-seen", home=home, committed=True)
    counts = hr.streams.read_stream(f"{name}-counts", home=home, committed=True)
    return sorted(seen["id"].to_list()) if seen.height else [], sorted(
        counts.select("window_start", "member", "n").rows() if counts.height else []
    )


@pytest.mark.parametrize(("sealed", "until"), SHAPES)
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("rows", [0, ROWS])
def test_a_batch_reads_a_stream_to_its_end_or_as_far_as_it_should(
    tmp_path: Path, rows: int, partitions: int, sealed: bool, until: str | None
) -> None:
    written = Written(tmp_path, partitions, rows, sealed=sealed)
    if until is None and not sealed:
        with pytest.raises(PlanError, match="doesn't end, so neither would a batch job"):
            batch(declare(tmp_path), None)
        return
    batch(declare(tmp_path), written.until(until))
    expected = written.read(until)
    assert results(tmp_path) == ([*expected], counts_of(expected))


def backfill(app: hr.App, until: Until | None) -> None:
    """Run an app as the first part of a backfill, publish its results, and restore its savepoint."""
    home, the_plan = Path(app.settings.home), planned(app)
    version = time.time_ns() // 1_000_000
    job = InProcess(the_plan, ends_of(the_plan, until), home / "state", 0, Seam(version, str(home / "left")))
    publish_all(the_plan, job.run(), home / app.name)
    what = FromBatch(plan=the_plan, before=Inventory(), timeline=1, version=version, left=job.left)
    save(Shelf(home, app.name), "history", what)
    with closing(open_metadata(home, None)) as metadata:
        restore(Restoring(home=home, app=app.name, metadata=metadata, name="history"))


@pytest.mark.parametrize(("sealed", "until"), [shape for shape in SHAPES if shape != (False, None)])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("rows", [0, ROWS])
def test_a_live_run_continues_from_a_backfill_over_it(
    tmp_path: Path, rows: int, partitions: int, sealed: bool, until: str | None
) -> None:
    written = Written(tmp_path, partitions, rows, sealed=sealed)
    backfill(declare(tmp_path), written.until(until))
    assert results(tmp_path)[0] == [*written.read(until)]
    if not sealed:
        written.write(range(rows, rows + 3), seal=True)
    declare(tmp_path).run(local=True, progress=False)
    expected = range(rows if sealed else rows + 3)
    assert results(tmp_path) == ([*expected], counts_of(expected))


@pytest.mark.parametrize("by", ["batch", "live"])
def test_a_batch_reads_the_sealed_output_of_another_app(tmp_path: Path, by: str) -> None:
    Written(tmp_path, 3, ROWS, sealed=True)
    if by == "live":
        declare(tmp_path).run(local=True, progress=False)
    else:
        batch(declare(tmp_path), None)
    with hr.streams.StreamWriter("visits-seen", home=tmp_path) as writer:
        writer.seal()
    batch(declare(tmp_path, "visits-seen", "again"), None)
    assert results(tmp_path, "again") == results(tmp_path)

"""A source that two stages read: each refuses what it can't read by itself, and writes a letter of its own."""

from __future__ import annotations

import polars as pl

import headrace as hr
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo


def test_each_stage_that_reads_a_source_writes_a_letter_of_one_place() -> None:
    columns = {"member": pl.String, "ts": pl.Int64}
    app = hr.App("own-counts")
    views = app.input("views", columns, event_time="ts", on_error="dead_letter", dead_letter=app.output("unreadable"))
    counts = app.table("counts", key="member")
    (
        views.partition_by("member", id="by-member")
        .window(hr.tumbling("1m"), key="member", id="per-minute")
        .agg(views=hr.count())
        .send_to(counts)
    )
    views.join(counts, how="left").send_to(app.output("found"))
    planned = plan(app.graph(), {"views": StreamInfo("views", 1, None)})
    readers = [
        stage.name for stage in planned.stages if any(ssp.stream.name == "views" for ssp in stage.tasks[0].inputs)
    ]
    assert len(readers) == 2
    with app.test(partitions={"views": 1}) as t:
        t.feed("views", pl.DataFrame({"member": ["ann", "bob"], "ts": ["1", "soon"]}))
        letters = t.read("unreadable")
        assert t.counter("dead_lettered") == 2
    assert letters.height == 2
    assert letters.unique(["stream", "partition", "offset", "reason"]).height == 1
    assert [pl.read_ipc_stream(raw).height for raw in letters["raw"]] == [1, 1]

"""Steps that wait for event time need inputs that have one; what fills a table doesn't count."""

from __future__ import annotations

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import PlanError
from headrace.plan.model import Plan
from headrace.plan.passes import inputs_with_a_say
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo

ROW = {"k": pl.Int64, "ts": pl.Int64}


def flows() -> tuple[hr.App, hr.Stream, hr.Stream]:
    """An app with an input that has event time, and one that hasn't."""
    app = hr.App("steps")
    return app, app.input("timed", ROW, event_time="ts"), app.input("untimed", ROW)


def planned(app: hr.App) -> Plan:
    graph = app.graph()
    return plan(graph, {id_: StreamInfo(id_, 1) for id_ in graph.streams})


def per_ten(stream: hr.Stream, output: hr.Output) -> None:
    stream.window(hr.tumbling("10ms"), key="k", id="per-ten", time="ts").agg(n=pl.len()).send_to(output)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_window_behind_an_input_without_event_time_is_refused(shuffle: bool) -> None:
    app, timed, untimed = flows()
    merged = timed.merge(untimed)
    per_ten(merged.partition_by("k", id="by-k", partitions=1) if shuffle else merged, app.output("out"))
    with pytest.raises(
        PlanError, match=r"window 'per-ten' .*waits for event time, and source 'untimed' .*has none"
    ) as e:
        planned(app)
    assert e.value.hint is not None
    assert "app.input('untimed', ..., event_time=\"ts\")" in e.value.hint
    assert 'time="processing"' in e.value.hint


def test_a_window_behind_a_join_of_latest_messages_needs_both_event_times() -> None:
    app, timed, untimed = flows()
    joined = timed.join_latest(untimed, "k", ttl="1h", id="latest")
    per_ten(joined, app.output("out"))
    with pytest.raises(PlanError, match="source 'untimed'"):
        planned(app)


class Pass(hr.tasks.Task):
    def process(self, message: object, out: hr.tasks.Out) -> None:
        out.send("out", message)


def test_a_join_behind_a_low_level_task_needs_all_event_times() -> None:
    app, timed, untimed = flows()
    passed = app.task(Pass(), {"timed": timed, "untimed": untimed}, {"out": ROW}, id="passing")["out"]
    passed.join(timed, on="k", within="1s", id="paired").send_to(app.output("out"))
    with pytest.raises(PlanError, match=r"join 'paired' .*waits for event time"):
        planned(app)


def test_a_table_of_versions_needs_the_event_time_of_all_that_fill_it() -> None:
    app, timed, untimed = flows()
    rates = app.table("rates", key="k", schema=ROW, versions="1h")
    passed = app.task(Pass(), {"timed": timed, "untimed": untimed}, {"out": ROW}, id="passing")["out"]
    passed.send_to(rates)
    timed.join(rates, how="left", id="then").select("k").send_to(app.output("out"))
    with pytest.raises(PlanError, match=r"send_to '.*' .*waits for event time"):
        planned(app)


def test_what_needs_no_event_time_is_planned() -> None:
    app, timed, untimed = flows()
    both = timed.merge(untimed)
    names = ("counted", "whole", "clocked")
    shapes = (hr.windows.count(2), hr.windows.global_(), hr.tumbling("1s"))
    for name, shape in zip(names, shapes, strict=True):
        time = "processing" if name == "clocked" else None
        both.window(shape, key="k", id=name, time=time).agg(n=pl.len()).send_to(app.output(f"of-{name}"))
    planned(app)


def test_a_global_window_whose_trigger_waits_for_event_time_needs_one() -> None:
    app, timed, untimed = flows()
    window = timed.merge(untimed).window(
        hr.windows.global_(), key="k", id="whole", time="ts", early=hr.triggers.every("10ms")
    )
    window.agg(n=pl.len()).send_to(app.output("out"))
    with pytest.raises(PlanError, match=r"window 'whole' .*waits for event time"):
        planned(app)


def test_what_fills_a_table_needs_no_event_time_and_has_no_say() -> None:
    app, timed, untimed = flows()
    table = app.table("seen", key="k", schema={**ROW})
    untimed.send_to(table)
    per_ten(timed.join(table, how="left"), app.output("out"))
    result = planned(app)
    (stage,) = result.stages
    assert inputs_with_a_say(result.graph, stage.nodes) == ("input-timed",)


def test_if_all_inputs_feed_tables_those_with_event_time_have_a_say() -> None:
    app, timed, untimed = flows()
    table = app.table("seen", key="k", schema={**ROW})
    untimed.send_to(table)
    timed.select("k", "ts").send_to(table)
    result = planned(app)
    (stage,) = result.stages
    assert inputs_with_a_say(result.graph, stage.nodes) == ("input-timed",)


def test_if_no_input_has_event_time_all_have_a_say() -> None:
    app = hr.App("steps")
    for name in ("a", "b"):
        app.input(name, ROW).send_to(app.output(f"{name}-out"))
    result = planned(app)
    assert [inputs_with_a_say(result.graph, stage.nodes) for stage in result.stages] == [("input-a",), ("input-b",)]

"""What a batch job has to know of a plan: the order of each stage, what comes first, who reads, and times."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from graph_builder import SCHEMA, AppBuilder

from headrace.api.aggregates import Aggregate
from headrace.api.operators.spec import EventTime, OperatorSpec
from headrace.api.operators.steps import RowFunction
from headrace.api.operators.window import Deduplicate, DropLate, Window
from headrace.api.specs import CountWindow, Session, Sliding, Tumbling
from headrace.core.ids import SSP, StreamId
from headrace.plan.chain_plan import BatchOrder as Order
from headrace.plan.chain_plan import batch_order_of as order_of
from headrace.plan.chain_plan import ranks_of, readers_of, slack_of, time_written
from headrace.plan.model import Plan

TIME = EventTime("ts")


def window(kind: str = "count", shape: object = None, time: EventTime = TIME) -> Window:
    aggregate = Aggregate(kind) if kind == "count" else Aggregate(kind, pl.col("k"))
    return Window(shape or Tumbling(10_000), ("k",), (("n", aggregate),), time, SCHEMA)


def order_in(plan: Plan, stage: str) -> Order:
    return order_of(plan, plan.stage(stage))


# -- order_of ---------------------------------------------------------------------------------------


def test_steps_that_keep_nothing_need_no_order() -> None:
    app = AppBuilder()
    merged = app.merge("m", app.filter("f", app.input("a", 2)), app.node("late", DropLate(TIME), app.input("b", 2)))
    app.output("out", app.broadcast("to-all", app.partition_by("by-k", merged)))
    plan = app.plan()
    assert [order_of(plan, stage) for stage in plan.stages] == [Order()] * len(plan.stages)


def test_a_step_that_keeps_something_needs_order_in_its_stage_alone() -> None:
    app = AppBuilder()
    app.output("out", app.node("once", Deduplicate(("k",), 1000, TIME), app.partition_by("by-k", app.input("a", 2))))
    plan = app.plan()
    assert order_in(plan, "a") == Order()
    assert order_in(plan, "by-k") == Order(timed=True)


@pytest.mark.parametrize(
    ("step", "between"),
    [
        (window(), False),
        (window(shape=Session(1000)), False),
        (window("max"), False),
        (window("first"), True),
        (window("last"), True),
        (window("implode"), True),
        (window(shape=Sliding(1000)), True),
        (window(shape=CountWindow(3, 3)), True),
        (replace(window(), marked=True), True),
        (Deduplicate(("k",), 1000, TIME), True),
    ],
    ids=lambda each: getattr(each, "detail", each),
)
def test_order_between_inputs_is_kept_where_a_step_could_tell(step: OperatorSpec, between: bool) -> None:
    app = AppBuilder()
    app.output("out", app.node("s", step, app.merge("m", app.input("a", 2), app.input("b", 2))))
    assert order_in(app.plan(), "a") == Order(timed=True, between=between)


def test_a_join_within_a_bound_waits_for_event_time_on_either_side() -> None:
    app = AppBuilder()
    joined = app.join("j", app.input("a", 2), app.input("b", 2))
    app.output("out", joined)
    assert order_in(app.plan(), "a") == Order(timed=True)
    app.output("counted", app.node("w", window(shape=CountWindow(2, 2)), joined))
    assert order_in(app.plan(), "a") == Order(timed=True, between=True)


def test_what_looks_into_a_table_comes_in_order_with_what_fills_it() -> None:
    app = AppBuilder()
    table = app.table("t")
    app.fill(table, app.input("a", 2))
    app.output("out", app.table_join("j", app.input("b", 2), table))
    assert order_in(app.plan(), "a") == Order(timed=True, between=True)


# -- ranks_of ---------------------------------------------------------------------------------------


def test_what_fills_a_table_comes_before_what_looks_into_it() -> None:
    app = AppBuilder()
    table = app.table("t")
    app.fill(table, app.filter("f", app.input("z", 2)))
    app.output("out", app.table_join("j", app.input("a", 2), table))
    plan = app.plan()
    assert ranks_of(plan, plan.stage("a")) == {"z": 0, "a": 1}


def test_a_flow_that_fills_one_table_and_joins_another_comes_first() -> None:
    app = AppBuilder()
    known, seen = app.table("known", app.side_input("side", 2)), app.table("seen")
    both = app.input("both", 2)
    app.output("out", app.table_join("j", both, known))
    app.fill(seen, both)
    app.output("out2", app.table_join("j2", app.input("a", 2), seen))
    plan = app.plan()
    assert ranks_of(plan, plan.stage("a")) == {"side": 0, "both": 0, "a": 1}


# -- readers_of -------------------------------------------------------------------------------------


def test_each_partition_has_the_tasks_that_read_it() -> None:
    app = AppBuilder()
    app.output("out", app.window("w", app.partition_by("by-k", app.input("a", 2), partitions=3)))
    plan = app.plan()
    assert {str(ssp): [str(name) for name in names] for ssp, names in readers_of(plan).items()} == {
        **{str(SSP(StreamId("log", "a"), n)): [f"a/{n}"] for n in range(2)},
        **{str(SSP(plan.streams["by-k"].spec.stream, n)): [f"by-k/{n}"] for n in range(3)},
    }


def test_all_tasks_read_all_of_what_is_broadcast() -> None:
    app = AppBuilder()
    to_all = app.broadcast("to-all", app.input("a", 2))
    app.output(
        "out", app.window("w", app.merge("m", to_all, app.partition_by("by-k", app.input("b", 2), partitions=3)), ())
    )
    plan = app.plan()
    readers = readers_of(plan)
    wanted = {task.name for task in plan.stage("by-k").tasks}
    assert len(wanted) == 3
    assert all(set(readers[ssp]) == wanted for ssp in plan.streams["to-all"].ssps())


# -- time_written -----------------------------------------------------------------------------------


def test_a_stream_has_the_time_that_is_declared_for_it() -> None:
    app = AppBuilder()
    app.output("out", app.input("a", 2, event_time=EventTime("ts", 7)))
    assert time_written(app.graph(), "a") == EventTime("ts", 7)
    assert time_written(app.graph(), "unknown") is None


def test_an_output_has_the_time_of_what_is_written_if_its_writers_agree() -> None:
    app = AppBuilder()
    a, b = app.input("a", 2), app.input("b", 2)
    app.output("out", a)
    app.output("out", b)
    app.nodes[a] = replace(app.nodes[a], event_time=TIME)
    assert time_written(app.graph(), "out") is None
    app.nodes[b] = replace(app.nodes[b], event_time=TIME)
    assert time_written(app.graph(), "out") == TIME


# -- slack_of ---------------------------------------------------------------------------------------


def moved(row: object) -> object:
    return row


def function(mode: str) -> RowFunction:
    return RowFunction(mode, moved, SCHEMA, SCHEMA)  # type: ignore[arg-type]


def slack(app: AppBuilder, stage: str) -> int:
    """Its nodes have the time of the column, as the API says."""
    app.nodes = {id_: replace(node, event_time=TIME) for id_, node in app.nodes.items()}
    plan = app.plan()
    return slack_of(plan, plan.stage(stage))


def test_a_stage_in_the_order_of_its_input_needs_no_slack() -> None:
    app = AppBuilder()
    kept = app.node("f", function("filter"), app.input("a", 2, lateness_ms=5000))
    app.output("out", app.window("w", app.partition_by("by-k", kept)))
    assert (slack(app, "a"), slack(app, "by-k")) == (0, 0)


@pytest.mark.parametrize("mode", ["map", "flat_map"])
def test_a_function_before_a_step_that_waits_needs_the_lateness_of_all_sources(mode: str) -> None:
    app = AppBuilder()
    both = app.merge("m", app.input("a", 2, lateness_ms=5000), app.input("b", 2, lateness_ms=7000))
    app.output("out", app.window("w", app.node("f", function(mode), app.partition_by("by-k", both)), ()))
    app.output("other", app.input("c", 2, lateness_ms=9000))
    assert (slack(app, "a"), slack(app, "by-k")) == (0, 7000)


def test_a_function_before_the_shuffle_needs_none() -> None:
    app = AppBuilder()
    mapped = app.node("f", function("map"), app.input("a", 2, lateness_ms=5000))
    app.output("out", app.node("late", DropLate(TIME), app.partition_by("by-k", mapped)))
    assert slack(app, "by-k") == 0


@pytest.mark.parametrize(("column", "wanted"), [("ts", 0), ("at", 5000)])
def test_a_window_that_names_another_time_needs_it(column: str, wanted: int) -> None:
    app = AppBuilder()
    by_k = app.filter("f", app.partition_by("by-k", app.input("a", 2, lateness_ms=5000)))
    app.output("out", app.node("w", window(time=EventTime(column)), by_k))
    assert slack(app, "by-k") == wanted

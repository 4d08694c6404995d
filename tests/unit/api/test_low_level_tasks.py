"""What app.task takes, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.spec import EventTime
from headrace.api.operators.steps import SideOutput
from headrace.api.operators.task import TaskStep

VIEWS = {"member": pl.String, "ts": pl.Int64}
OUT = {"member": pl.String, "ts": pl.Int64}


class Alerts(hr.tasks.Task):
    last = hr.tasks.Store(key={"member": pl.String}, value={"at": pl.Int64}, ttl="1h")

    def __init__(self, limit: int = 3) -> None:
        self.limit = limit

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        out.send("alerts", message)


def declared() -> tuple[hr.App, hr.Stream]:
    app = hr.App("alerts")
    return app, app.input("views", VIEWS, event_time="ts")


def test_a_task_becomes_a_step_and_a_side_output_each() -> None:
    app, views = declared()
    flows = app.task(Alerts(5), {"views": views}, {"alerts": OUT, "other": {"n": pl.Int64}}, id="alerts")
    assert list(flows) == ["alerts", "other"]
    for name, flow in flows.items():
        flow.send_to(app.output(f"{name}-out"))
    graph = app.graph()
    step = graph.nodes["alerts"].operator
    assert isinstance(step, TaskStep)
    assert [name for name, _ in step.inputs] == ["views"]
    assert [(s.id, s.attribute, s.ttl_ms) for s in step.stores] == [("alerts.last", "last", 3_600_000)]
    assert step.timed
    assert graph.nodes[flows["alerts"].node].operator == SideOutput("output alerts")
    assert flows["alerts"].schema == hr.Schema.of(OUT)


def test_later_changes_to_the_instance_do_not_reach_the_app() -> None:
    app, views = declared()
    task = Alerts(5)
    app.task(task, {"views": views}, id="alerts")
    task.limit = 6
    step = app.graph().nodes["alerts"].operator
    assert isinstance(step, TaskStep)
    assert step.task.limit == 5


def test_a_time_column_of_an_inputs_name_stays_the_event_time() -> None:
    app, views = declared()
    flows = app.task(Alerts(), {"views": views}, {"alerts": OUT, "other": {"at": pl.Int64}}, id="a")
    assert flows["alerts"].event_time == EventTime("ts")
    assert flows["other"].event_time is None
    with pytest.raises(hr.errors.DeclarationError, match=r"'ts' was not kept at .* by task"):
        flows["other"].window(hr.tumbling("1s"), key=None, id="w").agg(n=hr.count())


def test_event_time_is_named_for_all_outputs_or_for_each() -> None:
    app, views = declared()
    outputs = {"one": {"at": pl.Int64, "ts": pl.Int64}, "two": {"at": pl.Int64}}
    flows = app.task(Alerts(), {"views": views}, outputs, event_time="at", id="a")
    assert [flow.event_time for flow in flows.values()] == [EventTime("at"), EventTime("at")]
    flows = app.task(Alerts(), {"views": views}, outputs, event_time={"two": "at"}, id="b")
    assert [flow.event_time for flow in flows.values()] == [EventTime("ts"), EventTime("at")]


def test_an_output_whose_results_go_nowhere_is_refused() -> None:
    app, views = declared()
    app.task(Alerts(), {"views": views}, {"alerts": OUT}, id="alerts")
    with pytest.raises(hr.errors.DeclarationError, match="nothing uses the results of the step 'alerts-alerts-1'"):
        app.graph()


def test_a_task_without_outputs_is_an_end() -> None:
    app, views = declared()
    assert app.task(Alerts(), {"views": views}, id="alerts") == {}
    assert "alerts" in app.graph().nodes


def test_stores_of_a_base_class_are_the_tasks_as_well() -> None:
    class More(Alerts):
        counts = hr.tasks.Store(key={"n": pl.Int64}, value={"count": pl.Int64})

    app, views = declared()
    app.task(More(), {"views": views}, id="more")
    step = app.graph().nodes["more"].operator
    assert isinstance(step, TaskStep)
    assert [store.id for store in step.stores] == ["more.counts", "more.last"]


@dataclass
class Last:
    at: int
    n: int


def test_a_store_takes_a_dataclass_and_an_id() -> None:
    class Kept(hr.tasks.Task):
        seen = hr.tasks.Store(key={"member": pl.String}, value=Last, id="last-seen")

        def process(self, message: Any, out: hr.tasks.Out) -> None: ...

    app, views = declared()
    app.task(Kept(), {"views": views}, id="kept")
    step = app.graph().nodes["kept"].operator
    assert isinstance(step, TaskStep)
    assert step.stores[0].id == "kept.last-seen"
    assert step.stores[0].value.record is Last


# -- what is refused


class Neither(hr.tasks.Task): ...


class Both(hr.tasks.Task):
    def process(self, message: Any, out: hr.tasks.Out) -> None: ...

    def process_batch(self, rows: pl.DataFrame, out: hr.tasks.Out) -> None: ...


class Async(hr.tasks.Task):
    async def process(self, message: Any, out: hr.tasks.Out) -> None: ...  # type: ignore[override]


class Twice(Alerts):
    first = hr.tasks.Store(key={"a": pl.Int64}, value={"b": pl.Int64}, id="same")
    second = hr.tasks.Store(key={"a": pl.Int64}, value={"b": pl.Int64}, id="same")


class Shared(Alerts):
    first = second = hr.tasks.Store(key={"a": pl.Int64}, value={"b": pl.Int64})


class BadKey(Alerts):
    kept = hr.tasks.Store(key={"a": pl.List(pl.Int64)}, value={"b": pl.Int64})


class Locked(Alerts):
    def __init__(self) -> None:
        self.lock = threading.Lock()


REFUSED: dict[str, tuple[Callable[[hr.App, hr.Stream], Any], str, str]] = {
    "the class": (lambda a, v: a.task(Alerts, {"v": v}, id="t"), "not the class Alerts", "create one"),
    "no task": (lambda a, v: a.task(print, {"v": v}, id="t"), "subclass of hr.tasks.Task", "class Alerts"),
    "neither": (lambda a, v: a.task(Neither(), {"v": v}, id="t"), "neither process nor process_batch", "override one"),
    "both": (lambda a, v: a.task(Both(), {"v": v}, id="t"), "both process and process_batch", "override one"),
    "async": (lambda a, v: a.task(Async(), {"v": v}, id="t"), "Async.process is async", "plain method"),
    "no copy": (lambda a, v: a.task(Locked(), {"v": v}, id="t"), "can't be copied", "init"),
    "inputs": (lambda a, v: a.task(Alerts(), v, id="t"), "inputs= must be a dict of the streams", "views"),
    "no inputs": (lambda a, v: a.task(Alerts(), {}, id="t"), "inputs= must be a dict of the streams", "views"),
    "an input": (lambda a, v: a.task(Alerts(), {"v": "views"}, id="t"), "must be a stream", "app.input"),
    "stores": (lambda a, v: a.task(Twice(), {"v": v}, id="t"), "stores with the same id, 'same'", "of its own"),
    "shared": (lambda a, v: a.task(Shared(), {"v": v}, id="t"), "stores with the same id, 'first'", "of its own"),
    "key": (lambda a, v: a.task(BadKey(), {"v": v}, id="t"), "store 'kept': column 'a'", "for a struct, its fields"),
    "output": (lambda a, v: a.task(Alerts(), {"v": v}, {"a b": OUT}, id="t"), "the output 'a b'", "letters"),
    "schema": (lambda a, v: a.task(Alerts(), {"v": v}, {"a": 3}, id="t"), "isn't a schema", "dict"),
    "time": (
        lambda a, v: a.task(Alerts(), {"v": v}, {"a": OUT}, event_time="at", id="t"),
        "unknown column 'at'|no column 'at'",
        "",
    ),
    "times": (
        lambda a, v: a.task(Alerts(), {"v": v}, {"a": OUT}, event_time={"b": "ts"}, id="t"),
        "the output 'b', which the task doesn't have",
        "its outputs: a",
    ),
    "untimed": (
        lambda a, v: a.task(Alerts(), {"v": v.map_batches(len, {"n": pl.Int64}), "u": a.input("u")}, {"a": OUT},
                            event_time="ts", id="t"),
        "'u' has none",
        "app.input",
    ),
    "another app": (
        lambda a, v: hr.App("other").task(Alerts(), {"v": v}, id="t"),
        "belongs to the app 'alerts'",
        "apps share data",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_where_it_is_declared(case: str) -> None:
    declare, message, hint = REFUSED[case]
    app, views = declared()
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        declare(app, views)
    assert hint in (caught.value.hint or "")
    assert "test_low_level_tasks.py" in caught.value.message


def test_a_store_and_a_table_of_one_name_would_share_their_state() -> None:
    app, views = declared()
    app.table("alerts.last", key="member", schema=VIEWS)
    with pytest.raises(hr.errors.DeclarationError, match=r"a table at .* already has the id 'alerts.last'"):
        app.task(Alerts(), {"views": views}, id="alerts")


def test_a_store_names_each_column_once() -> None:
    with pytest.raises(hr.errors.DeclarationError, match="'member' is in the key and in the value"):
        hr.tasks.Store(key={"member": pl.String}, value={"member": pl.String})


def test_a_store_is_there_only_while_its_task_runs() -> None:
    with pytest.raises(hr.errors.UsageError, match="the store 'last' exists only while its task runs"):
        Alerts().last.get("ann")
    with pytest.raises(hr.errors.UsageError, match="'last' is a store"):
        Alerts().last = 3  # type: ignore[assignment]


def test_inputs_of_a_task_need_equal_partition_counts() -> None:
    app, views = declared()
    orders = app.input("orders", VIEWS, event_time="ts")
    app.task(Alerts(), {"views": views, "orders": orders}, id="alerts")
    with pytest.raises(hr.errors.PlanError, match=r"task 'alerts' .* brings together"):
        app.test(partitions={"views": 2, "orders": 3})

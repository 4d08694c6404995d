"""What the app's guarantee means at its edges."""

import pickle
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.plan.passes import deliveries
from headrace.plan.planner import plan
from headrace.plan.render import render, to_json, to_text
from headrace.systems.base import StreamInfo
from headrace.systems.registry import SystemSpec

SECRET = "postgresql://me:s3cret@db/results"


def planned(guarantee: Any) -> Any:
    app = hr.App("edges", guarantee=guarantee)
    views = app.input("views", {"member": pl.String})
    views.send_to(app.output("framed"))
    views.send_to(app.output("files", system=hr.io.files("out/")))
    views.send_to(app.output("table", system=hr.io.sql(SECRET, "views", key="member")))
    views.sink(print)
    return plan(app.graph(), {"views": StreamInfo("views", 2)})


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_targets_keep_the_guarantee_and_functions_do_not(guarantee: str) -> None:
    edges = planned(guarantee)
    promised = guarantee.replace("_", "-")
    (stage,) = edges.stages
    wanted = {"framed": promised, "files": promised, "table": promised, "sink-1": "at-least-once"}
    assert deliveries(edges.graph, stage) == wanted
    sinks = to_json(render(edges))["sinkStreams"]
    assert {id_: sinks[id_]["streamSpec"]["delivery"] for id_ in sinks} == dict.fromkeys(sinks, promised)
    assert {id_ for id_ in sinks if sinks[id_]["streamSpec"]["isTarget"]} == {"files", "table"}
    text = to_text(render(edges))
    assert f"into files ({promised})" in text
    assert f"into table ({promised})" in text
    assert "into framed (2 partitions)" in text
    assert "print(), at-least-once" in text


def test_a_plan_shows_no_password() -> None:
    edges = planned("exactly_once")
    for shown in (repr(edges), to_text(render(edges)), str(to_json(render(edges)))):
        assert "s3cret" not in shown


def test_a_target_without_positions_says_so_and_why() -> None:
    app = hr.App("edges")
    system = SystemSpec("out", "files", {"path": "out"}, may_repeat="Kinesis keeps no positions of writers")
    app.input("views", {"member": pl.String}).send_to(app.output("out", system=system))
    edges = plan(app.graph(), {"views": StreamInfo("views", 2)})
    assert deliveries(edges.graph, edges.stages[0]) == {"out": "at-least-once"}
    assert "into out (at-least-once, because Kinesis keeps no positions of writers)" in to_text(render(edges))
    assert pickle.loads(pickle.dumps(system)) == system
    assert pickle.loads(pickle.dumps(system)).may_repeat == system.may_repeat

"""What the app's guarantee means at its edges."""

from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.plan.delivery import deliveries
from headrace.plan.document import to_json
from headrace.plan.planner import plan
from headrace.plan.render import render
from headrace.plan.text import to_text
from headrace.systems.base import StreamInfo

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

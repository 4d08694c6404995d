"""The look-ups that a plan offers."""

from __future__ import annotations

import pytest
from graph_builder import AppBuilder


def test_a_stage_is_found_by_name():
    app = AppBuilder()
    app.output("out", app.input("s", 2))
    plan = app.plan()
    assert plan.stage("s") is plan.stages[0]
    with pytest.raises(KeyError):
        plan.stage("nowhere")


def test_successors_stay_within_the_stage():
    app = AppBuilder()
    s = app.input("s", 2)
    app.output("out", app.join("j", s, app.partition_by("by-k", s)))
    plan = app.plan()
    assert set(plan.graph.successors()["in-s"]) == {"write-by-k", "j"}
    assert plan.successors(plan.stage("s"))["in-s"] == ("write-by-k",)
    assert plan.successors(plan.stage("by-k"))["in-s"] == ("j",)

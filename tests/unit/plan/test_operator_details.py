"""The text that describes each operator."""

from __future__ import annotations

import polars as pl
import pytest
from graph_builder import AppBuilder

from headrace.api.operators.spec import EventTime
from headrace.api.operators.steps import BatchFunction, PartitionBy, Project, RowFunction, Sink
from headrace.api.operators.window import Deduplicate, Window
from headrace.api.specs import Tumbling
from headrace.plan.render import event_time_of, render


def test_operators_are_named_by_their_methods_and_described():
    def enrich(row):
        return row

    app = AppBuilder()
    s = app.input("s", 2)
    columns = app.nodes[s].schema
    app.node("select", Project((pl.col("k"),), keep=False), s)
    app.node("with", Project((pl.col("ts") + 1,), keep=True), "select")
    app.node("map", RowFunction("flat_map", enrich, columns, columns), "with")
    app.node("batches", BatchFunction(enrich, columns), "map")
    app.node("sink", Sink(enrich), app.window("w", "batches", ()))
    described = {o.id: (o.kind, o.spec.code, o.detail) for o in render(app.plan()).stages[0].operators}
    function = "test_operators_are_named_by_their_methods_and_described.<locals>.enrich()"
    assert described == {
        "select": ("select", "MAP", ""),
        "with": ("with_columns", "MAP", ""),
        "map": ("flat_map", "FLAT_MAP", function),
        "batches": ("map_batches", "FLAT_MAP", function),
        "w": ("window", "WINDOW", "tumbling 10s: n = count"),
        "sink": ("sink", "SINK", f"{function}, at-least-once"),
    }


def test_expressions_are_on_one_line():
    app = AppBuilder()
    long = pl.when(pl.col("k") == "a").then(pl.col("ts")).otherwise(pl.col("ts") * 2)
    app.node("p", Project((long.alias("x"), pl.col("k")), keep=True), app.input("s", 2))
    (project,) = render(app.plan()).stages[0].operators
    assert len(project.expressions) == 2
    assert all("\n" not in text for text in project.expressions)
    assert project.expressions[1] == 'col("k")'


def test_a_long_expression_is_cut():
    (text,) = Project((pl.col("k").is_in(["x" * 300]),), keep=True).expressions
    assert len(text) <= 200


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (PartitionBy("s", ("a", "b")), "by a, b"),
        (Deduplicate(("a", "b"), 90_000, EventTime("ts")), "by a, b within 90s"),
        (Window(Tumbling(60_000, 5_000), (), (), EventTime("ts"), None), "tumbling 1m +5s: "),
    ],
)
def test_details(operator, expected: str):
    assert operator.detail == expected


def test_event_time():
    assert event_time_of(None) == ""
    assert event_time_of(EventTime("end", -1)) == "event time end -1ms"
    assert event_time_of(EventTime("ts"), 5000, 60_000) == "event time ts, late by up to 5s, idle after 1m"

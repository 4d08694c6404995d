"""What is resolved once for all printers."""

from __future__ import annotations

from dataclasses import replace

from graph_builder import AppBuilder, shuffled

from headrace.api.checks import Location
from headrace.api.operators.spec import EventTime
from headrace.plan.planner import plan
from headrace.plan.render import render


def test_operators_know_what_is_before_and_after_them_in_their_stage():
    app = AppBuilder()
    s = app.input("s", 2)
    app.output("out", app.join("j", app.filter("f", s), app.partition_by("by-k", s)))
    first, second = render(app.plan()).stages
    assert first.inputs == {"s": ("write-by-k",)}
    assert second.inputs == {"by-k": ("j",), "s": ("f",)}
    f, j, out = second.operators
    assert (f.before, f.after) == (("s",), ("j",))
    assert (j.before, j.after, j.spec.code, j.kind) == (("f", "by-k"), ("j-to-out",), "JOIN", "join")
    assert (out.output, out.spec.code) == ("out", "SEND_TO")


def test_the_order_of_declaration_shows_nowhere():
    app = AppBuilder()
    t, s = app.table("t"), app.input("s", 2)
    app.fill(t, app.filter("f", s))
    app.output("out", app.table_join("j", app.merge("m", s, app.filter("g", s)), t))
    graph = app.graph()
    assert render(plan(graph, app.facts)) == render(plan(shuffled(graph, 5), app.facts))


def test_files_are_named_from_the_folder_they_share():
    app = AppBuilder()
    app.output("out", app.filter("f", app.input("s", 2)))
    app.nodes["f"] = replace(app.nodes["f"], location=Location("/app/parts/rules.py", 3, "views.filter(x)"))
    rendered = render(app.plan())
    assert rendered.stages[0].operators[0].source == Location("parts/rules.py", 3, "views.filter(x)")
    assert str(rendered.streams["s"].source) == "pipeline.py:1"


def test_files_that_share_no_folder_keep_their_names():
    app = AppBuilder()
    app.output("out", app.filter("f", app.input("s", 2)))
    app.nodes["f"] = replace(app.nodes["f"], location=Location("<stdin>", 1))
    rendered = render(app.plan())
    assert str(rendered.stages[0].operators[0].source) == "<stdin>:1"
    assert str(rendered.streams["s"].source) == "/app/pipeline.py:1"


def test_a_stream_says_how_it_is_read():
    app = AppBuilder()
    fields = {
        "event_time": EventTime("ts"),
        "lateness_ms": 5000,
        "idle_timeout_ms": 60_000,
        "on_error": "dead_letter",
        "dead_letter": "bad",
        "start": "upcoming",
    }
    s = app.input("s", 2, **fields)
    app.output("bad", app.filter("f", s))
    assert render(app.plan()).streams["s"].notes == (
        "event time ts, late by up to 5s, idle after 1m",
        "partitioned by k",
        "bad messages go to bad",
        "read from upcoming",
    )

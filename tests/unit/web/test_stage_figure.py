"""The inside of a stage: what shares a card, what is tied by which line, what is said in a row."""

from __future__ import annotations

import polars as pl
import pytest

import headrace as hr
from headrace.plan.planner import plan
from headrace.plan.render import RenderedPlan, render
from headrace.systems.base import StreamInfo
from headrace.web.stage_figure import StageFigure, caption, figure_of

COLUMNS = {"k": pl.String, "v": pl.Int64, "ts": pl.Int64}


@pytest.fixture
def app() -> hr.App:
    return hr.App("figures")


def rendered(app: hr.App) -> RenderedPlan:
    graph = app.graph()
    return render(plan(graph, {id_: StreamInfo(id_, 2) for id_ in graph.streams}))


def figures(app: hr.App) -> dict[str, StageFigure]:
    result = rendered(app)
    return {stage.name: figure_of(result, stage) for stage in result.stages}


def cards(figure: StageFigure) -> list[list[str]]:
    return [[operator.id for operator in chain] for chain in figure.cards.values()]


def edges(figure: StageFigure) -> set[tuple[str, str, str]]:
    return {(edge.kind, edge.source, edge.target) for edge in figure.edges}


def test_a_chain_is_one_card_and_a_fork_begins_others(app):
    kept = app.input("s", COLUMNS).filter(pl.col("v") > 0).select("k")
    kept.send_to(app.output("a"))
    kept.filter(pl.col("k") != "").send_to(app.output("b"))
    figure = figures(app)["s"]
    assert cards(figure) == [["filter-1", "select-1"], ["filter-2", "send_to-2"], ["send_to-1"]]
    assert ("flow", "in s", "card filter-1") in edges(figure)
    assert ("flow", "card send_to-1", "out a") in edges(figure)


def test_a_merge_begins_a_card(app):
    one, other = app.input("one", COLUMNS), app.input("other", COLUMNS)
    one.filter(pl.col("v") > 0).merge(other).send_to(app.output("out"))
    assert cards(figures(app)["one"]) == [["filter-1"], ["merge-1", "send_to-1"]]


def test_a_table_stands_between_who_fills_it_and_who_joins_it(app):
    table = app.table("t", key="k")
    app.input("fill", COLUMNS).send_to(table)
    app.input("s", COLUMNS).join(table).send_to(app.output("out"))
    figure = figures(app)["fill"]
    assert ("table", "card send_to-1", "table t") in edges(figure)
    assert ("table", "table t", "card join-1") in edges(figure)
    assert figure.layout.places["table t"][0] < figure.layout.places["card join-1"][0]


def test_a_table_that_is_joined_and_then_written_is_written_backward(app):
    table = app.table("t", key="k", schema=COLUMNS)
    app.input("s", COLUMNS).join(table, how="left").select("k", "v", "ts").send_to(table)
    figure = figures(app)["s"]
    assert [(e.source, e.target) for e in figure.edges if e.backward] == [("card join-1", "table t")]


def test_side_inputs_and_dead_letters_have_lines_of_their_own(app):
    table = app.table("t", key="k", side_inputs=[app.input("side", COLUMNS)])
    s = app.input("s", COLUMNS, on_error="dead_letter", dead_letter=app.output("bad"))
    s.join(table).send_to(app.output("out"))
    figure = figures(app)["s"]
    assert ("side", "in side", "table t") in edges(figure)
    assert ("dead-letter", "in s", "out bad") in edges(figure)


def test_captions_say_what_is_done_or_what_the_user_wrote(app):
    table = app.table("t", key="k", side_inputs=[app.input("side", COLUMNS)])
    s = app.input("s", COLUMNS)
    joined = s.filter(pl.col("k").is_in(["a", "b"])).join(table)
    joined.filter(pl.col("v") > 1).filter(pl.col("v") > 2).partition_by("k", id="by-k").send_to(app.output("out"))
    captions = {o.id: caption(o) for stage in rendered(app).stages for o in stage.operators}
    assert captions["filter-1"] == 'pl.col("k").is_in(["a", "b"])'
    assert captions["join-1"] == "with t, inner on k"
    assert captions["filter-2"].startswith('[(col("v"))')  # two calls in one line: the expression tells
    assert captions["by-k"] == "by k"
    assert captions["send_to-1"] == "into out"

"""The drawing: the text of boxes, the lines, and how the rows of a stage are ordered and connected."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest

import headrace as hr
from headrace.operate.page.plan_page import caption, plan_picture
from headrace.plan.planner import plan
from headrace.plan.render import RenderedPlan, render
from headrace.systems.base import StreamInfo

CASES = Path(__file__).parents[3] / "plan" / "cases"
SVG = "{http://www.w3.org/2000/svg}"
COLUMNS = {"k": pl.String, "v": pl.Int64, "ts": pl.Int64}


def drawing_of(case: str) -> ElementTree.Element:
    names = runpy.run_path(str(CASES / f"{case}.py"))
    facts = {name: StreamInfo(name, count) for name, count in names["partitions"].items()}
    return ElementTree.fromstring(plan_picture(render(plan(names["app"].graph(), facts))))


def rendered(app: hr.App) -> RenderedPlan:
    graph = app.graph()
    return render(plan(graph, {id_: StreamInfo(id_, 2) for id_ in graph.streams}))


def drawn(app: hr.App) -> ElementTree.Element:
    return ElementTree.fromstring(plan_picture(rendered(app)))


def labels(drawing: ElementTree.Element) -> dict[str, list[str]]:
    return {a.get("href"): [part.text for part in a] for a in drawing.iter("a")}


def lines(drawing: ElementTree.Element) -> Counter[str]:
    classes = [path.get("class", "").split() for path in drawing.iter(f"{SVG}path")]
    return Counter(class_[1] for class_ in classes if class_[0] == "edge")


def rows(drawing: ElementTree.Element) -> list[tuple[str, bool]]:
    """The rows of all stages: what they link to, and whether each follows from the one above."""
    found = [a for stage in drawing.iter("div") if stage.get("class") == "stage" for a in stage.iter("a")]
    return [(a.get("href"), "followed" in a.get("class")) for a in found if a.get("class") != "head"]


@pytest.fixture
def app() -> hr.App:
    return hr.App("figures")


def test_boxes_say_their_names_counts_and_captions():
    said = labels(drawing_of("two_stages"))
    assert said["#stream-by-member"] == ["by-member", "4 partitions"]
    assert said["#stage-page-views"] == ["stage page-views", "8 tasks"]
    assert said["#operator-filter-1"] == [
        "filter",
        "filter-1",
        'pl.col("url") != "/health"',
        "member, url, ts",
    ]
    assert said["#operator-per-10s"][-1] == "state"


def test_a_broadcast_stream_and_a_global_table_say_so():
    said = labels(drawing_of("everything"))
    assert said["#stream-rules-for-all"] == ["rules-for-all", "6 partitions, to every task"]
    assert said["#table-country-names"] == ["country-names", "global table", "key country"]


def test_a_sql_table_says_where_it_is_and_not_that_it_has_partitions(app):
    database = hr.io.sql("postgresql://reader:s3cret@db.internal/reports", "daily.views", key="k")
    app.input("s", COLUMNS).send_to(app.output("views-by-day", system=database))
    drawing = plan_picture(rendered(app))
    said = labels(ElementTree.fromstring(drawing))["#stream-views-by-day"]
    assert said == ["views-by-day", "table daily.views of postgresql://reader:***@db.internal/reports"]
    assert "s3cret" not in drawing


def test_topics_say_which_ones_they_are():
    said = labels(drawing_of("kafka"))
    assert said["#stream-orders"] == ["orders", "4 partitions of topic eu.orders of kafka-1:9092,kafka-2:9092"]
    assert said["#stream-shipped"] == ["shipped", "topic eu.shipped of kafka-1:9092,kafka-2:9092"]


def test_a_call_over_several_lines_is_shown_whole(app):
    app.input("s", COLUMNS).select(
        "k",
        twice=pl.col("v") * 2,
    ).send_to(app.output("out"))
    operator = rendered(app).stages[0].operators[0]
    assert operator.source.whole.splitlines()[1:] == ['    "k",', '    twice=pl.col("v") * 2,', ")"]
    assert caption(operator) == '"k", twice=pl.col("v") * 2'


def test_a_live_picture_has_places_for_what_is_measured():
    names = runpy.run_path(str(CASES / "two_stages.py"))
    facts = {name: StreamInfo(name, count) for name, count in names["partitions"].items()}
    drawing = ElementTree.fromstring(plan_picture(render(plan(names["app"].graph(), facts)), live=True))
    reads = {(t.get("data-stream"), t.get("data-reads")) for t in drawing.iter(f"{SVG}text") if t.get("data-reads")}
    writes = {(t.get("data-writes"), t.get("data-stream")) for t in drawing.iter(f"{SVG}text") if t.get("data-writes")}
    assert ("by-member", "by-member") in reads
    assert ("page-views", "by-member") in writes
    assert {d.get("data-stage") for d in drawing.iter("div") if d.get("data-stage")} == {"page-views", "by-member"}


def test_side_inputs_broadcasts_tables_and_dead_letters_have_lines_of_their_own():
    kinds = lines(drawing_of("everything"))
    # A broadcast stream is written and read; three tables are joined, and one of them is filled.
    assert (kinds["broadcast"], kinds["side"], kinds["table"], kinds["dead-letter"]) == (2, 2, 4, 1)


@pytest.mark.parametrize("case", ["everything", "join_chain", "table_joined_then_written"])
def test_everything_is_inside_the_picture(case):
    drawing = drawing_of(case)
    width, height = sizes(drawing)
    for box in [*drawing.iter("a"), *drawing.iter("div")]:
        place = dict(re.findall(r"(left|top|width|height): (-?[\d.]+)px", box.get("style") or ""))
        if box is not drawing and place:
            assert float(place["left"]) >= 0 and float(place["left"]) + float(place["width"]) <= width + 1
            assert float(place["top"]) >= 0 and float(place["top"]) + float(place.get("height", 46)) <= height + 1


def sizes(drawing: ElementTree.Element) -> tuple[float, float]:
    width, height = re.findall(r"([\d.]+)px", drawing.get("style"))
    return float(width), float(height)


def test_a_chain_is_a_list_and_a_fork_is_a_line(app):
    kept = app.input("s", COLUMNS).filter(pl.col("v") > 0).select("k")
    kept.send_to(app.output("a"))
    kept.filter(pl.col("k") != "").send_to(app.output("b"))
    drawing = drawn(app)
    assert rows(drawing) == [
        ("#operator-filter-1", False),
        ("#operator-select-1", True),
        ("#operator-filter-2", True),
        ("#operator-send_to-2", True),
        ("#operator-send_to-1", False),
    ]
    assert lines(drawing) == {"flow": 4}  # one in, two out, and the fork


def test_a_merge_has_a_line_from_each_stream(app):
    one, other = app.input("one", COLUMNS), app.input("other", COLUMNS)
    one.filter(pl.col("v") > 0).merge(other).send_to(app.output("out"))
    drawing = drawn(app)
    assert rows(drawing) == [("#operator-filter-1", False), ("#operator-merge-1", True), ("#operator-send_to-1", True)]
    assert lines(drawing) == {"flow": 3}


def test_tables_come_first_with_lines_from_who_fills_them_and_to_who_joins_them(app):
    table = app.table("t", key="k", schema=COLUMNS)
    app.input("s", COLUMNS, key="k").join(table, how="left").select("k", "v", "ts").send_to(table)
    drawing = drawn(app)
    assert rows(drawing)[0] == ("#table-t", False)
    assert lines(drawing) == {"flow": 1, "table": 2}


def test_captions_say_what_is_done_or_what_the_user_wrote(app):
    table = app.table("t", key="k", side_inputs=[app.input("side", COLUMNS, key="k")])
    s = app.input("s", COLUMNS, key="k")
    joined = s.filter(pl.col("k").is_in(["a", "b"])).join(table)
    joined.filter(pl.col("v") > 1).filter(pl.col("v") > 2).partition_by("k", id="by-k").send_to(app.output("out"))
    captions = {o.id: caption(o) for stage in rendered(app).stages for o in stage.operators}
    assert captions["filter-1"] == 'pl.col("k").is_in(["a", "b"])'
    assert captions["join-1"] == "with t, inner on k"
    assert captions["filter-2"].startswith('[(col("v"))')  # two calls in one line: the expression says which is which
    assert captions["by-k"] == "by k"
    assert captions["send_to-1"] == "into out"

"""The picture: what is written on shapes, and which lines there are."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headrace.plan.planner import plan
from headrace.plan.render import render
from headrace.systems.base import StreamInfo
from headrace.web.plan_drawing import plan_svg

CASES = Path(__file__).parents[2] / "plan" / "cases"
SVG = "{http://www.w3.org/2000/svg}"


def drawing_of(case: str) -> ElementTree.Element:
    names = runpy.run_path(str(CASES / f"{case}.py"))
    facts = {name: StreamInfo(name, count) for name, count in names["partitions"].items()}
    return ElementTree.fromstring(plan_svg(render(plan(names["app"].graph(), facts))))


def labels(drawing: ElementTree.Element) -> dict[str, list[str]]:
    return {a.get("href"): [text.text for text in a.iter(f"{SVG}text")] for a in drawing.iter(f"{SVG}a")}


def test_shapes_say_their_names_counts_and_captions():
    said = labels(drawing_of("two_stages"))
    assert said["#stream-by-member"] == ["by-member", "4 partitions"]
    assert said["#stage-page-views"] == ["stage page-views", "8 tasks"]
    assert said["#operator-filter-1"] == ["filter", "filter-1", 'pl.col("url") != "/health"']


def test_a_broadcast_stream_and_a_global_table_say_so():
    said = labels(drawing_of("everything"))
    assert said["#stream-rules-for-all"] == ["rules-for-all", "6 partitions, to every task"]
    assert said["#table-country-names"] == ["country-names", "global table, key country"]


def test_side_inputs_broadcasts_tables_and_dead_letters_have_lines_of_their_own():
    drawing = drawing_of("everything")
    classes = [path.get("class", "").split() for path in drawing.iter(f"{SVG}path")]
    kinds = Counter(kind for class_ in classes if "edge" in class_ for kind in class_)
    # A broadcast stream is written and read; a side input goes to its stage and there to its table.
    assert kinds["broadcast"] == 2
    assert kinds["side"] == 4
    assert kinds["table"] == 4
    assert kinds["dead-letter"] == 2


@pytest.mark.parametrize("case", ["everything", "join_chain", "table_joined_then_written"])
def test_everything_stands_inside_the_picture(case):
    drawing = drawing_of(case)
    left, top, width, height = map(float, drawing.get("viewBox").split())
    for a in drawing.findall(f"{SVG}a"):
        for rect in a.findall(f"{SVG}rect"):
            x, y, w, h = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
            assert left <= x and x + w <= left + width and top <= y and y + h <= top + height

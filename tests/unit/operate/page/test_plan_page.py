"""The page: well formed, self-contained, with a description of everything that is drawn."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headrace.operate.page.plan_page import plan_html
from headrace.plan.planner import plan
from headrace.plan.render import RenderedPlan, render, to_text
from headrace.systems.base import StreamInfo

CASES = Path(__file__).parents[3] / "plan" / "cases"
XHTML = "{http://www.w3.org/1999/xhtml}"


def rendered(case: str) -> RenderedPlan:
    names = runpy.run_path(str(CASES / f"{case}.py"))
    facts = {name: StreamInfo(name, count) for name, count in names["partitions"].items()}
    return render(plan(names["app"].graph(), facts))


def page_of(case: str) -> ElementTree.Element:
    text = plan_html(rendered(case))
    assert text.startswith("<!DOCTYPE html>\n")
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def words(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def boxes(page: ElementTree.Element) -> list[ElementTree.Element]:
    return list(page.find(f".//{XHTML}div[@class='plan']").iter(f"{XHTML}a"))


@pytest.mark.parametrize("case", ["two_stages", "everything", "table_joined_then_written", "source_met_again"])
def test_it_is_well_formed_and_its_links_lead_somewhere(case):
    page = page_of(case)
    ids = [element.get("id") for element in page.iter() if element.get("id") is not None]
    assert len(set(ids)) == len(ids)
    links = [element.get("href") for element in page.iter() if element.get("href") is not None]
    assert len(links) > 5
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_it_needs_nothing_from_elsewhere():
    text = plan_html(rendered("everything"))
    addresses = set(re.findall(r"https?://[^\"\s]+", text))
    assert addresses == {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe|object|embed)\b|\bsrc=|@import|url\((?!#)", text)
    assert "default-src 'none'" in text
    assert set(re.findall(r"url\(#([\w-]+)\)", text)) <= set(re.findall(r'<marker id="([\w-]+)"', text))


def test_everything_is_drawn_and_accounted_for():
    plan = rendered("everything")
    page = page_of("everything")
    drawn = {a.get("href") for a in boxes(page)}
    told = {f"#{section.get('id')}" for section in page.iter(f"{XHTML}section")}
    expected = {f"#stream-{id_}" for id_ in plan.streams} | {f"#table-{id_}" for id_ in plan.tables}
    expected |= {f"#stage-{stage.name}" for stage in plan.stages}
    expected |= {f"#operator-{operator.id}" for stage in plan.stages for operator in stage.operators}
    assert drawn == told == expected


def test_each_operator_shows_the_users_line_on_hover_and_in_its_account():
    plan = rendered("two_stages")
    page = page_of("two_stages")
    titles = {a.get("href"): a.get("title") for a in boxes(page)}
    accounts = {f"#{section.get('id')}": words(section) for section in page.iter(f"{XHTML}section")}
    for stage in plan.stages:
        for operator in stage.operators:
            for text in (titles[f"#operator-{operator.id}"], accounts[f"#operator-{operator.id}"]):
                assert f"{operator.source.file}:{operator.source.line}" in text
                assert operator.source.text in text


def test_every_line_and_box_that_is_drawn_is_in_the_legend():
    page = page_of("everything")
    legend = next(ul for ul in page.iter(f"{XHTML}ul") if ul.get("class") == "legend")
    explained = {path.get("class") for path in legend.iter() if path.tag.endswith("path")}
    drawn = {path.get("class", "") for path in next(page.iter(f"{XHTML}main")).iter() if path.tag.endswith("path")}
    assert explained == {class_ for class_ in drawn if class_.startswith("edge")} and len(explained) == 5
    keys = {tuple(span.get("class").split()) for span in legend.iter(f"{XHTML}span")}
    assert {("key", "source"), ("key", "side-input"), ("key", "global", "table"), ("key", "local", "table")} <= keys


def test_an_operator_tells_its_columns_and_its_state():
    page = page_of("two_stages")
    told = {section.get("id"): words(section) for section in page.iter(f"{XHTML}section")}
    assert "member: String" in told["operator-per-10s"]
    assert "tumbling 10s" in told["operator-per-10s"].split("state")[1]


def test_the_plan_is_there_as_text_too():
    page = page_of("two_stages")
    assert to_text(rendered("two_stages")) in "".join(page.find(f".//{XHTML}details/{XHTML}pre").itertext())


def test_what_the_user_wrote_is_never_markup():
    import polars as pl

    import headrace as hr

    app = hr.App("escape")
    flow = app.input("s", {"k": pl.String})
    flow.filter(pl.col("k") != "</pre><script>alert(1)</script>&").send_to(app.output("out"))
    text = plan_html(render(plan(app.graph(), {"s": StreamInfo("s", 1)})))
    assert "<script>alert" not in text
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))

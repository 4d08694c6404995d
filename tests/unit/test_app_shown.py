"""Apps and plans as text, and in a notebook."""

from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.plan.render import render, to_text

VIEWS = {"member": pl.String, "url": pl.String, "ts": pl.Datetime("ms")}


@pytest.fixture
def app(tmp_path: Path) -> hr.App:
    app = hr.App("page-views", home=tmp_path)
    views = app.input("views", VIEWS, event_time="ts")
    views = views.filter(pl.col("url") != "</td>")
    counts = views.partition_by("member", id="by-member").window(hr.tumbling("10s"), key="member", id="per-10s")
    counts.agg(views=pl.len()).send_to(app.output("counts"))
    return app


def test_an_app_is_explained_as_the_command_does(app: hr.App, tmp_path: Path) -> None:
    hr.streams.create_stream("views", 2, VIEWS, home=tmp_path)
    assert app.explain() == str(app.plan()) == to_text(render(app.plan())).rstrip("\n")
    assert app.explain().startswith("page-views: 2 stages, 4 tasks, exactly-once\n\nstage views: 2 tasks\n")


def test_a_notebook_shows_the_plan_as_tables(app: hr.App, tmp_path: Path) -> None:
    hr.streams.create_stream("views", 2, VIEWS, home=tmp_path)
    html = app._repr_html_()
    assert html == app.plan()._repr_html_()
    assert html.startswith("<div><p><b>page-views: 2 stages, 4 tasks, exactly-once</b></p>")
    assert "<td>per-10s</td>" in html
    assert "&lt;/td&gt;" in html  # what is the user's own is escaped
    assert "<script" not in html


def test_an_app_that_can_not_be_planned_is_shown_with_the_reason(app: hr.App) -> None:
    assert repr(app) == "App('page-views': 6 steps, 3 streams)"
    html = app._repr_html_()
    assert "App(&#x27;page-views&#x27;: 6 steps, 3 streams)" in html
    assert "views" in html.split("<pre>")[1]
    assert "has no flow" in hr.App("empty")._repr_html_()

"""The first rows of a flow: of steps, tables, windows and two stages, over rows that are read or given."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.api.app import Declarations
from headrace.core.errors import UsageError

VIEWS = {"member": pl.String, "url": pl.String, "ts": pl.Datetime("ms")}
MEMBERS = {"member": pl.String, "country": pl.String}


def view(member: str, url: str, second: int = 0) -> dict[str, object]:
    return {"member": member, "url": url, "ts": datetime(2026, 1, 1, 12, 0, second)}


@pytest.fixture
def app(tmp_path: Path) -> hr.App:
    return hr.App("page-views", home=tmp_path)


def test_the_first_rows_of_a_log_are_read_and_nothing_is_written(app: hr.App, tmp_path: Path) -> None:
    hr.streams.create_stream("views", 1, VIEWS, home=tmp_path)
    with hr.streams.StreamWriter("views", home=tmp_path) as writer:
        writer.write([view("ann", "/"), view("bob", "/ping"), view("ann", "/item")])
    views = app.input("views", VIEWS, event_time="ts")
    kept = views.filter(pl.col("url") != "/ping").select("member", "url")
    assert kept.head().rows() == [("ann", "/"), ("ann", "/item")]
    assert kept.head(1).rows() == [("ann", "/")]
    assert kept.head(sample=2).rows() == [("ann", "/")]
    assert kept.head(0).schema == pl.Schema({"member": pl.String, "url": pl.String})
    assert views.head(2).height == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["streams"]
    assert [path.name for path in (tmp_path / "streams").iterdir() if path.is_dir()] == ["views"]


def test_windows_of_two_stages_with_a_table_beside_an_unfinished_flow(app: hr.App) -> None:
    views = app.input("views", VIEWS, event_time="ts")
    members = app.table("members", key="member", schema=MEMBERS, side_inputs=app.input("profiles", MEMBERS))
    by_member = views.partition_by("member", id="by-member")
    views.filter(pl.col("url") == "/")  # goes nowhere yet
    counts = by_member.window(hr.tumbling("10s"), key="member", id="per-10s").agg(views=pl.len())
    by_member.window(hr.tumbling("1h"), key="member", id="per-hour")  # without aggregates yet
    known = counts.join(members, how="left").select("member", "views", "country")
    given = {
        "views": [view("ann", "/", 1), view("ann", "/", 2), view("bob", "/", 12)],
        "profiles": pl.DataFrame({"member": ["ann"], "country": ["PT"]}),
    }
    assert sorted(known.head(sample=given).rows()) == [("ann", 2, "PT"), ("bob", 1, None)]


def test_a_table_that_a_flow_fills_is_filled(app: hr.App) -> None:
    members = app.table("members", key="member", schema=MEMBERS)
    app.input("profiles", MEMBERS).send_to(members)
    joined = app.input("names", {"member": pl.String}).join(members)
    found = joined.head(sample={"profiles": [{"member": "ann", "country": "PT"}], "names": []})
    assert (found.height, list(found.schema)) == (0, ["member", "country"])


def test_files_are_read_without_a_list(app: hr.App, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        pl.DataFrame({"n": [number, number + 10], "more": "x"}).write_parquet(folder / f"{number}.parquet")
    numbers = app.input("numbers", {"n": pl.Int64}, system=hr.io.files(f"{folder}/*.parquet"))
    assert numbers.map(lambda row: {"n": row["n"] * 2}, schema={"n": pl.Int64}).head(3).rows() == [(0,), (20,), (2,)]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_what_can_not_be_read_is_refused_with_what_to_do(app: hr.App) -> None:
    clicks = app.input("clicks", {"n": pl.Int64}, system=hr.io.kinesis("clicks", region="eu-west-1"))
    with pytest.raises(UsageError, match=r"input 'clicks' \(.*\): rows of a system of kind 'kinesis' aren't") as caught:
        clicks.head()
    assert caught.value.hint == 'pass some: head(sample={"clicks": [...]})'
    assert clicks.head(sample={"clicks": [{"n": 1}]}).rows() == [(1,)]
    with pytest.raises(UsageError, match="'views', which isn't an input of the steps up to here"):
        clicks.head(sample={"views": []})
    with pytest.raises(UsageError, match="sample=0 isn't a number of rows"):
        clicks.head(sample=0)
    with pytest.raises(UsageError, match="-1 isn't a number of rows"):
        clicks.head(-1)


def test_declarations_alone_can_not_be_run() -> None:
    with pytest.raises(UsageError, match="these declarations can't be run"):
        Declarations("app").input("views", VIEWS).head()

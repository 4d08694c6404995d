"""How each form of a plan shows each kind of table: kind, key, options, and how often a row is written."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.operate.page.plan_page import plan_html
from headrace.plan.planner import plan
from headrace.plan.render import RenderedPlan, render, to_json, to_text
from headrace.systems.base import StreamInfo

RATES = {"currency": pl.String, "rate": pl.Float64, "ts": pl.Int64}


def read(keys: Any) -> list[Any]:
    return []


def write(rows: Any) -> None: ...


def rendered() -> RenderedPlan:
    app = hr.App("shop")
    rates = app.input("rates", RATES, event_time="ts").partition_by("currency", id="by-currency", partitions=2)
    rates.send_to(app.table("fast", "currency", RATES, storage="memory", ttl="1h"))
    rates.send_to(app.table("past", "currency", RATES, versions="1d"))
    rates.send_to(app.table("all", "currency", RATES))
    rates.send_to(app.table("written", "currency", RATES, remote=hr.tables.remote(read=read, write=write)))
    rates.send_to(app.table("sql", "currency", RATES, remote=hr.tables.sql_table("sqlite:///rates.db", "rates")))
    cached = app.table("cached", "currency", RATES, remote=hr.tables.cached(hr.tables.remote(read=read), ttl="1m"))
    rates.join(cached, how="left").send_to(app.output("found"))
    return render(plan(app.graph(), {"rates": StreamInfo("rates", 2, None)}))


WORDS = {
    "all": ["local"],
    "fast": ["local", "storage memory", "ttl 1h"],
    "past": ["local", "versions 1d"],
    "written": ["remote", "read read()", "write write()", "at-least-once"],
    "sql": ["remote", "exactly-once", "rates of sqlite:///rates.db"],
    "cached": ["remote", "for 1m", "joined by"],
}


@pytest.mark.parametrize("table", WORDS)
def test_text_says_what_kind_a_table_is(table: str) -> None:
    lines = to_text(rendered()).partition("\ntables\n")[2].splitlines()
    (line,) = (line for line in lines if line.split()[0] == table)
    assert "key currency" in line
    for word in WORDS[table]:
        assert line.count(word) == 1, line
    if table == "cached":
        assert "-once" not in line, "nothing is written to it"


def test_json_and_the_page_say_the_same() -> None:
    shown = rendered()
    tables = to_json(shown)["tables"]
    assert {id_: table["delivery"] for id_, table in tables.items()} == {
        "all": None, "fast": None, "past": None, "cached": None, "written": "at-least-once", "sql": "exactly-once",
    }  # fmt: skip
    assert tables["fast"]["config"] == {"storage": "memory", "ttl": "1h"}
    assert (tables["past"]["kind"], tables["past"]["key"]) == ("local", ["currency"])
    page = plan_html(shown)
    for fact in ("storage=memory, ttl=1h", "versions=1d", "<dd>at-least-once</dd>", "remote table written"):
        assert fact in page

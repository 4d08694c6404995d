"""What the error about a table that is fed through a shuffle advises: each way is planned and run."""

from __future__ import annotations

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import PlanError

RANKS = {"page": pl.String, "rank": pl.Float64}
LINKS = {"page": pl.String, "to": pl.String}
OTHER_PAGE = {"page": pl.col("to"), "rank": pl.col("rank").fill_null(1.0) / 2}
SAME_PAGE = {"page": pl.col("page"), "rank": pl.col("rank").fill_null(1.0) / 2}


def ranks(change: dict[str, pl.Expr], *, shuffle: bool) -> hr.App:
    app = hr.App("ranks")
    table = app.table("rank", key="page", schema=RANKS)
    links = app.input("links", LINKS).partition_by("page", id="by-page", partitions=3)
    found = links.join(table, how="left")
    found.send_to(app.output("found"))
    changes = found.select(**change)
    (changes.partition_by("page", id="by-linked-page") if shuffle else changes).send_to(table)
    return app


def test_the_hint_names_the_table() -> None:
    with pytest.raises(PlanError, match="by-linked-page") as caught, ranks(OTHER_PAGE, shuffle=True).test():
        pass
    assert caught.value.hint is not None
    assert "table 'rank' ties" in caught.value.hint


def test_messages_that_keep_the_key_need_no_second_partition_by() -> None:
    with ranks(SAME_PAGE, shuffle=False).test() as t:
        for _ in range(3):
            t.feed("links", [{"page": "a", "to": "b"}])
        assert t.read("found")["rank"].to_list() == [None, 0.5, 0.25]


def test_messages_with_another_key_go_round_through_a_second_app() -> None:
    first = hr.App("ranks")
    table = first.table("rank", key="page", schema=RANKS)
    first.input("new-ranks", RANKS, key="page").send_to(table)
    links = first.input("links", LINKS).partition_by("page", id="by-page")
    found = links.join(table, how="left")
    found.send_to(first.output("found"))
    found.select(**OTHER_PAGE).send_to(first.output("changes"))
    second = hr.App("ranks-back")
    changes = second.input("changes", RANKS).partition_by("page", id="changes-by-page")
    changes.send_to(second.output("new-ranks", partitions=3), key="page")

    with first.test({"new-ranks": 3, "links": 2}) as t, second.test({"changes": 2}) as back:
        assert t.plan.streams["by-page"].partitions == 3
        t.feed("links", [{"page": "a", "to": "b"}])
        back.feed("changes", t.read("changes"))
        t.feed("new-ranks", back.read("new-ranks"))
        t.feed("links", [{"page": "b", "to": "c"}])
        assert t.read("found").sort("page")["rank"].to_list() == [None, 0.5]

"""pruning: which columns somebody still looks at."""

from collections.abc import Callable

import polars as pl
import polars.selectors as cs
import pytest

import headrace as hr
from headrace.plan.combining import combined_windows
from headrace.plan.pruning import needed_columns

COLUMNS = {"member": pl.String, "url": pl.String, "ms": pl.Int64, "ts": pl.Int64}

Steps = Callable[[hr.Stream], hr.Stream]


def behind_the_filter(steps: Steps) -> tuple[str, ...] | None:
    app = hr.App("pruning")
    views = app.input("views", COLUMNS, event_time="ts")
    steps(views.filter(pl.col("url") != "/")).send_to(app.output("out"))
    graph = app.graph()
    return needed_columns(graph, combined_windows(graph))["filter-1"]


def counted(stream: hr.Stream, **agg: hr.Aggregate) -> hr.Stream:
    shuffled = stream.partition_by("member", id="by-member")
    return shuffled.window(hr.tumbling("1s"), key="member", agg=agg or {"n": hr.count()}, id="w")


@pytest.mark.parametrize(
    ("steps", "needed"),
    [
        (lambda s: s, None),
        (counted, ("member", "ts")),
        (lambda s: counted(s, total=hr.sum(pl.col("ms") * 2)), ("member", "ms", "ts")),
        (lambda s: counted(s.with_columns(half=pl.col("ms") / 2), most=hr.max("half")), ("member", "ms", "ts")),
        (lambda s: s.select("member"), ("member",)),
        (lambda s: s.select(m="member"), ("member",)),
        (lambda s: s.select(pl.struct(cs.all()).alias("all")), None),
        (lambda s: s.map(lambda row: row, schema=COLUMNS), None),
        (lambda s: s.partition_by("member", id="by-member"), None),
        (lambda s: s.merge(s.filter(pl.col("ms") > 1)).select("ts"), ("ms", "ts")),
    ],
)
def test_what_a_filter_need_not_copy(steps: Steps, needed: tuple[str, ...] | None) -> None:
    assert behind_the_filter(steps) == needed


def test_results_are_the_same() -> None:
    app = hr.App("pruning")
    views = app.input("views", COLUMNS, event_time="ts")
    counted(views.filter(pl.col("url") != "/"), total=hr.sum("ms")).send_to(app.output("out"))
    with app.test() as t:
        t.feed("views", [{"member": "a", "url": url, "ms": 2, "ts": 1} for url in ("/", "/x", None, "/y")])
        t.end()
        assert t.read("out").select("member", "total").rows() == [("a", 4)]

"""pruning: which columns are still needed."""

from collections.abc import Callable

import polars as pl
import polars.selectors as cs
import pytest

import headrace as hr
from headrace.plan.passes import combined_windows, needed_columns

COLUMNS = {"member": pl.String, "url": pl.String, "ms": pl.Int64, "ts": pl.Int64}

Steps = Callable[[hr.Stream], hr.Stream]


def behind_the_filter(steps: Steps) -> tuple[str, ...] | None:
    app = hr.App("pruning")
    views = app.input("views", COLUMNS, event_time="ts")
    steps(views.filter(pl.col("url") != "/")).send_to(app.output("out"))
    graph = app.graph()
    return needed_columns(graph, combined_windows(graph))["filter-1"]


def counted(stream: hr.Stream, **agg: hr.aggregates.Aggregate) -> hr.Stream:
    shuffled = stream.partition_by("member", id="by-member")
    return shuffled.window(hr.tumbling("1s"), key="member", id="w").agg(**(agg or {"n": hr.count()}))


@pytest.mark.parametrize(
    ("steps", "needed"),
    [
        (lambda s: s, None),
        (counted, ("member", "ts")),
        (lambda s: counted(s, total=hr.sum(pl.col("ms") * 2)), ("member", "ms", "ts")),
        (
            lambda s: counted(s.with_columns(half=pl.col("ms") / 2), most=hr.max("half")),
            ("member", "ms", "ts"),
        ),
        (lambda s: s.select("member"), ("member",)),
        (lambda s: s.select(m="member"), ("member",)),
        (lambda s: s.select(pl.struct(cs.all()).alias("all")), None),
        (lambda s: s.map(lambda row: row, schema=COLUMNS), None),
        (lambda s: s.partition_by("member", id="by-member"), None),
        (lambda s: s.merge(s.filter(pl.col("ms") > 1)).select("ts"), ("ms", "ts")),
        (lambda s: s.deduplicate("url", within="1h", id="d").select("ms"), ("url", "ms", "ts")),
        (lambda s: s.drop_late().select("ms"), ("ms", "ts")),
        (lambda s: s.sample(0.5, key="member").select("ms"), ("member", "ms")),
        (lambda s: s.sample(0.5).select("ms"), ("ms",)),
        (lambda s: counted(s.drop_late().sample(1, key="url").deduplicate("ms", within="1h", id="d")), None),
        (lambda s: counted(s.drop_late().deduplicate("ms", within="1h", id="d")), ("member", "ms", "ts")),
    ],
)
def test_what_a_filter_need_not_copy(steps: Steps, needed: tuple[str, ...] | None) -> None:
    assert behind_the_filter(steps) == needed


def test_late_messages_keep_their_columns() -> None:
    app = hr.App("pruning")
    views = app.input("views", COLUMNS, event_time="ts")
    kept = views.filter(pl.col("url") != "/").drop_late(late_to=app.output("late"))
    kept.select("ms").send_to(app.output("out"))
    graph = app.graph()
    assert needed_columns(graph, combined_windows(graph))["filter-1"] is None


def test_steps_that_leave_rows_out_hand_on_what_they_are_given() -> None:
    app = hr.App("pruning")
    views = app.input("views", COLUMNS, event_time="ts").filter(pl.col("url") != "/")
    for name, step in {
        "sampled": views.sample(1, key="member").sample(1),
        "once": views.deduplicate("member", within="1s", id="d"),
        "timely": views.drop_late(),
    }.items():
        step.select("ms").send_to(app.output(name))
    graph = app.graph()
    assert needed_columns(graph, combined_windows(graph))["filter-1"] == ("member", "ms", "ts")
    with app.test() as t:
        t.feed("views", [{"member": "a", "url": f"/{n}", "ms": n, "ts": 5000} for n in range(3)])
        t.feed(
            "views", [{"member": "b", "url": "/", "ms": 7, "ts": 5000}, {"member": "b", "url": "", "ms": 8, "ts": 1}]
        )
        assert t.read("sampled")["ms"].to_list() == [0, 1, 2, 8]
        assert (t.read("once")["ms"].to_list(), t.read("timely")["ms"].to_list()) == ([0], [0, 1, 2])


def test_results_are_the_same() -> None:
    app = hr.App("pruning")
    views = app.input("views", COLUMNS, event_time="ts")
    counted(views.filter(pl.col("url") != "/"), total=hr.sum("ms")).send_to(app.output("out"))
    with app.test() as t:
        t.feed("views", [{"member": "a", "url": url, "ms": 2, "ts": 1} for url in ("/", "/x", None, "/y")])
        t.end()
        assert t.read("out").select("member", "total").rows() == [("a", 4)]

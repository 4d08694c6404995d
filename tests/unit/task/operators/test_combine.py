"""Windows that are aggregated in part before the shuffle: the same results from fewer rows in the stream."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.kit.harness import TestApp

VIEWS = {"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}
ALL = {
    "n": hr.count(),
    "some": hr.count("ms"),
    "sum": hr.sum("ms"),
    "least": hr.min("ms"),
    "most": hr.max("ms"),
    "mean": hr.mean("ms"),
}

TUMBLING = hr.tumbling("3s")
HOPPING = hr.hopping("3s", every="2s")
SESSION = hr.session("1500ms")


def counted(shape: hr.windows.Tumbling | hr.windows.Hopping | hr.windows.Session = TUMBLING) -> hr.App:
    app = hr.App("counted")
    views = app.input("views", VIEWS, event_time="ts", lateness="2s")
    shuffled = views.partition_by("member", id="by-member")
    shuffled.window(shape, key="member", id="per-3s").agg(**ALL).send_to(app.output("counts"))
    return app


def results(
    app: hr.App, batches: list[list[tuple[str | None, int | None, int]]], *, combine: bool
) -> tuple[object, int, int]:
    graph = app.graph()
    graph = replace(graph, settings=replace(graph.settings, combine=combine))
    with TestApp(graph, partitions=2) as t:
        for number, batch in enumerate(batches):
            rows = [{"member": member, "ms": ms, "ts": ts} for member, ms, ts in batch]
            t.feed("views", rows, partition=number % 2)
        t.end()
        found = t.read("counts").sort("window_start", "member").to_dicts()
        return found, t.counter("late"), t.read("by-member").height


def test_fewer_rows_cross_the_shuffle() -> None:
    batch: list[tuple[str | None, int | None, int]] = [("a", 1, 100), ("a", 2, 200), ("b", 3, 300), ("a", 4, 4_000)]
    whole, parts = results(counted(), [batch], combine=False), results(counted(), [batch], combine=True)
    assert whole[0] == parts[0]
    assert (whole[2], parts[2]) == (4, 3)


def test_sessions_cross_as_spans() -> None:
    batch: list[tuple[str | None, int | None, int]] = [
        ("a", 1, 100),
        ("b", 1, 0),
        ("a", 2, 3_000),
        ("a", 4, 1_400),
        (None, 8, 9_000),
    ]
    whole, parts = results(counted(SESSION), [batch], combine=False), results(counted(SESSION), [batch], combine=True)
    assert whole[0] == parts[0]
    assert (whole[2], parts[2]) == (5, 4)


def test_sessions_without_a_key_are_made_of_spans_too() -> None:
    app = hr.App("all")
    app.input("views", VIEWS, event_time="ts").window(SESSION, key=None, id="w").agg(**ALL).send_to(
        app.output("counts")
    )
    with app.test() as t:
        t.feed("views", [{"member": "a", "ms": 1, "ts": ts} for ts in (0, 1_000, 4_000)])
        t.feed("views", [{"member": "b", "ms": 2, "ts": 5_000}])
        t.end()
        assert t.read("counts").select("window_start", "window_end", "n", "sum").rows() == [
            (0, 2_500, 2, 2),
            (4_000, 6_500, 2, 3),
        ]


MESSAGES = st.tuples(
    st.sampled_from(["a", "b", "c", None]), st.one_of(st.none(), st.integers(-50, 50)), st.integers(0, 20_000)
)


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from([TUMBLING, HOPPING, SESSION]), st.lists(st.lists(MESSAGES, min_size=1, max_size=8), max_size=8))
def test_results_and_late_counts_are_those_of_whole_messages(
    shape: hr.windows.Tumbling | hr.windows.Hopping | hr.windows.Session,
    batches: list[list[tuple[str | None, int | None, int]]],
) -> None:
    assert results(counted(shape), batches, combine=True)[:2] == results(counted(shape), batches, combine=False)[:2]


@pytest.mark.parametrize("shape", [TUMBLING, HOPPING, SESSION], ids=str)
@pytest.mark.parametrize(
    "aggregate",
    [
        hr.aggregates.implode("ms"),
        hr.aggregates.n_unique("ms"),
        hr.aggregates.approx_n_unique("ms"),
        hr.aggregates.first("ms"),
        hr.aggregates.last("ms"),
        hr.aggregates.top_k("ms", 2),
        hr.aggregates.top_k(pl.struct("ms", "ts"), 2, by=pl.col("ms") * 2),
    ],
    ids=lambda aggregate: f"{aggregate.kind}-{aggregate.by is not None}",
)
def test_every_aggregate_crosses_the_shuffle_in_parts(
    shape: hr.windows.Tumbling | hr.windows.Hopping | hr.windows.Session, aggregate: hr.aggregates.Aggregate
) -> None:
    app = hr.App("parts")
    views = app.input("views", VIEWS, event_time="ts", lateness="2s").partition_by("member", id="by-member")
    views.window(shape, key="member", id="w").agg(result=aggregate).send_to(app.output("counts"))
    # Messages of one partition only: then results that depend on the order of arrival are the same, too.
    batches: list[list[tuple[str | None, int | None, int]]] = [
        [("a", 4, 100), ("a", 2, 200), ("b", 3, 300)],
        [],
        [("a", 9, 2_500), ("b", None, 4_000), ("a", 2, 4_100)],
        [],
    ]
    whole, parts = results(app, batches, combine=False), results(app, batches, combine=True)
    assert whole[0] == parts[0] != []

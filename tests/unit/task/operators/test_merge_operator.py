"""merge: all messages of several flows."""

import polars as pl

import headrace as hr

COLUMNS = {"member": pl.String, "ts": pl.Int64}


def test_all_messages_of_all_flows(app: hr.App, out: hr.Output) -> None:
    web, phone = app.input("web", COLUMNS, event_time="ts"), app.input("phone", COLUMNS, event_time="ts")
    web.merge(phone).send_to(out)
    with app.test() as t:
        t.feed("web", [{"member": "a", "ts": 1}])
        t.feed("phone", [{"member": "b", "ts": 2}])
        assert sorted(t.read("out")["member"]) == ["a", "b"]


def test_a_flow_merged_with_itself_counts_twice(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.merge(views.filter(pl.col("ms") > 1)).send_to(out)
    with app.test() as t:
        t.feed("views", [{"member": "a", "ms": 1, "ts": 1}, {"member": "b", "ms": 2, "ts": 1}])
        assert sorted(t.read("out")["member"]) == ["a", "b", "b"]


def test_columns_in_another_order_are_aligned(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.select("ms", "member").merge(views.select("member", "ms")).send_to(out)
    with app.test() as t:
        t.feed("views", [{"member": "a", "ms": 1, "ts": 1}])
        assert t.read("out").rows() == [(1, "a")] * 2


def test_a_window_waits_for_the_slower_flow(app: hr.App, out: hr.Output) -> None:
    web, phone = app.input("web", COLUMNS, event_time="ts"), app.input("phone", COLUMNS, event_time="ts")
    both = web.merge(phone)
    both.window(hr.tumbling("10ms"), key="member", id="per-10ms").agg(n=hr.count()).send_to(out)
    with app.test() as t:
        t.feed("web", [{"member": "a", "ts": 1}, {"member": "a", "ts": 50}])
        t.feed("phone", [{"member": "a", "ts": 2}])
        assert (t.read("out").height, t.watermark) == (0, 2)
        t.end("phone")
        assert t.read("out").select("window_start", "n").rows() == [(0, 2)]
        t.end("web")
        assert t.read("out").select("window_start", "n").rows() == [(0, 2), (50, 1)]

"""deduplicate(by, within) and drop_late(), against a naive oracle."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_pieces import small_pieces

import headrace as hr
from drawn import examples

ORDERS = {"shop": pl.String, "order": pl.Int64, "ts": pl.Int64, "n": pl.Int64}

Order = tuple[str | None, int | None, int]


def once(by: str | list[str] = "order", within: Any = "10s", lateness: str = "0s") -> hr.App:
    app = hr.App("orders")
    orders = app.input("orders", ORDERS, event_time="ts", lateness=lateness)
    orders.deduplicate(by, within=within, id="once").send_to(app.output("out"))
    return app


def messages(*orders: tuple[int | None, int]) -> list[dict[str, Any]]:
    return [{"shop": "s", "order": order, "ts": ts, "n": n} for n, (order, ts) in enumerate(orders)]


def kept(t: Any, **options: Any) -> list[int]:
    numbers: list[int] = t.read("out", **options)["n"].to_list()
    return numbers


def test_the_first_to_come_is_let_through_and_one_exactly_within_away() -> None:
    with once(lateness="1m").test() as t:
        t.feed("orders", messages((1, 10_000), (1, 19_999), (1, 1), (2, 5_000), (1, 20_000), (1, 0), (1, 29_999)))
        assert kept(t) == [0, 3, 4, 5]


def test_those_left_out_are_not_measured_from() -> None:
    with once().test() as t:
        t.feed("orders", messages(*((1, second * 4_000) for second in range(7))))
        assert kept(t) == [0, 3, 6]


def test_messages_keep_their_order_and_columns() -> None:
    with once().test() as t:
        t.feed("orders", messages((5, 3), (4, 2), (3, 1)))
        assert t.read("out").columns == list(ORDERS)
        assert kept(t) == [0, 1, 2]


def test_a_null_key_is_a_key_of_its_own_and_keys_may_have_several_columns() -> None:
    with once(["shop", "order"]).test() as t:
        rows = messages((None, 0), (None, 1), (1, 2), (1, 3))
        rows[3]["shop"] = None
        t.feed("orders", rows)
        assert kept(t) == [0, 2, 3]


def test_late_messages_are_counted_and_dropped() -> None:
    with once(lateness="1s").test() as t:
        t.feed("orders", messages((1, 20_000)))
        t.feed("orders", messages((2, 18_999), (3, 19_000)))
        assert t.counter("late") == 1
        assert t.read("out")["order"].to_list() == [1, 3]


def test_what_was_let_through_is_remembered_over_a_restart() -> None:
    with once().test() as t:
        t.feed("orders", messages((1, 0), (2, 9_000)))
        t.restart(checkpoint=True)
        t.feed("orders", messages((1, 9_999), (2, 10_000)))
        t.end()
        assert t.read("out", committed=True)["order"].to_list() == [1, 2]


def test_what_is_too_old_to_matter_is_forgotten() -> None:
    with once(within="1s").test() as t:
        for second in range(0, 60, 10):
            t.feed("orders", messages(*((order, second * 1_000) for order in range(50))))
        (stores,) = [host.task.chain.stores() for host in t._container.hosts]
        assert stores["once"].entries() <= 100


def test_a_date_and_time_is_an_event_time() -> None:
    app = hr.App("orders")
    orders = app.input("orders", {"order": pl.Int64, "at": pl.Datetime("us", "UTC")}, event_time="at")
    orders.deduplicate("order", within=timedelta(seconds=10), id="once").send_to(app.output("out"))
    start = datetime(2024, 1, 1, tzinfo=UTC)
    with app.test() as t:
        t.feed("orders", [{"order": 1, "at": start + timedelta(seconds=s)} for s in (0, 9, 10)])
        assert t.read("out")["at"].to_list() == [start, start + timedelta(seconds=10)]


@pytest.mark.parametrize(
    ("step", "name"),
    [(lambda s: s.deduplicate("order", within="1s", id="once"), "once"), (hr.Stream.drop_late, "drop_late-1")],
)
def test_a_null_event_time_is_an_error(step: Callable[[hr.Stream], hr.Stream], name: str) -> None:
    app = hr.App("orders")
    orders = app.input("orders", ORDERS, event_time="ts")
    step(orders.map(lambda row: row | {"ts": None}, schema=ORDERS)).send_to(app.output("out"))
    with (
        app.test() as t,
        pytest.raises(hr.errors.DataError, match=rf"'{name}' got .* without an event time \(1 of 1\): 'ts' is null"),
    ):
        t.feed("orders", messages((1, 1)))


def test_streams_that_meet_there_need_like_partitions() -> None:
    app = hr.App("orders")
    left, right = (app.input(name, ORDERS, event_time="ts") for name in ("left", "right"))
    left.merge(right).deduplicate("order", within="1s", id="once").send_to(app.output("out"))
    with pytest.raises(hr.errors.PlanError, match=r"deduplicate 'once' .*test_deduplicate.py"):
        app.test(partitions={"left": 2, "right": 3})


def oracle(orders: list[Order], within: int) -> list[int]:
    """The numbers of the messages that are let through, if none is late."""
    passed: list[tuple[str | None, int | None, int, int]] = []
    for n, (shop, order, ts) in enumerate(orders):
        if not any((s, o) == (shop, order) and abs(t - ts) < within for s, o, t, _ in passed):
            passed.append((shop, order, ts, n))
    return [n for *_, n in passed]


ORDERS_OF = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([1, 2, None]), st.integers(0, 9_000)), max_size=30
)


@settings(max_examples=examples(60), deadline=None)
@given(orders=ORDERS_OF, within=st.sampled_from([1, 700, 2_000, 20_000]), ordered=st.booleans(), data=st.data())
def test_any_order_and_any_restart_give_what_the_oracle_says(
    orders: list[Order], within: int, ordered: bool, data: st.DataObject
) -> None:
    if ordered:  # then the watermark follows closely, and messages that were let through are forgotten soon
        orders = sorted(orders, key=lambda order: order[2])
    rows = [{"shop": shop, "order": order, "ts": ts, "n": n} for n, (shop, order, ts) in enumerate(orders)]
    with (
        small_pieces(really=data.draw(st.booleans())),
        once(["shop", "order"], f"{within}ms", lateness="0s" if ordered else "10s").test() as t,
    ):
        while rows:
            size = data.draw(st.integers(1, 8))
            t.feed("orders", rows[:size])
            rows = rows[size:]
            if data.draw(st.integers(0, 3)) == 0:
                t.restart(checkpoint=data.draw(st.booleans()))
        t.end()
        assert kept(t, committed=True) == oracle(orders, within)
        assert t.counter("late") == 0


def test_drop_late_leaves_out_what_is_older_than_the_watermark() -> None:
    app = hr.App("orders")
    orders = app.input("orders", ORDERS, event_time="ts", lateness="1s")
    orders.drop_late(late_to=app.output("late")).send_to(app.output("out"))
    with app.test() as t:
        t.feed("orders", messages((1, 20_000), (2, 3)))  # the watermark moves after each batch
        t.restart(checkpoint=True)
        t.feed("orders", messages((3, 18_999), (4, 19_000)))
        assert t.read("out")["order"].to_list() == [1, 2, 4]
        assert t.read("late").rows() == [("s", 3, 18_999, 0)]
        assert t.counter("late") == 1

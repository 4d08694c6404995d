"""join(stream): pairs by key within a bound of event time, against a naive oracle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_pieces import small_pieces

import headrace as hr
from drawn import examples

ORDERS = {"key": pl.String, "ts": pl.Int64, "order": pl.Int64}
PAYS = {"key": pl.String, "ts": pl.Int64, "amount": pl.Int64}

How = Literal["inner", "left", "full"]


def joined(how: How = "inner", within: Any = ("-2s", "+1s"), lateness: str = "0s") -> hr.App:
    app = hr.App("orders-and-payments")
    orders = app.input("orders", ORDERS, event_time="ts", lateness=lateness)
    pays = app.input("pays", PAYS, event_time="ts", lateness=lateness)
    orders.join(pays, on="key", how=how, within=within, id="pairs").send_to(app.output("paid"))
    return app


def order(key: str | None, ts: int, number: int = 0) -> dict[str, Any]:
    return {"key": key, "ts": ts, "order": number}


def pay(key: str | None, ts: int, amount: int = 0) -> dict[str, Any]:
    return {"key": key, "ts": ts, "amount": amount}


def rows(found: pl.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(found.rows(), key=repr)


def test_all_pairs_within_the_bound_are_found_whichever_arrives_first() -> None:
    with joined().test() as t:
        t.feed("orders", [order("a", 10_000, 1)])
        t.feed(
            "pays", [pay("a", 7_999), pay("a", 8_000, 1), pay("a", 11_000, 2), pay("a", 11_001, 3), pay("b", 10_000)]
        )
        t.feed("orders", [order("a", 12_000, 2)])
        found = t.read("paid").select("order", "amount").rows()
        assert sorted(found) == [(1, 1), (1, 2), (2, 2), (2, 3)]


def test_the_columns_are_the_lefts_then_the_rights() -> None:
    with joined().test() as t:
        t.feed("orders", [order("a", 1, 7)])
        t.feed("pays", [pay("a", 2, 9)])
        assert t.read("paid").to_dicts() == [{"key": "a", "ts": 1, "order": 7, "ts_right": 2, "amount": 9}]


def test_a_left_join_emits_an_unmatched_message_when_the_watermark_passes_its_last_chance() -> None:
    with joined("left").test() as t:
        t.feed("orders", [order("a", 10_000, 1)])
        t.feed("pays", [pay("b", 11_000)])
        t.feed("orders", [order("c", 11_000, 2)])
        assert t.read("paid").is_empty()
        t.feed("orders", [order("d", 11_001, 3)])
        t.feed("pays", [pay("b", 11_001)])
        assert t.read("paid").select("order", "amount").rows() == [(1, None)]


def test_an_outer_join_emits_the_rights_too() -> None:
    with joined("full").test() as t:
        t.feed("orders", [order("a", 1_000, 1), order("b", 1_000, 2)])
        t.feed("pays", [pay("b", 1_500, 5), pay("c", 1_500, 6)])
        t.end()
        assert rows(t.read("paid").select("key", "order", "amount")) == [("a", 1, None), ("b", 2, 5), ("c", None, 6)]


def test_a_null_key_has_no_partner() -> None:
    with joined("full").test() as t:
        t.feed("orders", [order(None, 1_000, 1)])
        t.feed("pays", [pay(None, 1_000, 2)])
        t.end()
        assert rows(t.read("paid").select("order", "amount")) == [(1, None), (None, 2)]


def test_late_messages_are_counted() -> None:
    with joined().test() as t:
        t.feed("orders", [order("a", 10_000)])
        t.feed("pays", [pay("a", 10_000)])
        t.feed("orders", [order("a", 9_999)])
        assert t.counter("late") == 1


def test_what_a_join_emits_is_not_late_in_a_window_downstream() -> None:
    app = hr.App("orders-and-payments")
    orders = app.input("orders", ORDERS, event_time="ts")
    pays = app.input("pays", PAYS, event_time="ts")
    joined_ = orders.join(pays, on="key", within=("-1s", "+9s"), id="pairs")
    counts = joined_.window(hr.tumbling("5s"), key="key", id="per-5s").agg(n=hr.count())
    counts.send_to(app.output("counts"))
    with app.test() as t:
        t.feed("orders", [order("a", 1_000)])
        t.feed("orders", [order("a", 9_000)])
        t.feed("pays", [pay("a", 9_500)])
        t.end()
        assert t.counter("late") == 0
        assert t.read("counts").select("window_start", "n").sort("window_start").rows() == [(0, 1), (5_000, 1)]


UNITS = {"ms": 10**6, "us": 1000, "ns": 1}


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([*UNITS, "i64"]),
    st.sampled_from([*UNITS, "i64"]),
    st.lists(st.tuples(st.booleans(), st.integers(-3, 3), st.integers(-2, 2)), min_size=1, max_size=12),
    st.sampled_from(["inner", "left", "full"]),
    st.sampled_from([("-1ms", "1ms"), ("0ms", "0ms"), ("-2ms", "-1ms"), ("0ms", "1s")]),
    st.booleans(),
)
def test_bounds_are_exact_in_the_unit_of_each_column(
    left: str, right: str, events: list[tuple[bool, int, int]], how: How, within: tuple[str, str], together: bool
) -> None:
    """Times around 1970, near whole milliseconds, in any two units."""

    def dtype(unit: str) -> pl.DataType:
        return pl.Int64() if unit == "i64" else pl.Datetime(unit)  # type: ignore[arg-type]

    def moment(unit: str, ms: int, steps: int) -> int:
        return ms * (10**6 // UNITS.get(unit, 10**6)) + steps

    app = hr.App("units")
    sides = [
        app.input(name, {"key": pl.String, "ts": dtype(unit), "n": pl.Int64}, event_time="ts", lateness="1m")
        for name, unit in (("left", left), ("right", right))
    ]
    sides[0].join(sides[1], on="key", how=how, within=within, id="pairs").send_to(app.output("out"))
    lefts, rights = [], []
    with app.test() as t:
        for number, (is_left, ms, steps) in enumerate(events):
            unit = left if is_left else right
            ts = moment(unit, ms, steps)
            (lefts if is_left else rights).append((ts * UNITS.get(unit, 10**6), number))
            row = pl.DataFrame({"key": ["a"], "ts": pl.Series([ts], dtype=pl.Int64).cast(dtype(unit)), "n": [number]})
            t.feed("left" if is_left else "right", row, settle=not together)
        t.end()
        found = sorted(t.read("out").select("n", "n_right").rows(), key=repr)
    low, high = (int(bound.removesuffix("ms")) * 10**6 if "ms" in bound else 10**9 for bound in within)
    pairs = [(a, b) for at, a in lefts for then, b in rights if low <= then - at <= high]
    alone: list[tuple[int | None, int | None]] = []
    if how != "inner":
        alone += [(n, None) for _, n in lefts if n not in {a for a, _ in pairs}]
    if how == "full":
        alone += [(None, n) for _, n in rights if n not in {b for _, b in pairs}]
    assert found == sorted([*pairs, *alone], key=repr)


def test_a_microsecond_too_late_is_no_partner() -> None:
    schema = {"key": pl.String, "ts": pl.Datetime("us")}
    app = hr.App("orders-and-payments")
    orders, pays = (app.input(name, schema, event_time="ts") for name in ("orders", "pays"))
    orders.join(pays, on="key", within="1s", id="pairs").send_to(app.output("paid"))
    with app.test() as t:
        start = datetime(2026, 1, 1)
        t.feed("orders", [{"key": "a", "ts": start}])
        t.feed("pays", [{"key": "a", "ts": start + timedelta(seconds=1, microseconds=m)} for m in (0, 1)])
        assert t.read("paid")["ts_right"].to_list() == [start + timedelta(seconds=1)]


def oracle(
    how: How, lefts: Sequence[dict[str, Any]], rights: Sequence[dict[str, Any]]
) -> list[tuple[int | None, int | None]]:
    """Pairs of (order, amount), found by looking at every pair."""
    pairs: list[tuple[int | None, int | None]] = [
        (left["order"], right["amount"])
        for left in lefts
        for right in rights
        if left["key"] is not None and left["key"] == right["key"] and -2000 <= right["ts"] - left["ts"] <= 1000
    ]
    if how != "inner":
        had = {number for number, _ in pairs}
        pairs += [(left["order"], None) for left in lefts if left["order"] not in had]
    if how == "full":
        had = {number for _, number in pairs}
        pairs += [(None, right["amount"]) for right in rights if right["amount"] not in had]
    return sorted(pairs, key=repr)


def batches(messages: Iterable[dict[str, Any]], sizes: Sequence[int]) -> list[list[dict[str, Any]]]:
    rest, cut = list(messages), []
    for size in sizes:
        cut.append(rest[:size])
        rest = rest[size:]
    return [batch for batch in [*cut, rest] if batch]


MESSAGES = st.lists(st.tuples(st.sampled_from(["a", "a", "b", None]), st.integers(0, 8_000)), max_size=25)


@pytest.mark.parametrize("how", ["inner", "left", "full"])
@settings(max_examples=examples(40), deadline=None)
@given(lefts=MESSAGES, rights=MESSAGES, data=st.data())
def test_any_order_and_any_restart_give_what_the_oracle_says(
    how: How, lefts: list[tuple[str | None, int]], rights: list[tuple[str | None, int]], data: st.DataObject
) -> None:
    orders = [order(key, ts, number) for number, (key, ts) in enumerate(lefts)]
    pays = [pay(key, ts, number) for number, (key, ts) in enumerate(rights)]
    sizes = st.lists(st.integers(1, 5), max_size=6)
    turns = [("orders", b) for b in batches(orders, data.draw(sizes))]
    turns += [("pays", b) for b in batches(pays, data.draw(sizes))]
    with (
        small_pieces(really=data.draw(st.booleans())),
        joined(how, lateness="10s").test() as t,  # so much lateness that no message is late
    ):
        for name, batch in data.draw(st.permutations(turns)):
            t.feed(name, batch)
            if data.draw(st.integers(0, 3)) == 0:
                t.restart(checkpoint=data.draw(st.booleans()))
        t.end()
        found = t.read("paid", committed=True).select("order", "amount").rows()
        assert sorted(found, key=repr) == oracle(how, orders, pays)


@settings(max_examples=examples(30), deadline=None)
@given(lefts=MESSAGES, rights=MESSAGES)
def test_in_the_order_of_time_nothing_is_forgotten_too_early(
    lefts: list[tuple[str | None, int]], rights: list[tuple[str | None, int]]
) -> None:
    """Without lateness the watermark follows closely, so buffers shrink all the time."""
    orders = [order(key, ts, number) for number, (key, ts) in enumerate(lefts)]
    pays = [pay(key, ts, number) for number, (key, ts) in enumerate(rights)]
    both = [(m["ts"], "orders", m) for m in orders] + [(m["ts"], "pays", m) for m in pays]
    with small_pieces(), joined("full").test() as t:
        for _, name, message in sorted(both, key=lambda each: each[0]):
            t.feed(name, [message])
        t.end()
        found = t.read("paid").select("order", "amount").rows()
        assert sorted(found, key=repr) == oracle("full", orders, pays)
        assert t.counter("late") == 0

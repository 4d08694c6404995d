"""join(table) with versions: each message finds the version of its time, in whatever order all arrive."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.api.specs import TableKind, TableStorage
from headrace.stores import pieces

RATES = {"currency": pl.String, "rate": pl.Int64, "ts": pl.Int64}
SALES = {"n": pl.Int64, "currency": pl.String, "ts": pl.Int64}
LEFT = {"ts": pl.Int64, "currency": pl.String}

How = Literal["inner", "left"]


def sold(
    how: How = "left", lateness: str = "0s", versions: str = "0s", storage: TableStorage = "disk", **of_rates: Any
) -> hr.App:
    """Sales with the rate of their time; one flow puts rates and another deletes them."""
    app = hr.App("sold")
    rates = app.table("rates", key="currency", schema=RATES, versions=versions, storage=storage)
    app.input("rates-in", RATES, event_time="ts", lateness=lateness, **of_rates).send_to(rates)
    app.input("gone", LEFT, event_time="ts", lateness=lateness, idle_timeout="1s").delete_from(rates)
    sales = app.input("sales", SALES, event_time="ts", lateness=lateness)
    sales.join(rates, how=how, id="then").select("n", "rate", "ts_right").send_to(app.output("out"))
    return app


def rate(currency: str, value: int, ts: int) -> dict[str, Any]:
    return {"currency": currency, "rate": value, "ts": ts}


def sale(n: int, currency: str | None, ts: int) -> dict[str, Any]:
    return {"n": n, "currency": currency, "ts": ts}


def found(t: Any, **options: Any) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = t.read("out", **options).select("n", "rate").rows()
    return rows


def test_a_message_waits_until_all_that_counts_for_it_has_come() -> None:
    with sold().test() as t:
        t.advance("2s")
        t.feed("rates-in", [rate("CHF", 1, 100)])
        t.feed("sales", [sale(1, "CHF", 250), sale(2, "CHF", 300)])
        assert found(t) == []
        t.feed("rates-in", [rate("CHF", 2, 200)])
        assert found(t) == []
        t.feed("rates-in", [rate("CHF", 3, 300)])
        assert found(t) == [(1, 2)], "a rate as of 300 may still arrive"
        t.feed("sales", [sale(3, "EUR", 301)])
        t.feed("rates-in", [rate("CHF", 4, 301)])
        assert found(t) == [(1, 2), (2, 3)]
        t.end()
        assert found(t) == [(1, 2), (2, 3), (3, None)]
        assert t.counter("late") == 0


def test_messages_that_waited_leave_earliest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", 16)
    currencies = [f"C{n}" for n in range(30)]
    times = [n * 7919 % 997 for n in range(997)]
    with sold().test(partitions=1) as t:
        t.feed("rates-in", [rate(currency, 1, 0) for currency in currencies])
        t.feed("sales", [sale(ts, currencies[ts % 30], ts) for ts in times])
        assert found(t) == []
        t.end()
        assert found(t) == [(ts, 1) for ts in range(997)]


def test_an_inner_join_leaves_out_what_finds_nothing() -> None:
    with sold("inner").test() as t:
        t.feed("rates-in", [rate("CHF", 1, 100)])
        t.feed("gone", [{"currency": "CHF", "ts": 200}])
        t.feed("sales", [sale(n, "CHF", ts) for n, ts in enumerate([99, 100, 199, 200, 201])] + [sale(9, None, 150)])
        t.end()
        assert found(t) == [(1, 1), (2, 1)]


def test_the_columns_are_those_of_the_message_then_the_version() -> None:
    app = hr.App("columns")
    rates = app.table("rates", key="currency", schema=RATES, versions="1h")
    app.input("rates-in", RATES, event_time="ts").send_to(rates)
    joined = app.input("sales", SALES, event_time="ts").join(rates, id="then")
    assert list(joined.schema.columns) == ["n", "currency", "ts", "rate", "ts_right"]
    assert joined.event_time is not None
    joined.window(hr.tumbling("1s"), key="currency", id="per-second").agg(n=hr.count()).send_to(app.output("out"))
    with app.test() as t:
        t.feed("rates-in", [rate("CHF", 1, 0), rate("CHF", 2, 5_000)])
        t.feed("sales", [sale(1, "CHF", 10), sale(2, "CHF", 1_500), sale(3, "CHF", 5_000)])
        t.end()
        assert t.read("out").sort("window_start").select("window_start", "n").rows() == [(0, 1), (1_000, 1), (5_000, 1)]
        assert t.counter("late") == 0


def test_late_messages_are_looked_up_at_once_while_versions_are_there_and_then_dropped() -> None:
    with sold(versions="1s").test() as t:
        t.advance("2s")
        t.feed("rates-in", [rate("CHF", 1, 100), rate("CHF", 2, 9_500), rate("CHF", 3, 10_000)])
        t.feed("sales", [sale(1, "CHF", 10_000)])
        t.feed("sales", [sale(2, "CHF", 9_600)])
        assert found(t) == [(2, 2)]
        t.feed("sales", [sale(3, "CHF", 9_000), sale(4, "CHF", 8_999)])
        assert found(t) == [(2, 2), (3, 1)]
        assert t.counter("late") == 1


def test_late_versions_are_counted_and_count_from_then_on() -> None:
    with sold(versions="1s").test() as t:
        t.advance("2s")
        t.feed("rates-in", [rate("CHF", 1, 100), rate("EUR", 1, 10_000)])
        t.feed("sales", [sale(1, "CHF", 10_000)])
        t.feed("rates-in", [rate("CHF", 2, 9_900)])
        assert t.counter("late") == 1
        t.end()
        assert found(t) == [(1, 2)]


def test_what_is_held_survives_restarts() -> None:
    with sold().test() as t:
        t.feed("sales", [sale(1, "CHF", 150), sale(2, "CHF", 250)])
        t.restart(checkpoint=True)
        t.feed("rates-in", [rate("CHF", 1, 100)])
        t.restart()
        t.feed("rates-in", [rate("CHF", 2, 200)])
        t.restart(checkpoint=True)
        t.end()
        assert found(t, committed=True) == [(1, 1), (2, 2)]


def test_versions_from_a_window_arrive_before_the_messages_that_need_them() -> None:
    """The join gets the watermark only after the window upstream of the table has, and has emitted its results."""
    app = hr.App("windowed")
    columns = {"k": pl.String, "ts": pl.Int64}
    counts = app.table("counts", key="k", schema={"k": pl.String, "n": pl.Int64, "window_end": pl.Int64}, versions="0s")
    events = app.input("events", columns, event_time="ts")
    windows = events.window(hr.tumbling("1s"), key="k", id="per-second").agg(n=hr.count())
    windows.select("k", "n", "window_end").send_to(counts)
    asked = app.input("a-question", columns, event_time="ts")
    asked.join(counts, how="left", id="then").select("ts", "n").send_to(app.output("out"))
    with app.test() as t:
        t.feed("a-question", [{"k": "a", "ts": ts} for ts in (500, 1_500, 2_500, 3_500)])
        t.feed("events", [{"k": "a", "ts": ts} for ts in (1, 2, 1_100, 1_200, 1_300, 2_000)])
        t.feed("events", [{"k": "a", "ts": 9_000}])
        t.end()
        assert t.read("out").rows() == [(500, None), (1_500, 2), (2_500, 3), (3_500, 1)]


@pytest.mark.parametrize("kind", ["local", "global"])
def test_side_inputs_are_asked_as_of_what_has_been_read(kind: TableKind) -> None:
    app = hr.App("sided")
    side = app.input("rates-in", RATES, event_time="ts")
    rates = app.table("rates", key="currency", side_inputs=side, kind=kind, versions="1h")
    app.input("sales", SALES, event_time="ts").join(rates, how="left").select("n", "rate").send_to(app.output("out"))
    with app.test() as t:
        t.feed("rates-in", [rate("CHF", 1, 100), rate("CHF", 3, 300)])
        t.feed("sales", [sale(1, "CHF", 99), sale(2, "CHF", 250), sale(3, "CHF", 300)])
        t.feed("rates-in", [rate("CHF", 2, 200)])
        t.feed("sales", [sale(4, "CHF", 250), sale(5, "CHF", 150)])
        t.restart(checkpoint=True)
        t.feed("sales", [sale(6, "CHF", 201)])
        assert found(t) == [(1, None), (2, 1), (3, 3), (4, 2), (5, 1), (6, 2)]


def test_a_flow_fills_versions_in_every_task() -> None:
    app = hr.App("to-all")
    rates = app.table("rates", key="currency", schema=RATES, kind="global", versions="1h")
    app.input("rates-in", RATES, event_time="ts").broadcast(id="rates-to-all").send_to(rates)
    sales = app.input("sales", SALES, event_time="ts").partition_by("n", id="sales-by-n")
    sales.join(rates, id="then").select("n", "rate").send_to(app.output("out"))
    with app.test(partitions={"rates-in": 2, "sales": 3}) as t:
        t.feed("rates-in", [rate("CHF", 1, 100)], partition=1)
        t.feed("sales", [sale(n, "CHF", 150 + n) for n in range(100)])
        t.feed("rates-in", [rate("CHF", 2, 200)], partition=0)
        t.end()
        assert sorted(found(t)) == [(n, 1 if n < 50 else 2) for n in range(100)]


def test_datetimes_are_times() -> None:
    app = hr.App("datetimes")
    columns = {"k": pl.String, "at": pl.Datetime("us")}
    table = app.table("last", key="k", schema=columns | {"v": pl.Int64}, versions="1h")
    app.input("puts", columns | {"v": pl.Int64}, event_time="at").send_to(table)
    app.input("asked", columns, event_time="at").join(table, how="left", id="j").select("v").send_to(app.output("out"))
    at = pl.Series([1_000, 2_000]).cast(pl.Datetime("us"))
    with app.test() as t:
        t.feed("puts", pl.DataFrame({"k": ["a", "a"], "at": at, "v": [1, 2]}, schema_overrides=columns))
        t.feed("asked", pl.DataFrame({"k": ["a", "a"], "at": at.dt.offset_by("999us")}, schema_overrides=columns))
        t.end()
        assert t.read("out")["v"].to_list() == [1, 2]


@pytest.mark.parametrize("input_", ["sales", "rates-in"])
def test_a_null_event_time_is_an_error(input_: str) -> None:
    app = hr.App("nulls")
    nothing = pl.when(pl.col("ts") > 0).then("ts")
    rates = app.table("rates", key="currency", schema=RATES, versions="1h")
    app.input("rates-in", RATES, event_time="ts").map_batches(lambda df: df.with_columns(ts=nothing)).send_to(rates)
    sales = app.input("sales", SALES, event_time="ts").map_batches(lambda df: df.with_columns(ts=nothing))
    sales.join(rates, id="then").send_to(app.output("out"))
    message = sale(1, "CHF", -1) if input_ == "sales" else rate("CHF", 1, -1)
    with app.test() as t, pytest.raises(hr.errors.DataError, match=r"event time.*'ts'.* is null"):
        t.feed(input_, [message])


# -- any order, any restart


@settings(deadline=None, max_examples=examples(25))
@given(data=st.data(), how=st.sampled_from(["inner", "left"]), storage=st.sampled_from(["disk", "memory"]))
def test_any_order_and_any_restart_give_what_the_oracle_says(
    data: st.DataObject, how: How, storage: TableStorage
) -> None:
    times = st.integers(0, 8_000)
    currency = st.sampled_from(["CHF", "EUR"])
    rates = data.draw(st.lists(st.tuples(currency, times, st.booleans()), max_size=15, unique_by=lambda r: r[:2]))
    sales = data.draw(st.lists(st.tuples(currency | st.none(), times), max_size=15))
    ordered = data.draw(st.booleans())  # then the watermark follows closely, and old versions are forgotten soon
    events: list[tuple[int, str, dict[str, Any]]] = []
    for value, (name, ts, gone) in enumerate(rates):
        row = {"currency": name, "ts": ts} if gone else rate(name, value, ts)
        events.append((ts, "gone" if gone else "rates-in", row))
    events += [(ts, "sales", sale(n, name, ts)) for n, (name, ts) in enumerate(sales)]
    events = sorted(events, key=lambda event: event[0]) if ordered else data.draw(st.permutations(events))
    wanted = {n: _as_of(rates, name, ts) for n, (name, ts) in enumerate(sales)}
    with sold(how, lateness="0s" if ordered else "10s", storage=storage).test() as t:
        for _, input_, row in events:
            t.feed(input_, [row], settle=data.draw(st.booleans()) or ordered)
            if data.draw(st.integers(0, 5)) == 0:
                t.restart(checkpoint=data.draw(st.booleans()))
        t.end()
        assert t.counter("late") == 0
        rows = found(t, committed=True)
    assert len(rows) == len(dict(rows)), "each once"
    assert dict(rows) == {n: value for n, value in wanted.items() if how == "left" or value is not None}


def _as_of(rates: list[tuple[str, int, bool]], name: str | None, ts: int) -> int | None:
    earlier = [
        (since, value, gone) for value, (other, since, gone) in enumerate(rates) if other == name and since <= ts
    ]
    if not earlier:
        return None
    _, value, gone = max(earlier)
    return None if gone else value

"""join: two streams within a bound of event time, or a stream with a table."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.join import IntervalJoin, TableJoin
from headrace.api.operators.spec import EventTime

ORDERS = {"member": pl.String, "item": pl.String, "ts": pl.Int64}
PROFILE = {"id": pl.String, "url": pl.String, "age": pl.Int64}


def orders(app: hr.App, columns: dict[str, Any] = ORDERS, time: str | None = "ts") -> hr.Stream:
    return app.input("orders", columns, event_time=time)


def test_two_streams(app: hr.App, views: hr.Stream) -> None:
    joined = views.join(orders(app), on="member", within=("-5m", "+1m"), how="left", id="j")
    joined.send_to(app.output("joined"))
    node = app.graph().nodes["j"]
    ts = EventTime("ts")
    assert node.operator == IntervalJoin(("member",), "left", 300_000, 60_000, ts, ts, "_right")
    assert node.inputs == ("input-views", "input-orders")
    assert list(joined.schema.columns) == ["member", "url", "ms", "ts", "item", "ts_right"]
    assert joined.event_time == ts


def test_one_bound_reaches_both_ways(app: hr.App, views: hr.Stream) -> None:
    views.join(orders(app), on="member", within="1m", id="j").send_to(app.output("joined"))
    operator = app.graph().nodes["j"].operator
    assert isinstance(operator, IntervalJoin)
    assert (operator.before_ms, operator.after_ms) == (60_000, 60_000)


def test_an_outer_join_has_no_event_time(app: hr.App, views: hr.Stream) -> None:
    joined = views.join(orders(app), on="member", within="1m", how="full", id="j")
    assert joined.event_time is None
    with pytest.raises(hr.errors.DeclarationError, match=r"'ts' became nullable at .* by join"):
        joined.window(hr.tumbling("1s"), key="member", id="w").agg(n=hr.count())


def test_a_table(app: hr.App, views: hr.Stream) -> None:
    profiles = app.table("profiles", key="id", schema=PROFILE)
    joined = views.join(profiles, on="member", how="left")
    joined.send_to(app.output("joined"))
    views.select(id="member", url="url", age="ms").send_to(profiles)
    node = app.graph().nodes["join-1"]
    assert node.operator == TableJoin("profiles", ("member",), "left", "_right")
    assert list(joined.schema.columns) == ["member", "url", "ms", "ts", "url_right", "age"]
    assert joined.event_time == views.event_time


Step = Callable[[hr.App, hr.Stream], object]
OF_STREAMS: list[tuple[Step, str]] = [
    (lambda a, s: s.join(orders(a), on="member", id="j"), "needs within="),
    (lambda a, s: s.join(orders(a), within="1m", id="j"), "needs on="),
    (lambda a, s: s.join(orders(a), on="item", within="1m", id="j"), "there is no column 'item'"),
    (lambda a, s: s.join(orders(a), on="url", within="1m", id="j"), "no column 'url' on the right side"),
    (lambda a, s: s.join(orders(a), on="member", within="-1m", id="j"), "within: '-1m' is below 0 ms"),
    (lambda a, s: s.join(orders(a), on="member", within=("1m", "0s"), id="j"), "ends before it begins"),
    (lambda a, s: s.join(orders(a), on="member", within=("1m",), id="j"), "is not a pair"),  # type: ignore[arg-type]
    (lambda a, s: s.join(orders(a), on="member", within="1m", how="outer", id="j"), "how='outer' is not one of"),  # type: ignore[arg-type]
    (lambda a, s: s.join(orders(a, time=None), on="member", within="1m", id="j"), "the right side of a join needs"),
    (
        lambda a, s: s.join(orders(a, ORDERS | {"member": pl.Int64}), on="member", within="1m", id="j"),
        "the key 'member' is String on the left side, and 'member' is Int64 on the right",
    ),
    (
        lambda a, s: s.with_columns(ts_right=1).join(orders(a), on="member", within="1m", id="j"),
        "both sides have a column 'ts_right'",
    ),
    (lambda a, s: s.join("orders", on="member", within="1m", id="j"), "must be a stream, not str"),  # type: ignore[arg-type]
]
OF_TABLES: list[tuple[Step, str]] = [
    (lambda a, s: s.join(a.table("t", key="id")), "the columns of the table 't' aren't known yet"),
    (lambda a, s: s.join(a.table("t", "id", PROFILE), on="member", within="1m"), "doesn't apply to a table"),
    (lambda a, s: s.join(a.table("t", "id", PROFILE), on="member", how="full"), "how='full' is not one of"),
    (lambda a, s: s.join(a.table("t", "id", PROFILE)), "there is no column 'id'"),
    (lambda a, s: s.join(a.table("t", "age", PROFILE), on="member"), "'age' is Int64 on the right"),
    (lambda a, s: s.join(a.table("t", ("id", "age"), PROFILE), on="member"), "on= names 1 columns"),
    (lambda a, s: s.join(hr.App("b").table("t", "id", PROFILE), on="member"), "belongs to the app 'b'"),
]


@pytest.mark.parametrize(("step", "message"), OF_STREAMS + OF_TABLES)
def test_errors(app: hr.App, views: hr.Stream, step: Step, message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        step(app, views)
    assert "join: " in caught.value.message
    assert "\n  at " in caught.value.message

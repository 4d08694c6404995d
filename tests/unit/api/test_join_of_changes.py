"""Declaring a join of all rows of two streams: its columns, its key, and what it refuses."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.changes import ChangesJoin
from headrace.rows.changes import KIND

VIEWS = {"member": pl.String, "url": pl.String, "at": pl.Datetime("ms")}
MEMBERS = {"id": pl.String, "url": pl.String, "age": pl.Int64}
BY = {"left_on": "member", "right_on": "id", "ttl": "1d"}
PAIRS = {**VIEWS, "url_right": pl.String(), "age": pl.Int64()}
CHANGED = {"_change": KIND}


@pytest.fixture
def app() -> hr.App:
    return hr.App("joins")


@pytest.fixture
def views(app: hr.App) -> hr.Stream:
    return app.input("views", VIEWS, event_time="at")


@pytest.fixture
def members(app: hr.App) -> hr.Stream:
    return app.input("members", MEMBERS)


def step(app: hr.App, id_: str) -> ChangesJoin:
    operator = app._draft.nodes[id_].operator
    assert isinstance(operator, ChangesJoin)
    return operator


@pytest.mark.parametrize(
    ("how", "columns"),
    [
        ("inner", PAIRS),
        ("left", PAIRS | CHANGED),
        ("right", PAIRS | CHANGED),
        ("full", PAIRS | CHANGED),
        ("semi", VIEWS | CHANGED),
        ("anti", VIEWS | CHANGED),
    ],
)
def test_the_columns_are_the_lefts_and_the_rights_without_its_key(
    views: hr.Stream, members: hr.Stream, how: Any, columns: dict[str, Any]
) -> None:
    assert list(views.join(members, how=how, **BY).schema.columns.items()) == list(columns.items())


def test_an_inner_join_tells_changes_if_a_side_does(views: hr.Stream, members: hr.Stream) -> None:
    changing = members.partition_by("id", id="p").changes("id")
    assert not views.join(members, id="plain", **BY).changing
    assert views.join(changing, id="of-changes", left_on="member", right_on="id").changing


def test_how_long_rows_are_kept(app: hr.App, views: hr.Stream, members: hr.Stream) -> None:
    for ttl, kept in (("1d", 86_400_000), ("never", None)):
        views.join(members, id=f"for-{ttl}", **(BY | {"ttl": ttl}))
        assert step(app, f"for-{ttl}").ttl_ms == kept
    views.join(members.as_changes(None), left_on="member", right_on="id", id="changing")
    assert step(app, "changing").ttl_ms is None


def test_the_key_is_by_default_that_of_the_partitions(app: hr.App, views: hr.Stream, members: hr.Stream) -> None:
    left = views.partition_by("member", id="p")
    right = members.rename({"id": "member"}).partition_by("member", id="q")
    left.join(right, ttl="1d", id="by-default")
    assert step(app, "by-default").left_keys == step(app, "by-default").right_keys == ("member",)
    assert step(app, "by-default").detail == "inner on member, rows are kept for 1d"


def test_sides_with_different_names_for_their_partitions_key_join_by_them(
    app: hr.App, views: hr.Stream, members: hr.Stream
) -> None:
    views.partition_by("member", id="p").join(members.partition_by("id", id="q"), **BY).send_to(app.output("out"))
    with app.test(partitions={"views": 3, "members": 2}) as t:
        t.feed("members", [{"id": f"m{n}", "url": "/", "age": n} for n in range(20)])
        t.feed("views", [{"member": f"m{n}", "url": "/a", "at": 0} for n in range(20)])
        assert sorted(t.read("out")["age"]) == list(range(20))


def test_an_empty_key_needs_all_rows_in_one_task(app: hr.App, views: hr.Stream, members: hr.Stream) -> None:
    pairs = views.join(members, left_on=(), right_on=(), where=pl.col("url") == pl.col("url_right"), ttl="1d")
    pairs.send_to(app.output("out"))
    with pytest.raises(hr.errors.PlanError, match="needs all messages in one task") as caught:
        app.test(partitions=2)
    assert caught.value.hint == "put partition_by(None) before it, or broadcast() before one of its sides"


def test_the_result_has_no_event_time_and_says_why(views: hr.Stream, members: hr.Stream) -> None:
    pairs = views.join(members, **BY)
    with pytest.raises(hr.errors.DeclarationError, match=r"'at' may be that of an earlier row at .* by join"):
        pairs.window(hr.tumbling("1s"), key="member", id="w").agg(n=pl.len())


def test_the_key_of_the_changes(app: hr.App, views: hr.Stream, members: hr.Stream) -> None:
    left = views.partition_by("member", id="p").changes("member", id="last-view")
    right = members.partition_by("id", id="q").changes("id", id="last-member")
    keys = {}
    for how in ("inner", "left", "full", "semi", "anti"):
        id_ = f"join-{how}"
        left.join(right, how=how, id=id_, **BY)
        keys[how] = app._draft.change_keys[id_]
    assert keys == {"inner": ("member",), "left": None, "full": None, "semi": ("member",), "anti": ("member",)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (BY | {"how": "cross"}, "how='cross' is not one of the choices"),
        (BY | {"ttl": "0s"}, "ttl: '0s' is below 1 ms"),
        (BY | {"ttl": "forever"}, "forever"),
        (BY | {"on": "url"}, "a join takes on=, or both left_on= and right_on="),
        ({"left_on": "member", "ttl": "1d"}, "a join takes on=, or both left_on= and right_on="),
        ({"ttl": "1d"}, "needs on=, unless both are partitioned by the same key"),
        ({"on": "member", "ttl": "1d"}, "there is no column 'member'"),
        (BY | {"right_on": "age"}, "the key 'member' is String on the left side, and 'age' is Int64 on the right"),
        (BY | {"right_on": ["id", "url"]}, "the left key has 1 columns, and the right one 2"),
        (BY | {"where": pl.col("age") + 1}, "is Int64, not Boolean"),
        (BY | {"where": pl.col("id") == "x"}, "'id'"),
        (BY | {"where": pl.col("age") > pl.col("age").mean()}, "reads more than one row"),
        (BY | {"where": 3}, "where= must be a column name or a Polars expression, not int 3"),
        (BY | {"suffix": ""}, "both sides have a column of one name"),
        (BY | {"within": "1h"}, "leave within= out"),
        ({"on": "url", "within": "1h", "how": "semi"}, "leave within= out"),
    ],
)
def test_wrong_arguments(views: hr.Stream, members: hr.Stream, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError) as raised:
        views.join(members, **arguments)
    assert message in str(raised.value)


def test_a_flow_of_changes_takes_no_join_within_a_time(views: hr.Stream) -> None:
    changing = views.partition_by("member", id="p").changes("member")
    with pytest.raises(hr.errors.DeclarationError, match="may be that of an earlier row"):
        changing.join(views, on="member", within="1h")


def test_a_broadcast_side_that_is_told_without_partners_is_refused(
    app: hr.App, views: hr.Stream, members: hr.Stream
) -> None:
    everyone = members.broadcast(id="everyone")
    by_member = views.partition_by("member", id="p", partitions=2)
    by_member.join(everyone, how="left", id="fine", **BY).send_to(app.output("some"))
    by_member.join(everyone, how="right", id="wrong", **BY).send_to(app.output("all"))
    with pytest.raises(hr.errors.PlanError, match=r"'wrong'.* keeps messages without a partner"):
        app.test(partitions=2)

"""Tables that side inputs keep: read to their end before anything else, kept up to date, no part of event time."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.specs import TableKind

VIEWS = {"member": pl.String, "ts": pl.Int64}
MEMBERS = {"member": pl.String, "country": pl.String}


def enriched(kind: TableKind = "local", ttl: str | None = None, **of_members: Any) -> hr.App:
    app = hr.App("enriched")
    members = app.input("members", MEMBERS, key="member" if kind == "local" else (), **of_members)
    table = app.table("countries", key="member", side_inputs=members, kind=kind, ttl=ttl)
    views = app.input("views", VIEWS, key="member" if kind == "local" else (), event_time="ts")
    views.join(table, how="left", id="locate").send_to(app.output("out"))
    return app


def view(member: str, ts: int = 0) -> dict[str, Any]:
    return {"member": member, "ts": ts}


def member(name: str | None, country: str) -> dict[str, Any]:
    return {"member": name, "country": country}


def countries(t: Any) -> list[tuple[Any, ...]]:
    return t.read("out").select("member", "country").rows()  # type: ignore[no-any-return]


def test_a_side_input_is_read_to_its_end_before_anything_else() -> None:
    with enriched().test() as t:
        t.feed("views", [view("ann"), view("bob")], settle=False)
        for number in range(300):
            t.feed("members", [member("ann", f"old-{number}")], settle=False)
        t.feed("members", [member("ann", "AT"), member("bob", "DE")], settle=False)
        t.restart()
        assert countries(t) == [("ann", "AT"), ("bob", "DE")]


def test_other_inputs_dont_wait_for_what_comes_later() -> None:
    with enriched().test() as t:
        t.feed("views", [view("ann", 1)])
        t.feed("members", [member("ann", "AT")])
        t.feed("views", [view("ann", 2)])
        t.feed("members", [member("ann", "CH")])
        t.feed("views", [view("ann", 3)])
        assert countries(t) == [("ann", None), ("ann", "AT"), ("ann", "CH")]


@pytest.mark.parametrize("rows", [[], [member("ann", "AT")]])
def test_a_side_input_that_has_ended_holds_nobody_back(rows: list[dict[str, Any]]) -> None:
    with enriched().test() as t:
        if rows:
            t.feed("members", rows)
        t.end("members")
        t.restart()
        t.feed("views", [view("ann")])
        assert countries(t) == [("ann", "AT" if rows else None)]
        assert not t.ended


def test_event_time_and_the_end_are_those_of_the_other_inputs() -> None:
    app = hr.App("counted")
    table = app.table("countries", key="member", side_inputs=app.input("members", MEMBERS))
    views = app.input("views", VIEWS, event_time="ts").join(table, id="locate")
    views.window(hr.tumbling("1s"), key="country", id="per-second").agg(views=hr.count()).send_to(app.output("out"))
    with app.test() as t:
        t.feed("members", [member("ann", "AT")])
        t.feed("views", [view("ann", 100), view("ann", 1_000)])
        assert t.watermark == 1_000
        assert t.read("out").select("country", "views").rows() == [("AT", 1)]
        t.feed("members", [member("ann", "CH")])
        assert t.watermark == 1_000
        t.end()
        assert t.ended, "its side input is still open"
        assert t.read("out").height == 2


def test_a_silent_side_input_is_never_idle() -> None:
    app = hr.App("silent")
    members = app.input("members", MEMBERS | {"ts": pl.Int64}, event_time="ts", idle_timeout="1s")
    table = app.table("countries", key="member", side_inputs=members)
    app.input("views", VIEWS, event_time="ts").join(table, how="left", id="locate").send_to(app.output("out"))
    with app.test() as t:
        t.feed("members", [member("ann", "AT") | {"ts": 1}])
        t.advance("5s")
        t.feed("views", [view("ann", 7)])
        assert t.watermark == 7


def test_every_task_has_a_global_table_whole() -> None:
    with enriched("global").test(partitions={"members": 3, "views": 2}) as t:
        for partition, name in enumerate(["ann", "bob", "eve"]):
            t.feed("members", [member(name, f"from-{partition}")], partition=partition)
        for partition in range(2):
            t.feed("views", [view("ann"), view("bob"), view("eve")], partition=partition)
        assert countries(t) == 2 * [("ann", "from-0"), ("bob", "from-1"), ("eve", "from-2")]


def test_a_task_has_its_partition_of_a_local_table() -> None:
    with enriched().test(partitions=2) as t:
        t.feed("members", [member(name, "AT") for name in "abcdef"])
        t.feed("views", [view(name) for name in "abcdefg"])
        assert sorted(countries(t)) == [*((name, "AT") for name in "abcdef"), ("g", None)]
        assert all(0 < host.metrics.rows_in < 13 for host in t._container.hosts)


def test_several_side_inputs_may_keep_a_table() -> None:
    app = hr.App("two-sides")
    sides = [app.input("old", MEMBERS), app.input("new", {"country": pl.String, "member": pl.String})]
    table = app.table("countries", key="member", side_inputs=sides)
    app.input("views", VIEWS).join(table, id="locate").send_to(app.output("out"))
    with app.test() as t:
        t.feed("old", [member("ann", "AT"), member("bob", "DE")])
        t.feed("new", [{"country": "CH", "member": "ann"}])
        t.feed("views", [view("ann"), view("bob")])
        assert countries(t) == [("ann", "CH"), ("bob", "DE")]


def test_where_a_side_input_has_been_read_to_is_part_of_a_checkpoint() -> None:
    with enriched().test() as t:
        t.feed("members", [member("ann", "AT")])
        t.restart(checkpoint=True)
        t.restart()
        t.feed("views", [view("ann")])
        assert countries(t) == [("ann", "AT")]
        (host,) = t._container.hosts
        assert host.metrics.rows_in == 1, "the member was read before"


def test_a_key_that_is_null_meets_the_policy_of_the_side_input() -> None:
    with enriched(on_error="skip").test() as t:
        t.feed("members", [member(None, "??"), member("ann", "AT")])
        t.feed("views", [view("ann")])
        assert (countries(t), t.counter("skipped")) == ([("ann", "AT")], 1)
    with enriched().test() as t, pytest.raises(hr.errors.DataError, match=r"1 rows have no key; .* 'member' is null"):
        t.feed("members", [member("ann", "AT"), member(None, "??")])


def test_expired_rows_are_removed_in_small_steps() -> None:
    with enriched(ttl="10s").test() as t:
        t.feed("members", pl.DataFrame({"member": [f"m-{n}" for n in range(10_000)], "country": "AT"}))
        (host,) = t._container.hosts
        assert host.task.chain.tables.sizes() == {"countries": 10_000}
        t.advance("9s")
        assert host.task.chain.tables.sizes() == {"countries": 10_000}
        sizes = []
        for _ in range(20):
            t.advance("500ms")
            sizes.append(host.task.chain.tables.sizes()["countries"])
        assert sizes[-1] == 0
        assert {size for size in sizes if 0 < size < 10_000}, "not all at once"


def test_a_flow_fills_a_global_table_in_every_task() -> None:
    app = hr.App("broadcast")
    table = app.table("countries", key="member", schema=MEMBERS, kind="global")
    app.input("members", MEMBERS).broadcast(id="members-to-all").send_to(table)
    views = app.input("views", VIEWS).partition_by("ts", id="views-by-time")
    views.join(table).send_to(app.output("out"))
    with app.test(partitions={"members": 2, "views": 3}) as t:
        t.feed("members", [member("ann", "AT")], partition=1)
        t.feed("views", [view("ann", ts) for ts in range(20)])
        found = t.read("out")
        assert sorted(found["ts"].to_list()) == list(range(20))
        assert found["country"].unique().to_list() == ["AT"]

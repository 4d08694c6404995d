"""A key of a Kinesis stream isn't always in the same task: state by key needs a partition_by before it."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import PlanError
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo

COLUMNS = {"member": pl.String, "ts": pl.Int64}

Declare = Callable[[hr.App, hr.Stream], object]


def planned(declare: Declare, **said: str) -> None:
    app = hr.App("shop")
    orders = app.input("orders", COLUMNS, event_time="ts", system=hr.io.kinesis("orders", **said))
    declare(app, orders)
    graph = app.graph()
    plan(graph, {id_: StreamInfo(id_, 2) for id_, spec in graph.streams.items() if spec.role.value != "intermediate"})


def counted(stream: hr.Stream) -> hr.Stream:
    return stream.window(hr.tumbling("1s"), key="member", id="counts").agg(n=hr.count())


def joined(app: hr.App, orders: hr.Stream) -> None:
    views = app.input("views", COLUMNS, event_time="ts")
    views.join(orders, on="member", within="1m", id="pairs").send_to(app.output("out"))


def filled(app: hr.App, orders: hr.Stream) -> None:
    table = app.table("members", key="member", schema=COLUMNS)
    orders.send_to(table)
    app.input("views", COLUMNS).join(table).send_to(app.output("out"))


WRONG: list[tuple[Declare, str]] = [
    (lambda app, orders: counted(orders).send_to(app.output("out")), "window 'counts'"),
    (
        lambda app, orders: counted(orders.merge(app.input("more", COLUMNS, event_time="ts"))).send_to(app.output("o")),
        "window 'counts'",
    ),
    (
        lambda app, orders: orders.deduplicate("member", within="1h", id="once").send_to(app.output("out")),
        "deduplicate 'once'",
    ),
    (joined, "join 'pairs'"),
    (filled, "send_to"),
]


@pytest.mark.parametrize(("declare", "step"), WRONG)
def test_state_by_key_is_refused_right_behind_it(declare: Declare, step: str) -> None:
    with pytest.raises(PlanError, match=step) as caught:
        planned(declare)
    assert "needs all messages of a key in one task, and kinesis stream 'orders'" in caught.value.message
    assert caught.value.hint == 'put .partition_by("key", id="by-key") before it'


def test_it_fills_no_table_as_a_side_input() -> None:
    def declare(app: hr.App, orders: hr.Stream) -> None:
        members = app.table("members", key="member", side_inputs=[orders])
        app.input("views", COLUMNS).join(members).send_to(app.output("out"))

    with pytest.raises(PlanError, match=r"kinesis stream 'orders' .* can't be a side input of a table"):
        planned(declare)


RIGHT: list[Declare] = [
    lambda app, orders: counted(orders.partition_by("member", id="by-member")).send_to(app.output("out")),
    lambda app, orders: orders.filter(pl.col("ts") > 0).send_to(app.output("out")),
    lambda app, orders: orders.join(
        app.table("all", key="member", kind="global", side_inputs=[app.input("members", COLUMNS)]), suffix="_known"
    ).send_to(app.output("out")),
]


@pytest.mark.parametrize("declare", RIGHT)
def test_what_keeps_no_state_by_key_needs_no_partition_by(declare: Declare) -> None:
    planned(declare)


def test_the_test_kit_refuses_it_too() -> None:
    app = hr.App("shop")
    orders = app.input("orders", COLUMNS, event_time="ts", system=hr.io.kinesis("orders"))
    counted(orders).send_to(app.output("out"))
    with pytest.raises(PlanError, match="window 'counts'"), app.test():
        pass


def read_twice(app: hr.App, orders: hr.Stream) -> None:
    """One stage writes what another reads together with the orders: a single one would feed itself."""
    orders.merge(orders.partition_by("member", id="by-member")).send_to(app.output("out"))


def test_a_lease_table_belongs_to_one_stage() -> None:
    planned(read_twice)
    with pytest.raises(PlanError, match=r"2 stages read kinesis stream 'orders' .* Its lease table 'leases'") as caught:
        planned(read_twice, lease_table="leases")
    assert caught.value.hint is not None
    assert "as another input" in caught.value.hint


def test_a_lease_table_belongs_to_one_input() -> None:
    def declare(app: hr.App, orders: hr.Stream, table: str = "leases") -> None:
        again = app.input("again", COLUMNS, event_time="ts", system=hr.io.kinesis("orders", lease_table=table))
        orders.merge(again).send_to(app.output("out"))

    with pytest.raises(PlanError, match=r"'again' .* and kinesis stream 'orders' .* name the same lease table"):
        planned(declare, lease_table="leases")
    planned(lambda app, orders: declare(app, orders, "other"), lease_table="leases")


def test_containers_that_read_all_partitions_are_refused() -> None:
    app = hr.App("shop", grouping="container")
    app.input("orders", COLUMNS, system=hr.io.kinesis("orders")).send_to(app.output("out"))
    with pytest.raises(PlanError, match="grouping='container'"):
        plan(app.graph(), {"orders": StreamInfo("orders", 2)})

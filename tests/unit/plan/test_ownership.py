"""ownership: for which tables the task that holds a key is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.plan.chain_plan import owned_by
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo

COLUMNS = {"land": pl.String, "town": pl.String, "people": pl.Int64, "ts": pl.Int64}

Steps = Callable[[hr.Stream], hr.Stream]


def owners(steps: Steps, key: str | tuple[str, ...] = "town", **options: Any) -> tuple[str, ...] | None:
    """The columns of a table's key that its rows are partitioned by, when these steps fill it."""
    app = hr.App("ownership", intermediate_partitions=4)
    changes = app.input("changes", COLUMNS, key="town", event_time="ts")
    table = app.table("towns", key=key, **options)
    steps(changes).send_to(table)
    graph = app.graph()
    planned = plan(graph, {"changes": StreamInfo("changes", 4, None)})
    (stage,) = (stage for stage in planned.stages if "towns" in stage.tables)
    return owned_by(planned, stage, "towns")


def by_town(stream: hr.Stream) -> hr.Stream:
    return stream.partition_by("town", id="by-town")


KNOWN: list[tuple[Steps, str | tuple[str, ...], tuple[str, ...]]] = [
    (by_town, "town", ("town",)),
    (by_town, ("land", "town"), ("town",)),
    (lambda s: s.partition_by(["town", "land"], id="by"), ("land", "town"), ("town", "land")),
    (lambda s: by_town(s).filter(pl.col("people") > 1), "town", ("town",)),
    (lambda s: by_town(s).filter(lambda row: True), "town", ("town",)),
    (lambda s: by_town(s).merge(s.partition_by("town", id="again")), "town", ("town",)),
    (lambda s: by_town(s).select("town", "people"), "town", ("town",)),
    (lambda s: by_town(s).select(city="town", n="people"), "city", ("city",)),
    (lambda s: by_town(s).with_columns(people=pl.col("people") * 2), "town", ("town",)),
    (lambda s: by_town(s).window(hr.tumbling("1s"), key="town", id="w").agg(n=hr.count()), "town", ("town",)),
    (
        lambda s: by_town(s).join(s.partition_by("town", id="right"), on="town", within="1s", id="j"),
        "town",
        ("town",),
    ),
]


@pytest.mark.parametrize(("steps", "key", "hashed"), KNOWN)
def test_after_a_partition_by_of_columns_of_the_key(
    steps: Steps, key: str | tuple[str, ...], hashed: tuple[str, ...]
) -> None:
    assert owners(steps, key) == hashed


UNKNOWN: list[tuple[Steps, str | tuple[str, ...]]] = [
    (lambda s: s, "town"),
    (lambda s: s.filter(pl.col("people") > 1), ("land", "town")),
]


@pytest.mark.parametrize(("steps", "key"), UNKNOWN)
def test_of_anything_else_nothing_is_claimed(steps: Steps, key: str | tuple[str, ...]) -> None:
    assert owners(steps, key) is None


def test_a_global_table_is_everywhere() -> None:
    assert owners(lambda s: s.broadcast(id="to-all"), kind="global") is None


def test_two_flows_have_to_agree() -> None:
    def owned(second: Steps) -> tuple[str, ...] | None:
        app = hr.App("ownership", intermediate_partitions=4)
        changes = app.input("changes", COLUMNS, key="town")
        table = app.table("towns", key=("land", "town"), schema=COLUMNS)
        changes.partition_by("town", id="one").send_to(table)
        second(changes).send_to(table)
        planned = plan(app.graph(), {"changes": StreamInfo("changes", 4, None)})
        (stage,) = (stage for stage in planned.stages if "towns" in stage.tables)
        return owned_by(planned, stage, "towns")

    assert owned(lambda s: s.partition_by("town", id="two")) == ("town",)
    assert owned(lambda s: s) is None

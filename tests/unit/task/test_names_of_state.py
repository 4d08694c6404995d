"""State is kept under names that the user has given: adding a step before it can't change them."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import headrace as hr

VIEW = {"member": pl.String, "url": pl.String, "ts": pl.Int64}
PRICE = {"url": pl.String, "euros": pl.Float64, "at": pl.Int64}


class Keeps(hr.tasks.Task):
    seen = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64})

    def process(self, message: dict[str, object], out: hr.tasks.Out) -> None:
        self.seen.put(message["member"], {"n": 1})
        out.send("kept", message)


def everything(before: int) -> hr.App:
    """Every step that there is; ``before`` more steps come before all of them."""
    app = hr.App("everything")
    views = app.input("views", VIEW, event_time="ts")
    others = app.input("others", VIEW, event_time="ts")
    prices = app.input("prices", PRICE, event_time="at")
    now = app.table("now", key="url", schema=PRICE)
    for _ in range(before):
        views = views.filter(pl.col("url") != "").drop_late().map_async(lambda row: row, VIEW).merge(others)
        views = views.join(now, how="left").select(*VIEW)
    then = app.table("then", key="url", schema=PRICE, versions="1h")
    side = app.table("side", "url", PRICE, app.input("side-in", PRICE, event_time="at"), versions="1h")
    prices.send_to(now)
    prices.send_to(then)
    prices.delete_from(now)
    steps: list[Callable[[hr.Stream], hr.Stream]] = [
        lambda s: s.drop_late(),
        lambda s: s.sample(0.5, key="member"),
        lambda s: s.map(lambda row: row, VIEW),
        lambda s: s.join(now, how="left").select(*VIEW),
        lambda s: s.join(side, how="left").select(*VIEW),
        lambda s: s.join(then, how="left", id="as-of").select(*VIEW),
        lambda s: s.merge(others),
        lambda s: s.deduplicate("member", "1s", id="once"),
        lambda s: s.join(others, "member", within="1s", id="pairs").select(*VIEW),
        lambda s: s.process(Keeps(), {"kept": VIEW}, id="keeps")["kept"],
    ]
    flow = views
    for step in steps:
        flow = step(flow)
    flow.window(hr.tumbling("1s"), key="member", id="w").agg(n=pl.len()).send_to(app.output("out"))
    flow.join_latest(others, "member", ttl="1h", id="latest").send_to(app.output("latest-out"))
    return app


def names_of_state(app: hr.App) -> set[str]:
    with app.test() as t:
        return {name for host in t._container.hosts for name in host.task.stores()}


def test_more_steps_before_leave_the_names_of_state_alone() -> None:
    names = names_of_state(everything(0))
    assert names_of_state(everything(3)) == names
    for id_ in ("w", "once", "pairs", "latest", "keeps", "as-of", "now", "then", "side"):
        assert any(name == id_ or name.startswith(f"{id_}.") for name in names), id_


@pytest.mark.parametrize(
    "declare",
    [
        lambda s, o, t: s.deduplicate("member", "1s", id=None),
        lambda s, o, t: s.join(o, "member", within="1s", id=None),
        lambda s, o, t: s.join_latest(o, "member", ttl="1s", id=None),
        lambda s, o, t: s.join(t),
        lambda s, o, t: s.window(hr.tumbling("1s"), key="member", id=None),
        lambda s, o, t: s.process(Keeps(), {}, id=None),
        lambda s, o, t: s.partition_by("member", id=None),
        lambda s, o, t: s.broadcast(id=None),
    ],
)
def test_a_step_with_state_demands_an_id(declare: Callable[[hr.Stream, hr.Stream, hr.Table], object]) -> None:
    app = hr.App("without")
    views, others = (app.input(name, VIEW, event_time="ts") for name in ("views", "others"))
    table = app.table("then", key="url", schema=PRICE, versions="1h")
    with pytest.raises(hr.errors.DeclarationError, match="keeps durable data, so it needs an id"):
        declare(views, others, table)

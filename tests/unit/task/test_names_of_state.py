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
        lambda s: s.deduplicate("member", within="1s", id="once"),
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


DEFAULTS: list[tuple[str, Callable[[hr.Stream, hr.Stream, hr.Table], object]]] = [
    ("deduplicate-member", lambda s, o, t: s.deduplicate("member", within="1s")),
    ("deduplicate-member-and-url", lambda s, o, t: s.deduplicate(["member", "url"], within="1s")),
    ("join-member", lambda s, o, t: s.join(o, "member", within="1s")),
    ("join-latest-member", lambda s, o, t: s.join_latest(o, "member", ttl="1s")),
    ("join-then", lambda s, o, t: s.join(t)),
    ("window-member", lambda s, o, t: s.window(hr.tumbling("1s"), key="member").agg(n=pl.len())),
    ("window-all", lambda s, o, t: s.window(hr.tumbling("1s"), key=None).agg(n=pl.len())),
    ("keeps", lambda s, o, t: s.process(Keeps(), {})),
    ("by-member", lambda s, o, t: s.partition_by("member")),
    ("by-member-and-p_t", lambda s, o, t: s.partition_by(["member", pl.col("url").alias("p_t")])),
    ("by-on-this-day", lambda s, o, t: s.partition_by(pl.col("url").alias("on this day"))),
    ("to-all", lambda s, o, t: s.broadcast()),
]


@pytest.mark.parametrize(("id_", "declare"), DEFAULTS, ids=[id_ for id_, _ in DEFAULTS])
def test_a_step_with_state_is_named_after_what_it_does_by_which_key(
    id_: str, declare: Callable[[hr.Stream, hr.Stream, hr.Table], object]
) -> None:
    """Never after its place: a number would give its state to another step when one is added before it."""
    app = hr.App("without")
    views, others = (app.input(name, VIEW, event_time="ts") for name in ("views", "others"))
    table = app.table("then", key="url", schema=PRICE, versions="1h")
    declare(views, others, table)
    assert id_ in app._draft.nodes
    with pytest.raises(hr.errors.DeclarationError, match=f"this would be named '{id_}', as .* at .* is") as caught:
        declare(views, others, table)
    assert 'id="..."' in (caught.value.hint or "")

"""Low-level tasks that read and write tables: the rows are the stage's, in the store that its joins read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.plan.inventory import table_dealing
from headrace.plan.keys import partitionings
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo

PRICES = {"article": pl.String, "euros": pl.Float64}
ORDERS = {"article": pl.String, "pieces": pl.Int64}
STOCK = {"article": pl.String, "pieces": pl.Int64}
TOLD = {"text": pl.String}


class Doing(hr.tasks.Task):
    def __init__(self, act: Callable[[Any, Any], object]) -> None:
        self.act = act

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        told = self.act(message, out)
        if told is not None:
            out.send("told", {"text": str(told)})


def shop(act: Callable[[Any, Any], object], **how: Any) -> hr.App:
    """Orders reach a task that reads prices, which a flow fills, and writes a stock, which another flow joins."""
    app = hr.App("shop")
    prices = app.table("prices", key="article", schema=PRICES)
    stock = app.table("stock", key="article", schema=STOCK)
    app.input("price-changes", PRICES).send_to(prices)
    asked = app.input("asked", {"article": pl.String})
    asked.join(stock, how="left").send_to(app.output("answers"))
    orders = app.input("orders", ORDERS)
    tables = {"prices": prices, "stock": stock}
    told = orders.process(Doing(act), {"told": TOLD}, id="step", tables=tables, writes="stock", **how)["told"]
    told.send_to(app.output("told"))
    return app


def take(message: Any, out: Any) -> object:
    """Take pieces out of the stock, which begins with ten."""
    stock = out.tables["stock"]
    left = (stock.get(message["article"]) or {"pieces": 10})["pieces"] - message["pieces"]
    stock.put(message["article"], {"pieces": left})
    price = out.tables["prices"].get(message["article"])
    return left if price is None else f"{left} for {price['euros']}"


def order(article: str | None, pieces: int) -> dict[str, Any]:
    return {"article": article, "pieces": pieces}


def test_a_task_reads_what_flows_fill_and_flows_join_what_it_writes() -> None:
    with shop(take).test() as t:
        t.feed("price-changes", [{"article": "lamp", "euros": 20.0}])
        t.feed("orders", [order("lamp", 1), order("desk", 2), order("lamp", 3)])
        assert t.read("told")["text"].to_list() == ["9 for 20.0", "8", "6 for 20.0"]
        t.feed("asked", [{"article": "lamp"}, {"article": "desk"}, {"article": "sofa"}])
        assert t.read("answers").rows() == [("lamp", 6), ("desk", 8), ("sofa", None)]
        t.feed("price-changes", [{"article": "lamp", "euros": 15.0}])
        t.feed("orders", [order("lamp", 1)])
        assert t.read("told")["text"].to_list()[-1] == "5 for 15.0"


def test_what_no_commit_covers_is_undone_and_done_again_once() -> None:
    with shop(take).test() as t:
        t.feed("orders", [order("lamp", 1)])
        t.restart(checkpoint=True)
        t.feed("orders", [order("lamp", 2), order("desk", 1)])
        t.restart()
        t.feed("asked", [{"article": "lamp"}, {"article": "desk"}])
        assert t.read("answers").rows() == [("lamp", 7), ("desk", 9)]
        t.end()
        assert t.read("told", committed=True)["text"].to_list() == ["9", "7", "9"]


def test_a_failed_call_leaves_the_tables_as_they_were() -> None:
    def fail_at_zero(message: Any, out: Any) -> object:
        took = take(message, out)
        out.tables["stock"].delete("desk")
        return 1 // message["pieces"] if message["pieces"] == 0 else took

    with shop(fail_at_zero, on_error="skip").test() as t:
        t.feed("orders", [order("lamp", 1)])
        t.feed("orders", [order("desk", 1), order("lamp", 0), order("lamp", 2)])
        t.feed("asked", [{"article": "lamp"}, {"article": "desk"}])
        assert t.read("answers").rows() == [("lamp", 7), ("desk", None)]
        assert t.counter("failed_skipped") == 1


@pytest.mark.parametrize("partitions", [1, 3])
def test_many_keys_as_a_dict_would_have_them(partitions: int) -> None:
    app = hr.App("many")
    sums = app.table("sums", key=["a", "b"], schema={"a": pl.String, "b": pl.Int64, "n": pl.Int64})

    def add(message: Any, out: Any) -> object:
        key = message["a"], message["b"]
        found = out.tables["sums"].get(key)
        assert (key in out.tables["sums"]) is (found is not None)
        out.tables["sums"].put(key, {"n": message["n"] + (found["n"] if found else 0)})
        return sum(record["n"] for _, record in out.tables["sums"].items(message["a"]))

    rows = [{"a": f"a{i % 7}", "b": i % 3, "n": i} for i in range(300)]
    flow = app.input("rows", {"a": pl.String, "b": pl.Int64, "n": pl.Int64}).partition_by(
        "a", id="by-a", partitions=partitions
    )
    tables: Any = {"sums": sums}
    flow.process(Doing(add), {"told": TOLD}, id="adding", tables=tables, writes=["sums"])["told"].send_to(
        app.output("told")
    )
    asked = app.input("asked", {"a": pl.String, "b": pl.Int64}).partition_by("a", id="asked-by-a")
    asked.join(sums).send_to(app.output("answers"))
    expected: dict[tuple[str, int], int] = {}
    for row in rows:
        expected[row["a"], row["b"]] = expected.get((row["a"], row["b"]), 0) + row["n"]
    with app.test() as t:
        for first in range(0, 300, 37):
            t.feed("rows", rows[first : first + 37])
            if first % 2:
                t.restart(checkpoint=first % 4 == 1)
        t.feed("asked", [{"a": a, "b": b} for a, b in expected])
        assert {(a, b): n for a, b, n in t.read("answers").rows()} == expected
        if partitions == 1:
            last = rows[-1]["a"]
            assert t.read("told")["text"][-1] == str(sum(n for (a, _), n in expected.items() if a == last))


def test_batches_read_and_write_rows() -> None:
    class Taking(hr.tasks.Task):
        def process_batch(self, rows: pl.DataFrame, out: hr.tasks.Out) -> None:
            stock = out.tables["stock"]
            wanted = rows.group_by("article").agg(wanted=pl.col("pieces").sum())
            before = stock.get_rows(wanted.select("article"))["pieces"].fill_null(10)
            stock.put_rows(wanted.select("article", pieces=before - pl.col("wanted")))
            stock.delete_rows(pl.DataFrame({"article": ["desk"]}))

    app = hr.App("batches")
    stock = app.table("stock", key="article", schema=STOCK)
    app.input("orders", ORDERS).process(Taking(), id="step", tables={"stock": stock}, writes="stock")
    app.input("asked", {"article": pl.String}).join(stock, how="left").send_to(app.output("answers"))
    with app.test() as t:
        t.feed("orders", [order("lamp", 1), order("lamp", 2), order("desk", 1)])
        t.feed("asked", [{"article": "lamp"}, {"article": "desk"}])
        assert t.read("answers").rows() == [("lamp", 7), ("desk", None)]


def test_rows_expire_for_tasks_as_for_joins() -> None:
    app = hr.App("expiring")
    seen = app.table("seen", key="article", schema=STOCK, ttl="1m")
    told = app.input("orders", ORDERS).process(
        Doing(lambda message, out: [out.tables["seen"].get("lamp"), out.tables["seen"].put("lamp", {"pieces": 1})][0]),
        {"told": TOLD}, id="step", tables={"seen": seen}, writes="seen",
    )["told"]  # fmt: skip
    told.send_to(app.output("told"))
    with app.test() as t:
        for wait in ("30s", "61s", "1s"):
            t.feed("orders", [order("lamp", 1)])
            t.advance(wait)
        t.feed("orders", [order("lamp", 1)])
        assert t.read("told")["text"].to_list() == ["{'pieces': 1}"] * 2


def test_side_inputs_and_global_tables_are_read() -> None:
    app = hr.App("read")
    prices = app.table("prices", key="article", side_inputs=[app.input("price-list", PRICES)])
    rate_list = app.input("rate-list", {"currency": pl.String, "euros": pl.Float64})
    rates = app.table("rates", key="currency", kind="global", side_inputs=[rate_list])

    def worth(message: Any, out: Any) -> object:
        return out.tables["prices"].get(message["article"])["euros"] * out.tables["rates"].get("CHF")["euros"]

    told = app.input("orders", ORDERS).process(
        Doing(worth), {"told": TOLD}, id="step", tables={"prices": prices, "rates": rates}
    )["told"]
    told.send_to(app.output("told"))
    with app.test() as t:
        t.feed("price-list", [{"article": "lamp", "euros": 20.0}])
        t.feed("rate-list", [{"currency": "CHF", "euros": 1.5}])
        t.feed("orders", [order("lamp", 1)])
        assert t.read("told")["text"].to_list() == ["30.0"]


NULL_KEY = pl.DataFrame({"article": [None], "pieces": [1]}, STOCK)
FORBIDDEN: list[tuple[Callable[[Any, Any], object], str]] = [
    (lambda prices, stock: prices.put("a", {"euros": 1.0}), r"declared to read it(.|\n)*writes=\['prices'\]"),
    (lambda prices, stock: prices.put_rows(pl.DataFrame()), "declared to read it"),
    (lambda prices, stock: prices.delete("a"), "declared to read it"),
    (lambda prices, stock: prices.delete_rows(pl.DataFrame()), "declared to read it"),
    (lambda prices, stock: stock.put(None, {"pieces": 1}), "has a null in the key of the table 'stock'"),
    (lambda prices, stock: stock.put_rows(NULL_KEY), "has a null in the key"),
    (lambda prices, stock: stock.put("a", {"pieces": 1, "piece": 2}), "has no column 'piece'"),
    (lambda prices, stock: stock.put("a", {"pieces": "one"}), "'pieces'"),
]


@pytest.mark.parametrize(("act", "says"), FORBIDDEN)
def test_what_a_task_may_not_do(act: Callable[[Any, Any], object], says: str) -> None:
    app = shop(lambda message, out: act(out.tables["prices"], out.tables["stock"]))
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match=says):
        t.feed("orders", [order("lamp", 1)])


# -- declarations and plans


def declared(tables: Callable[[hr.App], dict[str, Any]], writes: Any = ()) -> hr.App:
    app = hr.App("declared")
    orders = app.input("orders", ORDERS)
    told = orders.process(Doing(take), {"told": TOLD}, id="step", tables=tables(app), writes=writes)["told"]
    told.send_to(app.output("told"))
    return app


def table(app: hr.App, **how: Any) -> Any:
    return app.table("t", **({"key": "article", "schema": STOCK} | how))


REFUSED: list[tuple[Callable[[hr.App], Any], Any, str]] = [
    (lambda app: [table(app)], (), "tables= must be a dict of tables, not list"),
    (lambda app: {"t": "stock"}, (), "the table 't' is str stock"),
    (lambda app: {"t": table(app)}, "u", "writes= names 'u', which isn't among tables="),
    (lambda app: {"t": (one := table(app)), "u": one}, (), "'t' has two names"),
    (lambda app: {"t": table(hr.App("other"))}, (), "belongs to another app, 'other'"),
    (lambda app: {"t": table(app, storage="memory")}, (), 'use the table .*: it has storage="memory"'),
    (lambda app: {"t": table(app, versions="1h")}, (), "it has versions"),
    (lambda app: {"t": table(app, schema=None)}, (), "it has no columns yet"),
    (lambda app: {"t": table(app, schema={"article": pl.String})}, (), "it has no columns but its key"),
    (lambda app: {"t": table(app, kind="global")}, "t", "can't write the table 't' .*: it is global"),
    (lambda app: {"t": table(app, remote=hr.tables.remote(read=print))}, (), "it is remote"),
    (lambda app: {"t": table(app, side_inputs=[app.input("s", STOCK)])}, "t", "is filled by side inputs"),
]


@pytest.mark.parametrize(("tables", "writes", "says"), REFUSED)
def test_tables_that_a_task_cannot_use(tables: Callable[[hr.App], Any], writes: Any, says: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=says) as raised:
        declared(tables, writes)
    assert raised.value.hint or "another app" in says


def test_a_table_that_nothing_fills() -> None:
    with pytest.raises(hr.errors.DeclarationError, match="nothing fills it"):
        declared(lambda app: {"t": table(app)}).graph()
    declared(lambda app: {"t": table(app)}, "t").test().close()


@pytest.mark.parametrize(("writes", "does"), [((), "reads"), (("stock",), "writes")])
def test_a_flow_by_another_key_than_the_tables_is_refused(writes: Any, does: str) -> None:
    app = hr.App("by-another-key")
    stock = app.table("stock", key="article", schema=STOCK)
    app.input("changes", STOCK).partition_by("article", id="changes-by-article").send_to(stock)
    orders = app.input("orders", ORDERS).partition_by("pieces", id="by-pieces")
    orders.process(Doing(take), {"told": TOLD}, id="step", tables={"stock": stock}, writes=writes)["told"].sink(print)
    with pytest.raises(hr.errors.PlanError, match=f"{does} table 'stock', whose key is 'article', but 'by-pieces'"):
        app.test()


def test_the_planner_gives_the_flows_of_a_task_the_count_of_its_tables() -> None:
    app = hr.App("counts")
    stock = app.table("stock", key="article", schema=STOCK, side_inputs=[app.input("changes", STOCK, key="article")])
    orders = app.input("orders", ORDERS).partition_by("article", id="by-article")
    orders.process(Doing(take), {"told": TOLD}, id="step", tables={"stock": stock})["told"].sink(print)
    planned = plan(app.graph(), {"changes": StreamInfo("changes", 5), "orders": StreamInfo("orders", 2)})
    assert planned.streams["by-article"].partitions == 5
    with_input = hr.App("fixed")
    stock = with_input.table("stock", key="article", schema=STOCK)
    with_input.input("changes", STOCK, key="article").send_to(stock)
    orders = with_input.input("orders", ORDERS, key="article")
    orders.process(Doing(take), {"told": TOLD}, id="step", tables={"stock": stock})["told"].sink(print)
    with pytest.raises(hr.errors.PlanError, match="streams that meet in 'reads-1' need equal partition counts"):
        plan(with_input.graph(), {"changes": StreamInfo("changes", 5), "orders": StreamInfo("orders", 2)})


def test_a_table_divides_among_other_counts_by_the_key_of_its_tasks_flow() -> None:
    app = hr.App("rescaled")
    stock = app.table("stock", key="article", schema=STOCK)
    orders = app.input("orders", ORDERS).partition_by("article", id="by-article")
    orders.process(Doing(take), {"told": TOLD}, id="step", tables={"stock": stock}, writes="stock")["told"].sink(print)
    planned = plan(app.graph(), {"orders": StreamInfo("orders", 2)})
    (stage,) = (stage for stage in planned.stages if stage.tables)
    assert table_dealing(planned.graph, stage, partitionings(planned.graph), planned.graph.tables["stock"]).by == (
        "article",
    )

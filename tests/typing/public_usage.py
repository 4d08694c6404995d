"""The public API as users write it. Type-checked, never run; a wrong use carries the error it must cause."""

# mypy: disable-error-code="explicit-override"

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import assert_type

import polars as pl

import headrace as hr


@dataclass
class View:
    member: str
    url: str
    ts: int


@dataclass
class Word:
    text: str


def words(view: View) -> Iterator[Word]:
    for text in view.url.split("/"):
        yield Word(text)


def is_page(view: View) -> bool:
    return view.url.endswith(".html")


def first_rows(batch: pl.DataFrame) -> pl.DataFrame:
    return batch.head(1)


def keep(batch: pl.DataFrame) -> None:
    print(batch)


app = hr.App("page-views", home="/data", intermediate_partitions=4, checkpoint_interval=timedelta(seconds=1))

views = app.input("views", View, event_time="ts", lateness="5s", idle_timeout=timedelta(minutes=1))
raw = app.input("raw", on_error="dead_letter", dead_letter=app.output("unreadable"))
old = app.input("old", {"member": pl.String, "ts": pl.Datetime("ms")}, system=hr.io.files(Path("old"), "parquet"))
orders = hr.io.kinesis("orders", region="eu-west-1", start="upcoming", record_columns={"at": "arrival_time"})
ordered = app.input("orders", {"member": pl.String}, system=orders, event_time="at")
lines = app.input("lines", system=hr.io.kinesis("lines", format="text", slots=8, lease_table="lines"))
packed = app.input("packed", system=hr.io.kinesis("packed", format=hr.io.avro({"type": "record"})))
shipped = app.output("shipped", system=hr.io.kinesis("shipped", key="member"))
hr.io.kinesis("orders", format="xml")  # type: ignore[arg-type]
hr.io.kinesis("orders", record_columns={"at": "time"})  # type: ignore[dict-item]
hr.io.kinesis("orders", start=7)  # type: ignore[arg-type]
assert_type(views, hr.Stream)
assert_type(views.schema, hr.Schema)

slow = views.filter(pl.col("url") != "/").filter(is_page).filter(lambda view: len(view.url) > 3)
split = slow.flat_map(words).map(lambda word: {"text": word.text}, schema={"text": pl.String})
shaped = split.select("text", pl.lit(1).alias("one"), length=pl.col("text").str.len_bytes()).drop("one")
assert_type(shaped.with_columns(two=2).rename({"two": "zwei"}).map_batches(first_rows), hr.Stream)

by_member = views.merge(views.broadcast(id="all")).partition_by(["member", pl.col("ts").alias("t")], id="by-member")
counts = by_member.window(hr.tumbling("10s", offset="1s"), key=["member"], id="per-10s").agg(
    pl.col("ts").n_unique(),
    views=hr.count(),
    total=pl.col("ts").sum(),
    first=hr.min("ts"),
    last=hr.max(pl.col("ts")),
    mean=hr.mean("ts"),
    sum=hr.sum("ts"),
    urls=hr.aggregates.implode("url"),
)
assert_type(counts, hr.Stream)

table = app.table("profiles", key="member", side_inputs=[raw], kind="global")
assert_type(table, hr.Table)
joined = counts.join(table, how="left").join(views, on="member", within=("-5m", "+1m"), id="joined")
output = app.output("results", partitions=2, system=hr.io.log("/shared"), schema=View)
assert_type(output, hr.Output)
joined.send_to(output, key="member")
joined.send_to(table)
joined.send_to("joined", key="member")
views.filter("url = '/cart'").drop_late(late_to="late").send_to("carts")
views.map(first_rows, on_error="dead_letter", dead_letter="failed")
hr.App("page-views", system="kafka://host:9092", internal=hr.io.kafka_log("host:9092"))
app.input("changes", {"id": int, "deleted": bool}, system=hr.io.kafka(brokers="host:9092"), format="debezium")
joined.sink(keep)

views.filter(3)  # type: ignore[arg-type]
views.window("10s", key="member", id="w").agg()  # type: ignore[arg-type]
views.window(hr.tumbling("10s"), key="member", within="1m").agg(n=pl.len())  # type: ignore[call-arg]
views.window(hr.tumbling("10s"), key="member", id="w").agg(n=3)  # type: ignore[arg-type]
views.partition_by()  # type: ignore[call-arg]
views.map(first_rows, dead_letter=3)  # type: ignore[arg-type]
views.join(table, how="sideways")  # type: ignore[call-overload]
views.join(table, how="full")  # type: ignore[call-overload]
views.send_to(3)  # type: ignore[arg-type]
app.output("o", system=3)  # type: ignore[arg-type]
app.output("o", format="xml")  # type: ignore[arg-type]
views.sink(first_rows)  # type: ignore[arg-type]
app.input("x", on_error="ignore")  # type: ignore[arg-type]
hr.sum(3)  # type: ignore[arg-type]

assert_type(views.join_latest(slow, "member", ttl="1h", how="full", id="latest"), hr.Stream)
views.join_latest(table, "member", ttl="1h", id="latest")  # type: ignore[arg-type]
views.join_latest(slow, "member")  # type: ignore[call-arg]


class Alerts(hr.tasks.Task):
    last = hr.tasks.Store(key={"member": pl.String}, value={"at": pl.Int64, "n": pl.Int64}, ttl="7d")

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def init(self, context: hr.tasks.TaskContext) -> None:
        assert_type(context.task, str)
        assert_type(context.watermark, int | None)
        context.send("alerts", {})  # type: ignore[attr-defined]

    def process(self, message: View, out: hr.tasks.Out) -> None:
        before = self.last.get(message.member)
        self.last.put(message.member, {"at": message.ts, "n": 1 if before is None else before["n"] + 1})
        out.set_timer(message.member, message.ts + 1000, name="quiet", axis="processing")
        out.set_timer(message.member, "soon")  # type: ignore[arg-type]
        out.set_timer(message.member, 1, axis="wall")  # type: ignore[arg-type]
        assert_type(out.timer_at(message.member), int | None)
        out.send("alerts", message)
        out.commit()
        out.shutdown()
        for key, record in self.last.items("ann", reverse=True):
            out.send("alerts", {"member": key, **record})

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        assert_type(timer.time, int)
        assert_type(self.last.get_rows(pl.DataFrame({"member": [timer.key]})), pl.DataFrame)


assert_type(Alerts.last, hr.tasks.Store)
flows = app.task(Alerts(limit=3), inputs={"views": views}, outputs={"alerts": View}, event_time="ts", id="alerts")
assert_type(flows["alerts"], hr.Stream)
views.process(Alerts(limit=3), {"alerts": View}, event_time="ts", id="of-a-flow")["alerts"].send_to(
    app.output("of-a-flow-out")
)
views.process(Alerts, id="class-of-a-flow")  # type: ignore[arg-type]
app.task(Alerts, inputs={"views": views}, id="class")  # type: ignore[arg-type]
app.task(Alerts(3), inputs=views, id="one")  # type: ignore[arg-type]

rates = app.table("rates", key="currency", versions="1d", storage="memory", deleted=pl.col("rate").is_null())
views.delete_from(rates)
views.delete_from(output)  # type: ignore[arg-type]
app.table("t", key="k", storage="tape")  # type: ignore[arg-type]
app.table("t", key="k", deleted=True)  # type: ignore[arg-type]

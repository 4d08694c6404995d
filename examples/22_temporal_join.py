"""22. Tables of versions: find the row as it was at the time of each message, not as it is now.

Prices change while orders are on their way. A table with ``versions=`` keeps old rows, and each order waits in the
task's state until the watermark has passed its time: by then all prices that concern it have arrived, in any order. A
deletion, here of an article that is no longer sold, is a version too. At the end, ``join_latest`` shows each new price
to members who asked for the article in the last hour; there event time plays no part.

It prints::

    order 1 of 10:00:01: lamp for 20.0
    order 2 of 10:00:03: lamp for 15.0
    order 3 of 10:00:05: lamp, no longer sold
    ann asked for the lamp, which is 15.0 now
"""

from datetime import datetime, timedelta
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

PRICES = {"article": pl.String, "euros": pl.Float64, "ts": pl.Datetime("ms")}
ORDERS = {"order": pl.Int64, "article": pl.String, "ts": pl.Datetime("ms")}
QUESTIONS = {"member": pl.String, "article": pl.String}


START = datetime(2026, 5, 1, 10)


def written(home: str, name: str, schema: dict[str, pl.DataType], rows: list[tuple[object, ...]]) -> None:
    """A stream of these rows that has ended."""
    hr.streams.create_stream(name, partitions=1, schema=schema, home=home)
    with hr.streams.StreamWriter(name, home=home) as writer:
        writer.write(pl.DataFrame(rows, schema, orient="row"))
        writer.seal()


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


with TemporaryDirectory() as home:
    written(home, "orders", ORDERS, [(3, "lamp", at(5)), (1, "lamp", at(1)), (2, "lamp", at(3))])
    written(home, "prices", PRICES, [("lamp", 15.0, at(2)), ("lamp", 20.0, at(0)), ("lamp", None, at(4))])
    written(home, "questions", QUESTIONS, [("ann", "lamp")])

    app = hr.App("priced-orders", home=home)
    prices = app.input("prices", PRICES, event_time="ts", lateness="10s")
    then = app.table("prices-then", key="article", schema=PRICES, versions="1h", deleted=pl.col("euros").is_null())
    prices.send_to(then)
    orders = app.input("orders", ORDERS, event_time="ts", lateness="10s")
    orders.join(then, how="left", id="price-then").send_to("priced")

    offers = prices.filter("euros < 20").select("article", "euros")
    app.input("questions", QUESTIONS).join_latest(offers, "article", ttl="1h", id="asked-for").send_to("told")
    app.run(local=True, progress=False)

    for row in hr.streams.read_stream("priced", home=home).sort("order").to_dicts():
        price = ", no longer sold" if row["euros"] is None else f" for {row['euros']}"
        print(f"order {row['order']} of {row['ts']:%H:%M:%S}: {row['article']}{price}")
    for row in hr.streams.read_stream("told", home=home).to_dicts():
        print(f"{row['member']} asked for the {row['article']}, which is {row['euros']} now")

"""6. Broadcast: every task of the next stage gets every message.

Orders go to three tasks by shop; notices concern all shops. So each of the three tasks gets the orders of its own shops
and, through ``broadcast``, all notices. A message sent to an output without a key stays in its task's partition.

It prints::

    orders:  ['east', 'north', 'north', 'south']
    notices: 3 x open at 9, 3 x closed at 18
"""

from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

SCHEMA = {"shop": pl.String, "text": pl.String}
ORDERS = [{"shop": shop, "text": "an order"} for shop in ("north", "south", "north", "east")]
NOTICES = [{"shop": "all", "text": "open at 9"}, {"shop": "all", "text": "closed at 18"}]

with TemporaryDirectory() as home:
    for name, rows in (("orders", ORDERS), ("notices", NOTICES)):
        hr.streams.create_stream(name, partitions=1, schema=SCHEMA, home=home)
        with hr.streams.StreamWriter(name, home=home) as writer:
            writer.write(rows)
            writer.seal()

    app = hr.App("shops", home=home)
    orders = app.input("orders", SCHEMA).partition_by("shop", id="by-shop", partitions=3)
    notices = app.input("notices", SCHEMA).broadcast(id="to-all-shops")
    orders.merge(notices).send_to(app.output("desks", partitions=3))
    app.run(local=True, progress=False)

    desks = hr.streams.read_stream("desks", home=home)
    shown = [desks.filter(text=notice["text"]).height for notice in NOTICES]
    print("orders: ", sorted(desks.filter(text="an order")["shop"]))
    print(f"notices: {shown[0]} x open at 9, {shown[1]} x closed at 18")

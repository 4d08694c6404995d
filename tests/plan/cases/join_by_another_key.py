# must fail: join 'pairs' .* joins on 'member', but 'orders-by-shop' is partitioned by 'store'
import polars as pl

import headrace as hr

partitions = {"views": 4, "orders": 4}

app = hr.App("by-another-key")
columns = {"member": pl.String, "shop": pl.String, "ts": pl.Int64}
views = app.input("views", columns, event_time="ts").partition_by("member", id="views-by-member")
orders = app.input("orders", columns, event_time="ts").partition_by("shop", id="orders-by-shop")
views.join(orders.rename({"shop": "store"}), on="member", within="5m", id="pairs").send_to(app.output("out"))

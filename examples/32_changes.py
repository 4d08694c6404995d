"""32. Flows of changes: sums, first rows and joins over all rows so far, without windows.

``group_by`` and ``top`` tell how their results change: a row of such a flow says in ``_change`` whether it was
inserted, updated or deleted, and the steps behind it reckon with that. ``changes`` reads rows as changes: a new price
replaces the earlier one of its article wherever that was joined or counted, and ``gone`` takes it away. A join with
``ttl`` keeps the rows of both sides for so long. ``upserts`` makes rows of changes again, for compacted topics and
tables of databases.

It prints::

    the best two: insert desk 1, insert lamp 1
    the best two: delete lamp 1, insert lamp 3
    the best two: delete desk 1, insert sofa 2
    revenue: desk 90.0, lamp 60.0
    revenue: desk 90.0, lamp 45.0
    revenue: lamp 45.0
"""

import polars as pl

import headrace as hr

app = hr.App("best-sellers")
orders = app.input("orders", {"article": str, "pieces": int}).partition_by("article")
prices = app.input("prices", {"article": str, "euros": float, "gone": bool})

pieces = orders.group_by().agg(n=pl.col("pieces").sum())
pieces.partition_by(None, id="all-articles").top(2, "n").send_to("best")

now = prices.partition_by("article", id="prices-by-article").changes("article", deleted="gone")
sales = orders.join(now, on="article", ttl="7d", id="sales").with_columns(paid=pl.col("pieces") * pl.col("euros"))
revenue = sales.group_by(id="paid").agg(euros=pl.col("paid").sum())
revenue.upserts().send_to("revenue")

with app.test() as test:
    for ordered in ([("lamp", 1), ("desk", 1)], [("lamp", 2)], [("sofa", 2)]):
        before = test.read("best").height
        test.feed("orders", [{"article": article, "pieces": n} for article, n in ordered])
        told = test.read("best")[before:].sort("article", "n").select("_change", "article", "n").rows()
        print(f"the best two: {', '.join(f'{change} {article} {n}' for change, article, n in told)}")

    for priced in ([("lamp", 20.0, False), ("desk", 90.0, False)], [("lamp", 15.0, False)], [("desk", 90.0, True)]):
        test.feed("prices", [{"article": article, "euros": euros, "gone": gone} for article, euros, gone in priced])
        newest = test.read("revenue").unique("article", keep="last").sort("article")
        there = newest.filter(~pl.col("deleted")).select("article", "euros").rows()
        print(f"revenue: {', '.join(f'{article} {euros}' for article, euros in there)}")

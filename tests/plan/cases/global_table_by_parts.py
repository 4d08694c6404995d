# must fail: global table 'rules' .* would hold only some rows in each task
"""A global table is whole in every task, so what fills it has to be broadcast."""

import polars as pl

import headrace as hr

partitions = {"changes": 2, "views": 8}

app = hr.App("rules")
rules = app.table("rules", key="url", kind="global")
app.input("changes", {"url": pl.String, "rule": pl.String}).send_to(rules)
app.input("views", {"url": pl.String}).join(rules).send_to(app.output("ruled"))

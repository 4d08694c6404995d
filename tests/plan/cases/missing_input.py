# must fail: headrace stream create page-views --partitions N
"""The error about a missing input contains the command that creates it."""

import polars as pl

import headrace as hr

partitions = {}

app = hr.App("missing")
app.input("page-views", {"url": pl.String}).send_to(app.output("copy"))

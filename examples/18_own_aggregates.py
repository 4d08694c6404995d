"""18. Aggregates: Polars' own, Headrace's, and your own functions.

Polars' and Headrace's aggregates are columnar. ``fold`` calls a function for each message, in the order of arrival. Its
result survives restarts, so it needs a dtype. Here each new request gives a result over the last three requests
of its server.

It prints::

    a  requests 1  slowest ['/']              errors in a row 0
    a  requests 2  slowest ['/cart', '/']     errors in a row 1
    b  requests 1  slowest ['/']              errors in a row 0
    a  requests 3  slowest ['/cart', '/']     errors in a row 2
    a  requests 3  slowest ['/cart', '/item'] errors in a row 0
"""

from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

import headrace as hr

SCHEMA = {"server": pl.String, "url": pl.String, "ms": pl.Int64, "status": pl.Int64}
REQUESTS = [
    {"server": "a", "url": "/", "ms": 20, "status": 200},
    {"server": "a", "url": "/cart", "ms": 90, "status": 500},
    {"server": "b", "url": "/", "ms": 25, "status": 200},
    {"server": "a", "url": "/pay", "ms": 10, "status": 500},
    {"server": "a", "url": "/item", "ms": 30, "status": 200},
]


def errors_in_a_row(so_far: int, request: dict[str, Any]) -> int:
    return so_far + 1 if request["status"] >= 500 else 0


with TemporaryDirectory() as home:
    hr.streams.create_stream("requests", partitions=1, schema=SCHEMA, home=home)
    with hr.streams.StreamWriter("requests", home=home) as writer:
        writer.write(REQUESTS)
        writer.seal()

    app = hr.App("requests", home=home)
    app.input("requests", SCHEMA).window(hr.windows.count(3, every=1), key="server", id="last-three").agg(
        requests=pl.len(),
        slowest=hr.aggregates.top_k("url", 2, by="ms"),
        errors=hr.aggregates.fold(0, errors_in_a_row, dtype=pl.Int64),
    ).send_to("looked-at")
    app.run(local=True, progress=False)

    for row in hr.streams.read_stream("looked-at", home=home).to_dicts():
        slowest, errors = str(row["slowest"]), row["errors"]
        print(f"{row['server']}  requests {row['requests']}  slowest {slowest:18} errors in a row {errors}")

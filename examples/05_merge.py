"""5. Merge: flows with the same columns become one flow.

``select`` gives two inputs with different columns the same columns; then they are merged. A window after a merge waits
for the slower input.

It prints::

    phone  12:00:00  2
    web    12:00:00  1
    web    12:00:01  1
"""

from datetime import datetime
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

WEB = {"url": pl.String, "ts": pl.Datetime("ms")}
PHONE = {"screen": pl.String, "ts": pl.Datetime("ms"), "battery": pl.Float64}

NOON = datetime(2026, 1, 1, 12)
ON_WEB = [{"url": "/", "ts": NOON}, {"url": "/cart", "ts": NOON.replace(second=1)}]
ON_PHONES = [{"screen": "home", "ts": NOON, "battery": 0.5}, {"screen": "cart", "ts": NOON, "battery": 0.4}]

with TemporaryDirectory() as home:
    for name, schema, rows in (("web", WEB, ON_WEB), ("phone", PHONE, ON_PHONES)):
        hr.streams.create_stream(name, partitions=1, schema=schema, home=home)
        with hr.streams.StreamWriter(name, home=home) as writer:
            writer.write(rows)
            writer.seal()

    app = hr.App("merged", home=home)
    web = app.input("web", WEB, event_time="ts").select("ts", page="url", device=pl.lit("web"))
    phone = app.input("phone", PHONE, event_time="ts").select("ts", page="screen", device=pl.lit("phone"))
    (
        web.merge(phone)
        .window(hr.tumbling("1s"), key="device", id="per-second")
        .agg(views=pl.len())
        .send_to("views-per-device")
    )
    app.run(local=True, progress=False)

    for row in hr.streams.read_stream("views-per-device", home=home).sort("device", "window_start").to_dicts():
        print(f"{row['device']:5}  {row['window_start']:%H:%M:%S}  {row['views']}")

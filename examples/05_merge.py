"""5. Merge: flows of one shape become one flow.

Two inputs with different columns are brought to the same ones by ``select``, then merged. A window behind a merge
waits for the slower of the two.

It prints::

    phone    0  2
    web      0  1
    web   1000  1
"""

from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

WEB = {"url": pl.String, "ts": pl.Int64}
PHONE = {"screen": pl.String, "ts": pl.Int64, "battery": pl.Float64}

with TemporaryDirectory() as home:
    for name, schema, rows in (
        ("web", WEB, [{"url": "/", "ts": 100}, {"url": "/cart", "ts": 1_100}]),
        (
            "phone",
            PHONE,
            [{"screen": "home", "ts": 200, "battery": 0.5}, {"screen": "cart", "ts": 900, "battery": 0.4}],
        ),
    ):
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
        .agg(views=hr.count())
        .send_to(app.output("views-per-device"))
    )
    app.run(local=True, progress=False)

    for row in hr.streams.read_stream("views-per-device", home=home).sort("device", "window_start").to_dicts():
        print(f"{row['device']:5} {row['window_start']:4}  {row['views']}")

"""28. From history to live: a Spark job computes the past, and the app continues from its state.

The past is in Parquet files, read as a Spark table; new messages come in a stream, which still has the last messages of
the past. The backfill counts what is older than 11:59:20 from the table, and publishes Ann's window, which is over by
then. Bob's window is still open, and the live run completes it.

It prints::

    after the backfill: [('ann', 2)]
    after the live run: [('ann', 2), ('bob', 3)]
"""

from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

VIEWS = {"member": pl.String, "ts": pl.Int64}
NOON = 1_767_268_800_000
UNTIL = "2026-01-01T11:59:20Z"


def page_views(home: str) -> hr.App:
    app = hr.App("page-views", home=home)
    (
        app.input("views", VIEWS, event_time="ts", lateness="5s")
        .partition_by("member", partitions=2)
        .window(hr.tumbling("1m"))
        .agg(views=hr.count())
        .send_to("views-per-member")
    )
    return app


def counted(home: str) -> list[tuple[str, int]]:
    rows = hr.streams.read_stream("views-per-member", home=home, committed=True)
    return rows.sort("window_start").select("member", "views").rows()


with TemporaryDirectory() as home:
    past = [("ann", NOON - 110_000), ("ann", NOON - 105_000), ("bob", NOON - 50_000), ("bob", NOON - 45_000)]
    pl.DataFrame(past, VIEWS, orient="row").write_parquet(f"{home}/archive.parquet")
    new = [("bob", NOON - 10_000)]
    hr.streams.create_stream("views", 1, VIEWS, home=home)
    with hr.streams.StreamWriter("views", home=home) as writer:
        for member, ts in [*past[2:], *new]:
            writer.write([{"member": member, "ts": ts}])
        writer.seal()

    app = page_views(home)
    tables = {"views": f"parquet:{home}/archive.parquet"}
    app.backfill(UNTIL, tables=tables, progress=False)
    print(f"after the backfill: {counted(home)}")

    # The backfill is done already, so this only restores its state and continues live; here in one process.
    app.run(backfill=True, until=UNTIL, tables=tables, local=True, progress=False)
    print(f"after the live run: {counted(home)}")

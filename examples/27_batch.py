"""27. An app over history as one Spark job: in a notebook as a DataFrame, and published once.

The same declaration runs live and as a batch job, over a Parquet file, and gives the same results. A notebook takes its
result as a DataFrame without publishing anything. The batch job publishes it in a stream. Then the notebook reads the
stream as a DataFrame, joins it with a Spark table, and writes the result into another stream.

It prints::

    live: [('ann', 3), ('bob', 2)]
    in a notebook: [('ann', 3), ('bob', 2)]
    published: [('ann', 3), ('bob', 2)]
    once more: app 'page-views' has published a batch run already (run 1, until their ends)
    ann from NO: 3 views
    bob from DK: 2 views
"""

from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

VIEWS = {"member": pl.String, "ts": pl.Int64}
NOON = 1_767_268_800_000


def page_views(files: str, home: str) -> hr.App:
    app = hr.App("page-views", home=home)
    (
        app.input("views", VIEWS, system=hr.io.files(files), event_time="ts")
        .partition_by("member", partitions=2)
        .window(hr.tumbling("1m"))
        .agg(views=hr.count())
        .send_to("views-per-member")
    )
    return app


def published(home: str) -> list[tuple[str, int]]:
    rows = hr.streams.read_stream("views-per-member", home=home, committed=True)
    return rows.sort("member").select("member", "views").rows()


with TemporaryDirectory() as folder:
    files, live, home = f"{folder}/views.parquet", f"{folder}/live", f"{folder}/batch"
    views = [("ann", NOON), ("bob", NOON + 9_000), ("ann", NOON + 1_000), ("bob", NOON + 2_000), ("ann", NOON + 59_000)]
    pl.DataFrame(views, VIEWS, orient="row").write_parquet(files)

    # Live, until its input has ended.
    page_views(files, live).run(local=True, progress=False)
    print(f"live: {published(live)}")

    # In a notebook: a DataFrame like any other, computed when it is used.
    app = page_views(files, home)
    counts = app.to_dataframe("views-per-member")
    spark = counts.sparkSession
    hr.spark.register(spark, home=home)
    print(f"in a notebook: {[(row.member, row.views) for row in counts.orderBy('member').collect()]}")

    # As a batch job, which publishes once.
    app.run(batch=True, progress=False)
    print(f"published: {published(home)}")
    try:
        app.run(batch=True, progress=False)
    except hr.errors.UsageError as error:
        print(f"once more: {error.message.split(':')[0]}")

    # Streams are DataFrames: read one, join it with a table, write another one.
    members = spark.createDataFrame([("ann", "NO"), ("bob", "DK")], "member string, country string")
    known = spark.read.format("headrace").load("views-per-member").join(members, "member")
    hr.streams.create_stream("known", 1, {"member": pl.String, "country": pl.String, "views": pl.Int64}, home=home)
    known.select("member", "country", "views").write.format("headrace").mode("append").save("known")
    for row in hr.streams.read_stream("known", home=home).sort("member").to_dicts():
        print(f"{row['member']} from {row['country']}: {row['views']} views")
    spark.stop()

"""27. An app over history as one Spark job: in a notebook as a DataFrame, and published once.

The same declaration that runs live in containers runs here as a batch job, over a Parquet file. First its result is
taken as a DataFrame, joined with a table of Spark's, and written back into a stream; nothing of the app is published by
that. Then the app runs as a batch job, which computes its results and publishes them.

It prints::

    ann from NO: 3 views
    bob from DK: 2 views
    published: [('ann', 3), ('bob', 2)]
    once more: app 'page-views' has had a batch run that is published (run 1, until their ends)
"""

from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

VIEWS = {"member": pl.String, "ts": pl.Int64}
NOON = 1_767_268_800_000


def page_views(home: str) -> hr.App:
    app = hr.App("page-views", home=home)
    (
        app.input("views", VIEWS, system=hr.io.files(f"{home}/views.parquet"), event_time="ts")
        .partition_by("member", id="views-by-member", partitions=2)
        .window(hr.tumbling("1m"), key="member", id="per-minute")
        .agg(views=hr.count())
        .send_to(app.output("views-per-member"))
    )
    return app


with TemporaryDirectory() as home:
    views = [("ann", NOON), ("bob", NOON + 9_000), ("ann", NOON + 1_000), ("bob", NOON + 2_000), ("ann", NOON + 59_000)]
    pl.DataFrame(views, VIEWS, orient="row").write_parquet(f"{home}/views.parquet")
    app = page_views(home)

    # In a notebook: a DataFrame like any other.
    counts = app.to_dataframe("views-per-member")
    spark = counts.sparkSession
    members = spark.createDataFrame([("ann", "NO"), ("bob", "DK")], "member string, country string")
    known = counts.join(members, "member")
    hr.streams.create_stream("known", 1, {"member": pl.String, "country": pl.String, "views": pl.Int64}, home=home)
    hr.spark.register(spark, home=home)
    known.select("member", "country", "views").write.format("headrace").mode("append").save("known")
    for row in hr.streams.read_stream("known", home=home).sort("member").to_dicts():
        print(f"{row['member']} from {row['country']}: {row['views']} views")

    # The whole app as a batch job.
    app.run(batch=True, progress=False)
    published = hr.streams.read_stream("views-per-member", home=home).sort("member")
    print(f"published: {published.select('member', 'views').rows()}")
    try:
        app.run(batch=True, progress=False)
    except hr.errors.UsageError as error:
        print(f"once more: {error.message.split(':')[0]}")
    spark.stop()

"""DataFrames of real Spark into streams: batches, queries that restart, tasks that run again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import headrace as hr
from headrace.spark.writing import staging_folder

KINDS = pl.DataFrame(
    {
        "small": [-128, None],
        "wide": [2**64 - 1, None],
        "half": [0.5, None],
        "text": ["späte Zeit", None],
        "kind": ["b", None],
        "raw": [b"\x00\xff", None],
        "clock": [time(3, 4, 5, 678901), None],
        "span": [timedelta(days=-1, milliseconds=5), None],
        "local": [datetime(2026, 1, 2, 3, 4, 5, 678901), None],
        "there": [datetime(2026, 7, 1, 12, tzinfo=UTC), None],
        "money": [Decimal("-12.34"), None],
        "deep": [[{"at": datetime(2026, 1, 1, tzinfo=UTC), "tags": ["x", None]}, None], None],
    },
    {
        "small": pl.Int8,
        "wide": pl.UInt64,
        "half": pl.Float32,
        "text": pl.String,
        "kind": pl.Enum(["a", "b"]),
        "raw": pl.Binary,
        "clock": pl.Time,
        "span": pl.Duration("ms"),
        "local": pl.Datetime("us"),
        "there": pl.Datetime("ms", "Europe/Berlin"),
        "money": pl.Decimal(18, 2),
        "deep": pl.List(pl.Struct({"at": pl.Datetime("us", "UTC"), "tags": pl.List(pl.String)})),
    },
)


@pytest.fixture(scope="module")
def session(spark_context: SparkContext) -> Iterator[SparkSession]:
    spark = SparkSession(spark_context)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield spark
    spark.conf.unset("spark.sql.session.timeZone")


@pytest.fixture
def spark(session: SparkSession, tmp_path: Path) -> SparkSession:
    hr.spark.register(session, tmp_path)
    return session


def numbers(home: Path, stream: str = "numbers") -> list[int]:
    return sorted(hr.streams.read_stream(stream, home=home)["n"])


def staged(home: Path, stream: str = "numbers") -> list[Path]:
    return list(staging_folder(home, stream).glob("*.staged"))


def test_what_is_read_can_be_written_back(spark: SparkSession, tmp_path: Path) -> None:
    columns = dict(KINDS.schema)
    for name in ("kinds", "copy"):
        hr.streams.create_stream(name, 2, columns, home=tmp_path)
    with hr.streams.StreamWriter("kinds", home=tmp_path) as writer:
        writer.write(KINDS)
    table = spark.read.format("headrace").load("kinds")
    table.write.format("headrace").mode("append").save("copy")
    assert hr.streams.read_stream("copy", home=tmp_path).equals(KINDS)
    table.write.format("headrace").mode("append").option("partitions", 1).save("new")
    assert spark.read.format("headrace").load("new").schema == table.schema
    assert hr.streams.read_stream("new", home=tmp_path)["there"].dtype == pl.Datetime("us", "UTC")


def test_a_write_of_many_tasks_is_one_version(spark: SparkSession, tmp_path: Path) -> None:
    table = spark.range(100_000, numPartitions=4).selectExpr("id AS n", "CAST(id % 7 AS STRING) AS of")
    for _ in range(2):
        writing = table.write.format("headrace").mode("append").option("key", "of").option("partitions", 3)
        writing.option("writer", "numbers").option("version", 0).save("numbers")
    assert numbers(tmp_path) == list(range(100_000))
    reader = hr.streams.StreamReader("numbers", home=tmp_path)
    kinds = [set(pl.concat(reader.batches_of(partition))["of"]) for partition in range(3)]
    assert sum(map(len, kinds)) == 7
    assert staged(tmp_path) == []
    read = spark.read.format("headrace").load("numbers")
    assert read.count() == 100_000


def test_a_task_that_fails_writes_its_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 2, {"n": pl.Int64}, home=tmp_path)
    failed = tmp_path / "failed"

    def failing(number: int) -> int:
        if number == 299_999 and not failed.exists():
            failed.touch()
            raise ValueError("the last row can't be read")
        return number

    table = spark.range(300_000, numPartitions=2).select(udf(failing, "long", useArrow=False)("id").alias("n"))
    table.write.format("headrace").mode("append").save("numbers")
    assert failed.exists()
    assert numbers(tmp_path) == list(range(300_000))
    assert staged(tmp_path) == []


def test_errors_say_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    table = spark.range(3).withColumnRenamed("id", "n")
    with pytest.raises(PySparkException, match=r"(?s)no stream log\.numbers.*let this write create the stream"):
        table.write.format("headrace").mode("append").save("numbers")
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64}, home=tmp_path)
    with pytest.raises(PySparkException, match=r"(?s)can't be overwritten.*mode\(.append.\)"):
        table.write.format("headrace").mode("overwrite").save("numbers")
    with pytest.raises(PySparkException, match=r"(?i)append"):
        table.write.format("headrace").mode("ignore").save("numbers")
    with pytest.raises(PySparkException, match=r"(?i)append"):
        table.write.format("headrace").save("numbers")
    with pytest.raises(PySparkException, match=r"no column .m.; it has n"):
        table.withColumnRenamed("n", "m").write.format("headrace").mode("append").save("numbers")
    assert numbers(tmp_path) == []


# -- streaming queries ---------------------------------------------------------------------------------


def drained(table: DataFrame, checkpoint: Path, **options: str) -> None:
    """Write everything that is there."""
    writing = table.writeStream.format("headrace").option("checkpointLocation", str(checkpoint)).options(**options)
    query = writing.queryName("numbers").trigger(availableNow=True).start("numbers")
    try:
        assert query.awaitTermination(200)
    finally:
        query.stop()


def test_batches_that_run_again_are_written_once(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 2, {"n": pl.Int64}, home=tmp_path)
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    table = spark.readStream.schema("n LONG").option("maxFilesPerTrigger", 1).parquet(str(source))
    for name in "ab":
        add(source, name, 0 if name == "a" else 100)
    drained(table, checkpoint)
    assert numbers(tmp_path) == [*range(10), *range(100, 110)]
    # Spark died after the batch was written, and before it had noted that.
    commits = sorted((checkpoint / "commits").glob("[0-9]*"))
    assert [commit.name for commit in commits] == ["0", "1"]
    (checkpoint / "commits" / ".1.crc").unlink()
    commits[-1].unlink()
    add(source, "c", 200)
    drained(table, checkpoint)
    assert numbers(tmp_path) == [*range(10), *range(100, 110), *range(200, 210)]
    assert staged(tmp_path) == []
    # A query that starts over is another one.
    drained(table, tmp_path / "again", key="n")
    assert len(numbers(tmp_path)) == 60


def add(source: Path, name: str, start: int) -> None:
    pl.DataFrame({"n": range(start, start + 10)}).write_parquet(source / f"{name}.parquet")


def test_a_query_that_starts_over_under_its_name_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 2, {"n": pl.Int64}, home=tmp_path)
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    table = spark.readStream.schema("n LONG").parquet(str(source))
    for start in (0, 100):
        add(source, str(start), start)
        drained(table, checkpoint, writer="numbers")
    with pytest.raises(PySparkException, match=r"version 0 of writer 'numbers' follows version 1"):
        drained(table, tmp_path / "other", writer="numbers")
    assert numbers(tmp_path) == [*range(10), *range(100, 110)]
    assert staged(tmp_path) == []


def test_results_that_are_rewritten_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64}, home=tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    add(source, "a", 0)
    table = spark.readStream.schema("n LONG").parquet(str(source)).groupBy("n").count().select("n")
    writing = table.writeStream.format("headrace").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match=r"can't be overwritten"):
        writing.outputMode("complete").trigger(availableNow=True).start("numbers").awaitTermination(200)

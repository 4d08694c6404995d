"""Streams as DataFrames of real Spark: rows and types, what Spark says of errors, and queries that restart."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as sum_of

import headrace as hr
from app_task import AppTask
from chaos.deployment import until
from headrace.core.errors import UnavailableError
from running_apps import find_all

PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
import headrace as hr

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
hr.spark.register(spark)
print("rows", spark.read.format("headrace").load("orders").count())
spark.stop()
"""

START = datetime(2026, 1, 2, 3, 4, 5, 678901)

TYPES: dict[str, tuple[pl.DataType, Any, str]] = {
    "i8": (pl.Int8(), -128, "tinyint"),
    "i16": (pl.Int16(), -(2**15), "smallint"),
    "i32": (pl.Int32(), -(2**31), "int"),
    "i64": (pl.Int64(), -(2**63), "bigint"),
    "u8": (pl.UInt8(), 2**8 - 1, "smallint"),
    "u16": (pl.UInt16(), 2**16 - 1, "int"),
    "u32": (pl.UInt32(), 2**32 - 1, "bigint"),
    "u64": (pl.UInt64(), 2**64 - 1, "decimal(20,0)"),
    "f32": (pl.Float32(), 0.5, "float"),
    "f64": (pl.Float64(), 0.1, "double"),
    "flag": (pl.Boolean(), True, "boolean"),
    "text": (pl.String(), "späte Zeit", "string"),
    "kind": (pl.Enum(["a", "b"]), "b", "string"),
    "raw": (pl.Binary(), b"\x00\xff", "binary"),
    "day": (pl.Date(), date(2026, 1, 2), "date"),
    "clock": (pl.Time(), time(3, 4, 5, 678901), "time(6)"),
    "span": (pl.Duration("ms"), timedelta(days=-1, milliseconds=5), "interval day to second"),
    "local": (pl.Datetime("us"), START, "timestamp_ntz"),
    "local_ns": (pl.Datetime("ns"), START, "timestamp_ntz"),
    "instant": (pl.Datetime("us", "UTC"), START.replace(tzinfo=UTC), "timestamp"),
    "there": (pl.Datetime("ms", "Europe/Berlin"), datetime(2026, 7, 1, 12, tzinfo=UTC), "timestamp"),
    "money": (pl.Decimal(18, 2), Decimal("-12.34"), "decimal(18,2)"),
    "nothing": (pl.Null(), None, "void"),
    "many": (pl.List(pl.UInt8), [1, None, 255], "array<smallint>"),
    "three": (pl.Array(pl.Float32, 3), [1.0, 2.0, 3.0], "array<float>"),
    "deep": (
        pl.List(pl.Struct({"at": pl.Datetime("us", "UTC"), "tags": pl.List(pl.String)})),
        [{"at": START.replace(tzinfo=UTC), "tags": ["x", None]}, None],
        "array<struct<at:timestamp,tags:array<string>>>",
    ),
    "pair": (
        pl.Struct({"a": pl.UInt64, "b": pl.Binary}),
        {"a": 2**64 - 1, "b": b"b"},
        "struct<a:decimal(20,0),b:binary>",
    ),
}


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


def plain(value: Any) -> Any:
    """A value as Python has it, whatever it is inside."""
    match value:
        case Row():
            return {name: plain(one) for name, one in value.asDict().items()}
        case list():
            return [plain(one) for one in value]
        case bytearray():
            return bytes(value)
        case Decimal() if value == value.to_integral_value() and value.as_tuple().exponent == 0:
            return int(value)
    return value


def test_every_type_comes_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    columns = {name: dtype for name, (dtype, _, _) in TYPES.items()}
    hr.streams.create_stream("kinds", 1, columns, home=tmp_path)
    with hr.streams.StreamWriter("kinds", home=tmp_path) as writer:
        writer.write([{name: value for name, (_, value, _) in TYPES.items()}, dict.fromkeys(TYPES)])
    table = spark.read.format("headrace").load("kinds")
    assert {field.name: field.dataType.simpleString() for field in table.schema} == {
        name: spelled for name, (_, _, spelled) in TYPES.items()
    }
    instants = ("instant", "there")
    seconds = {name: f"unix_micros({name}) AS {name}" for name in instants}
    full, empty = table.selectExpr(*(seconds.get(name, name) for name in TYPES)).collect()
    expected = {name: value for name, (_, value, _) in TYPES.items()}
    expected |= {name: int(expected[name].timestamp() * 1_000_000) for name in instants}
    # Spark gives instants as local times of this process.
    expected["deep"][0]["at"] = datetime.fromtimestamp(START.replace(tzinfo=UTC).timestamp())
    assert plain(full) == expected
    assert plain(empty) == dict.fromkeys(TYPES)


def test_a_stream_is_a_dataframe_of_the_session_that_there_is(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 2, {"n": pl.Int64}, home=tmp_path)
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.write([{"n": 1}])
        writer.write([{"n": 2}])
    table = hr.streams.read_stream("numbers", home=tmp_path, as_="spark")
    assert table.sparkSession.sparkContext is spark.sparkContext
    assert sorted(table.collect()) == [(1,), (2,)]


def test_times_without_a_zone_become_instants_as_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("views", 1, {"ts": pl.Datetime("ms")}, home=tmp_path)
    with hr.streams.StreamWriter("views", home=tmp_path) as writer:
        writer.write([{"ts": datetime(2026, 1, 1)}])
    table = spark.read.format("headrace").load("views")
    (row,) = table.selectExpr("unix_micros(CAST(concat(ts, 'Z') AS TIMESTAMP)) AS us").collect()
    assert row["us"] == datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000


def test_rows_are_used_as_any_other(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("orders", 3, {"member": pl.String, "euros": pl.Float64}, home=tmp_path)
    with hr.streams.StreamWriter("orders", key="member", home=tmp_path) as writer:
        for start in range(0, 10_000, 500):
            writer.write([{"member": f"m{n % 50}", "euros": float(n)} for n in range(start, start + 500)])
    table = spark.read.format("headrace").load("orders")
    assert table.rdd.getNumPartitions() == 3
    found = {row["member"]: (row["n"], row["total"]) for row in _totals(table)}
    rows = [(f"m{n % 50}", float(n)) for n in range(10_000)]
    assert found == {
        member: (sum(m == member for m, _ in rows), sum(euros for m, euros in rows if m == member))
        for member in {member for member, _ in rows}
    }
    narrow = spark.read.format("headrace").schema("euros DOUBLE").option("minPartitions", 6).load("orders")
    assert narrow.rdd.getNumPartitions() >= 6
    assert narrow.agg({"euros": "sum"}).first() == (sum(euros for _, euros in rows),)


def _totals(table: DataFrame) -> list[Row]:
    return table.groupBy("member").agg(count("*").alias("n"), sum_of("euros").alias("total")).collect()


def test_a_stream_is_a_view_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("orders", 1, {"euros": pl.Float64}, home=tmp_path / "other")
    with hr.streams.StreamWriter("orders", home=tmp_path / "other") as writer:
        writer.write([{"euros": 1.5}, {"euros": 2.0}])
    spark.sql(f"CREATE TEMPORARY VIEW orders_of_view USING headrace OPTIONS (path 'orders', home '{tmp_path}/other')")
    try:
        assert spark.sql("SELECT sum(euros) AS total FROM orders_of_view").collect() == [Row(total=3.5)]
    finally:
        spark.catalog.dropTempView("orders_of_view")


def test_an_empty_stream_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("orders", 2, {"member": pl.String}, home=tmp_path)
    assert spark.read.format("headrace").load("orders").collect() == []


def test_errors_say_what_headrace_says(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("orders", 1, {"member": pl.String}, home=tmp_path)
    reading = spark.read.format("headrace")
    with pytest.raises(PySparkException, match=r"(?s)option 'startingoffset' is unknown.*did you mean startingOffsets"):
        reading.option("startingOffset", "earliest").load("orders")
    with pytest.raises(PySparkException, match=r"(?s)no stream log\.order in .*did you mean orders"):
        spark.read.format("headrace").load("order")


def drained(table: DataFrame, sink: str, checkpoint: Path) -> int:
    """Run a streaming query until it has read everything that is there; return its number of batches with rows."""
    writing = table.writeStream.format("parquet").option("path", sink).option("checkpointLocation", str(checkpoint))
    query = writing.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(200)
        return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)
    finally:
        query.stop()


def test_a_streaming_query_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 2, {"n": pl.Int64}, home=tmp_path)
    sink, checkpoint = str(tmp_path / "sink"), tmp_path / "checkpoint"
    table = (
        spark.readStream.format("headrace")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 4)
        .load("numbers")
    )
    tasks = [AppTask(tmp_path, 7), AppTask(tmp_path, 8, 1)]
    for task in tasks:
        task.start()
        for value in range(4):
            task.rows(task.generation * 100 + value)
            task.commit()
        task.rows(-1)
    assert drained(table, sink, checkpoint) >= 2
    assert sorted(row["n"] for row in spark.read.parquet(sink).collect()) == sorted([100, 101, 102, 103] * 2)
    tasks[0].commit()
    tasks[1].start()
    tasks[1].rows(5)
    tasks[1].commit()
    for task in tasks:
        task.close()
    assert drained(table, sink, checkpoint) >= 1
    found = sorted(row["n"] for row in spark.read.parquet(sink).collect())
    assert found == sorted(hr.streams.read_stream("numbers", home=tmp_path)["n"])
    assert found == sorted([100, 101, 102, 103] * 2 + [-1, 5])
    assert drained(table, sink, checkpoint) == 0


def test_a_table_of_a_running_app_is_read_task_by_task(spark: SparkSession, tmp_path: Path) -> None:
    prices = {"article": pl.String, "euros": pl.Float64, "since": pl.Datetime("ms")}
    hr.streams.create_stream("changes", 2, prices, key="article", home=tmp_path)
    with hr.streams.StreamWriter("changes", home=tmp_path) as writer:
        writer.write(
            pl.DataFrame({"article": [f"a{n}" for n in range(25_000)]}).with_columns(
                euros=pl.int_range(pl.len()) / 2, since=pl.lit(START).cast(pl.Datetime("ms"))
            )
        )
    app = hr.App("shop", home=tmp_path, checkpoint_interval="100ms")
    app.input("changes", prices).send_to(app.table("prices", key="article"))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            app.run(local=True, progress=False)
        except BaseException as error:
            errors.append(error)

    running = threading.Thread(target=run)
    running.start()
    try:
        until(lambda: bool(errors) or _rows_of_prices(tmp_path) == 25_000, "all is committed", 120)
        table = spark.read.format("headrace").option("table", "shop/prices").load()
        assert table.rdd.getNumPartitions() == 2
        found = {row["article"]: row["euros"] for row in table.select("article", "euros").collect()}
        assert found == {f"a{n}": n / 2 for n in range(25_000)}
        assert table.select("since").distinct().collect() == [Row(since=START.replace(microsecond=678000))]
        with pytest.raises(PySparkException, match=r"(?s)app 'shop' has no table 'price'.*did you mean 'prices'"):
            spark.read.format("headrace").option("table", "shop/price").load()
    finally:
        for address in find_all(tmp_path, "shop"):
            client = address.client()
            client.drain()
            client.close()
        running.join(120)
    assert errors == []


def _rows_of_prices(home: Path) -> int:
    try:
        with hr.tables.open_table("shop", "prices", home=home) as prices:
            return prices.scan(limit=None).height
    except UnavailableError:
        return 0  # it isn't running yet, or is restoring


def test_a_savepoints_table_is_a_dataframe_as_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    prices = {"article": pl.String, "euros": pl.Float64}
    hr.streams.create_stream("changes", 1, prices, home=tmp_path)
    app = hr.App("shop", home=tmp_path)
    app.input("changes", prices).send_to(app.table("prices", key="article"))
    hr.write_savepoint(app, "monday", {"prices": pl.DataFrame({"article": ["lamp"], "euros": [20.0]})})
    saved = hr.read_savepoint(app, "monday")
    assert spark.createDataFrame(saved["prices"].to_arrow()).collect() == [Row(article="lamp", euros=20.0)]


def test_the_example_of_register(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    hr.streams.create_stream("orders", 1, {"member": pl.String, "euros": pl.Float64})
    with hr.streams.StreamWriter("orders") as writer:
        writer.write([{"member": "ann", "euros": 5.0}, {"member": "ann", "euros": 2.0}])
    (example,) = doctest.DocTestFinder().find(hr.spark.register, "register")
    example.globs = {"hr": hr, "spark": session}
    report: list[str] = []
    doctest.DocTestRunner().run(example, out=report.append)
    assert not report, "".join(report)


@pytest.mark.slow
def test_a_session_of_its_own_reads_with_the_drivers_python(tmp_path: Path) -> None:
    """Spark would start the python3 that is first on PATH, which need not have Headrace."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 9\n")
    other.chmod(0o755)
    hr.streams.create_stream("orders", 1, {"member": pl.String}, home=tmp_path / "home")
    with hr.streams.StreamWriter("orders", home=tmp_path / "home") as writer:
        writer.write([{"member": "ann"}])
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"} | {
        "PATH": f"{other.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HEADRACE_HOME": str(tmp_path / "home"),
    }
    program = tmp_path / "program.py"
    program.write_text(PLAIN_SESSION)
    run = subprocess.run(
        [sys.executable, program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert "rows 1" in run.stdout, run.stderr

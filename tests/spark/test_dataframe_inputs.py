"""DataFrames of Spark as inputs of apps: copied when an app first starts, and read by its containers."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from chaos.deployment import until
from headrace.api.dataframe import columns_of
from headrace.core.errors import DeclarationError, DeploymentError, InfrastructureError, UsageError
from headrace.run.coordinated import Interrupts
from headrace.run.spark import dataframes
from headrace.run.spark.dataframes import copy_dataframes, dataframe_of

PATIENCE_S = 300.0


@pytest.fixture
def session(spark_context: SparkContext) -> SparkSession:
    return SparkSession(spark_context)


def jobs(session: SparkSession) -> int:
    """How many jobs Spark has begun."""
    jsc: Any = session.sparkContext._jsc
    return int(jsc.sc().dagScheduler().numTotalJobs())


def copied(home: Path, input_: str = "orders") -> pl.DataFrame:
    return pl.read_parquet(home / f"dataframes/shop/{input_}/*.parquet")


def shop(home: Path, orders: DataFrame, schema: Any = None, event_time: str | None = None) -> hr.App:
    """An app that passes on what it reads."""
    app = hr.App("shop", home=home)
    read = app.input("orders", schema, event_time=event_time, system=hr.io.dataframe(orders, partitions=2))
    read.send_to(app.output("passed", system=hr.io.files(home / "passed")))
    return app


def run(app: hr.App) -> None:
    app.run(local=True, progress=False)


def passed(home: Path) -> pl.DataFrame:
    return pl.read_parquet(home / "passed/*.parquet")


def test_an_app_on_spark_reads_a_dataframe_in_the_order_of_its_event_time(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many files, which are dealt to partitions: no row is late."""
    monkeypatch.setattr(dataframes, "FILE_ROWS_MAX", 150)
    orders = session.range(2000).selectExpr(
        "id % 3 AS member", "timestamp_millis((id * 7919) % 2000 * 1000) AS ts", "uuid() AS unused"
    )
    app = hr.App("shop", home=tmp_path)
    columns = {"member": pl.Int64, "ts": pl.Datetime("ms", "UTC")}
    read = app.input("orders", columns, event_time="ts", system=hr.io.dataframe(orders, partitions=2))
    counts = read.partition_by("member", id="by-member", partitions=2).window(
        hr.tumbling("100s"), key="member", id="per-100s"
    )
    counts.agg(n=pl.len()).send_to(app.output("counts", system=hr.io.files(tmp_path / "counts")))
    app.run(progress=False)
    found = pl.read_parquet(tmp_path / "counts/*.parquet").sort("window_start", "member")
    expected = (
        pl.DataFrame({"id": range(2000)})
        .select(member=pl.col("id") % 3, start=pl.col("id") * 7919 % 2000 // 100 * 100)
        .group_by("start", "member")
        .agg(n=pl.len())
        .sort("start", "member")
    )
    assert found["n"].to_list() == expected["n"].to_list()
    assert found["n"].sum() == 2000
    copy = copied(tmp_path)
    assert copy.schema == {"member": pl.Int64, "ts": pl.Datetime("us", "UTC")}
    assert copy["ts"].is_sorted()
    assert len(list((tmp_path / "dataframes/shop/orders").glob("*.parquet"))) > 10
    assert session.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"


EVERY_TYPE = """
    CAST(1 AS tinyint) AS i8, CAST(2 AS smallint) AS i16, 3 AS i32, 4L AS i64, CAST(1.5 AS float) AS f, 2.5D AS d,
    true AS b, 'Höhe' AS text, CAST('ab' AS binary) AS bytes, CAST(1.25 AS decimal(38, 10)) AS wide,
    CAST(1.25 AS decimal(5, 2)) AS narrow, date'1500-01-01' AS day, timestamp'1500-01-01 00:00:00 UTC' AS instant,
    timestamp_ntz'2026-01-01 00:00:00.123456' AS clock, CAST(NULL AS string) AS nothing, array(1, NULL) AS list,
    map('a', 1) AS map, struct(1 AS x, array(timestamp'2026-01-01 00:00:00 UTC') AS y) AS nested, 5 AS `odd.name ``x`
"""


def test_every_type_arrives_as_the_table_in_the_documents_says(tmp_path: Path, session: SparkSession) -> None:
    everything = session.sql(f"SELECT {EVERY_TYPE}")
    run(shop(tmp_path, everything))
    found = passed(tmp_path)
    assert found.schema == columns_of(everything.schema.jsonValue())
    row = found.row(0, named=True)
    assert row == {
        "i8": 1,
        "i16": 2,
        "i32": 3,
        "i64": 4,
        "f": 1.5,
        "d": 2.5,
        "b": True,
        "text": "Höhe",
        "bytes": b"ab",
        "wide": Decimal("1.25"),
        "narrow": Decimal("1.25"),
        "day": date(1500, 1, 1),
        "instant": datetime(1500, 1, 1, tzinfo=UTC),
        "clock": datetime(2026, 1, 1, 0, 0, 0, 123456),
        "nothing": None,
        "list": [1, None],
        "map": [{"key": "a", "value": 1}],
        "nested": {"x": 1, "y": [datetime(2026, 1, 1, tzinfo=UTC)]},
        "odd.name `x": 5,
    }


def test_declaring_planning_and_testing_run_no_job(tmp_path: Path, session: SparkSession) -> None:
    orders = session.sql("SELECT id AS n FROM range(10)")
    before = jobs(session)
    app = shop(tmp_path, orders, {"n": pl.Int64})
    assert app.plan().streams["orders"].partitions == 2
    spec = app.graph().streams["orders"]
    assert dataframe_of(spec) is orders
    assert dataframe_of(app.graph().streams["passed"]) is None
    with app.test() as t:
        t.end()
    assert jobs(session) == before
    assert list(tmp_path.iterdir()) == []


def test_a_restart_takes_the_copy_that_is_there(tmp_path: Path, session: SparkSession) -> None:
    run(shop(tmp_path, session.sql("SELECT id AS n, id AS m FROM range(10)")))
    before = jobs(session)
    run(shop(tmp_path, session.sql("SELECT id AS n FROM range(99)")))
    assert jobs(session) == before
    assert sorted(passed(tmp_path)["n"]) == list(range(10))
    with pytest.raises(DeploymentError, match=r"'n' was i64 and is str; 'more' \(\w+\) is new"):
        run(shop(tmp_path, session.sql("SELECT 'x' AS n, 1 AS more")))


def test_a_dataframe_without_rows_is_no_error(tmp_path: Path, session: SparkSession) -> None:
    run(shop(tmp_path, session.createDataFrame([], "member string, n long")))
    assert copied(tmp_path).schema == {"member": pl.String, "n": pl.Int64}
    assert copied(tmp_path).is_empty()


def test_a_dataframe_that_spark_cannot_compute_leaves_nothing(tmp_path: Path, session: SparkSession) -> None:
    orders = session.sql("SELECT IF(id < 5, id, raise_error('this order is broken')) AS n FROM range(10)")
    with pytest.raises(InfrastructureError, match=r"couldn't copy the DataFrame of input 'orders' .*broken") as found:
        run(shop(tmp_path, orders, {"n": pl.Int64}))
    assert found.value.hint
    assert [path.name for path in (tmp_path / "dataframes/shop").iterdir()] == [".orders.lock"]
    run(shop(tmp_path, session.sql("SELECT id AS n FROM range(3)")))
    assert sorted(passed(tmp_path)["n"]) == [0, 1, 2]


def test_a_session_that_has_been_stopped_is_named(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = shop(tmp_path, session.sql("SELECT 1 AS n"))
    with monkeypatch.context() as patch:
        patch.setattr(session.sparkContext, "_jsc", None)  # as ``stop`` leaves it, but others need this session
        with pytest.raises(
            UsageError, match=r"the Spark session of the DataFrame of input 'orders' .* stopped"
        ) as found:
            run(app)
    assert found.value.hint
    run(app)
    assert passed(tmp_path)["n"].to_list() == [1]


def test_ctrl_c_cancels_the_copy(tmp_path: Path, session: SparkSession) -> None:
    """The first one, on the main thread, while an executor is at work."""
    slow = session.sql("SELECT reflect('java.lang.Thread', 'sleep', 600000L) AS n FROM range(2)")
    tracker = session.sparkContext.statusTracker()

    def interrupt() -> None:
        until(lambda: bool(tracker.getActiveStageIds()), "a stage runs", PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)

    with Interrupts() as interrupts:
        thread = threading.Thread(target=interrupt, name="interrupt")
        thread.start()
        assert not copy_dataframes([shop(tmp_path, slow).graph().streams["orders"]], interrupts)
        thread.join()
    assert interrupts.requested
    assert [path.name for path in (tmp_path / "dataframes/shop").iterdir()] == [".orders.lock"]
    assert session.range(3).count() == 3


def test_tables_are_filled_by_dataframes(tmp_path: Path, session: SparkSession) -> None:
    """A global one as a side input, before anything is joined, and a local one by keys."""
    members = session.sql("SELECT id AS member, concat('m', id) AS name FROM range(100)")
    orders = session.sql("SELECT id % 120 AS member, id AS n FROM range(240)")
    app = hr.App("shop", home=tmp_path)
    side = app.input("members", system=hr.io.dataframe(members))
    everyone = app.table("everyone", key="member", side_inputs=[side], kind="global")
    bought = app.input("orders", system=hr.io.dataframe(orders, partitions=2)).join(everyone)
    bought.send_to(app.output("bought", system=hr.io.files(tmp_path / "bought")))
    by_member = app.table("by-member", key="member", schema={"member": pl.Int64, "name": pl.String})
    again = app.input("again", system=hr.io.dataframe(members))
    again.partition_by("member", id="again-by-member").send_to(by_member)
    run(app)
    found = pl.read_parquet(tmp_path / "bought/*.parquet").sort("n")
    assert found["n"].to_list() == [n for n in range(240) if n % 120 < 100]
    assert found["name"].to_list() == [f"m{n % 120}" for n in range(240) if n % 120 < 100]
    assert copied(tmp_path, "again").height == 100


def test_rows_of_a_key_are_where_partition_by_would_send_them(tmp_path: Path, session: SparkSession) -> None:
    """So a local table finds each row, and it is full before anything is joined with it."""
    kinds = "concat('member ', id) AS name, make_date(2026, 1, 1 + id) AS day, CAST(id AS decimal(9, 2)) AS euros"
    instants = "timestamp_seconds(id * 86400) AS ts, CAST(id AS smallint) AS n"
    members = session.sql(f"SELECT {kinds}, {instants}, id * 2 AS value FROM range(30)")
    key = ["name", "day", "euros", "ts", "n"]
    app = hr.App("shop", home=tmp_path)
    side = app.input("members", system=hr.io.dataframe(members, partitions=5, key=key))
    table = app.table("by-all", key=key, side_inputs=[side])
    orders = app.input("orders", system=hr.io.dataframe(members.drop("value"), partitions=1))
    joined = orders.partition_by(key, id="by-key", partitions=5).join(table)
    joined.send_to(app.output("found", system=hr.io.files(tmp_path / "found")))
    run(app)
    assert sorted(pl.read_parquet(tmp_path / "found/*.parquet")["value"]) == list(range(0, 60, 2))
    assert len(list((tmp_path / "dataframes/shop/members").glob("*.parquet"))) == 5


def test_keys_that_cannot_be(session: SparkSession) -> None:
    rows = session.sql("SELECT 1 AS n, array(1) AS list")
    with pytest.raises(DeclarationError, match="dataframe: there is no column 'm' in the DataFrame"):
        hr.io.dataframe(rows, key=["n", "m"])
    with pytest.raises(DeclarationError, match="list"):
        hr.io.dataframe(rows, key="list")


def test_sessions_that_cannot_do_it(session: SparkSession) -> None:
    streaming = session.readStream.format("rate").load()
    with pytest.raises(DeclarationError, match=r"dataframe: a streaming DataFrame never ends"):
        hr.io.dataframe(streaming)
    with pytest.raises(DeclarationError, match="type interval day"):
        hr.io.dataframe(session.sql("SELECT interval '1' day AS x"))

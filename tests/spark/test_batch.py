"""An app as a Spark batch job: the same results as live, computed once, published once."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import batch_apps
import polars as pl
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import headrace as hr
from headrace.core.errors import DataError, HeadraceError, PlanError, UsageError
from headrace.systems.log.partition import PartitionFile
from headrace.systems.log.segment import FILE_HEADER_SIZE
from headrace.systems.log.system import Gap, GapKind, inspect_stream, repair_stream

ORDERS = {"id": pl.Int64(), "euros": pl.Float64(), "ts": pl.Int64()}


def sums(home: Path, **more: object) -> hr.App:
    app = hr.App("sums", home=home)
    orders = app.input("orders", ORDERS, event_time="ts", **more)  # type: ignore[arg-type]
    per_minute = orders.filter(pl.col("euros") > 1).partition_by("id", id="by-id", partitions=2)
    totals = per_minute.window(hr.tumbling("1m"), key="id", id="per-minute").agg(euros=hr.sum("euros"))
    totals.send_to(app.output("totals"))
    return app


def write_orders(home: Path, numbers: range, *, seal: bool = False) -> None:
    hr.streams.create_stream("orders", 2, ORDERS, home=home)
    with hr.streams.StreamWriter("orders", key="id", home=home) as writer:
        writer.write([{"id": n % 3, "euros": float(n), "ts": 1_700_000_000_000 + 1000 * n} for n in numbers])
        if seal:
            writer.seal()


def test_a_batch_gives_what_a_live_run_gives_though_a_worker_is_killed(
    tmp_path: Path, spark_context: SparkContext
) -> None:
    live, batch = tmp_path / "live", tmp_path / "batch"
    for home in (live, batch):
        batch_apps.write_history(home, 600)
    batch_apps.declare(live).run(local=True, progress=False)
    killed = tmp_path / "killed"
    batch_apps.declare(batch, poison=killed).run(batch=True, progress=False)
    assert killed.exists()
    expected, found = batch_apps.results(live), batch_apps.results(batch)
    # What depends on the order of arrival is as if all messages had come in order of event time.
    expected |= {"seldom": batch_apps.seldom(batch), "away": batch_apps.away(batch)}
    assert found.keys() == expected.keys()
    for output in expected:
        assert found[output] == expected[output], output


def test_a_run_is_published_once_and_continued_where_it_stopped(
    tmp_path: Path, spark_context: SparkContext, capsys: pytest.CaptureFixture[str]
) -> None:
    batch_apps.write_history(tmp_path, 200)
    app = batch_apps.declare(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "counts").write_text("in the way")
    with pytest.raises(HeadraceError) as failed:
        app.run(batch=True)
    assert "then run it again: it continues to publish the computed results" in str(failed.value.hint)
    (tmp_path / "out" / "counts").unlink()
    (tmp_path / "views-0.parquet").unlink()  # nothing is computed a second time
    capsys.readouterr()
    app.run(batch=True)
    assert "run 1 of history is computed already; publishing the rest of it" in capsys.readouterr().err
    once = batch_apps.results(tmp_path)
    assert len(once["teams-then"]) == 200
    with pytest.raises(UsageError, match="has published a batch run already"):
        app.run(batch=True)
    app.run(batch=True, again=True, progress=False)
    again = batch_apps.results(tmp_path)
    assert len(again["teams-then"]) == 200 + 100  # one of the two files is gone


def test_what_a_live_run_has_published_is_not_published_again(tmp_path: Path, spark_context: SparkContext) -> None:
    write_orders(tmp_path, range(10), seal=True)
    sums(tmp_path).run(local=True, progress=False)
    once = hr.streams.read_stream("totals", home=tmp_path)
    with pytest.raises(UsageError, match="has run live in this home, so its results would appear twice"):
        sums(tmp_path).run(batch=True)
    assert hr.streams.read_stream("totals", home=tmp_path).equals(once)
    sums(tmp_path).run(batch=True, again=True, progress=False)
    assert hr.streams.read_stream("totals", home=tmp_path).height == 2 * once.height


def test_a_stream_is_read_up_to_where_one_says_whatever_startpoint_waits(
    tmp_path: Path, spark_context: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    write_orders(tmp_path, range(2, 60))
    app = sums(tmp_path)
    session = SparkSession(spark_context)
    with pytest.raises(PlanError, match="doesn't end, so neither would a batch job"):
        app.to_dataframe("totals", session)
    frame = app.to_dataframe("totals", session, until="now")
    hr.startpoints.open_startpoints(app).set("orders", hr.startpoints.upcoming(), partition=0)
    write_orders(tmp_path, range(1000, 1100))
    assert frame.schema.simpleString() == "struct<id:bigint,window_start:bigint,window_end:bigint,euros:double>"
    assert sum(row["euros"] for row in frame.collect()) == sum(range(2, 60))
    with caplog.at_level("WARNING"):
        app.run(batch=True, until="now", progress=False)
    assert any("a batch job doesn't apply a startpoint" in said for said in caplog.messages)
    assert [state.state for state in hr.startpoints.open_startpoints(app).list()] == ["pending"]
    totals = hr.streams.read_stream("totals", home=tmp_path)
    assert totals["euros"].sum() == sum(range(2, 60)) + sum(range(1000, 1100))
    write_orders(tmp_path, range(60, 70), seal=True)
    sealed = app.to_dataframe("totals", session)
    assert sum(row["euros"] for row in sealed.collect()) == sum(range(2, 70)) + sum(range(1000, 1100))
    with pytest.raises(UsageError, match="the app has no output 'total'"):
        app.to_dataframe("total", session, until="now")
    with pytest.raises(UsageError, match="neither 'now' nor a time"):
        app.to_dataframe("totals", session, until="yesterday")


def test_a_dataframe_is_an_input_and_spark_skips_what_no_step_wants(
    tmp_path: Path, spark_context: SparkContext
) -> None:
    session = SparkSession(spark_context)
    rows = [(n % 3, float(n % 5), 1_700_000_000_000 + 1000 * n) for n in range(100)]
    session.createDataFrame(rows, "id long, euros double, ts long").write.parquet(str(tmp_path / "orders"))
    orders = session.read.parquet(str(tmp_path / "orders"))
    frame = sums(tmp_path, system=hr.io.dataframe(orders)).to_dataframe("totals", session)
    assert "nanvl(euros" in str(frame._jdf.queryExecution().optimizedPlan())
    assert sum(row["euros"] for row in frame.collect()) == sum(euros for _, euros, _ in rows if euros > 1)


@pytest.mark.parametrize("shuffled", [True, False])
def test_what_is_set_aside_is_counted_and_said(
    tmp_path: Path, spark_context: SparkContext, capsys: pytest.CaptureFixture[str], shuffled: bool
) -> None:
    times = [1_700_000_000_000, None, 1_700_000_001_000, None]
    rows = pl.DataFrame({"id": [1, 2, 3, 4], "euros": [2.0, 3.0, 4.0, 5.0], "ts": times})
    rows.write_parquet(tmp_path / "orders.parquet")
    files = hr.io.files(str(tmp_path / "orders.parquet"))
    if shuffled:
        sums(tmp_path, system=files, on_error="skip").run(batch=True)
    else:
        app = hr.App("direct", home=tmp_path)
        orders = app.input("orders", ORDERS, event_time="ts", system=files, on_error="skip")
        orders.window(hr.tumbling("1m"), key="id", id="w").agg(n=hr.count()).send_to(app.output("direct"))
        app.run(batch=True)
    assert "of the messages, 2 skipped\n" in capsys.readouterr().err


def test_an_error_in_a_worker_is_the_users_to_read(tmp_path: Path, spark_context: SparkContext) -> None:
    pl.DataFrame({"id": [1], "euros": ["many"], "ts": [1]}).write_parquet(tmp_path / "orders.parquet")
    app = sums(tmp_path, system=hr.io.files(str(tmp_path / "orders.parquet")))
    with pytest.raises(DataError, match="column 'euros' should be Float64, found 'many'") as raised:
        app.run(batch=True, progress=False)
    assert raised.value.hint == 'fix the input, or set on_error="skip" or "dead_letter" to set such rows aside'


def test_a_batch_misses_committed_rows_that_are_gone(tmp_path: Path, spark_context: SparkContext) -> None:
    write_orders(tmp_path, range(100), seal=True)
    sums(tmp_path).run(local=True, progress=False)
    found = inspect_stream(tmp_path / "streams", "totals")
    with closing(PartitionFile(tmp_path / "streams/totals/p00000.log", "totals")) as file:
        first = Gap(FILE_HEADER_SIZE, file.next_record(FILE_HEADER_SIZE + 1, file.size()), GapKind.DAMAGED)
    repair_stream(tmp_path / "streams", replace(found, partitions=(replace(found.partitions[0], gaps=(first,)),)))
    app = hr.App("reading", home=tmp_path)
    app.input("totals", {"id": pl.Int64(), "euros": pl.Float64()}).send_to(app.output("again"))
    with pytest.raises(HeadraceError, match="frames are missing"):
        app.run(batch=True, until="now", progress=False)

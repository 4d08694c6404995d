"""From history to live: a Spark job computes the state, and a live run goes on from it as if it had read everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import cast

import backfill_program
import polars as pl
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import headrace as hr
from headrace.core.errors import HeadraceError, PlanError, UsageError
from headrace.life.metadata import open_metadata
from headrace.run.savepoints.restoring import Restoring, restore
from running_apps import find_all, wait_until

VIEWS = {"id": pl.Int64(), "member": pl.String(), "ts": pl.Int64()}
START_MS = 1_700_000_000_000
APP = "visits"


def view(n: int) -> dict[str, object]:
    """One each 400 ms, in some disorder: windows of a minute have 150."""
    return {"id": n, "member": f"m{n * 7 % 5}", "ts": START_MS + 400 * n + (n * 1103 % 11 - 5) * 1000}


def declare(home: Path, poison: Path | None = None, without: str = "") -> hr.App:
    """``poison``: the first worker that sees a certain message dies, and leaves this file.

    ``without``: a member whose views aren't counted, as in a version of the app that is wrong.
    """

    def deadly(frame: pl.DataFrame) -> pl.DataFrame:
        if poison is not None and frame["id"].is_in([77]).any() and not poison.exists():
            poison.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return frame

    app = hr.App(APP, home=home)
    views = app.input("views", VIEWS, event_time="ts", lateness="20s")
    counted = views.map_batches(deadly, VIEWS).filter(pl.col("member") != without)
    by_member = counted.partition_by("member", id="by-member", partitions=2)
    counts = by_member.window(hr.tumbling("1m"), key="member", id="per-minute").agg(n=hr.count(), ids=hr.sum("id"))
    counts.send_to(app.output("counts"))
    counts.partition_by("n", id="by-n", partitions=2).window(hr.tumbling("3m"), key="n", id="per-3m").agg(
        times=hr.count()
    ).send_to(app.output("busy"))
    views.select("id").send_to(app.output("seen"))
    return app


def write_views(home: Path, numbers: range, *, seal: bool = False) -> None:
    hr.streams.create_stream("views", 2, VIEWS, home=home)
    with hr.streams.StreamWriter("views", key="member", home=home) as writer:
        for first in range(numbers.start, numbers.stop, 50):
            writer.write([view(n) for n in range(first, min(first + 50, numbers.stop))])
        if seal:
            writer.seal()


def results(home: Path) -> dict[str, list[tuple[object, ...]]]:
    found = {}
    for name in ("busy", "counts", "seen"):
        rows = hr.streams.read_stream(name, home=home, committed=True)
        found[name] = sorted(rows.select(sorted(rows.columns)).rows())
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[object, ...]]]:
    """The results of a live run from the beginning."""
    home = tmp_path_factory.mktemp("live")
    write_views(home, range(1000), seal=True)
    declare(home).run(local=True, progress=False)
    return results(home)


def test_a_run_goes_on_from_a_backfill_though_a_worker_was_killed(
    tmp_path: Path, spark_context: SparkContext, expected: object, capsys: pytest.CaptureFixture[str]
) -> None:
    write_views(tmp_path, range(600))
    killed = tmp_path / "killed"
    declare(tmp_path, killed).backfill("now")
    assert killed.exists()
    assert "made savepoint backfill of visits, with event time at 2023-11-14 22:1" in capsys.readouterr().err
    history = results(tmp_path)
    assert len(history["seen"]) == 600
    assert len(history["counts"]) == 20  # four minutes of five are over
    write_views(tmp_path, range(600, 1000), seal=True)
    declare(tmp_path).run(backfill=True, until="now", local=True, progress=False)
    assert results(tmp_path) == expected


def test_a_sealed_stream_is_history_to_its_end(tmp_path: Path, spark_context: SparkContext, expected: object) -> None:
    write_views(tmp_path, range(1000), seal=True)
    run = declare(tmp_path).start(backfill=True, until="now", local=True, progress=False)
    assert run.wait(timeout="100s").state == "finished"
    assert results(tmp_path) == expected


def test_history_comes_from_a_table_and_the_rest_from_the_stream(
    tmp_path: Path, spark_context: SparkContext, expected: object
) -> None:
    session = SparkSession(spark_context)
    rows = [tuple(view(n).values()) for n in range(700)]
    session.createDataFrame(rows, "id long, member string, ts long").write.parquet(str(tmp_path / "archive"))
    write_views(tmp_path, range(300, 1000), seal=True)  # what is older has left the stream
    app = declare(tmp_path)
    until = str(START_MS + 400 * 600)
    tables = {"views": f"parquet:{tmp_path / 'archive'}"}
    app.run(backfill=True, until=until, tables=tables, local=True, progress=False)
    assert results(tmp_path) == expected


def test_a_backfill_that_died_goes_on_where_it_stopped(
    tmp_path: Path, spark_context: SparkContext, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.spark.batch import handover

    write_views(tmp_path, range(600))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(handover, "save", die)
        with pytest.raises(KeyboardInterrupt):
            declare(tmp_path).backfill("now", progress=False)
    published = results(tmp_path)
    with pytest.raises(UsageError, match="is computed and not yet published: a batch run can't begin before that"):
        declare(tmp_path).run(batch=True, until="now", progress=False)
    write_views(tmp_path, range(600, 1000), seal=True)
    declare(tmp_path).run(backfill=True, until="now", local=True, progress=False)
    assert results(tmp_path) == expected
    assert all(set(rows) <= set(results(tmp_path)[name]) for name, rows in published.items())


def test_an_app_that_runs_is_backfilled_without_publishing_and_restored(
    tmp_path: Path, spark_context: SparkContext
) -> None:
    write_views(tmp_path, range(1000), seal=True)
    declare(tmp_path).run(local=True, progress=False)
    once = results(tmp_path)
    with pytest.raises(UsageError, match="has run in this home, so its results would appear twice"):
        declare(tmp_path).backfill("now", progress=False)
    with pytest.raises(UsageError, match="has run in this home, so its history isn't computed again"):
        declare(tmp_path).run(backfill=True, until="now", local=True, progress=False)
    app = declare(tmp_path)
    app.backfill(str(START_MS + 100_000_000), savepoint="anew", publish=False, progress=False)
    assert results(tmp_path) == once
    assert hr.read_savepoint(app, "anew").app == APP
    with pytest.raises(UsageError, match="has a savepoint 'anew' already"):
        app.backfill("now", savepoint="anew", publish=False, progress=False)


def run_to_the_end_of_what_is_there(app: hr.App, home: Path, views: int, savepoint: str) -> None:
    """Run until all views are through and committed; then drain, with a savepoint."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            app.run(local=True, progress=False, savepoint=savepoint)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="app")
    thread.start()
    wait_until(lambda: find_all(home, APP) and seen(home) == views, errors, 3000)
    client = find_all(home, APP)[0].client()
    client.drain()
    client.close()
    thread.join(60)
    assert not thread.is_alive()
    assert errors == []


def seen(home: Path) -> int:
    try:
        return hr.streams.read_stream("seen", home=home, committed=True).height
    except HeadraceError:
        return 0


def test_a_wrong_version_is_replaced_by_a_right_one_whose_state_was_computed_beside_it(
    tmp_path: Path, spark_context: SparkContext, expected: dict[str, list[tuple[object, ...]]]
) -> None:
    write_views(tmp_path, range(500))
    run_to_the_end_of_what_is_there(declare(tmp_path, without="m0"), tmp_path, 500, "first")
    declare(tmp_path).backfill("now", savepoint="right", publish=False, progress=False)
    write_views(tmp_path, range(500, 600))
    run_to_the_end_of_what_is_there(declare(tmp_path, without="m0"), tmp_path, 600, "second")
    with closing(open_metadata(tmp_path, None)) as metadata:
        restore(Restoring(home=tmp_path, app=APP, metadata=metadata, name="right", outputs="silent"))
    write_views(tmp_path, range(600, 1000), seal=True)
    declare(tmp_path).run(local=True, progress=False)
    found = results(tmp_path)
    assert found["seen"] == expected["seen"]
    open_then = START_MS + 600 * 400 - 20_000
    wanted = [row for row in expected["counts"] if cast("int", row[3]) > open_then or row[1] != "m0"]
    assert found["counts"] == wanted


def test_what_cannot_be_backfilled_is_refused(tmp_path: Path, spark_context: SparkContext) -> None:
    write_views(tmp_path, range(10))
    app = declare(tmp_path)
    with pytest.raises(UsageError, match="needs the time up to which inputs are history"):
        app.run(backfill=True)
    points = hr.startpoints.open_startpoints(app)
    points.set("views", hr.startpoints.upcoming(), partition=0)
    with pytest.raises(UsageError, match=r"(?s)has startpoints, which would .*upcoming for log\.views"):
        app.run(backfill=True, until="now")
    points.delete("views")
    with pytest.raises(UsageError, match=r"2100-01-01 00:00:00Z is in the future"):
        app.backfill("2100-01-01T00:00Z", progress=False)
    with pytest.raises(UsageError, match="'clicks' isn't an input of app 'visits'"):
        app.backfill("now", tables={"clicks": "db.clicks"}, progress=False)
    with pytest.raises(UsageError, match=r"Spark can't read 'nowhere.views', the history of input 'views'"):
        app.backfill("now", tables={"views": "nowhere.views"}, progress=False)
    frame = SparkSession(spark_context).createDataFrame([(1, "m")], "id long, who string")
    with pytest.raises(UsageError, match=r"the table for input 'views' .* has no column 'member'"):
        app.backfill("now", tables={"views": frame}, progress=False)
    direct = hr.App("direct", home=tmp_path)
    views = direct.input("views", VIEWS, key="member", event_time="ts")
    views.window(hr.tumbling("1m"), key="member", id="w").agg(n=hr.count()).send_to(direct.output("direct"))
    with pytest.raises(PlanError, match="keeps state for each of its partitions, but a table has no partitions"):
        direct.backfill("now", tables={"views": frame}, progress=False)


@pytest.mark.soak  # a killed worker, above, has Spark compute again, too
def test_an_executor_may_be_killed(tmp_path: Path, expected: dict[str, list[tuple[object, ...]]]) -> None:
    write_views(tmp_path, range(600))
    program = Path(backfill_program.__file__)
    environment = os.environ | {"PYTHONPATH": str(Path(hr.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert "ExecutorLostFailure" in done.stderr or "Lost executor" in done.stderr, done.stderr
    write_views(tmp_path, range(600, 1000), seal=True)
    backfill_program.declare(tmp_path).run(backfill=True, until="now", local=True, progress=False)
    rows = hr.streams.read_stream("counts", home=tmp_path, committed=True)
    assert sorted(rows.select(sorted(rows.columns)).rows()) == expected["counts"]

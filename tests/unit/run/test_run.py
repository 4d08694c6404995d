"""Runs that go on beside the code that has started them: how they end, what they show, and who is refused."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import PlanError, UnavailableError, UsageError, UserFunctionError
from headrace.run import run as module

NUMBERS = {"n": pl.Int64}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    hr.streams.create_stream("numbers", 1, NUMBERS, home=tmp_path)
    return tmp_path


def write(home: Path, *numbers: int, seal: bool = False) -> None:
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        writer.write([{"n": n} for n in numbers])
        if seal:
            writer.seal()


def copies(home: Path, *, interval: str = "100ms", hung_after: str = "10m") -> hr.App:
    app = hr.App("copies", home=home, checkpoint_interval=interval, hung_after=hung_after)
    app.input("numbers", NUMBERS).send_to(app.output("copied"))
    return app


def copied(home: Path) -> list[int]:
    return sorted(hr.streams.read_stream("copied", home=home)["n"].to_list())


def until_read(run: hr.runs.Run, messages: int) -> None:
    """Wait until the run has read so many messages."""
    never = threading.Event()
    for _ in range(6000):
        found = run.metrics()
        if not found.is_empty():
            read = found.filter(pl.col("name") == "headrace_task_messages_in_total")
            if read["value"].sum() >= messages:
                return
        never.wait(0.01)
    raise AssertionError(f"it didn't come to that: {run!r}")


def test_a_run_goes_on_beside_until_its_inputs_have_ended(home: Path) -> None:
    run = copies(home).start(local=True, progress=False)
    assert hr.runs.running() == [run]
    assert run.wait(timeout="0s").state in ("starting", "running")
    write(home, 1, 2, seal=True)
    status = run.wait(timeout="60s")
    assert (status.state, status.error, run.app) == ("finished", None, "copies")
    assert copied(home) == [1, 2]
    assert hr.runs.running() == []
    assert run.drain().state == run.stop().state == run.status().state == "finished"
    assert str(run.status()) == "copies finished  0 msg/s  numbers done"
    assert repr(run) == "Run(copies finished  0 msg/s  numbers done)"
    assert run.status().to_dict()["state"] == "finished"
    read = run.metrics().filter(pl.col("name") == "headrace_input_messages_total")
    assert read.select("stage", "input", "value").rows() == [("numbers", "log.numbers", 2.0)]


def test_a_block_drains_at_its_end(home: Path) -> None:
    write(home, 1, 2)
    with copies(home, interval="1d").start(local=True, progress=False) as run:  # only a drain commits
        until_read(run, 2)
        assert copied(home) == []
    assert copied(home) == [1, 2]
    assert "copies</b> drained" in run._repr_html_()


def test_an_exception_in_a_block_stops_at_once_and_the_next_run_repeats(home: Path) -> None:
    write(home, 1, 2)
    with (
        pytest.raises(ZeroDivisionError),
        copies(home, interval="1d").start(local=True, progress=False) as run,
    ):
        until_read(run, 2)
        _ = 1 / 0
    assert run.status().state == "stopped"
    assert copied(home) == []
    with copies(home, interval="1d").start(local=True, progress=False) as run:
        until_read(run, 2)
    assert copied(home) == [1, 2]


def test_what_keeps_an_app_from_running_is_raised_at_once(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="numbers"):
        copies(tmp_path).start(local=True, progress=False)
    assert hr.runs.running() == []


def test_what_makes_it_fail_is_raised_by_who_waits_and_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = hr.App("copies", home=home)
    app.input("numbers", NUMBERS).map(lambda row: {"n": row["n"] // 0}, schema=NUMBERS).send_to(app.output("copied"))
    write(home, 1)
    run = app.start(local=True)
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        run.wait(timeout="60s")
    with pytest.raises(UserFunctionError), run:
        pass
    status = run.status()
    assert status.state == "failed"
    assert isinstance(status.error, UserFunctionError)
    assert "ZeroDivisionError" in str(status)
    assert "ZeroDivisionError" in status._repr_html_()
    assert "copies failed: " in capsys.readouterr().err


def test_an_app_that_runs_here_is_named_and_can_be_replaced(home: Path) -> None:
    write(home, 1)
    first = copies(home, interval="1d").start(local=True, progress=False)
    until_read(first, 1)
    again = copies(home)  # as when a cell is executed again
    with pytest.raises(UsageError, match=r"already running in this process, since .*copies running"):
        again.start(local=True, progress=False)
    with pytest.raises(UsageError, match="already running in this process"):
        again.run(local=True, progress=False)
    second = again.start(local=True, progress=False, replace=True)
    assert first.status().state == "finished"  # it was drained
    assert copied(home) == [1]
    assert hr.runs.running() == [second]
    second.stop()


def test_a_run_that_is_dropped_can_be_found(home: Path) -> None:
    copies(home).start(local=True, progress=False)
    (run,) = hr.runs.running()
    assert run.drain().state == "finished"


def test_a_savepoint_is_taken_while_it_runs(home: Path) -> None:
    write(home, 1, 2)
    run = copies(home).start(local=True, progress=False)
    until_read(run, 2)
    run.savepoint("half-way")
    run.drain()
    assert (home / "savepoints" / "copies" / "half-way").is_dir()
    with pytest.raises(UsageError, match="app 'copies' isn't running"):
        run.savepoint("late")


def test_a_run_continues_from_a_savepoint_that_is_restored_here(home: Path) -> None:
    write(home, 1, 2)
    first = copies(home).start(local=True, progress=False)
    until_read(first, 2)
    first.savepoint("half-way")
    write(home, 3, seal=True)
    with pytest.raises(UsageError, match="app 'copies' is running"):
        hr.restore_savepoint(copies(home), "half-way")
    first.wait()
    with pytest.raises(UsageError, match="no savepoint 'late'"):
        hr.restore_savepoint(copies(home), "late")
    with pytest.raises(UsageError, match="expected 'again' or 'silent'"):
        hr.restore_savepoint(copies(home), "half-way", outputs="twice")  # type: ignore[arg-type]
    hr.restore_savepoint(copies(home), "half-way")
    again = copies(home).start(local=True, progress=False, savepoint="end")
    again.wait()
    assert copied(home) == [1, 2, 3, 3]
    assert (home / "savepoints" / "copies" / "end").is_dir()


def test_start_takes_what_run_takes_but_for_batch_jobs(home: Path) -> None:
    run, start = (inspect.signature(method).parameters for method in (hr.App.run, hr.App.start))
    assert run.keys() - start.keys() == {"batch", "again"}
    assert start.keys() - run.keys() == {"replace"}
    assert {name: one.default for name, one in start.items() if name in run} == {
        name: one.default for name, one in run.items() if name in start
    }
    with pytest.raises(UsageError, match="until= is for batch jobs"):
        copies(home).start(local=True, until="now")
    with pytest.raises(UsageError, match="a backfill needs the time up to which inputs are history"):
        copies(home).start(local=True, backfill=True)


@pytest.mark.parametrize("hung_after", ["10m", "200ms"])
def test_a_function_that_does_not_return_is_named(home: Path, hung_after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STUCK_S", 0.0)
    called, free = threading.Event(), threading.Event()

    def slow(row: object) -> dict[str, int]:
        called.set()
        free.wait(60)
        return {"n": 0}

    app = hr.App("copies", home=home, hung_after=hung_after)
    app.input("numbers", NUMBERS).map(slow, schema=NUMBERS).send_to(app.output("copied"))
    write(home, 1)
    run = app.start(local=True, progress=False)
    try:
        assert called.wait(60)
        if hung_after == "10m":
            with pytest.raises(UnavailableError, match="app 'copies' didn't stop within 0s"):
                run.stop(timeout="0s")
        else:
            with pytest.raises(UserFunctionError, match="in one call for more than 200ms"):
                run.wait(timeout="60s")
            assert run in hr.runs.running()
    finally:
        free.set()
    assert run.stop().state in ("stopped", "failed")
    assert hr.runs.running() == []


def test_spark_connect_is_refused_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    for begin in (copies(home).start, copies(home).run):
        with pytest.raises(UsageError, match="through Spark Connect, which has no SparkContext"):
            begin()
    assert copies(home).start(local=True, progress=False).drain().state == "finished"


PROGRAM = """
import sys
import headrace as hr
sys.path.append({tests!r})
from test_run import copies, until_read
run = copies({home!r}, interval="1d").start(local=True, progress=False)
until_read(run, 2)
"""


def test_the_end_of_the_interpreter_drains(home: Path) -> None:
    write(home, 1, 2)
    program = PROGRAM.format(tests=str(Path(__file__).parent), home=str(home))
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert copied(home) == [1, 2]

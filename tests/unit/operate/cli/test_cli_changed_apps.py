"""An app that is changed between two runs, on the command line: what plan shows, what run refuses, and the flags."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

PIPELINE = """
import polars as pl
import headrace as hr

app = hr.App("counts")
views = app.input(
    "views",
    {{"member": pl.String, "ts": pl.Int64}},
    event_time="ts",
    system=hr.io.files("in/*.jsonl", new_files={new_files!r}),
)
counts = views.partition_by("member", id="p").window({shape}, key="member", id={id!r}).agg(n={aggregate})
counts.select("member", "n").send_to(app.output("out"))
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., None]:
    def write(
        shape: str = 'hr.tumbling("10s")', id: str = "w", aggregate: str = "pl.len()", new_files: str = "next_run"
    ) -> None:
        code = PIPELINE.format(shape=shape, id=id, aggregate=aggregate, new_files=new_files)
        (tmp_path / "pipeline.py").write_text(code)

    return write


def feed(folder: Path, number: int, *times: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    lines = [f'{{"member":"ann","ts":{ts}}}\n' for ts in times]
    (folder / "in" / f"{number}.jsonl").write_text("".join(lines))


@pytest.fixture
def ran(cli: Cli, tmp_path: Path, write: Callable[..., None]) -> None:
    """The app has counted two views of one window, and was drained."""
    write()
    feed(tmp_path, 1, 1_000, 2_000)
    assert cli("run", "pipeline.py", "--local", "--quiet").code == 0


@pytest.mark.usefixtures("clean_modules", "ran")
def test_a_window_that_means_something_else_is_refused_with_the_flags_that_accept_it(
    cli: Cli, tmp_path: Path, write: Callable[..., None]
) -> None:
    write('hr.tumbling("20s")')
    feed(tmp_path, 2, 15_000, 40_000)
    refused = cli("run", "pipeline.py", "--local", "--quiet")
    assert refused.code != 0
    assert "step 'w': shape was tumbling 10s, and is now tumbling 20s" in refused.err
    assert refused.err.rstrip().endswith("--drop-state w")  # nothing waits in the stream before it
    accepted = cli("run", "pipeline.py", "--local", "--quiet", "--drop-state", "w")
    assert accepted.code == 0
    assert cli("stream", "read", "out", "--committed").lines() == [{"member": "ann", "n": 1}]
    # What is as it was isn't dropped again.
    feed(tmp_path, 3, 41_000, 70_000)
    assert cli("run", "pipeline.py", "--local", "--quiet", "--drop-state", "w").code == 0
    assert [row["n"] for row in cli("stream", "read", "out", "--committed").lines()] == [1, 2]


@pytest.mark.usefixtures("clean_modules", "ran")
def test_a_renamed_step_keeps_its_state(cli: Cli, tmp_path: Path, write: Callable[..., None]) -> None:
    write(id="per-10s")
    feed(tmp_path, 2, 3_000, 40_000)
    assert "step 'w': it is gone, and its state would be lost" in cli("run", "pipeline.py", "--local", "--quiet").err
    assert cli("run", "pipeline.py", "--local", "--quiet", "--rename", "w=per-10s").code == 0
    assert cli("stream", "read", "out", "--committed").lines() == [{"member": "ann", "n": 3}]


@pytest.mark.usefixtures("clean_modules", "ran")
def test_plan_shows_what_would_change_and_fails_a_check(cli: Cli, write: Callable[..., None]) -> None:
    same = cli("plan", "pipeline.py", "--against", "counts")
    assert (same.code, same.out) == (0, "the app's kept state hasn't changed\n")
    write(aggregate='pl.len(), more=pl.col("ts").max()')
    grown = cli("plan", "pipeline.py", "--against", "counts")
    assert grown.code == 0
    assert grown.out.splitlines() == [
        "grown  step 'w'                 gains more",
        "grown  intermediate stream 'p'  gains more",
    ]
    assert "changed since the last run\n  grown" in cli("plan", "pipeline.py").out
    write('hr.session("10s")')
    refused = cli("plan", "pipeline.py", "--against", "counts")
    assert refused.code == 2
    assert "shape was tumbling 10s, and is now session with a gap of 10s" in refused.out
    assert "--drop-state" in refused.err
    changes = cli("plan", "pipeline.py", "--against", "counts", "--json").json()["changes"]
    assert {(c["id"], c["verdict"], c["flag"]) for c in changes if c["verdict"] != "kept"} == {
        ("w", "refused", "--drop-state w"),
        ("p", "dropped", None),
    }
    accepted = cli("plan", "pipeline.py", "--against", "counts", "--drop-state", "w")
    assert (accepted.code, "dropped" in accepted.out) == (0, True)


@pytest.mark.usefixtures("clean_modules", "ran")
def test_what_never_ran_has_nothing_to_be_compared_with(cli: Cli) -> None:
    unknown = cli("plan", "pipeline.py", "--against", "count")
    assert unknown.code != 0
    assert "app 'count' has never run" in unknown.err
    assert "counts" in unknown.err


@pytest.mark.usefixtures("clean_modules")
def test_a_changed_app_that_has_ended_is_refused(cli: Cli, tmp_path: Path, write: Callable[..., None]) -> None:
    write(new_files="refuse")
    feed(tmp_path, 1, 1_000)
    assert cli("run", "pipeline.py", "--local", "--quiet").code == 0
    assert cli("run", "pipeline.py", "--local", "--quiet").code == 0
    write(new_files="refuse", aggregate='pl.len(), more=pl.col("ts").max()')
    refused = cli("run", "pipeline.py", "--local", "--quiet")
    assert refused.code != 0
    assert "app 'counts' has ended" in refused.err
    assert "step 'w'" in refused.err
    compared = cli("plan", "pipeline.py", "--against", "counts")
    assert (compared.code, "app 'counts' has ended" in compared.err) == (2, True)


@pytest.mark.usefixtures("clean_modules")
def test_messages_that_wait_between_stages_are_given_up_only_with_a_flag(
    cli: Cli, tmp_path: Path, write: Callable[..., None]
) -> None:
    feed(tmp_path, 1, 1_000, 2_000)
    write()
    assert cli("run", "pipeline.py", "--local", "--quiet", "--stage", "views").code == 0
    write('hr.tumbling("20s")')
    refused = cli("run", "pipeline.py", "--local", "--quiet")
    assert "--drop-state p" in refused.err
    write()
    assert cli("run", "pipeline.py", "--local", "--quiet").code == 0
    write('hr.tumbling("20s")')
    refused = cli("run", "pipeline.py", "--local", "--quiet")
    assert refused.err.rstrip().endswith("--drop-state w")


INTO_SQL = """
import polars as pl
import headrace as hr

app = hr.App("copy")
files = hr.io.files("in/*.jsonl", new_files="next_run")
views = app.input("views", {{"member": pl.String, "ts": pl.Int64}}, system=files)
views.select({columns}).send_to(app.output("copied", system=hr.io.sql({url!r}, "views"{more})))
"""


@pytest.mark.usefixtures("clean_modules")
def test_plan_asks_the_targets_what_the_start_would_do(cli: Cli, tmp_path: Path) -> None:
    def write(columns: str, more: str = "", url: str = "sqlite:///out/copied.db") -> None:
        (tmp_path / "pipeline.py").write_text(INTO_SQL.format(columns=columns, more=more, url=url))

    def planned() -> Any:
        return cli("plan", "pipeline.py", "--against", "copy")

    feed(tmp_path, 1, 1_000)
    write('"member"')
    assert cli("run", "pipeline.py", "--local", "--quiet").code == 0
    assert planned().out == "the app's kept state hasn't changed\n"
    write('"member", "ts"')
    refused = planned()
    why = "the table views of sqlite:///out/copied.db has no column 'ts'; it has member"
    assert refused.code == 2
    assert refused.out.startswith(f"refused  output 'copied'  {why}")
    assert "this version of the app can't write its outputs" in refused.err
    assert why in cli("run", "pipeline.py", "--local", "--quiet").err
    write('"member", "ts"', ', new_columns="add"')
    assert planned().out == "grown  output 'copied'  table views of sqlite:///out/copied.db gains ts\n"
    feed(tmp_path, 2, 2_000)
    assert cli("run", "pipeline.py", "--local", "--quiet").code == 0
    with closing(sqlite3.connect(tmp_path / "out" / "copied.db")) as connection:
        assert connection.execute("SELECT * FROM views").fetchall() == [("ann", None), ("ann", 2_000)]
    write('"member"', url="sqlite:///elsewhere/copied.db")
    assert planned().out == "new  output 'copied'  table views of sqlite:///elsewhere/copied.db is created\n"
    assert not (tmp_path / "elsewhere").exists()
    write('"member"', url="postgresql://nobody@127.0.0.1:1/shop")
    unknown = planned()
    assert unknown.code == 0
    assert unknown.out.startswith("unknown  output 'copied'  table views of postgresql://nobody@127.0.0.1:1/shop can't")

"""What users see when the disk is full, or an input is deleted or replaced, before or while the app runs."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr

Cli = Callable[..., Any]
Process = subprocess.Popen[bytes]
Spawn = Callable[..., Process]

PIPELINE = """
import polars as pl
import headrace as hr

app = hr.App("doubles")
numbers = app.input("numbers", schema={"n": pl.Int64})
numbers.select(pl.col("n") * 2).send_to(app.output("doubles"))
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    file = tmp_path / "pipeline.py"
    file.write_text(PIPELINE)
    return file


@pytest.fixture
def files_no_larger_than() -> Iterator[Callable[[int | None], None]]:
    """Sets the largest file that this process may write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))

    yield limit
    limit(None)


def write(*numbers: int) -> None:
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64})
    with hr.streams.StreamWriter("numbers") as writer:
        for number in numbers:
            writer.write([{"n": number}])


def run_until_it_has_committed(cli: Cli, spawn: Spawn, pipeline: Path, rows: int) -> Process:
    cli("stream", "create", "doubles", "--partitions", 1, "--schema", "n:i64")
    follower = spawn("stream", "read", "doubles", "--follow", "--committed")
    run = spawn("run", pipeline, "--local", "--quiet")
    assert follower.stdout is not None
    for _ in range(rows):
        assert follower.stdout.readline().startswith(b'{"n":')
    return run


def how_it_ended(run: Process) -> tuple[int, str]:
    _, err = run.communicate(timeout=120)
    return run.returncode, err.decode()


def test_an_input_that_is_moved_away_ends_the_app_and_nothing_is_lost(
    cli: Cli, spawn: Spawn, pipeline: Path, home: Path
) -> None:
    write(1, 2, 3)
    run = run_until_it_has_committed(cli, spawn, pipeline, 3)
    (home / "streams" / "numbers").rename(home / "elsewhere")
    code, err = how_it_ended(run)
    assert code == 1
    assert err.startswith("error: log.numbers[0] was deleted or moved while it was in use"), err
    assert "hint: put the stream's folder back" in err
    assert "Traceback" not in err
    (home / "elsewhere").rename(home / "streams" / "numbers")
    write(4)
    cli("stream", "seal", "numbers")
    assert how_it_ended(spawn("run", pipeline, "--local", "--quiet")) == (0, "")
    assert [row["n"] for row in cli("stream", "read", "doubles", "--committed").lines()] == [2, 4, 6, 8]


def test_an_input_that_is_replaced_ends_the_app(cli: Cli, spawn: Spawn, pipeline: Path, home: Path) -> None:
    write(1, 2, 3)
    run = run_until_it_has_committed(cli, spawn, pipeline, 3)
    shutil.rmtree(home / "streams" / "numbers")
    write(*range(100))
    code, err = how_it_ended(run)
    assert code == 1
    assert err.startswith("error: log.numbers[0] was "), err
    assert "while it was in use" in err
    assert [row["n"] for row in cli("stream", "read", "doubles").lines()] == [2, 4, 6]


def test_a_full_disk_ends_a_local_run_and_says_how_to_continue(cli: Cli, spawn: Spawn, pipeline: Path) -> None:
    write(1, 2, 3)
    run = run_until_it_has_committed(cli, spawn, pipeline, 3)
    # A limit on the size of files simulates a full disk.
    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (0, resource.prlimit(run.pid, resource.RLIMIT_FSIZE)[1]))
    write(4)  # an app that has nothing to do writes nothing
    code, err = how_it_ended(run)
    assert code == 1
    assert "could not be written" in err
    assert "hint: free up space on the disk; then start the app again: it resumes from its last checkpoint" in err
    cli("stream", "seal", "numbers")
    assert how_it_ended(spawn("run", pipeline, "--local", "--quiet")) == (0, "")
    assert [row["n"] for row in cli("stream", "read", "doubles", "--committed").lines()] == [2, 4, 6, 8]


def test_a_full_disk_under_writers_says_what_became_of_the_rows(
    cli: Cli, tmp_path: Path, files_no_larger_than: Callable[[int | None], None], home: Path
) -> None:
    write(1)
    file = home / "streams" / "numbers" / "p00000.log"
    (tmp_path / "rows.jsonl").write_text('{"n":2}\n')
    with hr.streams.StreamWriter("numbers") as writer:
        files_no_larger_than(file.stat().st_size)
        with pytest.raises(hr.errors.InfrastructureError, match="could not be written") as caught:
            writer.write([{"n": 2}])
        assert "free up space on the disk; then continue: these rows are kept" in (caught.value.hint or "")
        refused = cli("stream", "write", "numbers", "rows.jsonl")
        assert refused.code == 1
        assert "written before that: at least 0 rows" in refused.err
        assert "hint: free up space on the disk; then repeat the command with --id " in refused.err
        files_no_larger_than(None)
        writer.write([{"n": 3}])
    assert hr.streams.read_stream("numbers")["n"].to_list() == [1, 2, 3]


def test_an_input_that_was_replaced_while_the_app_was_stopped(
    cli: Cli, spawn: Spawn, pipeline: Path, home: Path
) -> None:
    write(1, 2, 3)
    run = run_until_it_has_committed(cli, spawn, pipeline, 3)
    run.terminate()
    assert how_it_ended(run)[0] == 0
    shutil.rmtree(home / "streams" / "numbers")
    write(1)
    code, err = how_it_ended(spawn("run", pipeline, "--local", "--quiet"))
    assert code == 1
    assert err.startswith("error: this is not the stream that the app has read before"), err
    assert "use another app name" in err

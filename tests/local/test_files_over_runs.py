"""Files as they come and go: several runs of one app, in this process and killed ones."""

from __future__ import annotations

import gzip
import os
import signal
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.errors import DataError, StreamNotFoundError, UsageError

COLUMNS = {"member": pl.String, "ts": pl.Int64}


def put(path: Path, *rows: tuple[str, int]) -> None:
    pl.DataFrame(rows, schema=COLUMNS, orient="row").write_ndjson(path)


def counting(home: Path, guarantee: Any = "exactly_once", **options: Any) -> hr.App:
    """Counts rows by member in windows of a second, in two stages."""
    app = hr.App("counting", home=home / "home", checkpoint_interval="20ms", guarantee=guarantee)
    rows = app.input("rows", COLUMNS, event_time="ts", system=hr.io.files(home / "in/*.jsonl", **options))
    counts = rows.partition_by("member", id="by-member", partitions=2).window(
        hr.tumbling("1s"), key="member", id="per-second"
    )
    counts.agg(n=hr.count()).send_to(app.output("counts", system=hr.io.files(home / "out", format="jsonl")))
    return app


def counted(home: Path) -> dict[tuple[str, int], int]:
    rows: list[dict[str, Any]] = []
    for path in sorted((home / "out").glob("*.jsonl")):
        rows += pl.read_ndjson(path).to_dicts()
    found = {(row["member"], row["window_start"]): row["n"] for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_window_spans_three_runs(home: Path, guarantee: str) -> None:
    def run() -> None:
        counting(home, guarantee, new_files="next_run").run(local=True, progress=False)

    put(home / "in/0.jsonl", ("bob", 200))
    put(home / "in/1.jsonl", ("ann", 100))
    run()
    assert counted(home) == {}
    run()
    put(home / "in/2.jsonl", ("ann", 900), ("ann", 300))
    run()
    assert counted(home) == {}
    put(home / "in/3.jsonl", ("ann", 500), ("ann", 2500))
    run()
    assert sorted(counted(home).values()) == [1, 4]


def copying(home: Path, pattern: str = "in/*", columns: Any = None, **options: Any) -> hr.App:
    """Copies rows; unreadable ones go to a dead-letter stream."""
    app = hr.App("copying", home=home / "home", checkpoint_interval="20ms")
    system = hr.io.files(home / pattern, **options)
    letters = app.output("unreadable", system=hr.io.files(home / "unreadable", format="csv"))
    rows = app.input("rows", columns or COLUMNS, system=system, on_error="dead_letter", dead_letter=letters)
    rows.send_to(app.output("copies", system=hr.io.files(home / "copies", format="jsonl")))
    return app


def copies(home: Path) -> list[tuple[Any, ...]]:
    rows = [row for path in (home / "copies").glob("*.jsonl") for row in pl.read_ndjson(path).rows()]
    return sorted(rows)


def reasons(home: Path) -> list[str]:
    found = [pl.read_csv(path)["reason"].to_list() for path in (home / "unreadable").glob("*.csv")]
    return sorted(reason for part in found for reason in part)


def run(app: hr.App) -> None:
    app.run(local=True, progress=False)


def test_files_that_come_later_are_refused_and_not_passed_over(home: Path) -> None:
    put(home / "in/1.jsonl", ("ann", 1))
    run(copying(home))
    run(copying(home))  # nothing is new
    put(home / "in/2.jsonl", ("bob", 2))
    with pytest.raises(UsageError, match=r"has new files, which the app doesn't read: .*in/2\.jsonl") as refused:
        run(copying(home))
    assert 'new_files="next_run"' in str(refused.value.hint)
    with pytest.raises(UsageError, match="ended with the files of an earlier run"):
        run(copying(home, new_files="next_run"))
    assert copies(home) == [("ann", 1)]


def test_a_replaced_file_is_refused(home: Path) -> None:
    put(home / "in/1.jsonl", ("ann", 1))
    run(copying(home))
    put(home / "in/1.jsonl", ("eve", 6), ("ann", 1))
    with pytest.raises(DataError, match=r"in/1\.jsonl has changed since the app listed it: it had \d+ bytes, now"):
        run(copying(home))


def test_a_replaced_file_is_read_again_where_the_input_says_so(home: Path) -> None:
    options: Any = {"new_files": "next_run", "changed_files": "read_again"}
    put(home / "in/1.jsonl", ("ann", 1), ("bob", 2))
    run(copying(home, **options))
    put(home / "in/1.jsonl", ("eve", 3))
    run(copying(home, **options))
    assert copies(home) == [("ann", 1), ("bob", 2), ("eve", 3)]


def test_a_file_that_grows_is_read_on(home: Path) -> None:
    (home / "in/1.csv").write_text("ts,member\n1,ann\n2,b")
    run(copying(home, new_files="next_run"))
    assert copies(home) == [("ann", 1)]
    with (home / "in/1.csv").open("a") as file:
        file.write("ob\nx,eve\n4,dan\n")
    run(copying(home, new_files="next_run"))
    assert copies(home) == [("ann", 1), ("bob", 2), ("dan", 4)]
    (reason,) = reasons(home)
    assert reason.startswith(f"{home}/in/1.csv:4: ")


def test_what_was_read_of_a_deleted_file_stays(home: Path) -> None:
    put(home / "in/1.jsonl", ("ann", 1))
    run(copying(home, new_files="next_run"))
    (home / "in/1.jsonl").unlink()
    put(home / "in/2.jsonl", ("bob", 2))
    run(copying(home, new_files="next_run"))
    assert copies(home) == [("ann", 1), ("bob", 2)]


def test_a_folder_without_files(home: Path) -> None:
    with pytest.raises(StreamNotFoundError, match=f"matches {home}/in/.*relative to"):
        run(copying(home, "in/*.csv"))
    run(copying(home, "in/*.csv", new_files="next_run"))
    (home / "in/1.csv").write_text("member,ts\nann,1\n")
    run(copying(home, "in/*.csv", new_files="next_run"))
    assert copies(home) == [("ann", 1)]


def test_empty_files_are_no_error(home: Path) -> None:
    (home / "in/1.csv").touch()
    (home / "in/2.csv").write_text("member,ts\n")
    run(copying(home))
    assert copies(home) == []
    assert reasons(home) == []


def test_a_followed_folder_is_read_as_it_fills(home: Path) -> None:
    app = hr.App("following", home=home / "home", checkpoint_interval="20ms")
    seen: list[tuple[str, int]] = []
    came = threading.Event()

    def see(rows: pl.DataFrame) -> None:
        seen.extend(rows.rows())
        came.set()

    system = hr.io.files(home / "in/*.jsonl", new_files="follow", look_every="20ms")
    app.input("rows", COLUMNS, system=system).sink(see)
    put(home / "in/1.jsonl", ("ann", 1))

    def fill() -> None:
        try:
            assert came.wait(60)
            came.clear()
            put(home / "in/.2.jsonl", ("bob", 2))
            (home / "in/.2.jsonl").rename(home / "in/2.jsonl")
            assert came.wait(60)
            came.clear()
            with (home / "in/1.jsonl").open("a") as file:
                file.write('{"member": "dan", "ts": 3}\n{"member": "e')
            assert came.wait(60)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    filling = threading.Thread(target=fill)
    filling.start()
    run(app)
    filling.join()
    assert seen == [("ann", 1), ("bob", 2), ("dan", 3)]


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_compressed_text(home: Path, ending: str) -> None:
    lines = b"".join(b'{"member": "m%d", "ts": %d}\n' % (n % 7, n) for n in range(20_000))
    packed = {"gz": gzip.compress, "zst": lambda data: pa.compress(data, "zstd", asbytes=True)}[ending]
    whole = packed(lines[:400_000]) + packed(lines[400_000:])
    (home / f"in/1.jsonl.{ending}").write_bytes(whole)
    (home / f"in/2.jsonl.{ending}").write_bytes(packed(lines)[:-10])
    run(copying(home))
    read = [ts for _, ts in copies(home)]
    assert set(range(20_000)) == set(read)
    (reason,) = reasons(home)
    assert reason.startswith(f"{home}/in/2.jsonl.{ending}:")
    assert "the rest of the file can't be read" in reason

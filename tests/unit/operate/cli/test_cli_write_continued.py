"""A write that was cut short is continued by the same command with its id: no row is missing or there twice."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.errors import StorageError
from headrace.systems.log.producer import LogProducer

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]
ROWS = [{"k": f"k{n % 7}", "n": n} for n in range(1000)]
WAYS = [(), ("--key", "k"), ("--partition", 2)]


@pytest.fixture
def stream(cli: Cli) -> None:
    assert cli("stream", "create", "views", "--partitions", 4, "--schema", "k:str,n:i64").code == 0


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def there(cli: Cli) -> list[int]:
    return sorted(row["n"] for row in cli("stream", "read", "views").lines())


def name_in(said: str) -> str:
    named = re.search(r"then repeat the command with --id (\w+): it writes the rest of the same input", said)
    assert named is not None, said
    return named[1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("stream")
def test_after_a_bad_row_was_fixed_the_rest_is_written(cli: Cli, tmp_path: Path, way: tuple[Any, ...]) -> None:
    file, more = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    file.write_text(lines(ROWS[:400]))
    more.write_text(lines(ROWS[400:700]) + "\n{oops\n" + lines(ROWS[701:]))
    failed = cli("stream", "write", "views", file, more, *way)
    assert (failed.code, "b.jsonl:302" in failed.err, "written before that: 700 rows" in failed.err) == (1, True, True)
    assert there(cli) == list(range(700))
    more.write_text(more.read_text().replace("{oops", lines(ROWS[700:701]).strip()))
    name = name_in(failed.err)
    done = cli("stream", "write", "views", file, more, *way, "--id", name)
    assert (done.code, there(cli)) == (0, list(range(1000)))
    assert "wrote 300 rows to log.views" in done.err
    assert f"the stream already had 700 rows of write {name!r}" in done.err
    again = cli("stream", "write", "views", file, more, *way, "--id", name, "--json").json()
    assert (again["rows"], again["already"], again["id"], there(cli)) == (0, 1000, name, list(range(1000)))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.usefixtures("stream")
def test_tables_are_continued(cli: Cli, tmp_path: Path, kind: str) -> None:
    import polars as pl

    file = tmp_path / f"a.{kind}"
    misfit = pl.lit(0.5) if kind == "parquet" else pl.lit("x")
    wrong = pl.DataFrame(ROWS).with_columns(n=pl.when(pl.col("n") == 600).then(misfit).otherwise("n"))
    getattr(wrong, f"write_{kind}")(file)
    failed = cli("stream", "write", "views", file, "--key", "k", "--id", "nightly")
    assert (failed.code, name_in(failed.err), there(cli)) == (1, "nightly", list(range(600)))
    getattr(pl.DataFrame(ROWS), f"write_{kind}")(file)
    assert cli("stream", "write", "views", file, "--key", "k", "--id", "nightly").code == 0
    assert there(cli) == list(range(1000))


@pytest.mark.usefixtures("stream")
def test_rows_that_are_left_out_keep_their_numbers(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    skip = ("--key", "k", "--on-error", "skip", "--id", "x")
    file.write_text("{oops\n" + lines(ROWS[:3]) + "{oops\n\n")
    assert cli("stream", "write", "views", file, *skip).code == 0
    file.write_text(file.read_text() + lines(ROWS[3:6]))
    done = cli("stream", "write", "views", file, *skip, "--json").json()
    assert (done["rows"], done["already"], done["skipped"], there(cli)) == (3, 3, 2, [0, 1, 2, 3, 4, 5])


@pytest.mark.usefixtures("stream")
def test_another_id_and_no_id_write_everything(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(ROWS[:2]))
    for more in ((), (), ("--id", "a"), ("--id", "b"), ("--id", "a")):
        assert cli("stream", "write", "views", file, *more).code == 0
    assert there(cli) == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("stream")
def test_whatever_a_failure_left_of_a_batch_is_completed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[Any, ...]
) -> None:
    """A batch goes to several partitions, one after the other. The writer dies between any two of these writes."""
    monkeypatch.setattr("headrace.streams.writer.FRAME_ROWS", 100)
    file = tmp_path / "a.jsonl"
    file.write_text(lines(ROWS))
    real, left = LogProducer._write, 0

    def dying(producer: LogProducer, appender: Any) -> None:
        nonlocal left
        if appender.bodies:
            left -= 1
        if left < 0:
            appender.discard()  # as the death of the process does
            raise StorageError("the disk is gone")
        real(producer, appender)

    attempts = 0
    with monkeypatch.context() as patch:
        patch.setattr(LogProducer, "_write", dying)
        code = 1
        while code:
            left = 1 + attempts % 2
            attempts += 1
            assert attempts < 40
            code = cli("stream", "write", "views", file, *way, "--id", "nightly").code
    assert attempts > 1 or "--partition" in way  # one partition gets it all at once
    assert there(cli) == list(range(1000))


@pytest.mark.usefixtures("stream")
def test_a_writer_that_was_killed_is_continued(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    text = lines([{"k": f"k{n % 7}", "n": n} for n in range(300_000)])
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    command = ("stream", "write", "views", file, "--key", "k", "--id", "nightly")
    writer = spawn(*command)
    next(iter(hr.streams.StreamReader("views").follow()))
    writer.send_signal(signal.SIGKILL)
    writer.wait(60)
    assert cli(*command).code == 0
    assert there(cli) == list(range(300_000))


@pytest.mark.usefixtures("stream")
def test_a_stream_that_is_sealed_takes_no_rest(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(ROWS[:1]))
    cli("stream", "seal", "views")
    assert "--id" not in cli("stream", "write", "views", file).err


@pytest.mark.usefixtures("stream")
def test_apps_read_continued_writes_like_any_others(cli: Cli, tmp_path: Path) -> None:
    import polars as pl

    file = tmp_path / "a.jsonl"
    file.write_text(lines(ROWS[:5]) + "{oops\n")
    name = name_in(cli("stream", "write", "views", file).err)
    file.write_text(lines(ROWS[:9]))
    cli("stream", "write", "views", file, "--id", name)
    cli("stream", "seal", "views")
    app = hr.App("copier")
    app.input("views", {"k": pl.String, "n": pl.Int64}).send_to(app.output("copies"))
    app.run(local=True, progress=False)
    assert sorted(row["n"] for row in cli("stream", "read", "copies", "--committed").lines()) == list(range(9))

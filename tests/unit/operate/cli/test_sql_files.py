"""A file of SQL is an app, for each command that takes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import UsageError
from headrace.operate.cli.loader import load_app, load_runnable_app

Cli = Callable[..., Any]
COUNTS = """-- how often each page was seen
CREATE TABLE clicks (
    url STRING,
    at TIMESTAMP(3),
    WATERMARK FOR at AS at - INTERVAL '5' SECOND
);

INSERT INTO counts
SELECT url, window_start, count(*) AS n
FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(at), INTERVAL '10' SECOND))
GROUP BY url, window_start, window_end;

INSERT INTO totals SELECT url, count(*) AS n FROM clicks GROUP BY url;
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "counts.sql"
    path.write_text(COUNTS)
    return path


def test_the_app_is_called_as_the_file_is(file: Path, tmp_path: Path) -> None:
    assert load_runnable_app(file, home=tmp_path / "elsewhere").settings.home == str(tmp_path / "elsewhere")
    assert file.rename(tmp_path / "COUNTS.SQL").exists()
    assert load_app(tmp_path / "COUNTS.SQL").name == "COUNTS"


def test_it_runs(cli: Cli, file: Path, tmp_path: Path) -> None:
    lines = tmp_path / "clicks.jsonl"
    lines.write_text("".join(f'{{"url":"/{n % 2}","at":"2026-01-31T12:00:{n:02}"}}\n' for n in range(20)))
    missing = cli("plan", file)
    assert missing.code == 2
    assert f"source 'clicks' doesn't exist\n  at {file}:2: CREATE TABLE clicks" in missing.err
    assert "WITH ('partitions' = 'N')" in missing.err
    assert cli("stream", "write", "clicks", lines, "--create", "--partitions", 1, "--schema", "url:str,at:datetime[ms]")
    assert cli("stream", "seal", "clicks").code == 0
    plan = cli("plan", file)
    assert "counts.sql:8" in plan.out
    assert "  INSERT INTO counts\n" in plan.out
    assert cli("run", file, "--local", "--quiet").code == 0
    assert sorted(row["n"] for row in cli("stream", "read", "counts").lines()) == [5, 5, 5, 5]
    assert {(row["url"], row["n"]) for row in cli("stream", "read", "totals").lines()} == {("/0", 10), ("/1", 10)}
    assert cli("plan", file, "--against", "counts").out == "the app's kept state hasn't changed\n"
    assert "ok       stream clicks" in cli("doctor", file).out


def test_statements_take_no_arguments(file: Path) -> None:
    given: dict[str, Callable[[], object]] = {
        "--app": lambda: load_app(file, name="x"),
        "--arg": lambda: load_app(file, values=["a=1"]),
        "arguments": lambda: load_app(file, arguments=["x"]),
        ":main": lambda: load_app(f"{file}:main"),
    }
    for word, load in given.items():
        with pytest.raises(UsageError, match="is one app, and statements of SQL take no arguments") as raised:
            load()
        assert raised.value.hint == f"leave out {word}"


def test_a_file_that_cant_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^there is no file .*nowhere\.sql"):
        load_app(tmp_path / "nowhere.sql")
    (tmp_path / "folder.sql").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        load_app(tmp_path / "folder.sql")
    (tmp_path / "latin.sql").write_bytes("SELECT 'é'".encode("latin-1"))
    with pytest.raises(UsageError, match=r"latin\.sql can't be read"):
        load_app(tmp_path / "latin.sql")


def test_errors_have_the_line_of_the_file(cli: Cli, file: Path) -> None:
    file.write_text(COUNTS.replace("SELECT url, window_start", "SELECT ulr, window_start"))
    found = cli("plan", file)
    assert found.code == 2
    assert found.err.splitlines()[:2] == [
        "error: sql: there is no column ulr (line 9, column 8: ulr)",
        f"  at {file}:8: INSERT INTO counts",
    ]
    file.write_text(COUNTS + "\nSELECT url FRM clicks x")
    assert "(line 15, column 16: clicks)" in cli("plan", file).err
    file.write_text("-- nothing yet\n")
    assert "has no flow" in cli("plan", file).err

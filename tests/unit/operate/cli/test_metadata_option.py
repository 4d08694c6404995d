"""With the metadata in a database, commands find an app from any folder, and the password shows nowhere."""

from __future__ import annotations

import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.postgres_server import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

PIPELINE = """
import polars as pl
import headrace as hr

app = hr.App("prices", checkpoint_interval="100ms")
table = app.table("latest", key="article", schema={"article": pl.String, "euros": pl.Int64})
app.input("prices", {"article": pl.String, "euros": pl.Int64}).send_to(table)
"""


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    schema = f"c{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{postgres.url}?options=-csearch_path%3D{schema}"


@pytest.fixture
def pipeline(cli: Cli, tmp_path: Path) -> Path:
    (tmp_path / "prices.jsonl").write_text('{"article":"lamp","euros":20}\n')
    cli("stream", "write", "prices", "prices.jsonl", "--create", "--partitions", 1)
    file = tmp_path / "pipeline.py"
    file.write_text(PIPELINE)
    return file


def start(spawn: Spawn, *words: object) -> subprocess.Popen[bytes]:
    run = spawn("--log-level", "debug", "run", *words, "--local")
    assert run.stderr is not None
    while line := run.stderr.readline():
        assert b"s3cret" not in line
        if b" running " in line:
            return run
    raise AssertionError("it never ran")


def test_an_app_is_found_from_any_folder(
    cli: Cli, spawn: Spawn, pipeline: Path, home: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = cli("status", "--metadata", url)
    assert (nothing.code, "no app is running in postgresql://tester:***@" in nothing.err) == (0, True)
    monkeypatch.setenv("HEADRACE_METADATA", url)
    run = start(spawn, pipeline)
    monkeypatch.delenv("HEADRACE_METADATA")
    assert cli("status", "--json").json() == [], "nothing about it is in the home"
    assert not (home / "metadata.db").exists()

    elsewhere = ("--home", tmp_path / "elsewhere", "--metadata", url)
    (status,) = cli("status", "prices", "--json", *elsewhere).json()
    assert status["state"] == "running"
    read: list[Any] = []
    end = time.monotonic() + 60
    while not read and time.monotonic() < end:
        read = cli("table", "get", "prices", "latest", "lamp", "--json", *elsewhere).lines()
    assert read[0]["euros"] == 20
    assert [table["table"] for table in cli("table", "list", "prices", "--json", *elsewhere).json()] == ["latest"]
    assert [one["task"] for one in cli("checkpoint", "list", "--json", "--metadata", url).json()] == ["prices/0"]
    assert [one["task"] for one in cli("offsets", "prices", "--json", "--metadata", url).json()] == ["prices/0"]
    described = cli("stream", "describe", "prices", "--json", "--metadata", url).json()
    assert {reader["group"] for reader in described["readers"]} <= {"prices"}

    monkeypatch.setenv("HEADRACE_METADATA", url)
    again = cli("run", pipeline, "--local", "--quiet")
    assert again.code != 0
    assert "app 'prices' is already running with all stages: pid" in again.err
    assert "s3cret" not in again.err + again.out

    run.send_signal(signal.SIGKILL)
    run.wait(120)
    (status,) = cli("status", "--json", *elsewhere).json()
    assert status["state"] == "gone"
    run = start(spawn, pipeline)
    run.send_signal(signal.SIGINT)
    assert run.wait(120) == 0
    (status,) = cli("status", "--json", *elsewhere).json()
    assert (status["state"], status["drained"]) == ("finished", True)
    (checkpoint,) = cli("checkpoint", "list", "--json").json()
    assert checkpoint["currentGeneration"] == 2, "the second run has continued the generations of the first"
    monkeypatch.setenv("HEADRACE_METADATA", "postgresql://nobody@127.0.0.1:1/nowhere")
    for app in ("prices", pipeline):
        assert cli("startpoint", "set", app, "prices", "--oldest", "--metadata", url).code == 0
        (waiting,) = cli("startpoint", "list", app, "--json", "--metadata", url).json()
        assert waiting["state"] == "pending"
    monkeypatch.setenv("HEADRACE_METADATA", url)
    assert "hasn't changed" in cli("plan", pipeline, "--against", "prices").out
    assert not (tmp_path / "elsewhere").exists()
    for file in home.rglob("*"):
        assert file.is_dir() or b"s3cret" not in file.read_bytes()


def test_an_app_may_name_the_database(cli: Cli, pipeline: Path, postgres: PostgresServer, url: str) -> None:
    pipeline.write_text(PIPELINE.replace('"prices", checkpoint', f'"prices", metadata="{url}", checkpoint'))
    for words in ((), ("--json",)):
        planned = cli("plan", pipeline, *words)
        assert planned.code == 0
        assert "s3cret" not in planned.out + planned.err


@pytest.mark.parametrize("url", ["sqlite:///s3cret", "host=db password=s3cret"])
def test_what_is_no_database_is_refused(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = cli("status", "--metadata", url)
    assert refused.code == 2
    assert "isn't the URL of a PostgreSQL database" in refused.err
    assert "s3cret" not in refused.err
    monkeypatch.setenv("HEADRACE_METADATA", url)
    assert "s3cret" not in cli("status").err


def test_a_database_that_doesnt_answer_is_named(cli: Cli, url: str, postgres: PostgresServer) -> None:
    failed = cli("status", "--metadata", url.replace(f":{postgres.port}/", ":1/"))
    assert failed.code == 1
    assert "can't open the metadata store postgresql://tester:***@127.0.0.1:1/postgres" in failed.err
    assert "check that the server is up" in failed.err
    assert "s3cret" not in failed.err

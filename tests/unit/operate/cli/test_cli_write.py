from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.core.frame import UNVERSIONED, Header, Kind, decode_header
from headrace.core.ids import SSP, StreamId
from headrace.rows.hashing import partition_of
from headrace.systems.base import Edge, Records
from headrace.systems.log.system import LogSystem
from open_files import open_files

Cli = Callable[..., Any]
VIEWS = "member:str,url:str,ts:i64"
ROWS = [{"member": f"m{n % 7}", "url": f"/{n}", "ts": n} for n in range(100)]


@pytest.fixture
def views(cli: Cli) -> None:
    assert cli("stream", "create", "views", "--partitions", 4, "--schema", VIEWS).code == 0


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """So many that the next one has a number that ``select.select`` refuses."""
    with open_files(2048), ExitStack() as stack:
        while stack.enter_context(Path(os.devnull).open()).fileno() < 1024:
            pass
        yield


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.usefixtures("views")
def test_what_is_written_is_read(cli: Cli, tmp_path: Path) -> None:
    done = cli("stream", "write", "views", jsonl(tmp_path / "a.jsonl", ROWS))
    assert (done.code, done.out, done.err) == (0, "", "wrote 100 rows to log.views\n")
    assert cli("stream", "read", "views").lines() == ROWS


@pytest.mark.usefixtures("views")
def test_rows_are_written_where_many_files_are_open(cli: Cli, tmp_path: Path, many_open_files: None) -> None:
    assert cli("stream", "write", "views", jsonl(tmp_path / "a.jsonl", ROWS)).err == "wrote 100 rows to log.views\n"


@pytest.mark.usefixtures("views")
def test_frames_are_those_of_a_writer_outside_any_app(cli: Cli, tmp_path: Path, home: Path) -> None:
    cli("stream", "write", "views", jsonl(tmp_path / "a.jsonl", ROWS), "--partition", 2)
    consumer = LogSystem(home / "streams").consumer()
    consumer.register(SSP(StreamId("log", "views"), 2), Edge.OLDEST)
    (records,) = consumer.poll()
    consumer.close()
    assert isinstance(records, Records)
    (header,) = [decode_header(payload) for payload in records.payloads]
    assert header == Header(Kind.USER, header.producer, 100, UNVERSIONED, 0)  # no seq, no version: final at once


@pytest.mark.usefixtures("views")
def test_a_key_chooses_the_partition_that_the_engine_chooses(cli: Cli, tmp_path: Path) -> None:
    cli("stream", "write", "views", jsonl(tmp_path / "a.jsonl", ROWS), "--key", "member")
    read = cli("stream", "read", "views", "--offsets").lines()
    found = {row["member"]: row["@partition"] for row in read}
    frame = pl.DataFrame({"member": list(found)})
    assert list(found.values()) == partition_of(frame, ["member"], 4).tolist()
    assert all(found[row["member"]] == row["@partition"] for row in read)


@pytest.mark.usefixtures("views")
def test_without_a_key_short_writes_take_turns(cli: Cli, tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", ROWS[:1])
    written = [cli("stream", "write", "views", file, "--json").json()["rowsByPartition"] for _ in range(4)]
    assert written == [{"0": 1}, {"1": 1}, {"2": 1}, {"3": 1}]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.usefixtures("views")
def test_tables_are_written_as_the_streams_columns(cli: Cli, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"a.{kind}"
    df = pl.DataFrame(ROWS, schema_overrides={"ts": pl.Int32})
    getattr(df, f"write_{kind}")(file)
    assert cli("stream", "write", "views", file, "--json").json()["rows"] == 100
    assert cli("stream", "read", "views").lines() == ROWS


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_create_infers_the_columns(cli: Cli, tmp_path: Path, kind: str, home: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", ROWS) if kind == "jsonl" else tmp_path / f"a.{kind}"
    if kind != "jsonl":
        getattr(pl.DataFrame(ROWS), f"write_{kind}")(file)
    done = cli("stream", "write", "views", file, "--create", "--partitions", 2, "--json").json()
    assert (done["created"], done["rows"]) == (True, 100)
    info = LogSystem(home / "streams").admin().describe("views")
    assert info is not None
    assert info.columns == {"member": pl.String(), "url": pl.String(), "ts": pl.Int64()}


def test_several_files_go_in_their_order(cli: Cli, tmp_path: Path) -> None:
    first, second = jsonl(tmp_path / "a.jsonl", ROWS[:50]), jsonl(tmp_path / "b.jsonl", ROWS[50:])
    cli("stream", "write", "views", first, second, "--create", "--partitions", 1)
    assert cli("stream", "read", "views").lines() == ROWS


@pytest.mark.usefixtures("views")
def test_a_bad_line_ends_the_writing_and_what_came_before_it_is_there(cli: Cli, tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", ROWS[:3])
    with file.open("a") as more:
        more.write('{"member": 7}\n{"ts": 8}\n')
    failed = cli("stream", "write", "views", file)
    assert failed.code == 1
    assert f"{file}:4: Expected str, got int, in the field member" in failed.err
    assert "written before that: 3 rows" in failed.err
    assert "--on-error skip" in failed.err
    assert cli("stream", "read", "views").lines() == ROWS[:3]


@pytest.mark.usefixtures("views")
def test_bad_lines_can_be_left_out_and_are_counted(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"ts":1}\nnonsense\n{"ts":"x"}\n{"ts":2}\n')
    done = cli("stream", "write", "views", file, "--on-error", "skip", "--json")
    assert done.code == 0
    counted = done.json()
    assert (counted["rows"], counted["skipped"]) == (2, 2)
    assert counted["firstSkipped"].startswith(f"{file}:2: not JSON")
    assert "2 rows; the first is" in done.err
    assert [row["ts"] for row in cli("stream", "read", "views").lines()] == [1, 2]


@pytest.mark.usefixtures("views")
def test_a_bad_row_of_a_table_is_named(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("member,url,ts\na,/,1\nb,/,two\nc,/,3\n")
    failed = cli("stream", "write", "views", file)
    assert failed.code == 1
    assert f"{file}, row 2: column 'ts' should be Int64" in failed.err
    assert len(cli("stream", "read", "views").lines()) == 1
    done = cli("stream", "write", "views", file, "--on-error", "skip", "--json").json()
    assert (done["rows"], done["skipped"]) == (2, 1)


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("none.jsonl", None, 2, "there is no file none.jsonl"),
        ("a.csv", "member,url,ts\na,/,1,2\n", 1, "not a readable CSV file"),
        ("a.csv", "member,url\na,/\n", 1, "column 'ts' (Int64) is missing"),
        ("a.csv", "member,url,ts,agent\na,/,1,x\n", 1, "the stream has no column agent"),
        ("a.parquet", "nonsense", 1, "not a readable Parquet file"),
        ("a.jsonl", '{"agent":"x"}', 1, "a.jsonl:1: Object contains unknown field agent"),
        ("a.jsonl", "[1]", 1, "Expected object, got array"),
    ],
)
@pytest.mark.usefixtures("views")
def test_unreadable_files(cli: Cli, tmp_path: Path, name: str, content: str | None, code: int, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    failed = cli("stream", "write", "views", name)
    assert failed.code == code
    assert message in failed.err
    assert "Traceback" not in failed.err
    assert cli("stream", "read", "views").out == ""


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.usefixtures("views")
def test_unknown_columns_can_be_dropped(cli: Cli, tmp_path: Path, name: str) -> None:
    text = "member,url,ts,agent\na,/,1,x\n" if name == "a.csv" else '{"member":"a","url":"/","ts":1,"agent":{}}\n'
    (tmp_path / name).write_text(text)
    assert cli("stream", "write", "views", name, "--drop-unknown").code == 0
    assert cli("stream", "read", "views").lines() == [{"member": "a", "url": "/", "ts": 1}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--key", "membr"), "did you mean 'member'?"),
        (("--key", "member", "--partition", 1), "--key and --partition both choose the partition"),
        (("--partition", 4), "has no partition 4"),
        (("--schema", "member:i64"), "already exists with other columns: column 'member' is String, not Int64"),
        (("--create", "--partitions", 3), "already exists with 4 partitions, not 3"),
        (("--on-error", "ignore"), "'--on-error'"),
    ],
)
@pytest.mark.usefixtures("views")
def test_options_that_make_no_sense(cli: Cli, tmp_path: Path, words: tuple[object, ...], message: str) -> None:
    refused = cli("stream", "write", "views", jsonl(tmp_path / "a.jsonl", ROWS), *words)
    assert refused.code in (1, 2)
    assert message in refused.err
    assert cli("stream", "read", "views").out == ""


def test_create_needs_a_partition_count_and_rows(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    assert "add --partitions N" in cli("stream", "write", "views", "empty.jsonl", "--create").err
    refused = cli("stream", "write", "views", "empty.jsonl", "--create", "--partitions", 1)
    assert refused.code == 2
    assert "the input has no rows to infer its columns" in refused.err
    assert "there is no stream" in cli("stream", "write", "views", "empty.jsonl").err
    made = cli("stream", "write", "views", "empty.jsonl", "--create", "--partitions", 1, "--schema", VIEWS, "--json")
    assert made.json()["created"] is True


def test_rows_that_leave_the_inferred_columns_point_to_the_schema(cli: Cli, tmp_path: Path) -> None:
    many = [{"n": n} for n in range(200_000)]
    file = jsonl(tmp_path / "a.jsonl", [*many, {"n": 1.5}])
    failed = cli("stream", "write", "numbers", file, "--create", "--partitions", 1)
    assert failed.code == 1
    assert f"{file}:200001: Expected int, got float" in failed.err
    assert "declare them with --schema" in failed.err
    assert "200,000 rows" in failed.err

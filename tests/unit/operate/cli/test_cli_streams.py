"""create, list, describe, seal and trim."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.coordinator.publication import publish
from headrace.core.ids import SSP, StreamId
from headrace.life.metadata import FILE, SqliteMetadata
from headrace.systems.log.system import LogSystem

Cli = Callable[..., Any]
VIEWS = "member:str,ts:i64"


def test_create_makes_the_stream(cli: Cli, home: Path) -> None:
    made = cli("stream", "create", "views", "--partitions", 2, "--schema", VIEWS)
    assert (made.code, made.out) == (0, "created log.views with 2 partitions\n")
    info = LogSystem(home / "streams").admin().describe("views")
    assert info is not None
    assert info.partitions == 2
    assert info.columns == {"member": pl.String(), "ts": pl.Int64()}


def test_create_again_in_the_same_shape_is_fine(cli: Cli) -> None:
    first = cli("stream", "create", "log.views", "--partitions", 1, "--json").json()
    second = cli("stream", "create", "views", "--partitions", 1, "--json").json()
    assert first == {"created": True, "stream": "log.views", "partitions": 1, "columns": None, "added": [], "key": []}
    assert second == first | {"created": False}


def test_a_key_is_recorded_and_shown_and_all_writers_choose_partitions_by_it(cli: Cli, tmp_path: Path) -> None:
    columns = ("--partitions", 2, "--schema", "member:str,n:int")
    assert cli("stream", "create", "views", *columns, "--key", "member", "--json").json()["key"] == ["member"]
    assert "key      member: chooses the partition" in cli("stream", "describe", "views").out
    other = cli("stream", "create", "views", *columns, "--key", "n")
    assert "is partitioned by member, not by n" in other.err
    unknown = cli("stream", "create", "more", *columns, "--key", "page")
    assert "'page' isn't in" in unknown.err
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"member": "a", "n": 1}\n{"member": "d", "n": 2}\n{"member": "a", "n": 3}\n')
    written = cli("stream", "write", "views", rows, "--json").json()
    assert written["rowsByPartition"] == {"0": 2, "1": 1}
    for words in (("--key", "n"), ("--partition", 1)):
        refused = cli("stream", "write", "views", rows, *words)
        assert "is partitioned by member, and this writer has" in refused.err
    made = cli("stream", "write", "made", rows, "--create", *columns, "--key", "n", "--json")
    assert made.code == 0
    assert cli("stream", "describe", "made", "--json").json()["key"] == ["n"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("views", "--partitions", 3), 1, "already exists with 1 partitions, not 3"),
        (("x", "--partitions", 0), 2, "0 partitions; use 1 to 65536"),
        (("x", "--partitions", 10**9), 2, "1000000000 partitions; use 1 to 65536"),
        (("x",), 2, "Missing option '--partitions'"),
        (("x", "--partitions", "two"), 2, "'--partitions'"),
        (("../x", "--partitions", 1), 2, "'../x' is not a usable id"),
        (("a b", "--partitions", 1), 2, "'a b' is not a usable id"),
        (("kafka.x", "--partitions", 1), 2, "has streams in a system 'kafka' that commands can open"),
        (("x", "--partitions", 1, "--schema", "member"), 2, "'member' isn't of the form name:type"),
        (("x", "--partitions", 1, "--schema", "member:text"), 2, "unknown type 'text'"),
    ],
)
def test_create_refuses(cli: Cli, home: Path, words: tuple[object, ...], code: int, message: str) -> None:
    cli("stream", "create", "views", "--partitions", 1)
    refused = cli("stream", "create", *words)
    assert refused.code == code
    assert refused.err.startswith("error: ")
    assert message in refused.err
    assert "Traceback" not in refused.err
    assert LogSystem(home / "streams").admin().list() == ["views"]


def test_a_name_with_a_dot_is_written_with_its_system(cli: Cli) -> None:
    assert cli("stream", "create", "log.views.v2", "--partitions", 1).code == 0
    assert [one["stream"] for one in cli("stream", "list", "--json").json()] == ["log.views.v2"]
    assert "write log.views.v2" in cli("stream", "read", "views.v2").err


def test_list_of_nothing(cli: Cli, home: Path) -> None:
    empty = cli("stream", "list")
    assert (empty.code, empty.out, empty.err) == (0, "", f"{home} has no streams\n")
    assert cli("stream", "list", "--json").json() == []
    assert not home.exists()


def test_list_and_describe_show_shape_and_size(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "views.jsonl").write_text('{"member":"a","ts":1}\n')
    cli("stream", "create", "views", "--partitions", 2, "--schema", VIEWS)
    cli("stream", "write", "views", "views.jsonl", "--partition", 1)
    about = cli("stream", "describe", "views", "--json").json()
    first, second = about["extents"]
    assert first == {"partition": 0, "oldest": 32, "upcoming": 32, "bytes": 0, "sealed": False}
    assert second["upcoming"] > second["oldest"] == 32
    assert about["bytes"] == second["bytes"] == second["upcoming"] - 32
    assert about["columns"] == {"member": "String", "ts": "Int64"}
    (listed,) = cli("stream", "list", "--json").json()
    assert listed == {key: about[key] for key in listed}
    text = cli("stream", "describe", "views").out
    assert "columns  member: String, ts: Int64" in text
    assert cli("stream", "list").out.splitlines()[1].split()[:2] == ["log.views", "2"]


def test_a_column_is_added(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text('{"member":"a","ts":1}\n')
    (tmp_path / "new.csv").write_text("member,ts,note\nb,2,hi\n")
    (tmp_path / "old.csv").write_text("member,ts\nc,3\n")
    cli("stream", "create", "views", "--partitions", 1, "--schema", VIEWS)
    cli("stream", "write", "views", "old.jsonl")
    added = cli("stream", "add-column", "views", "note:str, at:datetime[ms]")
    assert added.out == "added note: String, at: Datetime[ms] to log.views\n"
    assert cli("stream", "add-column", "views", "note:str").out == "log.views has note:str already\n"
    assert cli("stream", "add-column", "views", "note:str", "--json").json()["added"] == ["note", "at"]
    assert cli("stream", "write", "views", "new.csv", "old.csv").code == 0
    assert [(row["member"], row["note"], row["at"]) for row in cli("stream", "read", "views").lines()] == [
        ("a", None, None),
        ("b", "hi", None),
        ("c", None, None),
    ]
    text = cli("stream", "describe", "views").out
    assert "columns  member: String, ts: Int64, note: String, at: Datetime[ms]" in text
    assert "added    note, at: null in older rows" in text
    refused = cli("stream", "add-column", "views", "ts:str")
    assert (refused.code, "column 'ts' is Int64, not String" in refused.err) == (1, True)
    assert "there is no stream log.vews" in cli("stream", "add-column", "vews", "ts:str").err
    cli("stream", "create", "any", "--partitions", 1)
    assert "it takes rows with any columns" in cli("stream", "add-column", "any", "ts:str").err


def test_describe_shows_how_far_readers_are(cli: Cli, home: Path, tmp_path: Path) -> None:
    (tmp_path / "views.jsonl").write_text('{"member":"a","ts":1}\n')
    cli("stream", "write", "views", "views.jsonl", "--create", "--partitions", 1)
    admin = LogSystem(home / "streams").admin()
    admin.report_position(SSP(StreamId("log", "views"), 0), "counts", 32)
    assert cli("stream", "describe", "views", "--json").json()["readers"] == []
    (reader,) = cli("stream", "describe", "views", "--group", "counts", "--json").json()["readers"]
    size = admin.extents("views")[0].upcoming - 32
    assert reader == {"group": "counts", "partition": 0, "position": 32, "lag": size}
    with closing(SqliteMetadata(home / FILE)) as metadata:
        publish(metadata, "counts", "http://127.0.0.1:1", "x", stages=["a"], all_stages=True, started_at=1).close()
    assert cli("stream", "describe", "views").out.splitlines()[-1].split()[:3] == ["counts", "0", "32"]


def test_seal_ends_a_stream(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "views.jsonl").write_text("{}\n")
    cli("stream", "create", "views", "--partitions", 1, "--schema", VIEWS)
    assert cli("stream", "seal", "views").out == "sealed log.views\n"
    assert cli("stream", "describe", "views", "--json").json()["sealed"] is True
    refused = cli("stream", "write", "views", "views.jsonl")
    assert refused.code == 1
    assert "was sealed" in refused.err


@pytest.mark.parametrize("verb", [("describe",), ("seal",), ("read",), ("trim", "--before", "upcoming")])
def test_a_missing_stream_is_an_error_with_the_likely_name(cli: Cli, verb: tuple[str, ...]) -> None:
    cli("stream", "create", "page-views", "--partitions", 1)
    missing = cli("stream", verb[0], "pageviews", *verb[1:])
    assert missing.code == 1
    assert "there is no stream log.pageviews" in missing.err
    assert "did you mean page-views?" in missing.err


def test_a_missing_stream_may_be_in_another_system(cli: Cli) -> None:
    cli("stream", "create", "page-views", "--partitions", 1)
    assert "what apps write to Kafka, files or tables is only there" in cli("stream", "read", "totals").err


def filled(cli: Cli, tmp_path: Path) -> list[int]:
    """Create a stream of one partition with three frames, and return their offsets."""
    for number in range(3):
        (tmp_path / "one.jsonl").write_text(f'{{"n":{number}}}\n')
        cli("stream", "write", "numbers", "one.jsonl", "--create", "--partitions", 1)
    return [line["@offset"] for line in cli("stream", "read", "numbers", "--offsets").lines()]


def test_trim_without_yes_only_says_what_it_would_do(cli: Cli, tmp_path: Path) -> None:
    filled(cli, tmp_path)
    asked = cli("stream", "trim", "numbers", "--before", "upcoming")
    assert asked.code == 2
    assert "permanently delete" in asked.err
    assert "--yes" in asked.err
    assert len(cli("stream", "read", "numbers").lines()) == 3


def test_trim_deletes_what_is_before(cli: Cli, tmp_path: Path) -> None:
    _, second, _ = filled(cli, tmp_path)
    done = cli("stream", "trim", "numbers", "--before", second, "--yes", "--json").json()
    assert done == {"stream": "log.numbers", "bytes": second - 32, "partitions": [{"partition": 0, "oldest": second}]}
    assert [line["n"] for line in cli("stream", "read", "numbers").lines()] == [1, 2]
    below = cli("stream", "read", "numbers", "--from", 32)
    assert below.code == 1
    assert f"the oldest is {second}" in below.err
    assert cli("stream", "trim", "numbers", "--before", "upcoming", "--yes").code == 0
    assert cli("stream", "read", "numbers").out == ""


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("1:32", "has no partition 1"),
        ("40", "no record begins at offset 40"),
        ("99999", "is outside"),
        ("x", "isn't a position"),
    ],
)
def test_trim_refuses_a_wrong_place(cli: Cli, tmp_path: Path, before: str, message: str) -> None:
    filled(cli, tmp_path)
    refused = cli("stream", "trim", "numbers", "--before", before, "--yes")
    assert refused.code == 2
    assert message in refused.err
    assert len(cli("stream", "read", "numbers").lines()) == 3

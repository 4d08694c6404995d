"""A SQLite table as a target: its values, and how its errors are reported."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from sql_rows import ROWS

from headrace.connectors.sql.system import SqlSystem, open_sql
from headrace.core.errors import DataError, DeclarationError, UnavailableError, UsageError
from headrace.core.ids import SSP, StreamId
from headrace.core.secrets import SecretUrl
from headrace.systems.base import Creation, Target

WRITER = "app/stage/0/out"
COUNTS: dict[str, pl.DataType] = {"member": pl.String(), "n": pl.Int64()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "results.db"


@pytest.fixture
def opened() -> Iterator[list[Target]]:
    targets: list[Target] = []
    yield targets
    for target in targets:
        target.close()


def system(path: Path, *key: str, create: bool = True, table: str = "results") -> SqlSystem:
    return SqlSystem(SecretUrl(f"sqlite:///{path}"), table, key, create)


def select(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def counts(**of: int) -> pl.DataFrame:
    return pl.DataFrame({"member": list(of), "n": list(of.values())}, schema=COUNTS)


def test_every_type_arrives(path: Path, opened: list[Target]) -> None:
    system(path).admin().create("out", 1, dict(ROWS.schema))
    target = system(path).target("out")
    opened.append(target)
    target.publish(WRITER, 1, [ROWS])
    found = [dict(zip(ROWS.columns, row, strict=True)) for row in select(path, "SELECT * FROM results ORDER BY id")]
    for name in ("id", "text", "maybe", "small", "wide", "unsigned", "number", "truth", "bytes", "colour"):
        assert [row[name] for row in found] == ROWS[name].to_list(), name
    assert [row["day"] for row in found] == ["0001-01-01", "9999-12-31", None]
    assert [row["at"] for row in found] == ["00:00:00.000000", "23:59:59.999999", None]
    assert [row["when"] for row in found] == ["2020-02-29 01:02:03.000456", "1969-12-31 00:00:00.000000", None]
    assert found[0]["zoned"] == "2020-07-01 12:00:00.000000+00:00"
    assert [row["took"] for row in found] == [172_800_000_005, -1, None]
    assert [row["money"] for row in found] == ["12345678901234.50", "-0.01", None]
    assert [None if row["list"] is None else json.loads(row["list"]) for row in found] == [[1, None], [], None]
    assert json.loads(found[0]["pair"]) == {"a": 'x"', "b": [1.5]}


def test_with_a_key_its_last_row_counts(path: Path, opened: list[Target]) -> None:
    system(path, "member").admin().create("out", 1, COUNTS)
    target = system(path, "member").target("out")
    opened.append(target)
    target.publish(WRITER, 1, [counts(ann=1, bob=1), counts(ann=2)])
    target.publish(WRITER, 2, [counts(bob=7, cid=1)])
    assert select(path, "SELECT member, n FROM results ORDER BY 1") == [("ann", 2), ("bob", 7), ("cid", 1)]


def test_a_version_that_does_not_fit_leaves_nothing(path: Path, opened: list[Target]) -> None:
    system(path).admin().create("out", 1, COUNTS)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE UNIQUE INDEX once ON results (member)")
    target = system(path).target("out")
    opened.append(target)
    target.publish(WRITER, 1, [counts(ann=1)])
    with pytest.raises(DataError, match="UNIQUE constraint failed"):
        target.publish(WRITER, 2, [counts(bob=1, ann=2)])
    assert target.position(WRITER) == 1
    assert select(path, "SELECT member FROM results") == [("ann",)]
    with pytest.raises(DataError, match="too large"):
        target.publish(WRITER, 2, [pl.DataFrame({"member": ["x"], "n": pl.Series([2**63], dtype=pl.UInt64)})])
    assert select(path, "SELECT member FROM results") == [("ann",)]


def test_a_locked_file_can_be_tried_again(path: Path, opened: list[Target], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.sql.sqlite_client._LOCK_WAIT_S", 0.01)
    system(path).admin().create("out", 1, COUNTS)
    target = system(path).target("out")
    opened.append(target)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="locked") as caught:
            target.publish(WRITER, 1, [counts(ann=1)])
        assert caught.value.retry
    target.publish(WRITER, 1, [counts(ann=1)])
    assert select(path, "SELECT member FROM results") == [("ann",)]


def test_tables_are_created_or_looked_at(path: Path) -> None:
    with pytest.raises(DeclarationError, match="doesn't exist"):
        system(path, create=False).admin().create("out", 1, COUNTS)
    assert system(path).admin().describe("out") is None
    assert system(path).admin().list() == []
    with pytest.raises(DeclarationError, match="the output has no column 'who'"):
        system(path, "who").admin().create("out", 1, COUNTS)
    for _ in range(2):
        system(path).admin().create("out", 1, COUNTS)
    assert system(path).admin().list() == ["results"]
    with pytest.raises(DeclarationError, match="has no column 'more'; it has member, n"):
        system(path).admin().create("out", 1, {**COUNTS, "more": pl.Int64()})
    with pytest.raises(DeclarationError, match="a SQL table can't hold values of type"):
        system(path, table="other").admin().create("out", 1, {"x": pl.Int128()})


def test_a_key_that_the_table_does_not_keep_unique_is_an_error(path: Path, opened: list[Target]) -> None:
    system(path).admin().create("out", 1, COUNTS)
    target = system(path, "member").target("out")
    opened.append(target)
    with pytest.raises(DeclarationError, match="ON CONFLICT"):
        target.publish(WRITER, 1, [counts(ann=1)])


def test_names_are_quoted(path: Path, opened: list[Target]) -> None:
    odd = 'order"; DROP TABLE headrace_positions; --'
    system(path, table="select").admin().create("out", 1, {odd: pl.Int64()})
    target = system(path, table="select").target("out")
    opened.append(target)
    target.publish(WRITER, 1, [pl.DataFrame({odd: [5]})])
    assert select(path, 'SELECT * FROM "select"') == [(5,)]
    assert select(path, "SELECT * FROM headrace_positions") == [(WRITER, 1)]


def test_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, but it is long enough to look like one" * 100)
    with pytest.raises(DeclarationError, match="not a database"):
        system(tmp_path / "text.db").admin().list()
    with pytest.raises(UnavailableError, match="Not a directory"):
        system(tmp_path / "text.db" / "x.db").admin().list()
    for url in ("sqlite://", "sqlite:///", "sqlite:x.db", "sqlite:///:memory:"):
        with pytest.raises(DeclarationError, match="doesn't name a file"):
            SqlSystem(SecretUrl(url), "t").target("out")
    with pytest.raises(DeclarationError, match="doesn't name a known kind of database"):
        SqlSystem(SecretUrl("mysql://u:pw@h/db"), "t")


def test_a_table_is_an_output_only(path: Path) -> None:
    admin = system(path).admin()
    ssp = SSP(StreamId("sql", "out"), 0)
    for call in (
        system(path).consumer,
        lambda: admin.extents("out"),
        lambda: admin.seal("out"),
        lambda: admin.trim(ssp, 1),
        lambda: admin.report_position(ssp, "g", 1),
    ):
        with pytest.raises(UsageError, match="results of sqlite"):
            call()
    assert admin.reported_positions("out", "g") == {}


def test_options() -> None:
    options = {"url": "sqlite:///a.db", "table": "t", "key": ["a"], "create": False}
    assert open_sql("s", options) == SqlSystem(SecretUrl("sqlite:///a.db"), "t", ("a",), False)
    with pytest.raises(DeclarationError, match="no option 'table'"):
        open_sql("s", {"url": "sqlite:///a.db"})
    with pytest.raises(DeclarationError, match=r"unknown options \['tabel'\]"):
        open_sql("s", {"url": "sqlite:///a.db", "table": "t", "tabel": "t"})


@pytest.mark.parametrize("table", ["main.results", "MAIN.results"])
def test_a_table_may_be_named_with_its_schema(path: Path, opened: list[Target], table: str) -> None:
    sink = system(path, "member", table=table)
    for _ in range(2):  # the second time it is there
        sink.admin().create("out", 1, COUNTS)
        opened.append(target := sink.target("out"))
        target.publish(WRITER, len(opened), [counts(ann=len(opened))])
    assert select(path, "SELECT member, n FROM results") == [("ann", 2)]
    sink.admin().create("out", 1, COUNTS)
    with pytest.raises(DeclarationError, match="euros"):
        sink.admin().create("out", 1, {"member": pl.String(), "euros": pl.Int64()})


@pytest.mark.parametrize("table", ["temp.results", "reports.results", "main.x.results"])
def test_a_schema_that_no_file_has_is_refused(path: Path, table: str) -> None:
    with pytest.raises(DeclarationError, match=r"an SQLite file has no schema '\w+(\.x)?'") as caught:
        system(path, table=table).admin().create("out", 1, COUNTS)
    assert caught.value.hint is not None
    assert '"results"' in caught.value.hint
    assert not path.exists()


WIDER: dict[str, pl.DataType] = {**COUNTS, "page": pl.String(), "at": pl.Datetime("us")}


def test_what_a_start_would_do_is_known_beforehand_and_changes_nothing(path: Path) -> None:
    assert system(path).admin().would_create("out", 1, COUNTS) == Creation(1, new=True)
    assert not path.parent.exists()
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE results (member TEXT, n INTEGER)")
    assert system(path).admin().would_create("out", 1, COUNTS) == Creation(1)
    assert select(path, "SELECT name FROM sqlite_master") == [("results",)]


def test_new_columns_are_added_with_null_in_earlier_rows(path: Path, opened: list[Target]) -> None:
    system(path).admin().create("out", 1, COUNTS)
    for call in (system(path).admin().create, system(path).admin().would_create):
        with pytest.raises(DeclarationError, match="has no column 'page'; it has member, n") as caught:
            call("out", 1, WIDER)
        assert 'new_columns="add"' in str(caught.value.hint)
    target = system(path).target("out")
    opened.append(target)
    target.publish(WRITER, 1, [counts(ann=1)])
    wider = replace(system(path), new_columns="add")
    assert wider.admin().would_create("out", 1, WIDER) == Creation(1, added=("page", "at"))
    wider.admin().create("out", 1, WIDER)
    assert wider.admin().would_create("out", 1, WIDER) == Creation(1)
    target.publish(WRITER, 2, [counts(bob=2).with_columns(page=pl.lit("/a"), at=pl.datetime(2026, 1, 1))])
    rows = select(path, "SELECT * FROM results")
    assert rows == [("ann", 1, None, None), ("bob", 2, "/a", "2026-01-01 00:00:00.000000")]


@pytest.mark.parametrize(
    ("key", "columns", "said"),
    [
        ((), {**COUNTS, "N": pl.Int64()}, "has no column 'N', but 'n'"),
        (("page",), WIDER, "has no column 'page'; it has member, n"),
    ],
    ids=["in another case", "of the key"],
)
def test_a_column_that_can_not_be_added_is_refused(
    path: Path, key: tuple[str, ...], columns: dict[str, pl.DataType], said: str
) -> None:
    system(path).admin().create("out", 1, COUNTS)
    with pytest.raises(DeclarationError, match=said):
        replace(system(path, *key), new_columns="add").admin().create("out", 1, columns)

"""Rows of a SQL table found by key: they are as they were written, in SQLite and in a real PostgreSQL."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from sql_rows import ROWS

import headrace as hr
from headrace.connectors.sql.system import SqlSystem
from headrace.core.errors import DataError, DeclarationError, UnavailableError
from headrace.core.secrets import SecretUrl
from headrace.plan.planner import plan
from headrace.plan.render import render, to_text
from headrace.systems.base import StreamInfo

Run = Callable[[str], list[tuple[Any, ...]]]


class Database:
    """A database, and a connection to it that bypasses Headrace."""

    def __init__(self, url: str, run: Run, prefix: str = "") -> None:
        self.url, self.run, self.prefix = url, run, prefix

    def system(self, table: str, *key: str) -> SqlSystem:
        return SqlSystem(SecretUrl(self.url), self.prefix + table, key)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        file = tmp_path / "results.db"

        def ask(statement: str) -> list[tuple[Any, ...]]:
            with sqlite3.connect(file) as connection:
                found = connection.execute(statement).fetchall()
            connection.close()
            return found

        yield Database(f"sqlite:///{file}", ask)
        return
    server = request.getfixturevalue("postgres")
    psycopg = pytest.importorskip("psycopg")
    schema = f"s{uuid.uuid4().hex[:8]}"

    def run(statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(server.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    run(f"CREATE SCHEMA {schema}")
    yield Database(server.url, run, f"{schema}.")


def found(system: SqlSystem, keys: pl.DataFrame, columns: Any) -> pl.DataFrame:
    lookup = system.lookup(columns)
    try:
        return lookup.read(keys)
    finally:
        lookup.close()


def filled(database: Database, rows: pl.DataFrame, *key: str) -> SqlSystem:
    system = database.system("rows", *key)
    system.admin().create("rows", 1, dict(rows.schema))
    target = system.target("rows")
    target.publish("app/stage/0/out", 0, [rows])
    target.close()
    return system


def test_every_type_comes_back_as_it_was_written(database: Database) -> None:
    rows = ROWS.with_columns(pl.Series("huge", [2**63 - 1, 0, None], dtype=pl.UInt64))
    read = found(filled(database, rows, "id"), pl.DataFrame({"id": [3, 1, 2, 9]}), rows.schema)
    assert_frame_equal(read.sort("id"), rows)


KEYS = ["text", "small", "wide", "unsigned", "truth", "bytes", "day", "when", "money", "colour"]


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_many_types(database: Database, name: str) -> None:
    rows = ROWS.select("id", name).drop_nulls()
    read = found(filled(database, rows, name), rows.select(name), rows.schema)
    assert_frame_equal(read.sort("id"), rows)


def test_keys_of_several_columns(database: Database) -> None:
    rows = pl.DataFrame({"a": [1, 1, 2], "b": ["x", "y", "x"], "n": [1, 2, 3]})
    system = filled(database, rows, "a", "b")
    keys = pl.DataFrame({"b": ["y", "x", "y"], "a": [1, 2, 2]})
    assert sorted(found(system, keys, rows.schema).rows()) == [(1, "y", 2), (2, "x", 3)]


def test_more_keys_than_a_statement_takes(database: Database) -> None:
    rows = pl.DataFrame({"a": range(40_000), "n": range(40_000)})
    read = found(filled(database, rows, "a"), rows.select("a"), {"n": pl.Int64(), "a": pl.Int64()})
    assert (read.columns, read.height, read["n"].sum()) == (["n", "a"], 40_000, sum(range(40_000)))


def test_what_is_there_now_is_seen_and_nothing_is_locked(database: Database) -> None:
    system = filled(database, pl.DataFrame({"a": [1], "n": [1]}), "a")
    lookup = system.lookup({"a": pl.Int64(), "n": pl.Int64()})
    assert lookup.read(pl.DataFrame({"a": [1]})).rows() == [(1, 1)]
    database.run(f"UPDATE {database.prefix}rows SET n = 5")
    assert lookup.read(pl.DataFrame({"a": [1]})).rows() == [(1, 5)]
    lookup.close()


def test_a_column_that_is_not_there_can_not_come_later(database: Database) -> None:
    system = filled(database, pl.DataFrame({"a": [1]}), "a")
    with pytest.raises(DeclarationError, match="column"):
        found(system, pl.DataFrame({"a": [1]}), {"a": pl.Int64(), "b": pl.String()})


def test_values_of_another_type_are_the_datas_mistake(database: Database) -> None:
    system = filled(database, pl.DataFrame({"a": [1], "n": ["many"]}), "a")
    with pytest.raises(DataError, match="column 'n' of the database has a value that is not of type Int64"):
        found(system, pl.DataFrame({"a": [1]}), {"a": pl.Int64(), "n": pl.Int64()})


def test_a_database_that_is_not_there_may_come(tmp_path: Path) -> None:
    system = SqlSystem(SecretUrl(f"sqlite:///{tmp_path}/none.db"), "rows", ("a",))
    with pytest.raises(UnavailableError):
        found(system, pl.DataFrame({"a": [1]}), {"a": pl.Int64()})
    assert list(tmp_path.iterdir()) == []


# -- in an app

ROW = {"member": pl.String, "n": pl.Int64}


def test_an_app_reads_and_writes_it_exactly_once(database: Database) -> None:
    database.run(f"CREATE TABLE {database.prefix}members (member TEXT PRIMARY KEY, n BIGINT)")
    database.run(f"INSERT INTO {database.prefix}members VALUES ('ann', 1), ('bob', 2)")
    app = hr.App("sql")
    table = app.table(
        "members", key="member", schema=ROW, remote=hr.tables.sql_table(database.url, f"{database.prefix}members")
    )
    app.input("asked", ROW).join(table, how="left").send_to(app.output("out"))
    app.input("rows", ROW).send_to(table)
    with app.test({"asked": 2}) as t:
        t.feed("asked", [{"member": "ann", "n": 0}, {"member": "eve", "n": 0}], partition=1)
        assert t.read("out").rows() == [("ann", 0, 1), ("eve", 0, None)]
        t.feed("rows", [{"member": "eve", "n": 5}, {"member": "ann", "n": 7}, {"member": "eve", "n": 6}])
        t.restart(checkpoint=True)
        t.feed("asked", [{"member": "ann", "n": 1}, {"member": "eve", "n": 1}], partition=1)
        t.end()
        assert t.ended
        assert t.read("out", committed=True).rows()[2:] == [("ann", 1, 7), ("eve", 1, 6)]
    kept = database.run(f"SELECT member, n FROM {database.prefix}members")
    assert sorted(kept) == [("ann", 7), ("bob", 2), ("eve", 6)]
    (position,) = database.run(f"SELECT count(*) FROM {database.prefix}headrace_positions")
    assert position == (1,)


def test_the_plan_calls_it_exactly_once_and_shows_no_password() -> None:
    app = hr.App("sql")
    remote = hr.tables.cached(hr.tables.sql_table("postgresql://me:secret@host/db", "members"))
    table = app.table("members", key="member", schema=ROW, remote=remote)
    rows = app.input("rows", ROW, system=hr.io.memory())
    rows.join(table).send_to(app.output("out"))
    rows.send_to(table)
    text = to_text(render(plan(app.graph(), {"rows": StreamInfo("rows", 1)})))
    assert "secret" not in text
    assert "sql members of postgresql://" in text
    assert "exactly-once" in next(line for line in text.splitlines() if line.strip().startswith("members  sink"))


def test_a_table_that_goes_wrong_while_it_is_read_says_so(database: Database) -> None:
    app = hr.App("sql")
    remote = hr.tables.sql_table(database.url, f"{database.prefix}nowhere")
    table = app.table("members", key="member", schema=ROW, remote=remote)
    app.input("asked", ROW).join(table).send_to(app.output("out"))
    database.run(f"CREATE TABLE {database.prefix}elsewhere (n INTEGER)")
    with app.test() as t, pytest.raises(DeclarationError, match=r"table 'members' can't be read: .*nowhere"):
        t.feed("asked", [{"member": "ann", "n": 0}])

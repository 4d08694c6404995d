"""A PostgreSQL table as a target, on a real server."""

from __future__ import annotations

import sys
import traceback
import uuid
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from sql_rows import ROWS

from chaos.postgres_server import PostgresServer
from headrace.connectors.sql.system import SqlSystem
from headrace.core.errors import DataError, DeclarationError, HeadraceError, InfrastructureError, UnavailableError
from headrace.core.secrets import SecretUrl
from headrace.systems.base import Creation

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

WRITER = "app/stage/0/out"
COUNTS: dict[str, pl.DataType] = {"member": pl.String(), "n": pl.Int64()}


@pytest.fixture
def place(postgres: PostgresServer) -> str:
    """A schema of the test's own."""
    schema = f"s{uuid.uuid4().hex[:8]}"
    run(postgres, f"CREATE SCHEMA {schema}")
    return schema


def system(server: PostgresServer, table: str, *key: str) -> SqlSystem:
    return SqlSystem(SecretUrl(server.url), table, key)


def run(server: PostgresServer, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def counts(**of: int) -> pl.DataFrame:
    return pl.DataFrame({"member": list(of), "n": list(of.values())}, schema=COUNTS)


@pytest.mark.parametrize("key", [(), ("id",)], ids=["insert", "upsert"])
def test_every_type_arrives(postgres: PostgresServer, place: str, key: tuple[str, ...]) -> None:
    typed = system(postgres, f"{place}.typed", *key)
    rows = ROWS.with_columns(pl.Series("huge", [2**64 - 1, 0, None], dtype=pl.UInt64))
    typed.admin().create("out", 1, dict(rows.schema))
    target = typed.target("out")
    target.publish(WRITER, 1, [rows])
    target.close()
    names = ", ".join(f'"{name}"' for name in rows.columns)
    found = pl.DataFrame(
        run(postgres, f"SELECT {names} FROM {place}.typed ORDER BY id"),
        schema={**rows.schema, "huge": pl.Decimal(20, 0), "zoned": pl.Datetime("us", "UTC")},
        orient="row",
    )
    wanted = rows.with_columns(
        pl.col("huge").cast(pl.Decimal(20, 0)),
        pl.col("zoned").dt.convert_time_zone("UTC").cast(pl.Datetime("us", "UTC")),
    )
    assert found.rows() == wanted.rows()


def test_with_a_key_its_last_row_counts(postgres: PostgresServer, place: str) -> None:
    keyed = system(postgres, f"{place}.counts", "member")
    keyed.admin().create("out", 1, COUNTS)
    target = keyed.target("out")
    target.publish(WRITER, 1, [counts(ann=1, bob=1), counts(ann=2)])
    target.publish(WRITER, 2, [counts(bob=7, cid=1)])
    target.close()
    assert sorted(run(postgres, f"SELECT * FROM {place}.counts")) == [("ann", 2), ("bob", 7), ("cid", 1)]
    only_keys = system(postgres, f"{place}.members", "member")
    only_keys.admin().create("out", 1, {"member": pl.String()})
    target = only_keys.target("out")
    for version in (1, 2):
        target.publish("other", version, [counts(ann=1).select("member")])
    target.close()
    assert run(postgres, f"SELECT * FROM {place}.members") == [("ann",)]


def test_a_version_that_does_not_fit_leaves_nothing(postgres: PostgresServer, place: str) -> None:
    table = system(postgres, f"{place}.counts")
    table.admin().create("out", 1, COUNTS)
    run(postgres, f"ALTER TABLE {place}.counts ADD CHECK (n < 100)")
    target = table.target("out")
    target.publish(WRITER, 1, [counts(ann=1)])
    with pytest.raises(DataError, match="violates check constraint"):
        target.publish(WRITER, 2, [counts(bob=1, cid=100)])
    with pytest.raises(DataError, match="0x00"):
        target.publish(WRITER, 2, [pl.DataFrame({"member": ["a\x00"], "n": [1]})])
    assert target.position(WRITER) == 1
    target.close()
    assert run(postgres, f"SELECT member FROM {place}.counts") == [("ann",)]


def test_what_the_server_refuses_for_good(postgres: PostgresServer, place: str) -> None:
    table = system(postgres, f"{place}.counts")
    table.admin().create("out", 1, COUNTS)
    with pytest.raises(DeclarationError, match="has no column 'more'"):
        table.admin().create("out", 1, {**COUNTS, "more": pl.Int64()})
    keyed = system(postgres, f"{place}.counts", "member").target("out")
    with pytest.raises(DeclarationError, match="no unique or exclusion constraint"):
        keyed.publish(WRITER, 1, [counts(ann=1)])
    assert keyed.position(WRITER) == -1
    keyed.close()


def test_a_lock_of_another_is_not_waited_for_long(
    postgres: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.connectors.sql.postgres_client._LOCK_WAIT", "50ms")
    table = system(postgres, f"{place}.counts")
    table.admin().create("out", 1, COUNTS)
    target = table.target("out")
    with psycopg.connect(postgres.url) as other:
        other.execute(f"LOCK TABLE {place}.counts")
        with pytest.raises(UnavailableError, match="lock timeout"):
            target.publish(WRITER, 1, [counts(ann=1)])
    target.publish(WRITER, 1, [counts(ann=1)])
    target.close()
    assert run(postgres, f"SELECT member FROM {place}.counts") == [("ann",)]


def test_a_server_that_goes_and_comes_back(postgres: PostgresServer, place: str) -> None:
    table = system(postgres, f"{place}.counts")
    table.admin().create("out", 1, COUNTS)
    target = table.target("out")
    target.publish(WRITER, 1, [counts(ann=1)])
    postgres.stop()
    try:
        for _ in range(2):
            with pytest.raises(UnavailableError) as caught:
                target.publish(WRITER, 2, [counts(bob=1)])
            assert caught.value.retry
    finally:
        postgres.start()
    target.publish(WRITER, 2, [counts(bob=1)])
    target.close()
    assert sorted(run(postgres, f"SELECT * FROM {place}.counts")) == [("ann", 1), ("bob", 1)]


def test_the_password_turns_up_nowhere(postgres: PostgresServer) -> None:
    wrong = "wr0ng-p%40ss"
    urls = [
        postgres.url.replace(postgres.password, wrong),
        postgres.url.replace(postgres.password, wrong).replace("/postgres", "/nowhere"),
        f"postgresql://tester:{wrong}@127.0.0.1:1/postgres",
        f"postgresql://tester:{wrong}@127.0.0.1:notaport/postgres",
        f"postgresql://tester:{wrong}@127.0.0.1/postgres?nonsense=1",
    ]
    for url in urls:
        system_ = SqlSystem(SecretUrl(url), "t")
        with pytest.raises(HeadraceError) as caught:
            system_.target("out").position(WRITER)
        told = "".join(traceback.format_exception(caught.value)) + repr(system_) + str(caught.value)
        assert "wr0ng" not in told
        assert "***" in str(caught.value)


def test_without_the_driver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "headrace.connectors.sql.postgres_client", raising=False)
    with pytest.raises(InfrastructureError, match="can't be imported") as caught:
        SqlSystem(SecretUrl("postgresql://u:pw@h/db"), "t").target("out")
    assert 'pip install "headrace[postgres]"' in (caught.value.hint or "")


def test_new_columns_are_added_once_and_looking_changes_nothing(postgres: PostgresServer, place: str) -> None:
    first = system(postgres, f"{place}.counts")
    assert first.admin().would_create("out", 1, COUNTS) == Creation(1, new=True)
    assert run(postgres, f"SELECT * FROM pg_tables WHERE schemaname = '{place}'") == []
    first.admin().create("out", 1, COUNTS)
    wider = {**COUNTS, "Page": pl.String(), "at": pl.Datetime("us", "UTC")}
    adding = replace(first, new_columns="add")
    assert adding.admin().would_create("out", 1, wider) == Creation(1, added=("Page", "at"))
    adding.admin().create("out", 1, wider)
    client = adding.client()
    client.add_columns(wider)  # as a start does that looked before the other one added them
    assert client.columns() == ["member", "n", "Page", "at"]
    client.close()

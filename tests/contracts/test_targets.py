from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from chaos.postgres_server import PostgresServer
from headrace.connectors.delta.system import DeltaSystem
from headrace.connectors.sql.system import SqlSystem
from headrace.core.secrets import SecretOptions, SecretUrl
from headrace.kit.contracts import check_target, target_checks
from headrace.kit.systems import ContractError
from headrace.systems.files.storage import find_files
from headrace.systems.files.system import FilesSystem
from servers.moto import ENVIRONMENT, MotoServer

READERS = {"parquet": pl.read_parquet, "jsonl": pl.read_ndjson, "csv": pl.read_csv}
EMPTY = pl.DataFrame(schema={"writer": pl.String, "version": pl.Int64, "n": pl.Int64})


@pytest.mark.parametrize("format", READERS)
@pytest.mark.parametrize("check", target_checks())
def test_files_keep_the_contract(check: str, format: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"

    def read() -> pl.DataFrame:
        return pl.concat([EMPTY, *(READERS[format](file.path) for file in find_files(str(folder)))])

    check_target(lambda: FilesSystem(str(folder), format=format).target("out"), read, only=check)
    assert not list(folder.rglob("*.making"))


COLUMNS: dict[str, pl.DataType] = {"writer": pl.String(), "version": pl.Int64(), "n": pl.Int64()}


@pytest.mark.parametrize("key", [(), ("writer", "version", "n")], ids=["insert", "upsert"])
@pytest.mark.parametrize("check", target_checks())
def test_sqlite_keeps_the_contract(check: str, key: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    system = SqlSystem(SecretUrl(f"sqlite:///{path}"), "results", key)
    system.admin().create("out", 1, COLUMNS)

    def read() -> pl.DataFrame:
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT writer, version, n FROM results").fetchall()
        return pl.DataFrame(rows, schema=EMPTY.schema, orient="row")

    check_target(lambda: system.target("out"), read, only=check)


@pytest.mark.parametrize("key", [(), ("writer", "version", "n")], ids=["insert", "upsert"])
@pytest.mark.parametrize("check", target_checks())
def test_postgres_keeps_the_contract(check: str, key: tuple[str, ...], postgres: PostgresServer) -> None:
    psycopg = pytest.importorskip("psycopg")
    system = SqlSystem(SecretUrl(postgres.url), f"results_{check}_{len(key)}", key)
    system.admin().create("out", 1, COLUMNS)

    def read() -> pl.DataFrame:
        with psycopg.connect(postgres.url) as connection:
            rows = connection.execute(f"SELECT writer, version, n FROM {system.table}").fetchall()
        return pl.DataFrame(rows, schema=EMPTY.schema, orient="row")

    check_target(lambda: system.target("out"), read, only=check)


@pytest.mark.parametrize("partition_by", [(), ("version",)], ids=["plain", "partitioned"])
@pytest.mark.parametrize("check", target_checks())
def test_delta_keeps_the_contract(check: str, partition_by: tuple[str, ...], tmp_path: Path) -> None:
    system = DeltaSystem(str(tmp_path / "results"), partition_by)
    system.admin().create("out", 1, COLUMNS)

    def read() -> pl.DataFrame:
        return pl.read_delta(system.path)

    check_target(lambda: system.target("out"), read, only=check)


@pytest.mark.parametrize("check", target_checks())
def test_delta_in_an_object_store_keeps_the_contract(check: str, moto: MotoServer) -> None:
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", region_name=moto.region, endpoint_url=moto.endpoint)
    client.create_bucket(Bucket="bucket")
    options = {
        "aws_endpoint": moto.endpoint,
        "aws_allow_http": "true",
        "aws_region": moto.region,
        "aws_access_key_id": ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
    }
    system = DeltaSystem(f"s3://bucket/{check}", storage=SecretOptions.of(options))
    system.admin().create("out", 1, COLUMNS)

    def read() -> pl.DataFrame:
        return pl.read_delta(system.path, storage_options=options)

    check_target(lambda: system.target("out"), read, only=check)


class Shelf:
    """What handles share."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.tables: list[pl.DataFrame] = [EMPTY]


class Broken:
    """A target with one mistake. Without it the target would pass, except for the check with two threads."""

    def __init__(self, shelf: Shelf, mistake: str) -> None:
        self._shelf = shelf
        self._mistake = mistake
        self._seen: dict[str, int] = {}

    def accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows

    def prepare(self, writer: str, published: int) -> float | None:
        return None

    def position(self, writer: str) -> int:
        position = self._shelf.positions.get(self._named(writer), 0 if self._mistake == "begins at 0" else -1)
        self._seen[writer] = position
        return position

    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        known = self._seen.get(writer, -1) if self._mistake == "remembers" else self.position(writer)
        if version <= known and self._mistake != "adds":
            return
        self._shelf.tables += rows[:1] if self._mistake == "takes one piece" else rows
        self._seen[writer] = version
        if self._mistake != "forgets":
            self._shelf.positions[self._named(writer)] = version

    def close(self) -> None:
        pass

    def _named(self, writer: str) -> str:
        return writer.replace("/", "_") if self._mistake == "mixes writers" else writer


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        ("begins at 0", "a_new_writer"),
        ("forgets", "versions_in_order"),
        ("takes one piece", "pieces_of_one_version"),
        ("adds", "the_same_again"),
        ("forgets", "a_replacement_goes_on"),
        ("remembers", "a_stale_copy_wakes"),
        ("mixes writers", "writers_apart"),
        ("adds", "two_at_once"),
    ],
)
def test_a_broken_target_is_caught(mistake: str, check: str) -> None:
    shelf = Shelf()
    make: Callable[[], Broken] = lambda: Broken(shelf, mistake)  # noqa: E731
    with pytest.raises(ContractError, match=check):
        check_target(make, lambda: pl.concat(shelf.tables), only=check)


def test_every_check_can_fail_and_the_sound_pass() -> None:
    shelf = Shelf()
    for check in target_checks():
        if check != "two_at_once":
            check_target(lambda: Broken(shelf, "none"), lambda: pl.concat(shelf.tables), only=check)

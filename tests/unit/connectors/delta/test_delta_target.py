"""A Delta table as a target: who wins, what stays, and what its errors say."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType
from typing_extensions import override

from headrace.connectors.delta.client import DeltaClient
from headrace.connectors.delta.system import DeltaSystem, DeltaTarget, open_delta
from headrace.core.errors import (
    DataError,
    DeclarationError,
    InfrastructureError,
    StorageError,
    StreamNotFoundError,
    UnavailableError,
    UsageError,
)
from headrace.core.ids import SSP, StreamId
from headrace.core.secrets import SecretOptions
from headrace.systems.base import Creation, Target
from servers.moto import MotoServer

WRITER = "app/stage/0/out"
COLUMNS: dict[str, pl.DataType] = {"member": pl.String(), "n": pl.Int64()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "views"


def created(path: Path, columns: dict[str, pl.DataType] | None = None, **changed: Any) -> DeltaSystem:
    system = DeltaSystem(str(path), **changed)
    system.admin().create("out", 1, columns or COLUMNS)
    return system


def rows(*numbers: int) -> list[pl.DataFrame]:
    return [pl.DataFrame({"member": ["ann"] * len(numbers), "n": numbers}, schema=COLUMNS)]


def numbers(path: Path) -> list[int]:
    return pl.read_delta(str(path))["n"].sort().to_list()


class Gated(DeltaClient):
    """Something happens between its snapshot and its commit."""

    meanwhile: Callable[[], object] | None = None

    @override
    def _has(self, table: DeltaTable, writer: str, version: int) -> bool:
        has = super()._has(table, writer, version)
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return has


@pytest.fixture
def gated(path: Path) -> Iterator[tuple[Gated, Target]]:
    created(path)
    client = Gated(str(path), SecretOptions())
    target = DeltaTarget(client, ())
    yield client, target
    target.close()


# -- between a snapshot and the commit that is based on it


def test_a_stale_copy_that_has_looked_already_adds_nothing(path: Path, gated: tuple[Gated, Target]) -> None:
    client, stale = gated
    replacement = DeltaSystem(str(path)).target("out")
    client.meanwhile = lambda: replacement.publish(WRITER, 1, rows(1))
    stale.publish(WRITER, 1, rows(1))
    client.meanwhile = lambda: [replacement.publish(WRITER, version, rows(version)) for version in (2, 3)]
    stale.publish(WRITER, 2, rows(2))
    assert numbers(path) == [1, 2, 3]
    assert stale.position(WRITER) == 3


def test_a_stale_copy_that_is_ahead_tries_again(path: Path, gated: tuple[Gated, Target]) -> None:
    client, ahead = gated
    behind = DeltaSystem(str(path)).target("out")
    client.meanwhile = lambda: behind.publish(WRITER, 1, rows(1))
    with pytest.raises(UnavailableError) as caught:
        ahead.publish(WRITER, 2, rows(2))
    assert caught.value.retry
    ahead.publish(WRITER, 2, rows(2))
    assert numbers(path) == [1, 2]


def test_other_writers_and_compaction_do_not_disturb(path: Path, gated: tuple[Gated, Target]) -> None:
    client, target = gated
    other = DeltaSystem(str(path)).target("out")
    for version in range(3):
        other.publish("app/stage/1/out", version, rows(10 + version))

    def meanwhile() -> None:
        other.publish("app/stage/1/out", 3, rows(13))
        DeltaTable(path).optimize.compact()

    client.meanwhile = meanwhile
    target.publish(WRITER, 0, rows(0))
    assert numbers(path) == [0, 10, 11, 12, 13]


def test_a_column_that_somebody_adds_meanwhile_is_null_in_the_next_try(path: Path, gated: tuple[Gated, Target]) -> None:
    client, target = gated
    client.meanwhile = lambda: DeltaTable(path).alter.add_columns([Field("more", PrimitiveType("string"))])
    with pytest.raises(UnavailableError):
        target.publish(WRITER, 0, rows(0))
    target.publish(WRITER, 0, rows(0))
    assert pl.read_delta(str(path)).rows() == [("ann", 0, None)]


# -- what a table goes through


def test_positions_outlive_compaction_checkpoints_and_cleaning(path: Path) -> None:
    system = created(path, {**COLUMNS, "day": pl.Int32()}, partition_by=("day",))
    target = system.target("out")
    for version in range(5):
        target.publish(WRITER, version, [rows(version)[0].with_columns(day=pl.lit(version % 2, dtype=pl.Int32))])
    table = DeltaTable(path)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    assert table.optimize.compact()["numFilesRemoved"] == 5
    table.create_checkpoint()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.cleanup_metadata()
    assert len(list((path / "_delta_log").glob("*.json"))) < 5
    assert len(list(path.rglob("*.parquet"))) < 5
    for one in (target, system.target("out")):
        assert one.position(WRITER) == 4
        one.publish(WRITER, 4, rows(4))
    target.publish(WRITER, 5, [rows(5)[0].with_columns(day=pl.lit(7, dtype=pl.Int32))])
    assert numbers(path) == [0, 1, 2, 3, 4, 5]
    assert sorted(folder.name for folder in path.glob("day=*")) == ["day=0", "day=1", "day=7"]


@pytest.mark.parametrize("versions", [0, 2, 9])
def test_a_table_that_was_replaced_is_not_taken_for_the_old_one(path: Path, versions: int) -> None:
    target = created(path).target("out")
    for version in range(5):
        target.publish(WRITER, version, rows(version))
    shutil.rmtree(path)
    another = created(path).target("out")
    for version in range(versions):
        another.publish("another/stage/0/out", version, rows(100 + version))
    assert target.position(WRITER) == -1
    target.publish(WRITER, 5, rows(5))
    assert numbers(path) == [5, *range(100, 100 + versions)]


def test_a_table_that_is_gone_is_missed(path: Path) -> None:
    target = created(path).target("out")
    target.publish(WRITER, 0, rows(0))
    shutil.rmtree(path)
    for call in (lambda: target.position(WRITER), lambda: target.publish(WRITER, 1, rows(1))):
        with pytest.raises(StreamNotFoundError, match="doesn't exist"):
            call()
    assert not path.exists()


def test_a_version_without_rows_moves_the_position(path: Path) -> None:
    target = created(path).target("out")
    target.publish(WRITER, 3, rows())
    assert target.position(WRITER) == 3
    assert numbers(path) == []


# -- durability


class Synced:
    """The names of the files that were synced, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            self.names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    def take(self) -> list[str]:
        names, self.names = self.names, []
        return [name.partition("-")[0] if name.endswith(".parquet") else name for name in names]


def test_a_commit_is_durable_before_it_counts_as_published(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Synced(monkeypatch)
    target = created(path, partition_by=("member",)).target("out")
    assert synced.take() == ["00000000000000000000.json", "_delta_log", "views", "lake"]
    target.publish(WRITER, 0, [rows(0)[0].with_columns(member=pl.lit("a/b é 5%20"))])
    (folder,) = path.glob("member=*")
    assert synced.take() == ["part", "views", folder.name, "00000000000000000001.json", "_delta_log"]


def test_it_is_its_own_commit_that_is_made_durable(
    path: Path, gated: tuple[Gated, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, target = gated
    other = DeltaSystem(str(path)).target("out")
    client.meanwhile = lambda: [other.publish("app/stage/1/out", version, rows(version)) for version in range(3)]
    synced = Synced(monkeypatch)
    target.publish(WRITER, 0, rows(9))
    entry = synced.take()[-2]
    assert entry == "00000000000000000004.json"
    assert f'"{WRITER}"' in (path / "_delta_log" / entry).read_text()


def test_what_a_dead_process_has_not_synced_is_synced_by_the_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = created(path)
    system.target("out").publish(WRITER, 0, rows(0))
    system.target("out").publish("other/stage/0/out", 7, rows(7))
    synced = Synced(monkeypatch)
    assert system.target("out").position(WRITER) == 0
    assert synced.take() == ["part", "views", "00000000000000000001.json", "_delta_log"]
    assert system.target("out").position("unknown/stage/0/out") == -1
    assert synced.take() == []


def test_a_commit_that_could_not_be_synced_is_published_again_without_effect(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = created(path).target("out")

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        for _ in range(2):
            with pytest.raises(StorageError, match="Input/output error"):
                target.publish(WRITER, 0, rows(0))
    target.publish(WRITER, 0, rows(0))
    assert numbers(path) == [0]


def test_a_disk_that_is_full_takes_the_rows_later(path: Path) -> None:
    target = created(path).target("out")
    many = pl.DataFrame({"member": "ann", "n": pl.int_range(1_000_000, eager=True).shuffle(seed=1)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError) as caught:
            target.publish(WRITER, 0, [many])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.retry
    assert "File too large" in caught.value.message
    target.publish(WRITER, 0, [many])
    assert numbers(path) == list(range(1_000_000))


# -- creating


def test_several_that_create_a_table_at_once_get_one(path: Path) -> None:
    start = threading.Barrier(4)
    failed: list[BaseException] = []

    def create() -> None:
        try:
            start.wait(10)
            created(path)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert DeltaTable(path).version() == 0
    assert [file.name for file in path.parent.iterdir()] == ["views"]


def test_a_folder_with_other_files_does_not_become_a_table(path: Path) -> None:
    path.mkdir(parents=True)
    (path / ".hidden").touch()
    created(path)
    shutil.rmtree(path)
    path.mkdir()
    (path / "views-1.parquet").touch()
    with pytest.raises(DeclarationError, match=r"would remove its other files, such as views-1\.parquet"):
        created(path)
    assert [file.name for file in path.parent.rglob("*")] == ["views", "views-1.parquet"]


def test_columns_are_added_only_if_that_is_asked_for(path: Path) -> None:
    created(path).target("out").publish(WRITER, 0, rows(0))
    more: dict[str, pl.DataType] = {"n": pl.Int32(), "at": pl.Datetime("ms"), "tags": pl.List(pl.String)}
    with pytest.raises(DeclarationError, match="has no column 'at'; it has member, n") as caught:
        created(path, more)
    assert caught.value.hint
    assert 'new_columns="add"' in caught.value.hint
    asked = DeltaSystem(str(path), new_columns="add").admin().would_create("out", 1, more)
    assert asked == Creation(1, added=("at", "tags"))
    assert DeltaTable(path).version() == 1
    system = created(path, more, new_columns="add")
    target = system.target("out")
    frame = pl.DataFrame({"n": [1], "at": [None], "tags": [["x"]]}, schema=more)
    target.publish(WRITER, 1, [target.accept(frame)])
    found = pl.read_delta(str(path)).sort("n")
    assert found.schema == {**COLUMNS, "at": pl.Datetime("us"), "tags": pl.List(pl.String)}
    assert found.rows() == [("ann", 0, None, None), (None, 1, None, ["x"])]
    created(path, more, new_columns="add")
    assert DeltaTable(path).version() == 3  # created, a row, the columns, a row


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"member": pl.Int64(), "n": pl.Int64()}, "its column 'member' is str, not i64"),
        ({"member": pl.String(), "n": pl.Float64()}, "its column 'n' is i64, not f64"),
        ({"Member": pl.String(), "n": pl.Int64()}, "its column 'member' differs in case"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(path: Path, columns: dict[str, pl.DataType], message: str) -> None:
    created(path)
    with pytest.raises(DeclarationError, match=message):
        DeltaSystem(str(path)).admin().would_create("out", 1, columns)
    for new_columns in ("refuse", "add"):
        with pytest.raises(DeclarationError, match=message):
            created(path, columns, new_columns=new_columns)
    assert DeltaTable(path).version() == 0


def test_a_time_without_zone_is_no_instant(path: Path) -> None:
    created(path, {"at": pl.Datetime("us", "UTC")})
    with pytest.raises(DeclarationError, match=r"replace_time_zone\(\) adds or removes the zone"):
        created(path, {"at": pl.Datetime("us")})


def test_a_table_is_partitioned_by_what_the_output_says(path: Path) -> None:
    created(path, partition_by=("member",))
    with pytest.raises(DeclarationError, match="is partitioned by member, not by nothing"):
        created(path)
    created(path, partition_by=("member",))


def test_a_table_that_is_missing_is_created_unless_that_is_forbidden(path: Path) -> None:
    with pytest.raises(DeclarationError, match="doesn't exist"):
        created(path, create=False)
    with pytest.raises(DeclarationError, match="doesn't exist"):
        DeltaSystem(str(path)).admin().create("out", 1, None)
    admin = DeltaSystem(str(path)).admin()
    assert (admin.list(), admin.describe("out")) == ([], None)
    created(path)
    created(path, create=False)
    assert admin.list() == [str(path)]


# -- tables of others


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("delta.setTransactionRetentionDuration", "interval 30 days", "rows could be added twice"),
        ("delta.columnMapping.mode", "name", "isn't supported"),
    ],
)
def test_a_table_with_a_property_that_breaks_the_contract_is_refused(
    path: Path, key: str, value: str, why: str
) -> None:
    path.mkdir(parents=True)
    versions = {"delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}
    write_deltalake(path, rows(0)[0], configuration={key: value, **versions})
    with pytest.raises(DeclarationError, match=why):
        created(path)
    for call in (lambda t: t.position(WRITER), lambda t: t.publish(WRITER, 0, rows(0))):
        with pytest.raises(DeclarationError, match=key):
            call(DeltaSystem(str(path)).target("out"))


def test_rows_that_violate_a_constraint_stop_the_app_and_are_not_shown(path: Path) -> None:
    target = created(path).target("out")
    DeltaTable(path).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(DataError) as caught:
        target.publish(WRITER, 0, rows(-987654))
    assert "987654" not in str(caught.value)
    assert not caught.value.retry
    DeltaTable(path).alter.drop_constraint("positive")
    target.publish(WRITER, 0, rows(-987654))
    assert numbers(path) == [-987654]


def test_a_log_that_is_torn_is_named(path: Path) -> None:
    target = created(path).target("out")
    target.publish(WRITER, 0, rows(0))
    (path / "_delta_log" / f"{2:020d}.json").write_text('{"add":{"pa')
    with pytest.raises(InfrastructureError, match="Truncated record") as caught:
        target.publish(WRITER, 1, rows(1))
    assert not caught.value.retry
    assert "<unknown>" not in caught.value.message


@pytest.mark.parametrize("name", ["a[1]", "a%20b", "a|b", "a\nb"])
def test_a_name_that_deltalake_takes_for_another_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeclarationError, match="can't hold a Delta table"):
        created(tmp_path / name)


@pytest.mark.parametrize("name", ["a b", "a#b", "a?b", "100%", "ä+c:d", "日本"])
def test_other_names_are_kept(tmp_path: Path, name: str) -> None:
    created(tmp_path / name).target("out").publish(WRITER, 0, rows(0))
    assert DeltaTable(tmp_path / name).to_pyarrow_table()["n"].to_pylist() == [0]  # Polars can't read such folders
    assert [file.name for file in tmp_path.iterdir()] == [name]


# -- what is refused


def test_a_table_is_written_only() -> None:
    system = DeltaSystem("lake/views")
    with pytest.raises(UsageError, match="can't be read as a stream") as caught:
        system.consumer()
    assert caught.value.hint
    with pytest.raises(UsageError, match="the Delta table lake/views can't be sealed"):
        system.admin().seal("out")
    with pytest.raises(UsageError, match="has no positions"):
        system.admin().offset_at(SSP(StreamId("delta", "out"), 0), 0)


@pytest.mark.parametrize("options", [{}, {"path": "x", "format": "y"}])
def test_options_of_a_spec(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match=r"system 's' \(delta\)") as caught:
        open_delta("s", options)
    assert caught.value.hint


def test_options_of_a_spec_become_a_system() -> None:
    storage = {"aws_region": "eu-west-1"}
    wanted = DeltaSystem("s3://bucket/x", ("day",), storage=SecretOptions.of(storage))
    assert open_delta("s", {"path": "s3://bucket/x", "partition_by": ["day"], "storage": storage}) == wanted


def test_without_deltalake_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headrace.connectors.delta.client", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(InfrastructureError, match="Delta Lake needs deltalake") as caught:
        DeltaSystem("lake/views").target("out")
    assert caught.value.hint
    assert "headrace[delta]" in caught.value.hint


def test_a_store_without_credentials_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = SecretOptions.of({"aws_region": "us-east-1", "aws_access_key_id": "AKIATESTS"})
    with pytest.raises(InfrastructureError, match="no credentials found") as caught:
        DeltaSystem("s3://bucket/views", storage=options).target("out").position(WRITER)
    assert not caught.value.retry


def test_a_bucket_that_is_missing_is_named(moto: MotoServer) -> None:
    options = {"aws_endpoint": moto.endpoint, "aws_allow_http": "true", "aws_region": moto.region}
    system = DeltaSystem("s3://host/views", storage=SecretOptions.of(options))
    with pytest.raises(InfrastructureError, match=r"s3://host/views: .*NoSuchBucket") as caught:
        system.admin().create("out", 1, COLUMNS)
    assert not caught.value.retry


def test_a_store_that_does_not_answer_is_unavailable_and_no_secret_is_shown() -> None:
    options = {
        "aws_endpoint": "http://127.0.0.1:1/s3cret-path",
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": "AKIATESTS",
        "aws_secret_access_key": "tests-s3cret",
        "max_retries": "0",
    }
    target = DeltaSystem("s3://bucket/views", storage=SecretOptions.of(options)).target("out")
    with pytest.raises(UnavailableError, match="the Delta table s3://bucket/views: ") as caught:
        target.publish(WRITER, 0, rows(0))
    assert "s3cret" not in str(caught.value)
    assert "\x1b" not in caught.value.message
    assert caught.value.__suppress_context__

"""The writers of Spark without Spark: rows are staged by tasks, and published by the driver."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

import headrace as hr
from headrace.core.errors import (
    CorruptLogError,
    DataError,
    DeclarationError,
    InfrastructureError,
    StorageError,
    StreamNotFoundError,
    UnavailableError,
    UsageError,
)
from headrace.core.frame import Checkpoint
from headrace.protocol.frame_stamper import FrameStamper
from headrace.rows.hashing import partition_of
from headrace.spark import writing
from headrace.spark.streaming import StreamWriter, writer_of
from headrace.spark.types import to_spark_schema
from headrace.spark.writing import ABANDONED_AFTER_S, BatchWriter, StagedFile, StagedRows, read_staged, staging_folder
from headrace.streams.committed_writer import SLOTS, borrowed_writer, open_committed_writer, open_log

COLUMNS = {"member": pl.String(), "euros": pl.Float64()}
ROWS = pl.DataFrame({"member": ["ann", "bob", "cas"], "euros": [1.0, 2.0, None]}, COLUMNS)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    hr.streams.create_stream("orders", 4, COLUMNS, home=tmp_path)
    return tmp_path


def options(home: Path, **more: str) -> dict[str, str]:
    return {"home": str(home), "path": "orders", **more}


def batch_writer(home: Path, rows: pl.DataFrame = ROWS, **more: str) -> BatchWriter:
    return BatchWriter(options(home, **more), to_spark_schema(dict(rows.schema)), False)


def batches(rows: pl.DataFrame) -> Iterator[pa.RecordBatch]:
    return iter(rows.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches(max_chunksize=2))


def write(writer: BatchWriter, *tasks: pl.DataFrame) -> None:
    on_executor = pickle.loads(pickle.dumps(writer))
    writer.commit([pickle.loads(pickle.dumps(on_executor.write(batches(rows)))) for rows in tasks])


def stored(home: Path, stream: str = "orders") -> list[tuple[Any, ...]]:
    return sorted(hr.streams.read_stream(stream, home=home).rows(), key=str)


def staged(home: Path) -> list[Path]:
    return sorted(staging_folder(home, "orders").glob("*.staged"))


# -- batches -------------------------------------------------------------------------------------------


def test_all_tasks_are_published_together(home: Path) -> None:
    writer = batch_writer(home)
    messages: list[WriterCommitMessage | None] = [writer.write(batches(ROWS)), writer.write(batches(ROWS.head(1)))]
    assert stored(home) == []
    assert len(staged(home)) == 2
    writer.commit(messages)
    assert stored(home) == sorted([*ROWS.rows(), ROWS.row(0)], key=str)
    assert staged(home) == []


def test_rows_of_a_key_are_where_the_hash_says(home: Path) -> None:
    rows = pl.DataFrame({"member": [f"m{n}" for n in range(100)], "euros": 1.0}, COLUMNS)
    write(batch_writer(home, key="member"), rows)
    reader = hr.streams.StreamReader("orders", home=home)
    for partition in range(4):
        there = pl.concat(reader.batches_of(partition))
        wanted = rows.filter(pl.Series(partition_of(rows, ["member"], 4)) == partition)
        assert wanted.height
        assert there.equals(wanted)


def test_each_write_without_a_name_is_a_new_one(home: Path) -> None:
    for _ in range(3):
        write(batch_writer(home), ROWS.head(1))
    assert stored(home) == [("ann", 1.0)] * 3


def test_a_version_of_a_name_is_written_once(home: Path) -> None:
    for version in ("5", "5", "7"):
        write(batch_writer(home, writer="daily", version=version), ROWS.head(1))
    assert stored(home) == [("ann", 1.0)] * 2
    with pytest.raises(UsageError, match="version 6 of writer 'daily' follows version 7"):
        write(batch_writer(home, writer="daily", version="6"), ROWS.head(1))
    assert staged(home) == []


def test_a_write_without_rows_leaves_nothing(home: Path) -> None:
    write(batch_writer(home), ROWS.clear())
    assert stored(home) == []
    assert not staging_folder(home, "orders").exists()


def test_an_aborted_write_leaves_nothing(home: Path) -> None:
    writer = batch_writer(home)
    writer.abort([writer.write(batches(ROWS)), None])
    assert (stored(home), staged(home)) == ([], [])


def test_files_of_killed_tasks_go_with_the_job(home: Path) -> None:
    other = batch_writer(home).write(batches(ROWS))
    writer = batch_writer(home)
    writer.write(batches(ROWS))
    write(writer, ROWS.head(1))
    query = stream_writer(home, writer="by-day")
    query.write(batches(ROWS))
    stream_writer(home, writer="by-day").commit([query.write(batches(ROWS.head(1)))], 0)
    assert [path.name for path in staged(home)] == [other.name]
    assert stored(home) == [("ann", 1.0)] * 2


def test_a_task_that_fails_leaves_no_file(home: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        for _ in range(40):
            yield from pl.DataFrame({"member": ["x"] * 10_000, "euros": 0.0}, COLUMNS).to_arrow().to_batches()
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        batch_writer(home).write(failing())
    assert staged(home) == []


def test_many_rows_become_frames_of_a_sensible_size(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pl.DataFrame({"member": ["x" * 100] * 1000, "euros": 0.0}, COLUMNS)
    monkeypatch.setattr(writing, "FRAME_BYTES", 20_000)
    writer = batch_writer(home)
    message = writer.write(iter(rows.to_arrow().to_batches()))
    bodies = [body for _, body in read_staged(staging_folder(home, "orders"), message.name, 1000, 4)]
    assert 5 < len(bodies) < 20
    assert max(map(len, bodies)) < 30_000


def test_a_stream_is_created_from_the_columns(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {"at": [datetime(2026, 1, 1, tzinfo=UTC)], "tags": [["a", None]], "raw": [b"\x00"]},
        {"at": pl.Datetime("us", "UTC"), "tags": pl.List(pl.String), "raw": pl.Binary},
    )
    with pytest.raises(StreamNotFoundError, match=r'there is no stream log\.orders in .*\n.*option\("partitions", 4\)'):
        batch_writer(tmp_path, rows)
    elsewhere = rows.with_columns(pl.col("at").dt.convert_time_zone("Asia/Tokyo"))
    write(batch_writer(tmp_path, rows, partitions="2"), elsewhere)
    assert hr.streams.read_stream("orders", home=tmp_path).equals(rows)
    write(batch_writer(tmp_path, rows, partitions="2"), rows)
    with pytest.raises(UsageError, match=r"partitions is 3, but log\.orders has 2"):
        batch_writer(tmp_path, rows, partitions="3")


def test_columns_that_do_not_fit_are_named_before_anything_runs(home: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'euro'; it has member, euros\n.*did you mean 'euros'"):
        batch_writer(home, ROWS.rename({"euros": "euro"}))
    with pytest.raises(DataError, match=r"log\.orders: column 'euros' \(Float64\) is missing"):
        batch_writer(home, ROWS.drop("euros"))
    with pytest.raises(DataError, match="column 'euros'"):
        batch_writer(home, ROWS.with_columns(euros=pl.lit(None, pl.List(pl.Int64))))
    with pytest.raises(DeclarationError, match="column 'm': a stream can't hold Spark's MAP"):
        BatchWriter(options(home), StructType([StructField("m", MapType(StringType(), LongType()))]), False)
    with pytest.raises(UsageError, match="several columns named 'a'"):
        BatchWriter(options(home), StructType([StructField("a", LongType())] * 2), False)
    with pytest.raises(UsageError, match="option key: key column 'day' isn't in the batch"):
        batch_writer(home, key="day")


def test_values_that_do_not_fit_fail_the_task(home: Path) -> None:
    hr.streams.create_stream("counts", 1, {"n": pl.Int16}, home=home)
    rows = pl.DataFrame({"n": [1, 70_000]})
    with pytest.raises(DataError, match=r"column 'n'.*70000"):
        batch_writer(home, rows, path="counts").write(batches(rows))


def test_durations_and_zones_become_those_of_the_stream(home: Path) -> None:
    columns = {"span": pl.Duration("ms"), "at": pl.Datetime("ms", "Europe/Berlin")}
    hr.streams.create_stream("times", 1, columns, home=home)
    at = datetime(2026, 7, 1, 12, tzinfo=UTC)
    rows = pl.DataFrame(
        {"span": [timedelta(milliseconds=-5), None], "at": [at, None]},
        {"span": pl.Duration("us"), "at": pl.Datetime("us", "UTC")},
    )
    write(batch_writer(home, rows, path="times"), rows)
    found = hr.streams.read_stream("times", home=home)
    assert found.schema == columns
    assert found.rows() == [(timedelta(milliseconds=-5), at), (None, None)]
    finer = rows.with_columns(span=pl.lit(timedelta(microseconds=1)))
    with pytest.raises(DataError, match=r"column 'span': .*microseconds=1.* can't be written as Duration"):
        batch_writer(home, finer, path="times").write(batches(finer))
    naive = rows.with_columns(pl.col("at").dt.replace_time_zone(None))
    with pytest.raises(DataError, match=r"column 'at': expected Datetime\(time_unit='ms', time_zone='Europe/Berlin'\)"):
        batch_writer(home, naive, path="times")


def test_columns_that_were_added_may_be_missing(home: Path) -> None:
    hr.streams.add_columns("orders", {"voucher": pl.String}, home=home)
    write(batch_writer(home), ROWS.head(1))
    assert stored(home) == [("ann", 1.0, None)]


def test_a_stream_without_columns_takes_any(home: Path) -> None:
    hr.streams.create_stream("any", 1, home=home)
    write(batch_writer(home, path="any"), ROWS)
    assert stored(home, "any") == ROWS.rows()


# -- failures ------------------------------------------------------------------------------------------


def test_a_write_that_was_decided_is_no_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(FrameStamper, "checkpoints", _no_disk)
        patch.setattr(FrameStamper, "restores", _restores_of_the_first_attempt())
        write(batch_writer(home), ROWS.head(1))
    assert stored(home) == []
    write(batch_writer(home), ROWS.tail(1))
    assert stored(home) == [("ann", 1.0), ("cas", None)]


def _no_disk(*_: object) -> tuple[Checkpoint, ...]:
    raise StorageError("no room")


def _restores_of_the_first_attempt() -> Any:
    original, calls = FrameStamper.restores, []

    def restores(self: Any, *versions: int) -> Any:
        calls.append(versions)
        return original(self, *versions) if len(calls) == 1 else _no_disk()

    return restores


def test_a_write_that_died_is_settled_by_the_next_one(home: Path) -> None:
    locks = staging_folder(home, "orders")

    def dies() -> Iterator[tuple[int, bytes]]:
        yield 0, b"half"
        raise KeyboardInterrupt

    with borrowed_writer(home, "orders", locks), borrowed_writer(home, "orders", locks) as second:
        assert second.name == "batch/1"
        with pytest.raises(KeyboardInterrupt):
            second.publish(0, dies())
    reader = hr.streams.StreamReader("orders", home=home)
    assert list(reader) == []
    held = reader.position()
    write(batch_writer(home), ROWS.head(1))
    assert pl.concat(reader).rows() == [("ann", 1.0)]
    assert reader.position() != held
    with open_committed_writer(home, "orders", "batch/1") as writer:
        assert writer._records.read("batch/1").record.settled


def test_names_are_lent_to_one_write_at_a_time(home: Path) -> None:
    locks = staging_folder(home, "orders")

    def borrow(number: int) -> None:
        if number == SLOTS:
            with pytest.raises(UnavailableError, match=f"{SLOTS} writes"):
                write(batch_writer(home), ROWS)
            return
        with borrowed_writer(home, "orders", locks) as writer:
            assert writer.name == f"batch/{number}"
            borrow(number + 1)

    borrow(0)
    write(batch_writer(home), ROWS.head(1))
    assert stored(home) == [("ann", 1.0)]


def test_files_that_nobody_published_are_removed_after_a_day(home: Path) -> None:
    killed, late = (batch_writer(home).write(batches(ROWS)) for _ in range(2))
    old = staging_folder(home, "orders") / killed.name
    past = old.stat().st_mtime - ABANDONED_AFTER_S - 1
    os.utime(old, (past, past))
    write(batch_writer(home), ROWS.head(1))
    assert [path.name for path in staged(home)] == [late.name]
    assert stored(home) == [("ann", 1.0)]


def test_a_staged_file_that_is_gone_is_an_error_and_nothing_is_published(home: Path) -> None:
    writer = batch_writer(home)
    messages: list[WriterCommitMessage | None] = [writer.write(batches(ROWS)), StagedRows("gone.staged", 1)]
    with pytest.raises(InfrastructureError, match=r"gone\.staged is missing.*\n.*executor"):
        writer.commit(messages)
    assert (stored(home), staged(home)) == ([], [])


# -- the staged file -----------------------------------------------------------------------------------


def frames_of(folder: Path, name: str, rows: int = 3, partitions: int = 2) -> Sequence[tuple[int, bytes]]:
    return list(read_staged(folder, name, rows, partitions))


def make(folder: Path) -> Path:
    with StagedFile(folder, 2, JOB) as file:
        file.add(1, 2, b"body")
        file.add(0, 1, b"")
        file.finish()
    return folder / file.name


def test_a_staged_file_has_these_bytes(tmp_path: Path) -> None:
    path = make(tmp_path)
    assert path.read_bytes().hex() == "".join(GOLDEN)
    assert frames_of(tmp_path, path.name) == [(1, b"body"), (0, b"")]


JOB = "0123456789abcdef"
GOLDEN = (
    "485253540100000002",  # HRST, format 1, 2 partitions
    "00000001000000020000000000000004dba80bb2626f6479",  # partition 1, 2 rows, 4 bytes, crc32, body
    "0000000000000001000000000000000000000000",
    "ffffffff00000002000000000000000300000000",  # the end: 2 frames, 3 rows
)


def test_a_damaged_file_is_never_published_as_if_it_were_whole(tmp_path: Path) -> None:
    path = make(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptLogError, match="ends too early"):
            frames_of(tmp_path, path.name)
    at = whole.index(b"body")
    path.write_bytes(whole[:at] + b"bodx" + whole[at + 4 :])
    with pytest.raises(CorruptLogError, match="frame 0 fails its checksum"):
        frames_of(tmp_path, path.name)
    path.write_bytes(whole)
    with pytest.raises(CorruptLogError, match="2 frames and 3 rows, and should have 2 and 4"):
        frames_of(tmp_path, path.name, rows=4)
    with pytest.raises(DataError, match="written for 2 partitions, but the stream now has 3"):
        frames_of(tmp_path, path.name, partitions=3)
    path.write_bytes(whole[:4] + b"\x02" + whole[5:])
    with pytest.raises(DataError, match="not a staged file of format 1"):
        frames_of(tmp_path, path.name)


# -- streaming queries ---------------------------------------------------------------------------------


def stream_writer(home: Path, **more: str) -> StreamWriter:
    return StreamWriter(options(home, **more), to_spark_schema(dict(ROWS.schema)), False)


def run_batch(home: Path, number: int, rows: pl.DataFrame, **more: str) -> None:
    message = stream_writer(home, **more).write(batches(rows))
    stream_writer(home, **more).commit([message], number)  # Spark makes a new one


def test_a_batch_that_is_repeated_is_written_once(home: Path) -> None:
    for number in (0, 0, 1, 1, 2):
        run_batch(home, number, ROWS.slice(number, 1), writer="by-day")
    assert stored(home) == sorted(ROWS.rows(), key=str)
    assert staged(home) == []


def test_a_batch_without_rows_counts(home: Path) -> None:
    run_batch(home, 0, ROWS.clear(), writer="by-day")
    with open_committed_writer(home, "orders", "by-day") as writer:
        assert writer.position() == 0


def test_a_query_that_starts_over_under_its_name_is_refused(home: Path) -> None:
    run_batch(home, 3, ROWS, writer="by-day")
    with pytest.raises(UsageError, match=r"version 0 of writer 'by-day' follows version 3.*\n.*checkpoint was deleted"):
        run_batch(home, 0, ROWS, writer="by-day")


def test_an_aborted_batch_leaves_nothing(home: Path) -> None:
    writer = stream_writer(home, writer="by-day")
    writer.abort([writer.write(batches(ROWS)), None], 0)
    assert (stored(home), staged(home)) == ([], [])


def test_a_query_is_named_by_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "check point"
    by_place = writer_of(str(folder))
    assert by_place.startswith("checkpoint-")
    assert by_place == writer_of(f"{folder}/")
    assert by_place != writer_of("hdfs://host/checkpoints")
    folder.mkdir()
    (folder / "metadata").write_text('{"id":"0b5c"}')
    assert writer_of(str(folder)) == writer_of(folder.as_uri()) == "query-0b5c"
    (folder / "metadata").write_text("{}")
    with pytest.raises(DataError, match="doesn't name the query it belongs to"):
        writer_of(str(folder))


def test_a_key_is_recorded_with_a_new_stream_and_every_writer_of_it_has_it(home: Path) -> None:
    batch_writer(home, path="keyed", partitions="3", key="member")
    found = open_log(home).admin().describe("keyed")
    assert found is not None
    assert found.key == ("member",)
    assert batch_writer(home, path="keyed")._to.options.keys == ("member",)
    with pytest.raises(UsageError, match="is partitioned by member, and this writer has the key euros"):
        batch_writer(home, path="keyed", key="euros")


def test_a_writer_in_python_has_the_recorded_key(home: Path) -> None:
    hr.streams.create_stream("keyed", 3, COLUMNS, key="member", home=home)
    with hr.streams.StreamWriter("keyed", home=home) as writer:
        for row in ROWS.iter_slices(1):
            assert list(writer.write(row)) == partition_of(row, ["member"], 3).tolist()
    with pytest.raises(UsageError, match="is partitioned by member, and this writer has the key euros"):
        hr.streams.StreamWriter("keyed", key="euros", home=home)
    with pytest.raises(hr.errors.HeadraceError, match="is partitioned by member, not by euros"):
        hr.streams.create_stream("keyed", 3, COLUMNS, key="euros", home=home)

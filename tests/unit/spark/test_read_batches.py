"""Batch reads, without a session: what a batch and its parts cover, what its schema may be, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.types import ByteType, DoubleType, IntegerType, LongType, ShortType, StructType

import headrace as hr
from app_task import AppTask
from headrace.core.errors import DataError, FrameError, StreamNotFoundError, TrimmedOffsetError, UsageError
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import SSP
from headrace.spark.reading import BatchReader
from headrace.spark.source import HeadraceDataSource
from headrace.systems.log.system import LogSystem
from readers_of_spark import ALL, NUMBERS, batch, ends, numbers, read, rows_of, source, stream, write


class TestBatch:
    def test_has_a_part_for_each_partition_that_has_something(self, home: Path) -> None:
        assert batch(home).partitions() == []
        write(home, 1, 2)
        assert [part.partition for part in batch(home).partitions()] == [0]
        write(home, 3, partition=1)
        assert [part.partition for part in batch(home).partitions()] == [0, 1]
        assert read(home) == [1, 2, 3]
        assert rows_of(batch(home), [InputPartition(None)]) == []  # what Spark makes of no parts

    def test_shows_what_is_committed_unless_told_otherwise(self, home: Path) -> None:
        write(home, 1)
        task = AppTask(home)
        task.start()
        task.rows(2)
        assert read(home) == [1]
        assert read(home, committed="false") == [1, 2]
        task.commit()
        task.close()
        assert read(home) == [1, 2]

    def test_is_settled_when_it_is_planned(self, home: Path) -> None:
        write(home, 1)
        reader = batch(home)
        parts = reader.partitions()
        write(home, 2)
        assert numbers(reader, parts) == [1]

    def test_begins_and_ends_at_offsets(self, home: Path) -> None:
        write(home, 1)
        middle = ends(home)
        write(home, 2, partition=1)
        write(home, 3)
        assert read(home, endingOffsets=json.dumps(middle)) == [1]
        assert read(home, startingOffsets=json.dumps(middle)) == [2, 3]
        assert read(home, startingOffsets=json.dumps(middle), endingOffsets=json.dumps(middle | {"1": -1})) == [2]

    def test_begins_and_ends_at_times(self, home: Path) -> None:
        write(home, 1)
        admin = LogSystem(home / "streams").admin()
        first = admin.time_of(SSP(NUMBERS, 0), admin.extents("numbers")[0].oldest)
        assert first is not None
        assert read(home, startingTimestamp=first) == [1]
        assert read(home, endingTimestamp=first) == []
        assert read(home, startingTimestamp=first + 3_600_000) == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"startingOffsets": "latest"}, "a batch would have no rows"),
            ({"startingOffsets": '{"0": -1, "1": -2}'}, "a batch would have no rows"),
            ({"startingOffsets": '{"0": -2}'}, "names partitions 0; log.numbers has 0 to 1"),
            ({"startingOffsets": '{"0": 999999, "1": -2}'}, "offset 999999 is after the end"),
            ({"startingOffsets": '{"0": 33, "1": -2}'}, "no record begins at offset 33"),
            ({"startingTimestamp": "99999999999999", "endingOffsets": '{"0": -2, "1": -1}'}, "after endingOffsets"),
        ],
    )
    def test_refuses_offsets_that_make_no_sense(self, home: Path, options: dict[str, str], message: str) -> None:
        write(home, 1)
        with pytest.raises(UsageError, match=message):
            read(home, **options)

    @pytest.mark.parametrize("wanted", [1, 3, 7])
    def test_is_split_between_frames(self, home: Path, wanted: int) -> None:
        for value in range(20):
            write(home, value, partition=value % 2)
        reader = batch(home, minPartitions=wanted, includePosition="true")
        parts = reader.partitions()
        assert max(2, wanted) <= len(parts) <= wanted + 2
        assert sorted(row["n"] for row in rows_of(reader, parts)) == list(range(20))
        assert all(rows_of(reader, [part]) for part in parts)

    def test_that_is_split_shows_rows_that_a_later_part_commits_once(self, home: Path) -> None:
        task = AppTask(home)
        task.start()
        for value in range(10):
            task.rows(value)
        task.commit()
        task.close()
        assert read(home, minPartitions=4) == list(range(10))

    def test_says_where_rows_are_if_asked(self, home: Path) -> None:
        begin = LogSystem(home / "streams").admin().extents("numbers")[1].oldest
        write(home, 5, partition=1)
        after = ends(home)["1"]
        reader = batch(home, includePosition="true")
        (row,) = rows_of(reader, reader.partitions())
        assert (row["n"], row["_partition"]) == (5, 1)
        assert begin < row["_offset"] < after

    def test_says_where_a_damaged_frame_is(self, home: Path) -> None:
        write(home, 1, 2)
        producer = LogSystem(home / "streams").producer()
        producer.send("numbers", 0, encode(Header(Kind.USER), b"no rows"))
        producer.close()
        with pytest.raises(
            FrameError, match=r"log.numbers\[0\], offset \d+: a body of 7 bytes .* is not an Arrow batch"
        ):
            read(home)
        with pytest.raises(FrameError, match=r"log.numbers\[0\], offset \d+: "):
            stream(home).latestOffset(stream(home).initialOffset(), ALL)

    def test_says_what_executors_need(self, home: Path) -> None:
        write(home, 1)
        reader = batch(home)
        parts = reader.partitions()
        home.rename(home.with_name("elsewhere"))
        with pytest.raises(StreamNotFoundError, match="existed when the query was planned") as caught:
            numbers(reader, parts)
        assert f"make {home} a folder that all machines" in (caught.value.hint or "")

    def test_of_a_trimmed_stream(self, home: Path) -> None:
        write(home, 1)
        reader, begin = batch(home), ends(home)
        before = {"0": LogSystem(home / "streams").admin().extents("numbers")[0].oldest, "1": begin["1"]}
        parts = reader.partitions()
        LogSystem(home / "streams").admin().trim(SSP(NUMBERS, 0), begin["0"])
        write(home, 2)
        with pytest.raises(TrimmedOffsetError, match=r"log.numbers\[0\]: \d+ bytes .* were trimmed"):
            numbers(reader, parts)
        with pytest.raises(TrimmedOffsetError):
            read(home, startingOffsets=json.dumps(before))
        assert read(home, startingOffsets=json.dumps(before), failOnDataLoss="false") == [2]
        assert read(home) == [2]


class TestSchema:
    def test_of_a_stream_without_one_has_to_be_given(self, tmp_path: Path) -> None:
        hr.streams.create_stream("numbers", 1, home=tmp_path)
        with pytest.raises(UsageError, match=r"log\.numbers has no declared schema") as caught:
            source(tmp_path).schema()
        assert ".schema(" in (caught.value.hint or "")
        write(tmp_path, 1)
        with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
            writer.write(pl.DataFrame({"other": ["a"]}))
        reader = source(tmp_path).reader(StructType().add("n", LongType()))
        assert isinstance(reader, BatchReader)
        assert numbers(reader, reader.partitions()) == [1, None]

    def test_may_name_some_columns_in_other_types_that_hold_the_values(self, home: Path) -> None:
        write(home, 1, 2, 3, 200, 5)
        for dtype in (DoubleType(), ShortType()):
            reader = source(home).reader(StructType().add("n", dtype))
            assert isinstance(reader, BatchReader)
            assert numbers(reader, reader.partitions()) == [1, 2, 3, 200, 5]
        reader = source(home).reader(StructType().add("n", ByteType()))
        assert isinstance(reader, BatchReader)
        position = source(home).reader(StructType().add("n", LongType()).add("_offset", LongType()))
        assert isinstance(position, BatchReader)
        (where,) = [row["_offset"] for row in rows_of(position, position.partitions()) if row["n"] == 200]
        with pytest.raises(DataError, match=rf"log.numbers\[0\], offset {where}: .*'n' should be Int8, found 200"):
            numbers(reader, reader.partitions())

    def test_with_a_column_that_the_stream_lacks_is_refused(self, home: Path) -> None:
        with pytest.raises(hr.errors.DeclarationError, match=r"log\.numbers: unknown column 'm'"):
            source(home).reader(StructType().add("m", LongType()))

    def test_that_is_given_has_to_name_the_position_too(self, home: Path) -> None:
        write(home, 1)
        with pytest.raises(UsageError, match="the schema lacks _offset, _partition"):
            source(home, includePosition="true").reader(StructType().add("n", LongType()))
        reader = source(home).reader(
            StructType().add("_offset", LongType()).add("n", LongType()).add("_partition", IntegerType())
        )
        assert isinstance(reader, BatchReader)
        (row,) = rows_of(reader, reader.partitions())
        assert list(row) == ["_offset", "n", "_partition"]
        assert row["n"] == 1

    def test_may_be_the_position_alone(self, home: Path) -> None:
        write(home, 1, 2)
        reader = source(home).reader(StructType().add("_offset", LongType()))
        assert isinstance(reader, BatchReader)
        offsets = [row["_offset"] for row in rows_of(reader, reader.partitions())]
        assert offsets == sorted(set(offsets))
        assert len(offsets) == 2

    def test_that_allows_no_nulls_refuses_them(self, home: Path) -> None:
        with hr.streams.StreamWriter("numbers", home=home) as writer:
            writer.write([{"n": None}])
        reader = source(home).reader(StructType().add("n", LongType(), nullable=False))
        assert isinstance(reader, BatchReader)
        with pytest.raises(DataError, match=r"log.numbers\[0\], offset \d+: the rows don't fit the schema: .*'?n'?"):
            numbers(reader, reader.partitions())

    def test_with_columns_of_the_positions_names(self, tmp_path: Path) -> None:
        hr.streams.create_stream("numbers", 1, {"n": pl.Int64, "_offset": pl.String}, home=tmp_path)
        with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
            writer.write([{"n": 1, "_offset": "mine"}])
        with pytest.raises(UsageError, match="already has a column '_offset'"):
            batch(tmp_path, includePosition="true")
        reader = batch(tmp_path)
        assert rows_of(reader, reader.partitions()) == [{"n": 1, "_offset": "mine"}]

    def test_has_columns_that_were_added_later(self, home: Path) -> None:
        write(home, 1)
        hr.streams.add_columns("numbers", {"word": pl.String}, home=home)
        with hr.streams.StreamWriter("numbers", home=home) as writer:
            writer.write([{"n": 2, "word": "two"}])
        reader = batch(home)
        found = rows_of(reader, reader.partitions())
        assert sorted(found, key=lambda row: row["n"]) == [{"n": 1, "word": None}, {"n": 2, "word": "two"}]


class TestTable:
    """Tables of running apps are read on real Spark; here is what is refused before anything is asked."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"table": "prices"}, "option table must be app/table, not 'prices'"),
            ({"table": "/prices"}, "option table must be app/table"),
            ({"table": "shop/prices", "startingOffsets": "earliest"}, "'startingoffsets' can't be used with table"),
            ({"table": "shop/prices", "path": "orders"}, "'path' can't be used with table"),
        ],
    )
    def test_is_named_by_app_and_table(self, tmp_path: Path, options: dict[str, str], message: str) -> None:
        made = HeadraceDataSource(CaseInsensitiveDict({"home": str(tmp_path)} | options))
        with pytest.raises(UsageError, match=message):
            made.schema()

    def test_is_no_stream(self, tmp_path: Path) -> None:
        made = HeadraceDataSource(CaseInsensitiveDict({"home": str(tmp_path), "table": "shop/prices"}))
        with pytest.raises(UsageError, match="table 'shop/prices' can't be read as a stream"):
            made.streamReader(StructType())

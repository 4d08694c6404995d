"""Reading from Python: committed rows, from a saved position, while the stream grows."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from app_task import AppTask
from headrace.core.errors import DataError, FrameError, TrimmedOffsetError, UsageError
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import SSP, StreamId
from headrace.systems.log.system import LogSystem

NUMBERS = SSP(StreamId("log", "numbers"), 0)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    hr.streams.create_stream("numbers", 2, {"n": pl.Int64}, home=tmp_path)
    return tmp_path


def numbers(batches: object) -> list[int]:
    return [n for batch in batches for n in batch["n"].to_list()]  # type: ignore[attr-defined]


def test_only_what_is_committed_unless_told_otherwise(home: Path) -> None:
    task = AppTask(home)
    task.start()
    task.rows(1, 2)
    assert hr.streams.read_stream("numbers", home=home).schema == {"n": pl.Int64}
    assert hr.streams.read_stream("numbers", home=home).height == 0
    task.commit()
    task.rows(3)
    task.start()
    task.rows(4)
    task.commit()
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        writer.write([{"n": 100}])
    task.close()
    assert sorted(hr.streams.read_stream("numbers", home=home)["n"]) == [1, 2, 4, 100]
    assert sorted(hr.streams.read_stream("numbers", committed=False, home=home)["n"]) == [1, 2, 3, 4, 100]


def test_rows_are_in_the_order_of_partitions_and_offsets(home: Path) -> None:
    tasks = [AppTask(home, 7, 1), AppTask(home, 8, 0)]
    for n, task in enumerate(tasks):
        task.start()
        task.rows(n * 10)
        task.rows(n * 10 + 1)
        task.commit()
        task.close()
    assert hr.streams.read_stream("numbers", home=home)["n"].to_list() == [10, 11, 0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_batches_and_positions_give_everything_once(home: Path, seed: int) -> None:
    """Readers that stop after any batch and resume from its position see together what one reader sees in the end."""
    chance = random.Random(seed)
    tasks = [AppTask(home, 7), AppTask(home, 8), AppTask(home, 9, 1)]
    for task in tasks:
        task.start()
    seen: list[int] = []
    position: str | None = None
    for step in range(60):
        task = chance.choice(tasks)
        match chance.randrange(4):
            case 0:
                task.commit()
            case 1:
                task.start()
            case _:
                task.rows(step)
        if chance.random() < 0.4:
            reader = hr.streams.StreamReader("numbers", from_position=position, home=home)
            for batch in reader:
                seen += batch["n"].to_list()
                position = reader.position()
                if chance.random() < 0.5:
                    break
            else:
                position = reader.position()
    for task in tasks:
        task.commit()
        task.close()
    seen += numbers(hr.streams.StreamReader("numbers", from_position=position, home=home))
    assert sorted(seen) == sorted(hr.streams.read_stream("numbers", home=home)["n"])
    assert len(seen) == len(set(seen))


def test_iterating_again_continues(home: Path) -> None:
    task = AppTask(home)
    task.start()
    task.rows(1)
    reader = hr.streams.StreamReader("numbers", home=home)
    assert numbers(reader) == []
    task.rows(2)
    task.commit()
    assert numbers(reader) == [1, 2]
    assert numbers(reader) == []
    task.rows(3)
    task.commit()
    task.close()
    assert numbers(reader) == [3]


def test_upcoming_starts_after_the_existing_rows(home: Path) -> None:
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        writer.write([{"n": 1}])
        reader = hr.streams.StreamReader("numbers", start="upcoming", home=home)
        writer.write([{"n": 2}])
    assert numbers(reader) == [2]


def test_following_sees_rows_as_they_come_and_ends_with_the_stream(home: Path) -> None:
    def write() -> None:
        with hr.streams.StreamWriter("numbers", home=home) as writer:
            for n in range(5):
                writer.write([{"n": n}])
            writer.seal()

    thread = threading.Thread(target=write)
    reader = hr.streams.StreamReader("numbers", home=home)
    thread.start()
    try:
        assert sorted(numbers(reader.follow(timeout="30s"))) == list(range(5))
    finally:
        thread.join()
    assert numbers(reader.follow()) == []


def test_following_ends_when_nothing_comes(home: Path) -> None:
    task = AppTask(home)
    task.start()
    task.rows(1)
    began = time.monotonic()
    assert numbers(hr.streams.StreamReader("numbers", home=home).follow(timeout="200ms")) == []
    assert time.monotonic() - began >= 0.2
    task.commit()
    assert numbers(hr.streams.StreamReader("numbers", home=home).follow(timeout="200ms")) == [1]
    task.close()


def test_following_reads_what_is_there_however_short_its_patience(home: Path) -> None:
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        for n in range(3):
            writer.write([{"n": n}])
        assert sorted(numbers(hr.streams.StreamReader("numbers", home=home).follow(timeout="0s"))) == [0, 1, 2]


def test_what_cannot_be_read_is_left_out_with_a_warning_unless_all_is_wanted(home: Path) -> None:
    with hr.streams.StreamWriter("numbers", key="n", home=home) as writer:
        writer.write([{"n": 1}])
        producer = LogSystem(home / "streams").producer()
        for damaged in (encode(Header(Kind.USER), b"no rows"), b"no frame"):
            producer.send("numbers", 0, damaged)
        producer.close()
        writer.write([{"n": n} for n in range(2, 9)])
    reader = hr.streams.StreamReader("numbers", home=home)
    with pytest.warns(UserWarning, match=r"can't be read: log\.numbers\[0\], offset \d+") as warned:
        assert sorted(numbers(reader)) == list(range(1, 9))
    assert (reader.damaged, len(warned)) == (2, 2)
    assert 'on_damage="fail"' in str(warned[0].message)
    assert numbers(hr.streams.StreamReader("numbers", home=home, from_position=reader.position())) == []
    with pytest.warns(UserWarning, match="can't be read"):
        assert hr.streams.read_stream("numbers", home=home).height == 8
    strict = hr.streams.StreamReader("numbers", home=home, on_damage="fail")
    for _ in range(2):  # it is met again
        with pytest.raises(FrameError, match=r"log\.numbers\[0\], offset"):
            list(strict)
    with pytest.raises(FrameError, match=r"log\.numbers\[0\], offset"):
        hr.streams.read_stream("numbers", home=home, on_damage="fail")


def test_columns_that_some_rows_lack_are_null(tmp_path: Path) -> None:
    hr.streams.create_stream("loose", 1, home=tmp_path)
    with hr.streams.StreamWriter("loose", home=tmp_path) as writer:
        writer.write([{"a": 1}])
        writer.write([{"a": 2, "b": "x"}])
        assert hr.streams.read_stream("loose", home=tmp_path).rows() == [(1, None), (2, "x")]
        writer.write([{"a": "one"}])
    with pytest.raises(DataError, match=r"log\.loose holds rows whose columns have different types"):
        hr.streams.read_stream("loose", home=tmp_path)


def test_a_position_is_of_one_stream_and_one_way_to_read(home: Path) -> None:
    hr.streams.create_stream("others", 2, home=home)
    position = hr.streams.StreamReader("numbers", home=home).position()
    for name, committed, text in (
        ("others", True, position),
        ("numbers", False, position),
        ("numbers", True, "{}"),
        ("numbers", True, position.replace('"format":1,"stream"', '"format":9,"stream"')),
    ):
        with pytest.raises(UsageError, match="position"):
            hr.streams.StreamReader(name, committed=committed, from_position=text, home=home)


def test_a_position_that_was_trimmed_is_an_error(home: Path) -> None:
    position = hr.streams.StreamReader("numbers", home=home).position()
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        ends = writer.write([{"n": 1}])
    ((partition, end),) = ends.items()
    LogSystem(home / "streams").admin().trim(SSP(NUMBERS.stream, partition), end)
    with pytest.raises(TrimmedOffsetError):
        list(hr.streams.StreamReader("numbers", from_position=position, home=home))
    assert numbers(hr.streams.StreamReader("numbers", home=home)) == []


def test_a_reader_ends_without_a_garbage_collection(home: Path) -> None:
    """Its system may hold connections and threads, which end with it."""
    gc.disable()
    try:
        reader = hr.streams.StreamReader("numbers", home=home)
        assert list(reader.batches_of(0)) == []
        known = weakref.ref(reader)
        del reader
        assert known() is None
    finally:
        gc.enable()


def test_a_stream_that_is_not_there(home: Path) -> None:
    with pytest.raises(hr.errors.StreamNotFoundError) as caught:
        hr.streams.StreamReader("number", home=home)
    assert caught.value.hint == "did you mean numbers?"
    with pytest.raises(hr.errors.StreamNotFoundError) as caught:
        hr.streams.read_stream("numbers", home=home / "elsewhere")
    assert "hr.streams.create_stream" in (caught.value.hint or "")


def test_what_is_no_collection_of_rows_is_not_written(tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64}, home=tmp_path)
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        for rows in (5, {"n": 5}, "n"):
            with pytest.raises(UsageError, match="rows must be a DataFrame, or a list of dicts"):
                writer.write(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", ["2", 2.5, True, None])
def test_a_number_of_partitions_is_a_whole_number(tmp_path: Path, partitions: object) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=f"{partitions!r} partitions; use 1 to"):
        hr.streams.create_stream("numbers", partitions, {"n": pl.Int64}, home=tmp_path)  # type: ignore[arg-type]
    assert not (tmp_path / "streams").exists()


def test_writers_and_readers_say_what_they_were_given(tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64}, home=tmp_path)
    for key in ("m", ["n", "m"], 5):
        with pytest.raises(UsageError, match=r"there is no column ('m'|5) in log\.numbers"):
            hr.streams.StreamWriter("numbers", key=key, home=tmp_path)  # type: ignore[arg-type]
    writer = hr.streams.StreamWriter("numbers", key=("n",), home=tmp_path)
    writer.close()
    with pytest.raises(UsageError, match="this writer of 'numbers' is closed"):
        writer.write([{"n": 1}])
    with pytest.raises(UsageError, match="timeout: 1 has no unit"):
        hr.streams.StreamReader("numbers", home=tmp_path).follow(timeout=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a position of a StreamReader"):
        hr.streams.StreamReader("numbers", from_position=5, home=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="timeout: 5 has no unit"):
        hr.tables.open_table("shop", "prices", home=tmp_path, timeout=5)  # type: ignore[arg-type]

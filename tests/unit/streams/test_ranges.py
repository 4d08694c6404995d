"""Ranges of a partition: what each shows is settled by the log, and together they show each frame once."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from app_task import AppTask
from headrace.core.errors import TrimmedOffsetError, UnavailableError, UsageError
from headrace.core.ids import SSP, StreamId
from headrace.rows.ipc import decode_rows
from headrace.streams.ranges import Place, RangeReader
from headrace.streams.reader import Frame
from headrace.systems.log.system import LogSystem

NUMBERS = SSP(StreamId("log", "numbers"), 0)


@pytest.fixture
def log(tmp_path: Path) -> LogSystem:
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64}, home=tmp_path)
    return LogSystem(tmp_path / "streams")


def end_of(log: LogSystem) -> int:
    return log.admin().extents("numbers")[0].upcoming


def beginning(log: LogSystem) -> Place:
    return Place.at(log.admin().extents("numbers")[0].oldest)


def values(frame: Frame) -> list[int]:
    return decode_rows(frame.body)["n"].to_list()


def reader_at(log: LogSystem, place: Place, *, committed: bool = True, lossy: bool = False) -> RangeReader[list[int]]:
    return RangeReader(log, NUMBERS, place, values, committed=committed, lossy=lossy)


def shown(reader: RangeReader[list[int]], end: int) -> list[int]:
    return [n for together in reader.read(end) for numbers in together for n in numbers]


def history(home: Path, log: LogSystem, chance: random.Random) -> list[int]:
    """Write what apps and plain writers write, in any order; return the offsets between the frames."""
    tasks = [AppTask(home, producer) for producer in (7, 8)]
    plain = hr.streams.StreamWriter("numbers", home=home)
    for task in tasks:
        task.start()
    cuts = [end_of(log)]
    for step in range(50):
        task = chance.choice(tasks)
        match chance.randrange(6):
            case 0:
                task.commit()
            case 1:
                task.start()
            case 2:
                plain.write([{"n": 1000 + step}])
            case _:
                task.rows(step)
        cuts.append(end_of(log))
    for task in tasks:
        task.close()
    plain.close()
    return cuts


@pytest.mark.parametrize("seed", range(15))
def test_consecutive_ranges_show_everything_once_however_it_is_cut(tmp_path: Path, log: LogSystem, seed: int) -> None:
    chance = random.Random(seed)
    cuts = history(tmp_path, log, chance)
    start, end = beginning(log), end_of(log)
    whole = shown(reader_at(log, start), end)
    assert sorted(whole) == sorted(hr.streams.read_stream("numbers", home=tmp_path)["n"])
    chosen = [*sorted(chance.sample(cuts, 8)), end]
    together: list[int] = []
    one = reader_at(log, start)
    for cut in chosen:
        place = one.place
        batch = shown(one, cut)
        # Another process, which knows nothing but the place, sees the same and comes to the same place.
        other = reader_at(log, place)
        assert shown(other, cut) == batch
        assert other.place == one.place
        together += batch
    assert together == whole


@pytest.mark.parametrize("seed", range(5))
def test_a_reader_that_stops_early_is_behind_what_it_has_shown(tmp_path: Path, log: LogSystem, seed: int) -> None:
    chance = random.Random(seed)
    history(tmp_path, log, chance)
    end, together = end_of(log), list[int]()
    reader = reader_at(log, beginning(log))
    while reader.place.end < end:
        for numbers in reader.read(end):
            together += [n for each in numbers for n in each]
            if chance.random() < 0.5:
                break
        if chance.random() < 0.5:
            reader = reader_at(log, reader.place)
    assert together == shown(reader_at(log, beginning(log)), end)


def test_a_range_shows_what_a_checkpoint_in_it_commits(tmp_path: Path, log: LogSystem) -> None:
    task = AppTask(tmp_path)
    task.start()
    task.rows(1)
    cut = end_of(log)
    task.rows(2)
    task.commit()
    task.rows(3)
    task.close()
    reader = reader_at(log, beginning(log))
    assert shown(reader, cut) == []
    assert shown(reader, end_of(log)) == [1, 2]
    assert shown(reader_at(log, beginning(log), committed=False), end_of(log)) == [1, 2, 3]
    assert shown(reader_at(log, Place.at(cut)), end_of(log)) == [2]


def test_an_end_is_reached_before_the_records_after_it(tmp_path: Path, log: LogSystem) -> None:
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.write([{"n": 1}])
        end = end_of(log)
        writer.write([{"n": 2}])
    for committed in (True, False):
        reader = reader_at(log, beginning(log), committed=committed)
        assert shown(reader, end) == [1]
        assert reader.place.end == end
        assert shown(reader, end) == []
        assert shown(reader, end_of(log)) == [2]


def test_a_sealed_stream_is_read_to_its_end(tmp_path: Path, log: LogSystem) -> None:
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.write([{"n": 1}])
    log.admin().seal("numbers")
    assert shown(reader_at(log, beginning(log)), end_of(log)) == [1]


def test_a_stream_that_is_shorter_than_a_range_is_an_error(tmp_path: Path, log: LogSystem) -> None:
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.write([{"n": 1}])
    end = end_of(log)
    log.admin().seal("numbers")
    with pytest.raises(UnavailableError, match=f"after offset {end}.*continues to {end + 1000}"):
        shown(reader_at(log, beginning(log)), end + 1000)
    with pytest.raises(UsageError, match="after the end"):
        shown(reader_at(log, Place.at(end + 1000)), end + 2000)


class TestTrimmed:
    def trimmed(self, home: Path, log: LogSystem) -> Place:
        """A stream whose first frames are gone; returns a place before them."""
        task = AppTask(home)
        task.start()
        task.rows(1)
        task.commit()
        reader = reader_at(log, beginning(log))
        assert shown(reader, end_of(log)) == [1]
        task.rows(2)
        task.commit()
        log.admin().trim(NUMBERS, end_of(log))
        task.rows(3)
        task.commit()
        task.close()
        return reader.place

    def test_is_an_error_that_says_what_is_lost(self, tmp_path: Path, log: LogSystem) -> None:
        place = self.trimmed(tmp_path, log)
        oldest = log.admin().extents("numbers")[0].oldest
        with pytest.raises(TrimmedOffsetError) as caught:
            shown(reader_at(log, place), end_of(log))
        assert f"{oldest - place.end} bytes from offset {place.end} on were trimmed" in caught.value.message
        assert "failOnDataLoss" in (caught.value.hint or "")

    def test_may_be_passed_over(self, tmp_path: Path, log: LogSystem, caplog: pytest.LogCaptureFixture) -> None:
        reader = reader_at(log, self.trimmed(tmp_path, log), lossy=True)
        assert shown(reader, end_of(log)) == [3]
        assert [record.message for record in caplog.records] == [
            "frames were trimmed before they were read; goes on at the oldest"
        ]
        assert shown(reader_at(log, reader.place), end_of(log)) == []

    def test_up_to_the_end_of_the_range_leaves_nothing(self, tmp_path: Path, log: LogSystem) -> None:
        place = self.trimmed(tmp_path, log)
        reader = reader_at(log, place, lossy=True)
        assert shown(reader, place.end + 10) == []
        assert reader.place.end == place.end + 10

    def test_shows_nothing_twice(self, tmp_path: Path, log: LogSystem) -> None:
        """A held frame keeps the position back; what was shown after it isn't shown again once it is gone."""
        held, busy = AppTask(tmp_path, 7), AppTask(tmp_path, 8)
        held.start()
        busy.start()
        held.rows(1)
        cut = end_of(log)
        busy.rows(2)
        busy.commit()
        with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
            writer.write([{"n": 3}])
        reader = reader_at(log, beginning(log))
        assert shown(reader, end_of(log)) == [2, 3]
        log.admin().trim(NUMBERS, cut)
        busy.rows(4)
        busy.commit()
        again = reader_at(log, reader.place, lossy=True)
        assert shown(again, end_of(log)) == [4]
        place = again.place
        held.rows(5)
        held.commit()
        for task in (held, busy):
            task.close()
        assert shown(again, end_of(log)) == [5]
        assert shown(reader_at(log, place, lossy=True), end_of(log)) == [5]

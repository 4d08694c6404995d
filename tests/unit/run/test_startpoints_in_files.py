"""Startpoints of an app that reads files: by event time, by file, and what is known by the app's name alone."""

from __future__ import annotations

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import UnsupportedPositionError, UsageError

COLUMNS = {"n": pl.Int64, "ts": pl.Int64}


class Files:
    """Three files of four rows, one a second, in one partition; a run reads what is there."""

    def __init__(self, folder) -> None:
        self.home = folder / "home"
        self.folder = folder / "in"
        self.folder.mkdir()
        for number in range(3):
            self.write(number)

    def write(self, number):
        first = number * 4
        rows = pl.DataFrame({"n": range(first, first + 4), "ts": [n * 1000 for n in range(first, first + 4)]})
        rows.write_parquet(self.folder / f"{number}.parquet")

    def app(self, event_time=None):
        app = hr.App("reader", home=str(self.home), checkpoint_interval="50ms")
        system = hr.io.files(str(self.folder), format="parquet", partitions=1, new_files="next_run")
        app.input("rows", COLUMNS, system=system, event_time=event_time).send_to(app.output("seen", partitions=1))
        return app

    def run(self, app):
        app.run(local=True, progress=False)
        return hr.streams.read_stream("seen", home=self.home)["n"].to_list()


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def test_by_event_time_and_by_file(files):
    app = files.app("ts")
    assert files.run(app) == list(range(12))
    points = hr.startpoints.open_startpoints(app)
    answer = points.preview("rows", hr.startpoints.at(9_000))
    assert [(move.direction, move.messages) for move in answer.moves] == [("back", 3)]
    assert any("event time doesn't go back" in note for note in answer.notes)
    answer = points.set("rows", hr.startpoints.custom("file", {"path": str(files.folder / "1.parquet")}))
    assert [(move.direction, move.messages) for move in answer.moves] == [("back", 8)]
    assert files.run(app) == [*range(12), *range(4, 12)]
    assert points.list() == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_range_of_files_is_read_again_before_a_run_has_caught_up(files, begun):
    """At the end of the range, the run is as far as what there is, but has yet to read what follows the commit."""
    app = files.app("ts")
    before = files.run(app) if begun else []
    files.write(3)
    points = hr.startpoints.open_startpoints(app)
    end = points.offsets()[0].newest
    answer = points.set("rows", hr.startpoints.oldest(until=hr.startpoints.offset(end)))
    assert [(move.direction, move.until_offset) for move in answer.moves] == [("again", end)]
    again = list(range(12 if begun else 16))
    assert files.run(app) == [*before, *again, *range(len(before), 16)]


def test_a_time_in_a_file_is_an_end(files):
    app = files.app("ts")
    files.run(app)
    points = hr.startpoints.open_startpoints(app)
    points.set("rows", hr.startpoints.at(2_000, until=hr.startpoints.at(9_000)))
    assert files.run(app) == [*range(12), *range(2, 9)]


def test_what_is_no_end(files):
    for end in (hr.startpoints.oldest(), hr.startpoints.at(5, or_oldest=True), "1h"):
        with pytest.raises(UsageError, match=r"until=.* isn't an end"):
            hr.startpoints.oldest(until=end)


def test_without_an_event_time_a_time_is_refused(files):
    app = files.app()
    files.run(app)
    points = hr.startpoints.open_startpoints(app)
    with pytest.raises(UnsupportedPositionError, match="time"):
        points.set("rows", hr.startpoints.at(9_000))
    assert "event time doesn't go back" not in " ".join(points.preview("rows", hr.startpoints.oldest()).notes)


def test_by_the_apps_name_positions_in_files_are_resolved_by_the_app(files):
    app = files.app("ts")
    files.run(app)
    points = hr.startpoints.open_startpoints("reader", home=files.home)
    answer = points.set("rows", hr.startpoints.at(9_000))
    assert [(move.direction, move.to_offset) for move in answer.moves] == [("unknown", None)]
    assert any("give the app's file in place of its name" in note for note in answer.notes)
    (one,) = points.offsets()
    assert (one.oldest, "give the app's file" in one.problem) == (None, True)
    assert files.run(app)[12:] == [9, 10, 11]


def test_offsets_of_files(files):
    app = files.app("ts")
    files.run(app)
    files.write(3)  # the next run adds it to the list
    points = hr.startpoints.open_startpoints(app)
    (one,) = points.offsets()
    assert (one.oldest, one.lag, one.lag_bytes) == (0, 0, None)
    assert [move.messages for move in points.preview("rows", hr.startpoints.oldest()).moves] == [12]


def test_a_row_that_isnt_there(files):
    app = files.app("ts")
    files.run(app)
    points = hr.startpoints.open_startpoints(app)
    with pytest.raises(UsageError):
        points.set("rows", hr.startpoints.offset(3_000), partition=0)

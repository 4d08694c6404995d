"""Where reading of files may begin: by event time, at a file, at an offset."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from files_harness import read, rows_of, ssp
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.core.errors import StreamNotFoundError, UnsupportedPositionError, UsageError
from headrace.core.ids import Offset
from headrace.systems.files.stock import offset_of
from headrace.systems.files.system import FilesSystem
from headrace.systems.registry import open_row_system

EVENT_TIME = {"at": pl.Int64()}


def numbers_from(system: FilesSystem, offset: Offset, partition: int = 0) -> list[object]:
    return [row[0] for row in rows_of(read(system, offset, partition)[0])]


@settings(deadline=None, max_examples=examples(40))
@given(
    times=st.lists(st.lists(st.integers(0, 20) | st.none() | st.just("bad"), max_size=8), min_size=1, max_size=4),
    time_ms=st.integers(-1, 22),
    format=st.sampled_from(["jsonl", "csv"]),
)
def test_a_time_is_the_first_row_of_that_event_time_or_later(
    times: list[list[int | str | None]], time_ms: int, format: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    rows, number = [], 0
    for name, of_file in enumerate([[None], *times]):  # the first file isn't empty: it has the columns
        lines = ["n,at"] if format == "csv" else []
        for row, at in enumerate(of_file):
            text = "" if at is None and format == "csv" else "null" if at is None else at
            text = f'"{text}"' if at == "bad" else text
            lines.append(f"{number},{text}" if format == "csv" else f'{{"n": {number}, "at": {text}}}')
            rows.append((offset_of(name, row), at))
            number += 1
        (folder / f"{name}.{format}").write_text("".join(f"{line}\n" for line in lines))
    system = FilesSystem(str(folder), partitions=1, event_time=EVENT_TIME)
    files_with_rows = [f for f in sorted(folder.iterdir()) if f.stat().st_size]
    places = {offset_of(int(f.stem)) // offset_of(1): place for place, f in enumerate(files_with_rows)}
    first = next((offset for offset, at in rows if isinstance(at, int) and at >= time_ms), None)
    end = offset_of(len(files_with_rows))
    wanted = end if first is None else offset_of(places[first // offset_of(1)], first % offset_of(1))
    found = system.admin().offset_at(ssp(), time_ms)
    assert found == wanted
    system.admin().check_offset(ssp(), found)


def test_datetimes_and_parquet(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    at = pl.datetime_range(start, start.replace(hour=20), "1h", eager=True, time_unit="us", time_zone="UTC")
    for name, frame in enumerate(pl.DataFrame({"n": range(21), "at": at}).iter_slices(7)):
        frame.write_parquet(tmp_path / f"{name}.parquet")
    system = FilesSystem(str(tmp_path), partitions=1, event_time={"at": pl.Datetime("ms", "UTC")})
    start_ms = int(start.timestamp() * 1000)
    for hour in (0, 6, 7, 13, 20):
        assert numbers_from(system, system.admin().offset_at(ssp(), start_ms + hour * 3_600_000)) == [*range(hour, 21)]
        assert numbers_from(system, system.admin().offset_at(ssp(), start_ms + hour * 3_600_000 - 1))[0] == hour
    assert system.admin().offset_at(ssp(), start_ms + 21 * 3_600_000) == offset_of(3)


def test_an_apps_input_takes_the_event_time_that_it_declares(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "at": 10}\n{"n": 2, "at": 20}\n')
    app = hr.App("counts", home=tmp_path / "home")
    schema = {"n": pl.Int64, "at": pl.Int64}
    rows = app.input("rows", schema, system=hr.io.files(f"{tmp_path}/*.jsonl"), event_time="at")
    untimed = app.input("untimed", schema, system=hr.io.files(f"{tmp_path}/*.jsonl"))
    rows.send_to(app.output("a"))
    untimed.send_to(app.output("b"))
    streams = app.graph().streams
    assert open_row_system(streams["rows"].system).admin().offset_at(ssp(), 15) == 1
    with pytest.raises(UnsupportedPositionError, match=r"the rows of .* have no time of arrival") as caught:
        open_row_system(streams["untimed"].system).admin().offset_at(ssp(), 15)
    assert caught.value.hint is not None
    assert "event_time" in caught.value.hint


def some_files(folder: Path, count: int = 5) -> None:
    for number, name in enumerate("abcdefgh"[:count]):
        (folder / f"{name}.jsonl").write_text("".join(f'{{"n": {number * 10 + row}}}\n' for row in range(3)))


def test_a_file_is_a_position(tmp_path: Path) -> None:
    some_files(tmp_path)
    system = FilesSystem(str(tmp_path), partitions=1)
    for path in ("c.jsonl", f"{tmp_path}/c.jsonl", f"{tmp_path.name}/c.jsonl"):
        offset = system.admin().custom_offset(ssp(), "file", {"path": path})
        assert offset == offset_of(2)
        assert numbers_from(system, offset) == [20, 21, 22, 30, 31, 32, 40, 41, 42]


def test_partitions_without_the_file_begin_with_the_next_one(tmp_path: Path) -> None:
    some_files(tmp_path)
    system = FilesSystem(str(tmp_path), partitions=2)
    found = [system.admin().custom_offset(ssp(n), "file", {"path": "c.jsonl"}) for n in range(2)]
    assert [numbers_from(system, offset, n)[0] for n, offset in enumerate(found)] == [20, 30]
    found = [system.admin().custom_offset(ssp(n), "file", {"path": "e.jsonl"}) for n in range(2)]
    assert [numbers_from(system, offset, n) for n, offset in enumerate(found)] == [[40, 41, 42], []]
    with pytest.raises(StreamNotFoundError):
        system.admin().custom_offset(ssp(2), "file", {"path": "c.jsonl"})


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    some_files(tmp_path)
    some_files(tmp_path / "x", 1)
    admin = FilesSystem(str(tmp_path), partitions=1).admin()
    with pytest.raises(UsageError, match=r"a\.jsonl matches .*a\.jsonl and .*a\.jsonl") as caught:
        admin.custom_offset(ssp(), "file", {"path": "a.jsonl"})
    assert caught.value.hint == "write more of the path"
    with pytest.raises(UsageError, match=r"q\.jsonl is none of the 6 files") as caught:
        admin.custom_offset(ssp(), "file", {"path": "q.jsonl"})
    assert caught.value.hint is not None
    assert ".jsonl" in caught.value.hint
    with pytest.raises(UsageError, match="needs the path of a file, not"):
        admin.custom_offset(ssp(), "file", {"name": "a.jsonl"})
    with pytest.raises(UnsupportedPositionError, match="doesn't know positions of the kind 'line'"):
        admin.custom_offset(ssp(), "line", {})


def test_offsets_are_checked_down_to_the_row(tmp_path: Path) -> None:
    some_files(tmp_path, 2)
    admin = FilesSystem(str(tmp_path), partitions=1).admin()
    for offset in (0, 2, offset_of(1), offset_of(1, 2), offset_of(2)):
        admin.check_offset(ssp(), offset)
    for offset in (4, offset_of(2) + 1, offset_of(3), offset_of(1, 4)):
        with pytest.raises(UsageError, match="after the end"):
            admin.check_offset(ssp(), offset)

"""``read_stream`` returns what other libraries have, and writers take that back."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.errors import StreamNotFoundError, UsageError

COLUMNS = {"n": pl.Int64, "name": pl.String}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("numbers", "copies"):
        hr.streams.create_stream(name, 1, COLUMNS, home=tmp_path)
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.write([{"n": 1, "name": "one"}, {"n": 2, "name": None}])
    return tmp_path


def test_what_is_read_can_be_written_again(home: Path) -> None:
    table = hr.streams.read_stream("numbers", home=home, as_="arrow")
    assert isinstance(table, pa.Table)
    frame = hr.streams.read_stream("numbers", home=home, as_="pandas")
    assert type(frame).__module__.startswith("pandas")
    with hr.streams.StreamWriter("copies", home=home) as writer:
        for rows in (hr.streams.read_stream("numbers", home=home, as_="polars"), table, frame):
            writer.write(rows)
    assert hr.streams.read_stream("copies", home=home).rows() == [(1, "one"), (2, None)] * 3


def test_what_can_not_be_returned_is_an_error(home: Path) -> None:
    with pytest.raises(UsageError, match="as_='dask' is unknown") as caught:
        hr.streams.read_stream("numbers", home=home, as_="dask")  # type: ignore[call-overload]
    assert caught.value.hint == "there are 'polars', 'arrow', 'pandas', 'spark'"
    with pytest.raises(UsageError, match="reads streams of the embedded log only"):
        hr.streams.read_stream("numbers", system=hr.io.log(home / "streams"), as_="spark")
    with pytest.raises(StreamNotFoundError, match=r"there is no stream log\.number"):
        hr.streams.read_stream("number", home=home, as_="spark")

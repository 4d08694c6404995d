"""Rows put together and sorted out: the same as Polars' own, whatever the types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.rows.given import concat_rows, rows_where

EVERY_TYPE = pl.DataFrame(
    {
        "number": [1, None, 3],
        "short": ["a", None, "b"],
        "long": ["text of more than twelve bytes", "x", None],
        "bytes": [b"x", None, b"yz" * 20],
        "list": [[1, 2], None, []],
        "nested": [[["a"], None], [[]], None],
        "struct": [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None],
        "nothing": [None, None, None],
        "flag": [True, None, False],
        "day": [date(2026, 1, 1), None, date(1, 1, 1)],
        "time": [datetime(2026, 1, 1, tzinfo=UTC), None, datetime(2027, 1, 1, tzinfo=UTC)],
        "price": [Decimal("1.10"), None, Decimal("2.25")],
    }
).with_columns(
    category=pl.Series(["x", "y", None], dtype=pl.Categorical),
    kind=pl.Series(["x", "y", None], dtype=pl.Enum(["y", "x"])),
    pair=pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int64, 2)),
)


def test_concat_keeps_order_and_skips_empty_frames() -> None:
    a, b = pl.DataFrame({"x": [1, 2]}), pl.DataFrame({"x": [3]})
    both = concat_rows([a, a.clear(), b])
    assert both["x"].to_list() == [1, 2, 3]
    assert both.n_chunks() == 1
    assert concat_rows([a.clear(), a]) is a
    assert concat_rows([a.clear()]).schema == a.schema
    assert concat_rows([]).shape == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_concat_is_that_of_polars_for_every_type(slices: list[tuple[int, int]]) -> None:
    frames = [EVERY_TYPE.slice(start, count) for start, count in slices]
    together = concat_rows(frames)
    assert together.schema == EVERY_TYPE.schema
    assert together.equals(pl.concat(frames))
    assert [frame.equals(EVERY_TYPE.slice(start, count)) for frame, (start, count) in zip(frames, slices, strict=True)]


def test_concat_leaves_its_frames_as_they_were() -> None:
    first, second = pl.DataFrame({"x": [1]}), pl.DataFrame({"x": [2]})
    for _ in range(2):
        assert concat_rows([first, second])["x"].to_list() == [1, 2]
    assert (first["x"].to_list(), second["x"].to_list()) == ([1], [2])


def test_other_columns_are_not_put_together() -> None:
    with pytest.raises(pl.exceptions.PolarsError):
        concat_rows([pl.DataFrame({"x": [1]}), pl.DataFrame({"x": ["a"]})])
    with pytest.raises(pl.exceptions.PolarsError):
        concat_rows([pl.DataFrame({"x": [1]}), pl.DataFrame({"y": [1]})])


@given(st.lists(st.sampled_from([True, False, None]), min_size=3, max_size=3))
def test_rows_where_are_those_of_polars_for_every_type(wanted: list[bool | None]) -> None:
    mask = pl.Series(wanted, dtype=pl.Boolean)
    assert rows_where(EVERY_TYPE, mask).equals(EVERY_TYPE.filter(mask))


def test_rows_without_columns_are_counted() -> None:
    assert rows_where(pl.DataFrame(height=3), pl.Series([True, False, True])).shape == (2, 0)
    assert concat_rows([pl.DataFrame(height=3), pl.DataFrame(height=2)]).height == 5

"""filter(expression): keeps the rows for which it is true."""

import polars as pl
import pytest

import headrace as hr

ROWS = [
    {"member": "a", "ms": 5, "ts": 1},
    {"member": "b", "ms": 50, "ts": 2},
    {"member": "c", "ms": None, "ts": 3},
]


def test_rows_for_which_it_is_true_stay(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.filter(pl.col("ms") > 10).send_to(out)
    with app.test() as t:
        t.feed("views", ROWS)
        assert t.read("out").to_dicts() == [ROWS[1]]


def test_null_is_not_true_nor_is_its_opposite(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.filter(~(pl.col("ms") > 10)).send_to(out)
    with app.test() as t:
        t.feed("views", ROWS)
        assert t.read("out").to_dicts() == [ROWS[0]]


@pytest.mark.parametrize("ms", [[50, 60], [50, None], [5, None], [None, None], [5, 6], [5, 50, None]])
def test_all_some_or_none_of_a_batch_stay(app: hr.App, views: hr.Stream, out: hr.Output, ms: list[int | None]) -> None:
    views.filter(pl.col("ms") > 10).select("ms").send_to(out)
    with app.test() as t:
        t.feed("views", [{"member": "a", "ms": each, "ts": 1} for each in ms])
        assert t.read("out")["ms"].to_list() == [each for each in ms if each is not None and each > 10]


def test_what_is_wholly_filtered_out_still_moves_time(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.filter(pl.lit(value=False)).send_to(out)
    with app.test() as t:
        t.feed("views", ROWS)
        assert (t.read("out").height, t.watermark) == (0, 3)


def test_a_predicate_that_fails_says_where(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.filter(pl.col("member").cast(pl.Int64) > 0).send_to(out)
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError) as info:
        t.feed("views", ROWS)
    text = str(info.value)
    assert "the predicate of operator 'filter-1'" in text
    assert "test_filter_operator.py:" in text
    assert 'views.filter(pl.col("member").cast(pl.Int64) > 0)' in text
    assert "views[0], offset 0" in text

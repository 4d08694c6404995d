"""map, filter and flat_map with functions: one call for each row, and errors that name the line that raised."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr

ROWS = [{"member": "a", "ms": 5, "ts": 1}, {"member": "b", "ms": 50, "ts": 2}, {"member": None, "ms": None, "ts": 3}]


@dataclass
class View:
    member: str
    ms: int


@dataclass
class Page:
    name: str


def page(view: View) -> Page:
    return Page(f"{view.member}-{view.ms}")


def ones(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for _ in range(row["ms"] or 0):
        yield {"member": row["member"]}


def test_map_turns_each_row_into_one(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map(lambda row: {"member": row["member"], "twice": (row["ms"] or 0) * 2}, schema={
        "member": pl.String, "twice": pl.Int64,
    }).send_to(out)  # fmt: skip
    with app.test() as t:
        t.feed("views", ROWS)
        assert t.read("out").rows() == [("a", 10), ("b", 100), (None, 0)]


def test_rows_are_instances_of_the_dataclass(app: hr.App, out: hr.Output) -> None:
    app.input("views", View).filter(lambda view: view.ms > 10).map(page).send_to(out)
    with app.test() as t:
        t.feed("views", [View("a", 5), View("b", 50)])
        assert t.read("out").rows() == [("b-50",)]


def test_flat_map_may_yield_any_number_of_rows(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.flat_map(ones, schema={"member": pl.String}).send_to(out)
    with app.test() as t:
        t.feed("views", ROWS)
        assert t.read("out")["member"].to_list() == ["a"] * 5 + ["b"] * 50


def test_no_rows_no_batch(app: hr.App, views: hr.Stream) -> None:
    heights: list[int] = []
    views.flat_map(ones, schema={"member": pl.String}).sink(lambda rows: heights.append(rows.height))
    with app.test() as t:
        t.feed("views", [{"member": "a", "ms": 0, "ts": 1}])
        t.feed("views", pl.DataFrame(schema={"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}))
        assert (heights, t.ended) == ([], False)


# -- what goes wrong


def broken(row: dict[str, Any]) -> dict[str, Any]:
    return {"member": 1 // row["ms"]}


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return 1 + next(number for number, line in enumerate(lines) if text in line)


def error_of(app: hr.App, rows: list[dict[str, Any]]) -> hr.errors.HeadraceError:
    with app.test() as t:
        t.feed("views", ROWS[:1])
        with pytest.raises(hr.errors.HeadraceError) as info:
            t.feed("views", rows)
    return info.value


def test_the_error_says_which_step_which_line_and_which_messages(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map(broken, schema={"member": pl.Int64}).send_to(out)
    error = error_of(app, [{"member": "a", "ms": 0, "ts": 1}])
    assert isinstance(error, hr.errors.UserFunctionError)
    text = str(error)
    assert "the function of operator 'map-1' (declared at" in text
    assert "views.map(broken, schema=" in text
    assert f"raised ZeroDivisionError at {__file__}:{line_of('1 // row')}: " in text
    assert text.splitlines()[1].startswith("  on a message of ")
    assert "views[0], offset 1, row 0 of it" in text
    assert 'the row it was given: {"member":"a","ms":0,"ts":1}' in text
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_builtin_that_raises_has_no_line_of_its_own(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map(ord, schema={"member": pl.Int64}).send_to(out)
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match=r"raised TypeError: ord\(\) expected"):
        t.feed("views", ROWS)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "record 0 is a NoneType, not a dict: None"),
        ({"membre": 1}, "record 0 has no 'member'"),
        ({"member": "one"}, "record 0, column 'member': 'one' (str) is not of type Int64"),
    ],
)
def test_a_wrong_result_is_shown(app: hr.App, views: hr.Stream, out: hr.Output, result: Any, says: str) -> None:
    views.filter(lambda row: row["ms"] > 5).map(lambda row: result, schema={"member": pl.Int64}).send_to(out)
    text = str(error_of(app, [{"member": "a", "ms": 6, "ts": 1}]))
    assert "the function's result of operator 'map-1'" in text
    assert f"doesn't fit its schema: {says}" in text
    assert "views[0], offset 1, row 0 of it" in text


def test_a_later_steps_error_is_not_the_filters(app: hr.App, views: hr.Stream) -> None:
    """The steps that follow a function filter run after it, not within it."""
    timeless = views.filter(lambda row: True).with_columns(at=pl.lit(None, dtype=pl.Int64))
    timeless.window(hr.tumbling("1s"), key="member", id="w", time="at").agg(n=hr.count()).sink(print)
    with app.test() as t, pytest.raises(hr.errors.DataError, match="operator 'w' got messages without an event time"):
        t.feed("views", ROWS)

"""No date, time, duration or decimal ends an app beside its policies: it is refused where it comes in or arises."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

import headrace as hr

COLUMNS = {"n": pl.Int64, "at": pl.Datetime("us"), "day": pl.Date, "wait": pl.Duration("ms"), "id": pl.String}
GOOD = datetime(2026, 1, 1)

Flow = Callable[[Any], Any]

FLOWS: dict[str, Flow] = {
    "map": lambda s: s.map(lambda row: {**row, "n": row["n"] + 1}, schema=COLUMNS),
    "filter": lambda s: s.filter(lambda row: row["n"] >= 0),
    "flat_map": lambda s: s.flat_map(lambda row: [row], schema=COLUMNS),
    "with_columns": lambda s: s.with_columns(year=pl.col("at").dt.year()),
    "shuffle": lambda s: s.partition_by("id", id="by-id"),
    "shuffle by the time": lambda s: s.partition_by("at", id="by-at"),
    "window": lambda s: (
        s.partition_by("id", id="by-id")
        .window(hr.windows.count(1), key="id", id="last")
        .agg(last=pl.col("at").max(), total=pl.col("wait").sum())
    ),
}


def rows(bad: dict[str, int]) -> pl.DataFrame:
    """Three rows; in the second one these columns hold these numbers."""
    good = pl.DataFrame(
        {
            "n": [1, 2, 3],
            "at": [GOOD] * 3,
            "day": [GOOD.date()] * 3,
            "wait": [timedelta(1)] * 3,
            "id": ["a", "b", "c"],
        }
    ).cast(COLUMNS)
    changed = [
        pl.when(pl.col("n") == 2).then(pl.lit(number).cast(COLUMNS[name])).otherwise(pl.col(name)).alias(name)
        for name, number in bad.items()
    ]
    return good.with_columns(changed)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("bad", [{"at": 2**62}, {"at": -(2**63)}, {"day": 2**31 - 1}, {"wait": 2**63 - 1}], ids=str)
def test_the_inputs_policy_decides(flow: str, bad: dict[str, int]) -> None:
    app = hr.App("calendar")
    FLOWS[flow](app.input("in", COLUMNS, on_error="skip")).send_to(app.output("out"))
    with app.test() as t:
        t.feed("in", rows(bad))
        t.end()
        assert t.counter("skipped") == 1
        assert t.read("out").height == 2


def test_the_error_says_what_and_where() -> None:
    app = hr.App("calendar")
    app.input("in", COLUMNS).send_to(app.output("out"))
    with app.test() as t, pytest.raises(hr.errors.DataError) as caught:
        t.feed("in", rows({"at": 2**62}))
    assert "row 1 doesn't fit: column 'at' holds 4611686018427387904 us since 1970" in caught.value.message
    assert "times must be in the years 1 to 9999" in caught.value.message
    assert caught.value.hint is not None


def test_a_dead_letter_holds_it() -> None:
    app = hr.App("calendar")
    app.input("in", COLUMNS, on_error="dead_letter", dead_letter=app.output("letters")).send_to(app.output("out"))
    with app.test() as t:
        t.feed("in", rows({"at": 2**62}))
        t.end()
        letters = t.read("letters")
    assert letters.height == 1
    assert "column 'at' holds" in letters["reason"][0]


@pytest.mark.parametrize("name", ["at", "day", "wait"])
def test_an_expression_that_makes_one_is_named(name: str) -> None:
    app = hr.App("calendar")
    made = (pl.col("n") * 2**61 if name != "day" else (pl.col("n") * 2**29).cast(pl.Int32)).cast(COLUMNS[name])
    flow = app.input("in", COLUMNS).with_columns(made.alias(name))
    flow.map(lambda row: row, schema=COLUMNS).send_to(app.output("out"))
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError) as caught:
        t.feed("in", rows({}))
    assert "an expression of operator " in caught.value.message
    assert f"returned an unusable value: column {name!r} holds" in caught.value.message
    assert "offset" in caught.value.message


def test_an_aggregate_that_makes_one_is_named() -> None:
    app = hr.App("calendar")
    longest = timedelta.max.days * 86_400_000
    summed = app.input("in", COLUMNS).window(hr.windows.count(3), key="id", id="sum").agg(total=pl.col("wait").sum())
    summed.send_to(app.output("out"))
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError) as caught:
        t.feed("in", pl.concat([rows({"wait": longest}).with_columns(id=pl.lit("a"))] * 3))
    assert "returned an unusable value: column 'total' holds a duration" in caught.value.message


def test_an_expression_that_panics_is_an_error() -> None:
    app = hr.App("calendar")
    text = pl.col("n").cast(pl.Datetime("us")).dt.offset_by("1y").cast(pl.String)
    app.input("in", {"n": pl.Int64}).with_columns(text=text).send_to(app.output("out"))
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match="an expression of operator "):
        t.feed("in", [{"n": 2**63 - 1}])


def test_what_forever_is_elsewhere_goes_through() -> None:
    app = hr.App("calendar")
    app.input("in", COLUMNS).map(lambda row: row, schema=COLUMNS).send_to(app.output("out"))
    forever = 253_402_300_799_999_999
    with app.test() as t:
        t.feed("in", rows({"at": forever, "day": 2_932_896}))
        t.end()
        assert t.read("out")["at"][1] == datetime.max


def summed(batch: pl.DataFrame) -> pl.DataFrame:
    """Polars doesn't check the sums of groups."""
    return batch.group_by("n").agg(pl.col("x").sum())


AMOUNTS = {"n": pl.Int64, "x": pl.Decimal(38, 2)}


def amounts() -> pl.DataFrame:
    return pl.DataFrame({"n": [1, 1], "x": pl.Series([Decimal("6e35")] * 2, dtype=pl.Decimal(38, 2))})


def test_the_functions_policy_decides_about_decimals_of_too_many_digits() -> None:
    app = hr.App("amounts")
    letters = app.output("letters")
    made = app.input("in", AMOUNTS).map_batches(summed, schema=AMOUNTS, on_error="dead_letter", dead_letter=letters)
    made.send_to(app.output("out"))
    with app.test() as t:
        t.feed("in", amounts())
        t.end()
        assert t.read("out").is_empty()
        assert t.read("letters").height == 2
        assert "which has more digits than Decimal" in t.read("letters")["reason"][0]


def test_an_expression_that_makes_such_decimals_is_named() -> None:
    app = hr.App("amounts")

    def of_groups(values: pl.Series) -> pl.Series:
        table = pl.DataFrame({"n": [1] * values.len(), "x": values})
        return table.select(pl.col("x").sum().over("n")).get_column("x")

    total = pl.col("x").map_batches(of_groups, return_dtype=AMOUNTS["x"], is_elementwise=True)
    app.input("in", AMOUNTS).with_columns(total=total).send_to(app.output("out"))
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError) as caught:
        t.feed("in", amounts())
    assert "column 'total' holds 1200000000000000000000000000000000000.00" in caught.value.message

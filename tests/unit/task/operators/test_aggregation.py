"""Aggregates by type: the results for empty, null and narrow values."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.core.errors import DataError, HeadraceError


def aggregated(dtype: Any, values: list[Any], aggregate: hr.aggregates.Aggregate) -> Any:
    """One window's aggregate over values that arrive in separate batches, so that partial results are merged."""
    app = hr.App("one-window")
    values_in = app.input("values", {"key": pl.Int64, "v": dtype, "ts": pl.Int64}, event_time="ts")
    values_in.window(hr.tumbling("1s"), key="key", id="w").agg(result=aggregate).send_to(app.output("out"))
    with app.test() as t:
        for value in values:
            t.feed("values", [{"key": 1, "v": value, "ts": 5}])
        t.end()
        return t.read("out")["result"].to_list()[0]


@pytest.mark.parametrize(
    ("dtype", "values", "aggregate", "result"),
    [
        (pl.Int8, [100, 100, 100], hr.sum("v"), 300),
        (pl.UInt8, [200, None, 200], hr.sum("v"), 400),
        (pl.Boolean, [True, False, True], hr.sum("v"), 2),
        (pl.Float32, [0.5, 0.25], hr.sum("v"), 0.75),
        (pl.Decimal(4, 2), [Decimal("99.99"), Decimal("99.99")], hr.sum("v"), Decimal("199.98")),
        (pl.Duration("ms"), [timedelta(hours=1), timedelta(hours=2)], hr.sum("v"), timedelta(hours=3)),
        (pl.Int64, [None, None], hr.sum("v"), 0),
        (pl.Int64, [None, None], hr.count("v"), 0),
        (pl.Int64, [None, None], hr.count(), 2),
        (pl.Int64, [None, None], hr.min("v"), None),
        (pl.Int64, [None, None], hr.mean("v"), None),
        (pl.Int64, [None, None], hr.aggregates.implode("v"), [None, None]),
        (pl.Int64, [1, 2, 4], hr.mean("v"), 7 / 3),
        (pl.Boolean, [True, False, True, True], hr.mean("v"), 0.75),
        (pl.String, ["b", "a", None], hr.min("v"), "a"),
        (pl.String, ["b", "a", None], hr.max("v"), "b"),
        (pl.String, ["b", "a", "b"], hr.aggregates.implode("v"), ["b", "a", "b"]),
        (pl.List(pl.Int64), [[1], [], None, [2, 3]], hr.aggregates.implode("v"), [[1], [], None, [2, 3]]),
        (pl.Struct({"x": pl.Int64}), [{"x": 1}, {"x": None}], hr.aggregates.implode("v"), [{"x": 1}, {"x": None}]),
        (pl.String, ["a", None, "bc"], hr.sum(pl.col("v").str.len_bytes()), 3),
        (pl.Float64, [1.0, float("inf"), None, 3.0], hr.aggregates.top_k("v", 1), [float("inf")]),
        (pl.String, ["b", "c", None], hr.aggregates.top_k("v", 1), ["c"]),
        (pl.String, [None, None], hr.aggregates.top_k("v", 1), []),
    ],
)
def test_aggregate(dtype: Any, values: list[Any], aggregate: hr.aggregates.Aggregate, result: Any) -> None:
    assert aggregated(dtype, values, aggregate) == result


@pytest.mark.parametrize("most", [1, 2])
def test_what_is_no_number_counts_as_the_largest(most: int) -> None:
    found = aggregated(pl.Float64, [1.0, float("nan"), 3.0], hr.aggregates.top_k("v", most))
    assert [str(value) for value in found] == ["nan", "3.0"][:most]


def test_an_aggregate_that_fails_says_where() -> None:
    with pytest.raises(hr.errors.UserFunctionError, match=r"an aggregate of operator 'w' .*values_in.window\(") as info:
        aggregated(pl.String, ["x"], hr.sum(pl.col("v").cast(pl.Int64)))
    assert "values[0], offset 0" in str(info.value)


SIZES = [1, 3, 2**31, 2**62, 2**63 - 1]
DIGITS = [10**38 - 1, 10**19, 10**19 - 1, 5 * 10**37, 1]
SHAPES = [
    hr.tumbling("1s"),
    hr.hopping("2s", every="1s"),
    hr.session("1s"),
    hr.windows.count(100),
    hr.windows.global_(),
]


def signed(sizes: list[int]) -> st.SearchStrategy[int]:
    return st.builds(lambda size, sign: size * sign, st.sampled_from(sizes), st.sampled_from([1, 1, -1]))


def sums(dtype: Any, batches: list[list[Any]], shape: Any) -> list[Any]:
    """The sums of the windows, of values that come in these batches. Raises what the step raises."""
    app = hr.App("sums")
    values_in = app.input("values", {"key": pl.Int64, "v": dtype, "ts": pl.Int64}, event_time="ts")
    values_in.window(shape, key="key", id="w").agg(total=hr.sum("v")).send_to(app.output("out"))
    with app.test() as t:
        for values in batches:
            table = {"key": [1] * len(values), "v": values, "ts": [5] * len(values)}
            t.feed("values", pl.DataFrame(table, {"key": pl.Int64, "v": dtype, "ts": pl.Int64}))
        t.end()
        return t.read("out")["total"].to_list()


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.lists(signed(SIZES), min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from([pl.Int64(), pl.UInt64(), pl.Duration("ms")]),
    st.sampled_from(SHAPES),
)
def test_a_sum_of_integers_is_exact_or_refused_however_batches_are_cut(
    batches: list[list[int]], dtype: pl.DataType, shape: Any
) -> None:
    if dtype == pl.UInt64:
        batches = [[abs(value) for value in values] for values in batches]
    expected = sum(sum(values) for values in batches)
    limits = (0, 2**64) if dtype == pl.UInt64 else (-(2**63), 2**63)
    if isinstance(dtype, pl.Duration):  # a billion days is the longest duration that Python has
        limits = tuple(999_999_999 * 86_400_000 * sign for sign in (-1, 1))  # type: ignore[assignment]
        batches = [[value // 10**6 for value in values] for values in batches]
        expected = sum(sum(values) for values in batches)
    if not limits[0] <= expected < limits[1]:
        with pytest.raises(HeadraceError, match="'total'"):
            sums(dtype, batches, shape)
        return
    found = sums(dtype, batches, shape)
    assert found
    if isinstance(dtype, pl.Duration):
        assert {value // timedelta(milliseconds=1) for value in found} == {expected}
    else:
        assert set(found) == {expected}


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.lists(signed(DIGITS), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(0, 38),
    st.sampled_from(SHAPES),
)
def test_a_sum_of_decimals_is_exact_or_refused_however_batches_are_cut(
    batches: list[list[int]], scale: int, shape: Any
) -> None:
    def of(digits: int) -> Decimal:
        return Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -scale))

    total = sum(sum(values) for values in batches)
    decimals = [[of(value) for value in values] for values in batches]
    if abs(total) < 10**38:
        assert set(sums(pl.Decimal(38, scale), decimals, shape)) == {of(total)}
    else:
        with pytest.raises(DataError, match="'total'"):
            sums(pl.Decimal(38, scale), decimals, shape)


def test_a_sum_that_is_too_large_says_where_and_what_to_do() -> None:
    with pytest.raises(DataError) as raised:
        sums(pl.Int64, [[2**62] * 3], hr.tumbling("1s"))
    assert "the sum 'total' of operator 'w' (declared at " in raised.value.message
    assert "is too large for Int64 in 1 of 1 results; the first has key = 1" in raised.value.message
    assert "pl.Decimal(38, 0)" in str(raised.value.hint)


def test_the_mean_of_large_integers_doesnt_wrap_around() -> None:
    assert aggregated(pl.Int64, [2**62] * 3, hr.mean("v")) == 2.0**62


@pytest.mark.parametrize("unit", ["us", "ns"])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@pytest.mark.parametrize("cut", [True, False])
def test_the_first_and_the_last_are_found_by_the_whole_time(unit: Any, shape: Any, cut: bool) -> None:
    schema = {"key": pl.Int64, "v": pl.Int64, "ts": pl.Datetime(unit)}
    app = hr.App("ends")
    values = app.input("values", schema, event_time="ts")
    ends = {"first": hr.aggregates.first("v"), "last": hr.aggregates.last("v")}
    values.window(shape, key="key", id="w").agg(**ends).send_to(app.output("out"))
    table = pl.DataFrame({"key": [1] * 5, "v": range(5), "ts": [-500, -501, -499, -501, -499]}).cast(schema)
    with app.test() as t:
        for part in table.iter_slices(1) if cut else [table]:
            t.feed("values", part)
        t.end()
        assert set(t.read("out").select("first", "last").rows()) == {(1, 4)}

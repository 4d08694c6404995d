"""Rows are in the order that Polars puts them in, whichever way they are sorted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from headrace.rows import pieces as sorting
from headrace.rows.pieces import sort_rows

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
HEADS = st.sampled_from(["", "m", "member-", "ü", "\0"])
STRINGS = st.text(st.sampled_from("ab1\0\x7fü€"), max_size=9)


@pytest.fixture(autouse=True)
def always_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "_ROWS_MIN", 1)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each sort so far was of numbers."""
    seen: list[bool] = []
    original: Callable[..., object] = sorting._numbers

    def watched(*given: object) -> object:
        numbers = original(*given)
        seen.append(numbers is not None)
        return numbers

    monkeypatch.setattr(sorting, "_numbers", watched)
    return seen


def check(rows: pl.DataFrame, columns: list[str]) -> None:
    rows = rows.with_row_index("place")
    found = sort_rows(rows, columns)
    assert_frame_equal(found.select(columns), rows.sort(columns).select(columns))
    assert_frame_equal(found.sort("place"), rows)


@given(
    st.lists(
        st.tuples(HEADS, STRINGS, st.integers(-3, 3), st.integers(LOWEST, HIGHEST), st.integers(0, 255)), min_size=1
    ),
    st.permutations(["text", "few", "any", "byte", "when"]),
    st.integers(1, 5),
    st.booleans(),
)
def test_rows_are_in_the_order_of_polars(
    rows: list[tuple[str, str, int, int, int]], columns: list[str], number: int, one_head: bool
) -> None:
    head = rows[0][0]
    check(
        pl.DataFrame(
            {
                "text": [(head if one_head else own) + text for own, text, *_ in rows],
                "few": [few for *_, few, _, _ in rows],
                "any": [any_ for *_, any_, _ in rows],
                "byte": pl.Series([byte for *_, byte in rows], dtype=pl.UInt8),
                "when": [datetime(2026, 1, 1) + timedelta(seconds=few) for *_, few, _, _ in rows],
            }
        ),
        columns[:number],
    )


def test_time_and_member_fit_into_one_number(packed: list[bool]) -> None:
    numbers = [n * 7919 % 10_000 for n in range(10_000)]
    rows = pl.DataFrame({"end": [1_700_000_000_000 + n % 7 * 10_000 for n in numbers]}).with_columns(
        member=pl.Series([f"member-{n}" for n in numbers]), day=pl.lit(date(2026, 11, 27))
    )
    check(rows, ["end", "day", "member"])
    check(rows.slice(137, 500), ["member", "end"])
    check(pl.concat([rows.head(10), rows.tail(20)], rechunk=False), ["member"])
    assert packed == [True] * 3


@pytest.mark.parametrize(
    "values",
    [
        pl.Series([1, None, 0]),
        pl.Series([1.0, float("nan"), -0.0]),
        pl.Series(["b", None, "a"]),
        pl.Series([b"b", b"a", b"c"]),
        pl.Series([[2], [1], [0]]),
        pl.Series(["a string", "another one, which differs in too many bytes", "a"]),
        pl.Series([True, False, True]),
        pl.Series(["b", "a", "b"], dtype=pl.Enum(["b", "a"])),
        pl.Series([1 << 100, 0, -1], dtype=pl.Int128),
    ],
)
def test_what_does_not_fit_is_left_to_polars(values: pl.Series, packed: list[bool]) -> None:
    check(pl.DataFrame({"value": values, "n": [3, 2, 1]}), ["value", "n"])
    assert packed == [False]


def test_one_column_of_numbers_is_left_to_polars_and_known_to_be_sorted(packed: list[bool]) -> None:
    found = sort_rows(pl.DataFrame({"n": [3, 1, 2]}), ["n"])
    assert found["n"].flags["SORTED_ASC"]
    assert not packed


@pytest.mark.parametrize("columns", [["text"], ["text", "n"]])
def test_no_rows_and_empty_strings(columns: list[str]) -> None:
    check(pl.DataFrame({"text": ["", "", ""], "n": [2, 1, 3]}), columns)
    check(pl.DataFrame(schema={"text": pl.String, "n": pl.Int64}), columns)

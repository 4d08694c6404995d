"""Durations: what users may write, and what an error tells them to write instead."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.clock import format_ms, to_ms
from headrace.core.errors import DeclarationError, UsageError


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("10s", 10_000),
        ("1m30s", 90_000),
        ("250ms", 250),
        (" 2 h ", 7_200_000),
        ("+1d", 86_400_000),
        ("0s", 0),
        (timedelta(seconds=10), 10_000),
        (timedelta(milliseconds=1), 1),
    ],
)
def test_texts_and_timedeltas(value: str | timedelta, ms: int) -> None:
    assert to_ms(value) == ms


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (10, 'write "10s" for seconds, "10ms" for milliseconds, or a timedelta'),
        (0, 'write "0s" for seconds, "0ms" for milliseconds, or a timedelta'),
        (5.0, 'write "5s" for seconds, "5ms" for milliseconds, or a timedelta'),
        (0.25, 'write milliseconds, as in "250ms" for 0.25 seconds, or a timedelta'),
    ],
)
def test_a_number_has_no_unit(value: float, hint: str) -> None:
    with pytest.raises(DeclarationError, match=f"size: {value} has no unit") as caught:
        to_ms(value, "size")  # type: ignore[arg-type]
    assert caught.value.hint == hint


@pytest.mark.parametrize("value", [True, None, "", "10", "ten", "1.5s", "10 weeks", b"10s", float("nan")])
def test_anything_else_is_no_duration(value: object) -> None:
    with pytest.raises(UsageError, match="isn't a duration"):
        to_ms(value, "size", error=UsageError)  # type: ignore[arg-type]


def test_less_than_a_millisecond_is_never_dropped() -> None:
    with pytest.raises(DeclarationError, match="isn't a whole number of milliseconds"):
        to_ms(timedelta(microseconds=1_500))


def test_a_minimum_holds() -> None:
    with pytest.raises(DeclarationError, match="size: '0s' is below 1 ms"):
        to_ms("0s", "size", minimum=1)
    assert to_ms("-5m", minimum=None) == -300_000


@given(st.integers(0, 10**12))
def test_what_is_written_is_read_back(ms: int) -> None:
    assert to_ms(format_ms(ms)) == ms

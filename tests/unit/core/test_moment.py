"""Moments: read, written, and refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from headrace.core.clock import check_past, moment_ms, parse_moment, utc_text
from headrace.core.errors import UsageError

NOON = 1_769_857_200_000


@pytest.mark.parametrize(
    ("text", "ms", "has_zone"),
    [
        ("2026-01-31T12:00:00+01:00", NOON, True),
        ("2026-01-31 11:00:00Z", NOON, True),
        ("2026-01-31T11:00:00.250Z", NOON + 250, True),
        ("2026-01-31T11:00", NOON, False),
        ("2026-01-31", NOON - 11 * 3_600_000, False),
        (str(NOON), NOON, True),
        ("0", 0, True),
    ],
)
def test_read(text, ms, has_zone):
    assert parse_moment(text) == (ms, has_zone)


@pytest.mark.parametrize("text", ["", "noon", "2026-02-30", "-5", "12.5", "٣"])
def test_no_moments(text):
    with pytest.raises(UsageError, match="isn't a time"):
        parse_moment(text)


def test_written():
    assert (utc_text(NOON), utc_text(NOON + 5)) == ("2026-01-31 11:00:00Z", "2026-01-31 11:00:00.005Z")
    assert utc_text(10**18) == f"{10**18} ms since the epoch"


def test_from_a_datetime():
    there = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=1)))
    assert {moment_ms(there), moment_ms(there.astimezone(UTC)), moment_ms(datetime(2026, 1, 31, 11))} == {NOON}


def test_the_future_is_refused():
    assert check_past(NOON, NOON) == NOON
    with pytest.raises(UsageError, match=r"2026-01-31 11:00:00\.001Z is in the future: now is 2026-01-31 11:00:00Z"):
        check_past(NOON + 1, NOON)

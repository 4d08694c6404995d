from __future__ import annotations

import logging

import pytest

from headrace.core.clock import ManualClock
from headrace.core.log import KEPT, RecentWarning, RecentWarnings, logger

log = logger("headrace.test")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


def test_a_warning_is_logged_counted_and_kept(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    warnings = RecentWarnings(clock, task="views/0")
    assert (len(warnings), warnings.total) == (0, 0)
    warnings.add(log, "the folder is damaged", folder="/x")
    assert (list(warnings), warnings[0], warnings.total) == (["the folder is damaged"], "the folder is damaged", 1)
    assert warnings.latest() == [RecentWarning("the folder is damaged", 1000, 1)]
    (record,) = caplog.records
    assert (record.levelno, vars(record)["task"], vars(record)["folder"]) == (logging.WARNING, "views/0", "/x")


def test_the_same_again_counts_and_moves_to_the_end(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    warnings = RecentWarnings(clock)
    warnings.add(log, "a")
    warnings.add(log, "b")
    for _ in range(11):
        clock.advance(10)
        warnings.add(log, "a")
    assert warnings.latest() == [RecentWarning("b", 1000, 1), RecentWarning("a", 1110, 12)]
    assert warnings.total == 13
    assert [(r.getMessage(), vars(r).get("times")) for r in caplog.records] == [("a", None), ("b", None), ("a", 10)]


def test_what_comes_again_after_a_minute_is_logged_again(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    warnings = RecentWarnings(clock)
    for _ in range(3):
        warnings.add(log, "the target is away")
        clock.advance(60_000)
    assert [vars(record).get("times") for record in caplog.records] == [None, 2, 3]


def test_only_the_latest_are_kept(clock: ManualClock) -> None:
    warnings = RecentWarnings(clock)
    for n in range(KEPT + 3):
        warnings.add(log, f"warning {n}")
    assert list(warnings) == [f"warning {n}" for n in range(3, KEPT + 3)]
    assert warnings.total == KEPT + 3

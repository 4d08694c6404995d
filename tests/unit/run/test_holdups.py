"""What a task is said to wait for, fact by fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

import pytest

from headrace.coordinator.messages import REASONS, CheckpointStatus, Holdup, TaskStatus, What
from headrace.run.holdups import (
    CALL_MS,
    STILL_MS,
    Doing,
    InputFacts,
    Standstill,
    held_by_run_loop,
    holding_all,
    holdups,
    older,
)
from headrace.task.scope import Work

NOW = 1_000_000
LONG = 60_000.0


def source(name: str, watermark: int | None, still_ms: float = LONG, **rest: Any) -> InputFacts:
    return InputFacts(name=name, watermark=watermark, still_ms=still_ms, lag=rest.pop("lag", 0), **rest)


def found(*inputs: InputFacts, **rest: Any) -> list[tuple[str, str, int]]:
    """What, where, and for how many seconds."""
    return [(one.what, one.where, (NOW - one.since_ms) // 1000) for one in of_task(inputs, **rest)]


def of_task(
    inputs: Sequence[InputFacts],
    blocked: Mapping[What, tuple[str, float]] = MappingProxyType({}),
    timed: bool = True,
    **rest: Any,
) -> list[Holdup]:
    status = TaskStatus(name="a/0", **{"state": "running", **rest})
    return holdups(status, NOW, inputs, blocked, timed=timed)


def test_each_kind_of_holdup_has_words() -> None:
    assert list(REASONS) == list(get_args(What))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([], []),
        # A source partition that never sent anything, or that spoke once and then stalled, while others are ahead.
        ([source("in[0]", None), source("in[1]", 5)], [("watermark", "in[0]: no message has arrived yet", 60)]),
        ([source("in[0]", 3), source("in[1]", 5)], [("watermark", "in[0]: no newer message has arrived", 60)]),
        ([source("in[0]", 3, ended=True), source("in[1]", 5)], [("data", "in[1]", 60)]),
        ([source("in[0]", 3, idle=True), source("in[1]", 5, still_ms=0)], []),
        (
            [source("in[0]", 3), source("in[1]", 5, idle=True)],
            [("watermark", "in[0]: no newer message has arrived", 60)],
        ),
        # It isn't said before it has lasted, nor while there is something to read.
        ([source("in[0]", 3, still_ms=STILL_MS - 1), source("in[1]", 5)], []),
        ([source("in[0]", 3, lag=9), source("in[1]", 5)], []),
        # All have come equally far: there is nothing newer.
        ([source("in[0]", 5), source("in[1]", 5)], [("data", "in[0]", 60), ("data", "in[1]", 60)]),
        # Producers that have never reported, and one that spoke and then stalled.
        (
            [source("b[0]", None, missing="any task of stage b")],
            [("watermark", "b[0]: nothing from any task of stage b", 60)],
        ),
        (
            [source("b[0]", 3, slowest=("b/1",), uneven=True)],
            [("watermark", "b[0]: the watermark of b/1 stands still", 60)],
        ),
        (
            [source("b[0]", 3, slowest=("b/1", "b/2")), source("in[0]", 9)],
            [("watermark", "b[0]: the watermark of b/1 and 1 more stands still", 60)],
        ),
        ([source("b[0]", 3, slowest=("b/0", "b/1"))], [("data", "b[0]", 60)]),
        # Messages arrive, but event time stands still all the same: all of them are late, or don't fit.
        (
            [source("in[0]", 3000, quiet_ms=9.0, aside={"late": 1200, "skipped": 0})],
            [
                (
                    "late",
                    "in[0]: messages arrive, but none moves event time on, which is at 1970-01-01 00:00:03Z; since "
                    "then, of the task's messages, 1,200 too late",
                    60,
                )
            ],
        ),
        (
            [source("in[0]", None, quiet_ms=9.0, aside={"skipped": 7}), source("in[1]", 5)],
            [
                (
                    "late",
                    "in[0]: messages arrive, but none moves event time on; since then, of the task's messages, 7 "
                    "skipped",
                    60,
                )
            ],
        ),
        ([source("in[0]", 3, quiet_ms=9.0, still_ms=STILL_MS - 1)], []),
        ([source("in[0]", 3, quiet_ms=STILL_MS, aside={"late": 9})], [("data", "in[0]", 60)]),
        (
            [source("in[0]", None, quiet_ms=9.0, timed=False), source("in[1]", 5)],
            [("watermark", "in[0]: messages arrive, but the input has no event time", 60)],
        ),
        (
            [source("b[0]", 3, slowest=("b/0", "b/1"), quiet_ms=9.0, aside={"late": 5})],
            [
                (
                    "watermark",
                    "b[0]: the watermark of b/0 and 1 more stands still; since then, of the task's messages, 5 too "
                    "late",
                    60,
                )
            ],
        ),
    ],
)
def test_time(inputs: list[InputFacts], expected: list[tuple[str, str, int]]) -> None:
    assert found(*inputs) == expected
    assert found(*inputs, timed=False) == [], "nobody waits for time in an app without any"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"state": "restoring", "uptime_ms": 9000}, [("restore", "its state is being restored", 9)]),
        ({"side_inputs_percent": 40, "uptime_ms": 3000}, [("side inputs", "40 % are read", 3)]),
        ({"blocked": {"readers": ("b[0] is 9 bytes ahead", 4000)}}, [("readers", "b[0] is 9 bytes ahead", 4)]),
        (
            {"blocked": {"target": ("output out", 4000), "calls": ("step map-1", 2000)}},
            [("target", "output out", 4), ("calls", "step map-1", 2)],
        ),
        ({"waits_for": {"b[0]": ["b/1"]}, "overdue_ms": 7000}, [("checkpoint", "b[0]", 7)]),
    ],
)
def test_what_keeps_it_from_reading_hides_that_time_stands_still(
    facts: dict[str, Any], expected: list[tuple[str, str, int]]
) -> None:
    assert found(source("in[0]", None), source("in[1]", 5), **facts) == expected


def remedy(*inputs: InputFacts, **rest: Any) -> tuple[str, list[str]]:
    (one,) = of_task(inputs, **rest)
    return one.remedy, one.by


def test_the_remedy_fits_the_cause() -> None:
    silent, other = source("in[0]", None), source("in[1]", 5)
    assert "idle_timeout" in remedy(silent, other)[0]
    assert "event times" in remedy(source("in[0]", 3, quiet_ms=0.0, aside={"late": 9}))[0]
    assert "the input's schema" in remedy(source("in[0]", 3, quiet_ms=0.0, aside={"skipped": 9, "late": 1}))[0]
    assert "event_time" in remedy(source("in[0]", None, quiet_ms=0.0, timed=False), other)[0]
    timed = source("in[0]", None, idle_timeout_ms=90_000)
    assert "it counts as idle after" in remedy(timed, other)[0]
    assert remedy(source("b[0]", 3, slowest=("b/1",), uneven=True)) == ("find out what holds b/1 up", ["b/1"])
    assert remedy(waits_for={"b[0]": ["b/2"]}, overdue_ms=1) == ("find out what holds b/2 up", ["b/2"])


STATUSES = [TaskStatus(name="a/0", state="running"), TaskStatus(name="b/0", state="finished")]


def test_a_function_that_runs_for_long_holds_all_tasks_up() -> None:
    work = Work("a/0", "cut", "in[0], offset 7", since_ms=100.0)
    assert held_by_run_loop(Doing(now_ms=99.0 + CALL_MS, turned_ms=0, work=work), NOW) is None
    one = held_by_run_loop(Doing(now_ms=12_100, turned_ms=0, work=work, moved_ms=8100, line=lambda: "app.py:3"), NOW)
    assert one is not None
    assert (one.what, one.where) == (
        "user code",
        "the function of step 'cut' in task a/0, on in[0], offset 7, at app.py:3",
    )
    assert (NOW - one.since_ms, one.by, one.still_ms) == (12_000, ["a/0"], 4000)
    running, finished = holding_all(STATUSES, one)
    assert (running.holdups, finished.holdups) == ([one], [])


def test_a_turn_that_takes_long_without_a_function_is_named() -> None:
    assert held_by_run_loop(Doing(now_ms=STILL_MS - 1, turned_ms=0), NOW) is None
    one = held_by_run_loop(Doing(now_ms=STILL_MS, turned_ms=0), NOW)
    assert one is not None
    assert (one.what, NOW - one.since_ms, one.still_ms) == ("run loop", STILL_MS, STILL_MS)


def test_the_apps_own_code_in_an_expression_is_named() -> None:
    one = held_by_run_loop(Doing(now_ms=STILL_MS, turned_ms=0, line=lambda: "app.py:3"), NOW)
    assert one is not None
    assert (one.what, one.where) == (
        "user code",
        "one turn of the container's run loop, in the app's own code, at app.py:3",
    )


def test_an_async_function_that_blocks_the_others_is_named() -> None:
    doing = Doing(now_ms=9000, turned_ms=8000, calls_since_ms=9000 - CALL_MS, calls_line=lambda: "app.py:3")
    one = held_by_run_loop(doing, NOW)
    assert one is not None
    assert one.where == "an async function that lets no other call go on, at app.py:3"
    assert (one.what, one.still_ms) == ("user code", CALL_MS)


def test_what_somebody_debugs_doesnt_hang() -> None:
    one = held_by_run_loop(Doing(now_ms=10**9, turned_ms=0, debugged=True), NOW)
    assert one is not None
    assert one.still_ms == 0


def test_the_last_commit_gets_older_while_the_run_loop_is_busy() -> None:
    status = TaskStatus(name="a/0", state="running", checkpoint=CheckpointStatus(version=7, age_ms=300, duration_ms=1))
    later = older(status, 40_000)
    assert later.checkpoint == CheckpointStatus(version=7, age_ms=40_300, duration_ms=1)


def test_a_value_stands_still_until_it_changes() -> None:
    still = Standstill()
    seen = [(1, 0), (1, 5), (2, 7), (2, 9), (1, 10)]
    assert [still.for_ms("a", value, now) for value, now in seen] == [0, 5, 0, 2, 0]
    assert still.for_ms("b", 1, 10) == 0


def test_what_is_counted_since_something_stands_still() -> None:
    still = Standstill()

    def counted(value: int, late: int, now_ms: float) -> dict[str, int]:
        still.for_ms("a", value, now_ms)
        return still.counted("a", {"late": late})

    assert [counted(1, 5, 0), counted(1, 9, 10), counted(2, 9, 20), counted(2, 9, 30), counted(2, 10, 40)] == [
        {"late": 0},
        {"late": 4},
        {"late": 0},
        {"late": 0},
        {"late": 1},
    ]

"""What the page shows of an app: states, rates at arrows, counts, errors; and what a chart shows of a moment."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.coordinator import messages as m
from headrace.core.log import RecentWarning
from headrace.operate.page.view import Between, PlanFacts, Sample, point_of, view_of
from page_scene import NOW, container, counter, holdup, ledger, rendered, status, task

FACTS = PlanFacts.of(rendered())


def seen(before: m.AppStatus, after: m.AppStatus, seconds: float = 2) -> dict[str, Any]:
    happened = Between(Sample.of(before, 0), Sample.of(after, seconds * 1000))
    return view_of(FACTS, after, happened, NOW)


def busy(share: float) -> list[m.Series]:
    times = {"busy": 2 * share, "idle": 2 * (1 - share)}
    return [counter("task_time_seconds_total", value, state=state) for state, value in times.items()]


def test_a_task_is_busy_idle_held_back_lost_starting_or_done():
    after = status(
        task("views/0", *busy(0.4)),
        task("views/1", *busy(0.001)),
        task("by-member/0", state="blocked"),
        task("by-member/1", *busy(0.9)),
        task("x/0", state="restoring"),
        task("x/1", state="finished"),
        containers=[
            container(0, "views/0", "views/1", "by-member/0", "x/0", "x/1"),
            container(1, "by-member/1", state="lost"),
        ],
    )
    view = seen(status(), after)
    states = {name: one["state"] for name, one in view["tasks"].items()}
    assert states == {
        "views/0": "busy",
        "views/1": "idle",
        "by-member/0": "held",
        "by-member/1": "lost",
        "x/0": "starting",
        "x/1": "done",
    }
    assert {name: one["state"] for name, one in view["stages"].items()} == {
        "views": "busy",
        "by-member": "lost",
        "x": "starting",
    }
    assert (view["tasks"]["views/0"]["busy"], view["stages"]["views"]["busiest"]) == (40, 40)


def test_arrows_have_the_rates_of_streams_as_the_app_calls_them():
    physical = next(stream for stream in FACTS.streams if FACTS.streams[stream] == "by-member")
    after = status(
        task("views/0", counter("output_messages_total", 100, output="by-member")),
        task("views/1", counter("output_messages_total", 60, output="by-member")),
        task("by-member/0", counter("input_messages_total", 150, input=physical, partition="0")),
    )
    view = seen(status(), after)
    assert view["stages"]["views"]["writes"] == {"by-member": 80}
    assert view["stages"]["by-member"]["reads"] == {"by-member": 75}


def test_steps_are_those_of_their_stage():
    steps = [counter("step_messages_total", 40, step="per-10s"), counter("state_keys", 7, step="per-10s")]
    after = status(
        task("views/0", counter("step_messages_total", 900, step="per-10s")),
        task("by-member/0", *steps, counter("function_seconds_total", 1, step="per-10s")),
        task("by-member/1", *steps, holdups=[holdup("calls", "step per-10s: 3 calls")]),
    )
    view = seen(status(), after)["steps"]
    assert view["views/per-10s"] == {"rate": 450}
    assert view["by-member/per-10s"] == {"rate": 40, "busy": 50, "keys": 14, "held": True}


def test_what_had_no_effect_is_counted():
    after = status(
        task("by-member/0", counter("late_messages_total", 3)), task("by-member/1", counter("late_messages_total", 4))
    )
    assert seen(status(), after)["stages"]["by-member"]["counts"] == {"late": 7}


def test_errors_come_with_who_has_them_the_latest_first():
    trace = "Traceback\n" + "\n".join(f"line {number}" for number in range(100))
    error = m.ErrorReport(type="E", message="raised at pipeline.py:9", hint="fix it", traceback=trace)
    warning = RecentWarning(message="a message at log.views[0] offset 7 can't be read", at_ms=NOW - 1000, times=3)
    after = status(
        task("views/0", warnings=[warning]),
        containers=[container(0, "views/0", error=error)],
        error=m.ErrorReport(type="E", message="the app failed"),
        ended_at=NOW,
    )
    errors = seen(status(), after)["errors"]
    assert [one["who"] for one in errors] == ["the app", "views/0", "container 0"]
    assert errors[1] == {"who": "views/0", "text": warning.message, "at": NOW - 1000, "times": 3}
    assert (errors[2]["hint"], len(errors[2]["trace"].splitlines())) == ("fix it", 40)


def test_a_document_has_no_none_and_is_json():
    book = ledger(100)
    happened = Between(Sample.of(book.status(0), 0), Sample.of(book.status(0), 1000))
    view = view_of(PlanFacts.of(rendered(100)), book.status(0), happened, NOW)
    assert len(view["tasks"]) == 200
    assert b"null" not in msgspec.json.encode(view)


def test_a_point_counts_what_comes_from_outside_and_what_leaves():
    physical = {id_: stream for stream, id_ in FACTS.streams.items()}
    after = status(
        task(
            "views/0",
            counter("input_messages_total", 100, input=physical["views"], partition="0"),
            counter("output_messages_total", 90, output="by-member"),
        ),
        task(
            "by-member/0",
            counter("input_messages_total", 90, input=physical["by-member"], partition="0"),
            counter("output_messages_total", 8, output="counts"),
            counter("rollbacks_total", 1),
            counter("state_bytes", 500),
        ),
    )
    happened = Between(Sample.of(status(), 0), Sample.of(after, 1000))
    point = point_of(FACTS, after, happened, happened, NOW)
    assert point == {"t": NOW, "in": 100, "out": 8, "state": 500, "rollbacks": 1}

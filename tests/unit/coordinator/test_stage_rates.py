"""Rates, watermarks and lags of stages, alone and through the ledger."""

from __future__ import annotations

import pytest
from conversation import Process, new_ledger, task

from headrace.coordinator.messages import TaskStatus
from headrace.coordinator.progress import Rate, stage_status


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], 0.0),
        ([(0, 50)], 0.0),
        ([(0, 0), (500, 100)], 200.0),
        ([(0, 0), (500, 100), (1000, 100)], 100.0),
        ([(0, 0), (60_000, 600)], 10.0),
        # Only the last 5 s count, starting at the last report before them.
        ([(0, 0), (1000, 9999), (6000, 9999), (7000, 9999)], 0.0),
        ([(0, 0), (1000, 1000), (3000, 1000), (7000, 7000)], 1000.0),
    ],
)
def test_rate(samples, expected):
    rate = Rate()
    for sent_ms, rows in samples:
        rate.add(sent_ms, rows)
    assert rate.per_second == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tasks", "finished", "watermark", "lag"),
    [
        ([task("s/0", watermark=5, lag=1), task("s/1", watermark=3, lag=2)], 0, 3, 3),
        ([task("s/0", watermark=5, lag=0), task("s/1", lag=2)], 0, None, 2),
        ([task("s/0", watermark=5), task("s/1", watermark=6, lag=2)], 0, 5, None),
        ([task("s/0", "finished", watermark=3), task("s/1", watermark=9, lag=1)], 1, 9, 1),
        ([task("s/0", "finished", watermark=3), task("s/1", "finished", watermark=9)], 2, 3, 0),
        ([task("s/0", "finished"), task("s/1", "finished", watermark=9)], 2, None, 0),
    ],
)
def test_stage(tasks, finished, watermark, lag):
    status = stage_status("s", [(t, 2.5) for t in tasks])
    assert (status.tasks, status.finished, status.watermark, status.lag) == (2, finished, watermark, lag)
    assert status.rows_per_second == 5.0


def test_the_ledger_computes_rates_from_heartbeats():
    ledger = new_ledger(lost_after_ms=1000)
    zero, one = Process(0, "u0"), Process(1, "u1")
    ledger.register(zero.register(), 0)
    ledger.register(one.register(), 0)
    # The clocks of the senders differ from each other and from the driver's.
    for ms, rows in ((0, 0), (500, 1000)):
        ledger.heartbeat(zero.heartbeat(10_000 + ms, task("a/0", rows_in=rows), task("b/0")), 7)
        ledger.heartbeat(one.heartbeat(99 + ms, task("a/1", rows_in=rows * 2)), 7 + ms)

    def rates():
        return {stage.name: stage.rows_per_second for stage in ledger.status(507).stages}

    assert rates() == {"a": 6000.0, "b": 0.0}
    ledger.heartbeat(zero.heartbeat(10_400, task("a/0", rows_in=800), task("b/0")), 508)
    assert rates() == {"a": 6000.0, "b": 0.0}, "a heartbeat that was overtaken changes nothing"
    ledger.tick(1520)
    assert rates() == {"a": 0.0, "b": 0.0}, "a task that doesn't report has no rate"
    ledger.register(Process(0, "u0b", attempt=1).register(), 1600)
    ledger.heartbeat(Process(0, "u0b").heartbeat(5, task("a/0", rows_in=1), task("b/0")), 1600)
    assert rates()["a"] == 0.0, "a new process counts from 0 again"


def test_status_before_anything_happened():
    status = new_ledger().status(0)
    assert (status.app, status.state, status.guarantee) == ("app", "starting", "exactly-once")
    assert [(s.name, s.tasks, s.finished, s.watermark, s.lag) for s in status.stages] == [
        ("a", 2, 0, None, None),
        ("b", 1, 0, None, None),
    ]
    assert [(t.name, t.state) for t in status.tasks] == [("a/0", "starting"), ("a/1", "starting"), ("b/0", "starting")]
    assert [(c.id, c.state, c.last_seen_ms, c.tasks) for c in status.containers] == [
        (0, "waiting", None, ["a/0", "b/0"]),
        (1, "waiting", None, ["a/1"]),
    ]


@pytest.mark.parametrize(
    ("tasks", "watermark", "idle"),
    [
        ([(10, True), (50, False), (40, False)], 40, 1),  # an idle task holds no other task back
        ([(None, True), (50, False)], 50, 1),
        ([(10, True), (50, True)], 50, 2),  # no task to wait for: the highest of all
        ([(None, True), (None, True)], None, 2),
        ([(10, True), (None, False)], None, 1),
    ],
)
def test_idle_tasks_hold_no_watermark_back(
    tasks: list[tuple[int | None, bool]], watermark: int | None, idle: int
) -> None:
    statuses = [
        TaskStatus(name=f"s/{n}", state="running", watermark=time, idle=quiet) for n, (time, quiet) in enumerate(tasks)
    ]
    over = TaskStatus(name="s/9", state="finished", watermark=5, idle=False)
    status = stage_status("s", [(task, 0.0) for task in [*statuses, over]])
    assert (status.watermark, status.idle) == (watermark, idle)

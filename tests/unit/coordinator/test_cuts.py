"""Cuts in the ledger: ordered and reported by heartbeats, and chosen so that every task hears of them in time."""

from __future__ import annotations

from headrace.coordinator import messages as m
from headrace.coordinator.books import CutOrder, CutReport, choose
from headrace.coordinator.ledger import Ledger
from headrace.core.ids import TaskName
from headrace.protocol.record import Cut

A, B = TaskName("s", 0), TaskName("s", 1)
CUT = Cut(id="one", version=9000, folder="/draft")


def _ledger(*, scattered: bool = False) -> Ledger:
    ledger = Ledger(
        "app", {"s": [A, B]}, 2, started_at=0, guarantee="exactly_once", interval_ms=200, scattered=scattered
    )
    for number in (0, 1):
        ledger.register(m.Register(container=number, attempt=0, host="h", pid=1, incarnation=f"u{number}"), 0)
    return ledger


def _beat(ledger: Ledger, container: int, task: TaskName, at: float, cut: m.CutStatus | None = None) -> m.Orders:
    status = m.TaskStatus(name=str(task), state="running", cut=cut)
    return ledger.heartbeat(
        m.Heartbeat(container=container, incarnation=f"u{container}", sent_ms=at, tasks=[status]), at
    )


def test_a_deployment_says_that_its_machines_share_no_disk():
    for scattered in (False, True):
        ledger = _ledger(scattered=scattered)
        assert ledger.cut(CutOrder(ask=True), 0).scattered is scattered


def test_a_cut_is_ordered_of_everyone_and_what_they_say_is_reported() -> None:
    ledger = _ledger()
    assert _beat(ledger, 0, A, 1).cut is None
    report = ledger.cut(CutOrder(cut=CUT), 5000)
    assert report.id == "one"
    assert report.states == {"s/0": "waiting", "s/1": "waiting"}
    assert (report.guarantee, report.now_ms, report.interval_ms) == ("exactly_once", 5000, 200)
    assert _beat(ledger, 0, A, 2).cut == CUT
    _beat(ledger, 0, A, 3, m.CutStatus(id="one", state="kept"))
    _beat(ledger, 1, B, 3, m.CutStatus(id="another", state="kept"))
    assert ledger.cut(CutOrder(ask=True), 5001).states == {"s/0": "kept", "s/1": "waiting"}
    _beat(ledger, 1, B, 4, m.CutStatus(id="one", state="missed"))
    assert ledger.cut(CutOrder(ask=True), 5001).states == {"s/0": "kept", "s/1": "missed"}


def test_a_cut_that_is_given_up_is_ordered_of_nobody() -> None:
    ledger = _ledger()
    ledger.cut(CutOrder(cut=CUT), 0)
    assert ledger.cut(CutOrder(), 0).states == {}
    assert _beat(ledger, 0, A, 1).cut is None


def test_a_task_that_ended_with_its_container_is_over() -> None:
    ledger = _ledger()
    ledger.finished(m.Finished(container=1, incarnation="u1", tasks=[str(B)]), 1)
    assert ledger.cut(CutOrder(cut=CUT), 0).states == {"s/0": "waiting", "s/1": "over"}


def test_the_version_of_a_cut_leaves_every_deployment_time_to_hear_of_it() -> None:
    quick = CutReport(guarantee="exactly_once", now_ms=10_050, interval_ms=100, margin_ms=2_000)
    slow = CutReport(guarantee="exactly_once", now_ms=10_000, interval_ms=5_000, margin_ms=12_000)
    assert choose([quick]) == 12_100
    assert choose([quick, slow]) == 25_000

"""Which task keeps a version from being completed: the one at the end of all waits; and why."""

from __future__ import annotations

import pytest

from headrace.coordinator.messages import ContainerState, ContainerStatus, HeldUp, TaskState, TaskStatus
from headrace.coordinator.progress import held_up


def task(name: str, *waits_for: str, overdue: int = 0, state: TaskState = "running", blocked: str | None = None):
    waits = {"log.in[0]": list(waits_for)} if waits_for else {}
    return TaskStatus(name=name, state=state, waits_for=waits, overdue_ms=overdue, blocked_by=blocked)


def container(number: int, *tasks: str, state: ContainerState = "running") -> ContainerStatus:
    return ContainerStatus(id=number, state=state, tasks=list(tasks))


def test_without_waits_no_task_is_named():
    assert held_up([task("a/0"), task("b/0")], [container(0, "a/0", "b/0")]) == []


def test_the_end_of_all_waits_is_named_once_with_all_who_wait():
    tasks = [
        task("a/0"),
        task("a/1"),
        task("b/0", "a/1", overdue=9000),
        task("c/0", "b/0", overdue=9500),
        task("c/1", "b/0", "a/1", overdue=9400),
    ]
    assert held_up(tasks, [container(0, *(one.name for one in tasks))]) == [
        HeldUp(by="a/1", reason="it is running, but hasn't committed it", for_ms=9500, tasks=["b/0", "c/0", "c/1"])
    ]


def test_the_longest_wait_comes_first():
    tasks = [task("a/0"), task("a/1"), task("b/0", "a/0", overdue=5000), task("c/0", "a/1", overdue=8000)]
    assert [(one.by, one.for_ms) for one in held_up(tasks, [])] == [("a/1", 8000), ("a/0", 5000)]


@pytest.mark.parametrize(
    ("culprit", "where", "reason"),
    [
        (task("a/0", state="restoring"), container(0, "a/0"), "it is restoring"),
        (task("a/0", state="starting"), container(0, "a/0"), "it is starting"),
        (task("a/0"), container(3, "a/0", state="lost"), "its container 3 is lost"),
        (task("a/0", "x/0", overdue=1), container(3, "a/0", state="failed"), "its container 3 is failed"),
        (
            task("a/0", state="blocked", blocked="log.b[0] is 9 bytes ahead"),
            container(0, "a/0"),
            "it is blocked: log.b[0] is 9 bytes ahead",
        ),
    ],
)
def test_the_reason_is_what_is_known_of_it(culprit, where, reason):
    (one,) = held_up([culprit, task("b/0", "a/0", overdue=7000)], [where, container(1, "b/0")])
    assert (one.by, one.reason) == ("a/0", reason)


def test_one_of_another_deployment_is_said_to_be_that():
    (one,) = held_up([task("b/0", "a/0", overdue=7000)], [container(1, "b/0")])
    assert (one.by, one.reason) == ("a/0", "it isn't part of this deployment")


def test_a_finished_task_waits_for_none():
    assert held_up([task("a/0"), task("b/0", "a/0", overdue=7000, state="finished")], []) == []


def test_waits_in_a_circle_end():
    assert held_up([task("a/0", "b/0", overdue=7000), task("b/0", "a/0", overdue=7000)], []) == []

"""When a run that reads what is there may stop."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.coordinator.messages import CheckpointStatus, OutputStatus, TaskStatus
from headrace.coordinator.progress import AtLeastOnce, ExactlyOnce
from headrace.core.ids import TaskName

A0, A1, B0, C0 = TaskName("a", 0), TaskName("a", 1), TaskName("b", 0), TaskName("c", 0)


def task(name: TaskName, version: int | None, caught_up: int | None, **more: Any) -> TaskStatus:
    checkpoint = None if version is None else CheckpointStatus(version=version, age_ms=0, duration_ms=0)
    return TaskStatus(name=str(name), **{"state": "running"} | more, checkpoint=checkpoint, caught_up=caught_up)


@pytest.mark.parametrize(
    ("what", "tasks", "expected"),
    [
        ("nothing is committed", [task(A0, None, None), task(B0, None, None)], False),
        ("a source has more to read", [task(A0, 9, None), task(B0, 9, 5)], False),
        ("downstream hasn't committed that", [task(A0, 9, 8), task(B0, 7, 3)], False),
        ("downstream has committed just that", [task(A0, 9, 8), task(B0, 8, 3)], True),
        ("two sources, the later one counts", [task(A0, 9, 8), task(A1, 9, 9), task(B0, 8, 3)], False),
        ("a task that came late hasn't read anything", [task(A0, 9, 8), task(B0, 9, None)], False),
        ("a task that ended needs nothing", [task(A0, 3, None, state="finished"), task(B0, 9, 8)], True),
        (
            "results wait for their target",
            [task(A0, 9, 8), task(B0, 9, 3, outputs={"o": OutputStatus(delivery="exactly_once", waiting=1)})],
            False,
        ),
    ],
)
def test_exactly_once_compares_versions(what: str, tasks: list[TaskStatus], expected: bool) -> None:
    assert ExactlyOnce().caught_up({TaskName.parse(one.name): one for one in tasks}) is expected, what


def test_at_least_once_follows_the_stages() -> None:
    watch = AtLeastOnce([[A0], [B0], [C0]])

    def shown(b: int, c: int, *, a: int | None = 8, at: int = 0, generation: int = 1) -> bool:
        tasks = {
            A0: task(A0, 9, a, uptime_ms=at, generation=generation),
            B0: task(B0, b, b, uptime_ms=at),
            C0: task(C0, c, c, uptime_ms=at),
        }
        return watch.caught_up(tasks)

    assert not shown(100, 100, a=None)
    assert not shown(100, 100, at=1)
    for at in (2, 2, 2, 3):
        assert not shown(200, 200, at=at)  # the same report again tells nothing new
    assert not shown(200, 200, at=4)
    assert not shown(200, 200, at=5)  # the third report since the sources had read everything: from here on
    assert not shown(201, 200, at=6)  # stage b has caught up
    for at in (7, 8, 9):
        assert not shown(201, 201, at=at)
    assert shown(201, 202, at=10)
    assert not shown(201, 203, at=11, generation=2)  # the source has started again: what it repeats is new to b
    assert not shown(300, 300, at=12)


def test_at_least_once_waits_while_frames_wait() -> None:
    watch = AtLeastOnce([[A0], [B0]])
    for at in range(20):
        assert not watch.caught_up({A0: task(A0, at, 1, uptime_ms=at), B0: task(B0, at, None, uptime_ms=at)})
    found = [
        watch.caught_up({A0: task(A0, at, 1, uptime_ms=at), B0: task(B0, at, at, uptime_ms=at)}) for at in (20, 21)
    ]
    assert found == [True, True]

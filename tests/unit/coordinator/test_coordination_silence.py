"""When an app that repeats silently speaks again, and in which order its tasks start over."""

from __future__ import annotations

import threading

import pytest

from headrace.coordinator.messages import CheckpointStatus, TaskStatus
from headrace.coordinator.server import Silence, SilenceThread
from headrace.core.errors import DataError, UnavailableError
from headrace.core.ids import TaskName

SOURCE, READER = TaskName("source", 0), TaskName("reader", 0)


def status(task: TaskName, generation: int = 1, *, version: int = 10, caught_up: int | None = 10, state="running"):
    checkpoint = CheckpointStatus(version=version, age_ms=0, duration_ms=0)
    return TaskStatus(name=str(task), state=state, generation=generation, checkpoint=checkpoint, caught_up=caught_up)


def both(source: TaskStatus, reader: TaskStatus) -> dict[TaskName, TaskStatus]:
    return {SOURCE: source, READER: reader}


@pytest.fixture
def silence() -> Silence:
    return Silence([[SOURCE], [READER]], "exactly_once")


def test_it_ends_when_all_have_committed_what_was_read_before(silence):
    assert not silence.caught_up(both(status(SOURCE, caught_up=None), status(READER)))
    assert not silence.caught_up(both(status(SOURCE, version=12, caught_up=12), status(READER)))
    assert silence.caught_up(both(status(SOURCE, version=12, caught_up=12), status(READER, version=12)))


def test_stages_start_over_from_the_last_one_up(silence):
    silence.end(both(status(SOURCE), status(READER)))
    assert not silence.silent
    assert silence.to_restart(both(status(SOURCE), status(READER))) == [READER]
    assert silence.to_restart(both(status(SOURCE), status(READER, 2, state="restoring"))) == []
    assert silence.to_restart(both(status(SOURCE), status(READER, 2))) == [SOURCE]
    assert silence.to_restart(both(status(SOURCE, 2), status(READER, 2))) is None


def test_a_task_that_has_ended_need_not(silence):
    silence.end(both(status(SOURCE), status(READER)))
    assert silence.to_restart(both(status(SOURCE), status(READER, state="finished"))) == [SOURCE]


def test_what_may_work_later_is_tried_again_and_anything_else_fails_the_run():
    answers = iter([UnavailableError("the store is away"), True, DataError("unreadable")])
    failed = threading.Event()
    failures: list[BaseException] = []

    def advance() -> bool:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def fail(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    thread = SilenceThread(advance, fail)
    thread.start()
    assert failed.wait(10)
    thread.close()
    assert [type(error) for error in failures] == [DataError]

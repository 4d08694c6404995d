"""Workers: threads that are started, closed and waited for, whatever they do."""

from __future__ import annotations

import threading

import pytest

from headrace.core.worker import RepeatedStep, WorkerThread, at_work


class Waiting(WorkerThread):
    """Waits for a bell, and notes what happens to it."""

    def __init__(self, happened: list[str], *, breaks: bool = False, limit_s: float | None = None) -> None:
        super().__init__("waiting", limit_s)
        self.happened = happened
        self.bell = threading.Event()
        self._breaks = breaks

    def work(self) -> None:
        if self._breaks:
            raise ValueError("broken")
        self.bell.wait()
        self.happened.append("worked")

    def wake(self) -> None:
        self.bell.set()

    def failed(self, error: Exception) -> None:
        self.happened.append(str(error))


class Deaf(Waiting):
    def wake(self) -> None:
        """It notices nothing."""


class Counting(RepeatedStep):
    def __init__(self, most: int | None) -> None:
        super().__init__("counting", 0.001)
        self.steps = 0
        self.last = 0
        self.some = threading.Event()
        self._most = most

    def step(self) -> bool:
        self.steps += 1
        self.some.set()
        return self.steps != self._most

    def last_step(self) -> None:
        self.last += 1


def test_close_wakes_the_thread_and_waits_for_its_end() -> None:
    worker = Waiting([])
    worker.start()
    worker.start()
    assert worker.alive
    worker.close()
    worker.close()
    assert (worker.alive, worker.happened, worker.closing.is_set()) == (False, ["worked"], True)


def test_one_that_never_started_can_be_closed() -> None:
    worker = Waiting([])
    worker.close()
    assert (worker.alive, worker.happened) == (False, [])


def test_close_waits_no_longer_than_its_limit() -> None:
    worker = Deaf([], limit_s=0.01)
    worker.start()
    worker.close()
    assert worker.alive
    assert not worker.join(0)
    worker.bell.set()
    assert worker.join(None)


def test_an_exception_ends_the_thread_and_is_handed_on() -> None:
    worker = Waiting([], breaks=True)
    worker.start()
    assert worker.join(None)
    assert worker.happened == ["broken"]


def test_steps_are_repeated_until_the_end_or_until_there_are_no_more() -> None:
    closed, over = Counting(None), Counting(3)
    with at_work(closed, over):
        assert closed.some.wait(10)
        assert over.join(10)
    assert (closed.alive, closed.last, over.steps, over.last) == (False, 1, 3, 0)


def test_the_last_to_be_started_is_closed_first_also_after_an_error() -> None:
    happened: list[str] = []

    class Named(Waiting):
        def __init__(self, name: str) -> None:
            super().__init__(happened)
            self._name = name

        def close(self) -> None:
            super().close()
            happened.append(self._name)

    with pytest.raises(KeyError), at_work(Named("first"), Named("second")):
        raise KeyError
    assert happened == ["worked", "second", "worked", "first"]

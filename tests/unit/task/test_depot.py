"""The threads of a container that send and fetch snapshots: they end promptly, and keep to a bandwidth."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.core.clock import WallClock
from headrace.core.errors import InfrastructureError, StorageError
from headrace.stores.transfer import Job, Work
from headrace.task.state import depot as depots
from headrace.task.state.depot import LiveDepot
from simulator.objects import MemoryObjects


class Scene:
    def __init__(self, bytes_per_s: float | None = None) -> None:
        self.store = MemoryObjects()
        self.rung = threading.Event()
        self.warnings: list[str] = []
        self.dropped: list[str] = []
        self.depot = LiveDepot(self.store, self.rung.set, WallClock(), bytes_per_s)
        self.calls = self.depot.calls(self.warnings.append)

    def job(self, key: str, steps: Work[None]) -> None:
        self.depot.send(Job(key, lambda: steps, self.warnings.append, lambda: self.dropped.append(key)))

    def put(self, name: str, chunks: Iterator[bytes]) -> Work[None]:
        yield from self.calls.tried(lambda: self.calls.store.put(name, 0, lambda: chunks))


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.depot.close()


def test_jobs_are_done_in_turn_and_the_run_loop_is_woken(scene: Scene):
    scene.job("a", scene.put("a", iter([b"1"])))
    assert scene.rung.wait(60)
    scene.rung.clear()
    scene.job("b", scene.put("b", iter([b"2"])))
    assert scene.rung.wait(60)
    assert scene.store.objects == {"a": b"1", "b": b"2"}
    assert not scene.warnings


def test_closing_ends_a_sending_that_never_would(scene: Scene):
    begun = threading.Event()

    def endless() -> Iterator[bytes]:
        while True:
            begun.set()
            yield b"x"

    scene.job("a", scene.put("a", endless()))
    assert begun.wait(60)
    scene.depot.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "send-snapshots"]
    assert scene.store.objects == {}
    scene.job("b", scene.put("b", iter([b"2"])))
    assert scene.store.objects == {}


def test_a_bandwidth_is_kept_over_all_that_is_sent():
    scene = Scene(bytes_per_s=1_000_000)
    clock = WallClock()
    began = clock.monotonic_ms()
    for name in "abc":
        scene.rung.clear()
        scene.job(name, scene.put(name, iter([bytes(50_000)] * 2)))
        assert scene.rung.wait(60)
    assert clock.monotonic_ms() - began >= 150  # 300 kB, of which 100 are a burst
    scene.depot.close()


def test_what_fails_is_said_and_tried_again_later(scene: Scene):
    def fails(error: Exception) -> Work[None]:
        yield 0.0
        raise error

    scene.job("a", fails(InfrastructureError("no right to write")))
    assert scene.rung.wait(60)
    scene.rung.clear()
    scene.job("b", fails(StorageError("the folder is gone")))
    assert scene.rung.wait(60)
    assert [warning.partition(": ")[2] for warning in scene.warnings] == ["no right to write", "the folder is gone"]
    assert scene.dropped == ["b"]
    scene.job("a", scene.put("a", iter([b"1"])))
    assert scene.dropped == ["b", "a"]


def bug() -> Work[None]:
    yield 1 / 0


def test_a_mistake_in_one_job_does_not_stop_the_others(scene: Scene):
    scene.job("a", bug())
    assert scene.rung.wait(60)
    said = "a snapshot can't be sent: ZeroDivisionError('division by zero')"
    assert (scene.dropped, scene.warnings) == (["a"], [said])
    scene.rung.clear()
    scene.job("b", scene.put("b", iter([b"2"])))
    assert scene.rung.wait(60)
    assert scene.store.objects == {"b": b"2"}


def test_a_fetch_says_that_it_failed_and_wakes_the_run_loop(scene: Scene):
    failed: list[object] = []

    def fails() -> Work[None]:
        yield 0.0
        raise InfrastructureError("no right to read")

    scene.depot.fetch(fails(), failed.append)
    assert scene.rung.wait(60)
    assert [str(error) for error in failed] == ["no right to read"]
    scene.rung.clear()
    scene.depot.fetch(bug(), failed.append)
    assert scene.rung.wait(60)
    assert isinstance(failed[1], ZeroDivisionError)


HANGS = """
import threading
from headrace.core.clock import WallClock
from headrace.task.state import depot
depot.CLOSING_S = 0.1
asked = threading.Event()
def steps():
    yield 0.0
    asked.set()
    threading.Event().wait()
one = depot.LiveDepot(None, lambda: None, WallClock(), None)
def together():
    yield from one.together([steps(), steps()])
one.fetch(together(), print)
asked.wait()
print("asked", flush=True)
one.close()
"""


class Stuck(MemoryObjects):
    """A call to it doesn't return before ``answer`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = threading.Event(), threading.Event()

    def read(self, name, start, length):
        self.asked.set()
        self.answer.wait(30)
        return b"late"


def test_closing_does_not_wait_for_a_fetch_that_hangs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(depots, "CLOSING_S", 0.1)
    store, rung, came = Stuck(), threading.Event(), []
    depot = LiveDepot(store, rung.set, WallClock(), None)
    calls = depot.calls(came.append)

    def reads() -> Work[None]:
        came.append((yield from calls.tried(lambda: calls.store.read("a", 0, 1))))

    def steps() -> Work[None]:
        yield from depot.together([reads()] * 2)

    before = set(threading.enumerate())
    depot.fetch(steps(), came.append)
    assert store.asked.wait(60)
    threads = set(threading.enumerate()) - before
    assert len(threads) > 1
    assert all(thread.daemon for thread in threads)
    began = time.monotonic()
    depot.close()
    assert time.monotonic() - began < 30
    store.answer.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert (came, rung.is_set()) == ([], False)
    depot.fetch(steps(), came.append)
    assert not came


def test_a_fetch_that_hangs_does_not_keep_the_process():
    done = subprocess.run([sys.executable, "-c", HANGS], timeout=120, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "asked\n", "")


def test_what_is_done_together_is_over_when_all_of_it_is(scene: Scene):
    """What goes on after a failure would write into a draft that is begun anew."""
    both, ended = threading.Barrier(2), threading.Event()
    answers: list[object] = []

    def fails() -> Work[int]:
        both.wait(60)
        yield 0.0
        raise InfrastructureError("no right to read")

    def takes_long() -> Work[int]:
        both.wait(60)
        yield 200.0
        ended.set()
        return 1

    def all_of_it() -> Work[None]:
        answers.extend((yield from scene.depot.together([takes_long(), count(2)])))
        ended.clear()
        yield from scene.depot.together([fails(), takes_long()])

    def count(number: int) -> Work[int]:
        both.wait(60)
        yield 0.0
        return number

    scene.depot.fetch(all_of_it(), lambda error: answers.append((str(error), ended.is_set())))
    assert scene.rung.wait(60)
    assert answers == [1, 2, ("no right to read", True)]
    assert depots.FILES_AT_ONCE > 1

"""Generations rise by one, are never issued twice, and belong to one app."""

from __future__ import annotations

import threading

import pytest

from headrace.core.errors import DataError, IndeterminateWriteError, ProtocolError, StorageError
from headrace.core.ids import TaskName
from headrace.life.metadata import HIGHEST, Generations, MemoryMetadata, SqliteMetadata

A0, A1, B0 = TaskName("a", 0), TaskName("a", 1), TaskName("b", 0)


def test_begins_at_one_and_rises_per_task():
    generations = Generations(MemoryMetadata(), "app")
    assert generations.issue([A0, A1]) == {A0: 1, A1: 1}
    assert generations.issue([A0]) == {A0: 2}
    assert generations.issue([B0, A0]) == {A0: 3, B0: 1}
    assert generations.latest() == {A0: 3, A1: 1, B0: 1}


def test_a_task_named_twice_gets_one_generation():
    assert Generations(MemoryMetadata(), "app").issue([A0, A0]) == {A0: 1}


def test_nothing_asked_nothing_issued():
    assert Generations(MemoryMetadata(), "app").issue([]) == {}


def test_apps_are_apart():
    store = MemoryMetadata()
    assert Generations(store, "one").issue([A0]) == Generations(store, "two").issue([A0]) == {A0: 1}


def test_a_second_driver_continues_where_the_first_stopped(tmp_path):
    for expected in (1, 2):
        store = SqliteMetadata(tmp_path / "metadata.db")
        assert Generations(store, "app").issue([A0]) == {A0: expected}
        store.close()


def test_racing_drivers_never_get_the_same_one(tmp_path):
    issued: list[int] = []
    tasks = [TaskName("s", n) for n in range(3)]

    def drive() -> None:
        store = SqliteMetadata(tmp_path / "metadata.db", busy_timeout_ms=60_000)
        generations = Generations(store, "app")
        for _ in range(5):
            issued.extend(generations.issue(tasks).values())
        store.close()

    threads = [threading.Thread(target=drive) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(issued) == sorted(list(range(1, 16)) * 3)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (b"{", DataError, "generation of task a/0 of app 'app' in the metadata store is unreadable"),
        (b'{"version":2,"generation":4}', DataError, "of format 2"),
        (b'{"version":1,"generation":%d}' % HIGHEST, ProtocolError, "used up all"),
    ],
)
def test_what_cant_be_counted_on_is_refused(value, error, text):
    store = MemoryMetadata()
    store.put_if("generations/app", "a/0", value, None)
    with pytest.raises(error, match=text):
        Generations(store, "app").issue([A0])
    assert store.get("generations/app", "a/0").value == value


@pytest.mark.parametrize("written", [True, False])
def test_a_write_of_unknown_fate_may_be_tried_again(written):
    class Unsure(MemoryMetadata):
        fails = True

        def write(self, namespace, changes):
            answers = super().write(namespace, changes) if written or not self.fails else []
            if self.fails:
                raise IndeterminateWriteError("the disk is full")
            return answers

    store = Unsure()
    generations = Generations(store, "app")
    with pytest.raises(StorageError, match="the disk is full") as caught:
        generations.issue([A0])
    assert caught.value.retry
    store.fails = False
    assert generations.issue([A0]) == {A0: 2 if written else 1}

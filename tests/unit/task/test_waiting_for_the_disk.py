"""Tasks of a container wait for the disk together, and each file is synced once for all of them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from driven_app import INTERVAL_MS, DrivenApp, Orders, orders_app

from headrace.api.specs import Durability
from headrace.core.errors import IndeterminateWriteError
from headrace.systems.base import Unsynced, sync_all
from headrace.systems.registry import SystemSpec
from headrace.task.connections import Connections
from headrace.task.host.commits import Commits, Survival, Together
from headrace.task.inputs.consumers import InputConsumers
from headrace.task.scope import Pause, Steps, run


class Places:
    """Counts what is waited for, and what is done."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.done: list[int] = []

    def unsynced(self, place: str, number: int) -> Unsynced:
        return Unsynced(place, lambda: self.waits.update([place]), lambda: self.done.append(number))


def test_a_place_is_waited_for_once_for_all_that_is_there() -> None:
    places = Places()
    sync_all([places.unsynced("a", 1), places.unsynced("b", 2), places.unsynced("a", 3)])
    assert places.waits == {"a": 1, "b": 1}
    assert sorted(places.done) == [1, 2, 3]


def test_many_tasks_wait_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits twice, and none goes on before the disk has what it waits for."""
    said: list[str] = []
    together = Together(Connections(), at_once=3)
    monkeypatch.setattr(Connections, "sync_records", lambda connections, read: said.append("sync"))

    class Task:
        def synced(self) -> None:
            said.append("synced")

        def unsynced(self) -> list[Unsynced]:
            return []

    def work(number: int) -> Steps[None]:
        for part in ("begun", "goes on"):
            said.append(f"{number} {part}")
            yield Pause.DISK
        said.append(f"{number} is done")

    def turn() -> Steps[None]:
        for number in range(7):
            yield from together.go_on(Task(), work(number))  # type: ignore[arg-type]
        yield from together.wait()

    run(turn())
    for number in range(7):
        begun, goes_on, done = (said.index(f"{number} {what}") for what in ("begun", "goes on", "is done"))
        assert "sync" in said[begun:goes_on]
        assert "sync" in said[goes_on:done]
    first = said.index("sync")
    assert said[:first] == ["0 begun", "1 begun", "2 begun"]


@pytest.mark.parametrize(("durability", "syncs"), [("process", 0), ("commit", 1)])
def test_files_do_not_stay_open_for_a_sync_that_never_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability, syncs: int
) -> None:
    synced: list[int] = []
    connections = Connections()
    spec = SystemSpec("log", "log", {"root": tmp_path})
    connections.admin(spec).create("events", 1)
    producer = connections.record_producer(spec)
    producer.send("events", 0, b"x")
    connections.flush_records()
    assert len(list(producer.unsynced())) == 1
    monkeypatch.setattr(os, "fsync", synced.append)
    run(Survival(durability, connections, InputConsumers({}, connections)).of_what_is_there(lambda: None))
    assert list(producer.unsynced()) == []
    assert len(synced) == syncs
    connections.close()


def test_nothing_is_on_the_disk_if_a_wait_fails() -> None:
    places = Places()

    def fail() -> None:
        raise IndeterminateWriteError("the disk is gone")

    connections = Connections()
    broken = Unsynced("b", fail, lambda: places.done.append(2))
    with pytest.raises(IndeterminateWriteError, match="the disk is gone"):
        connections.sync_records([places.unsynced("a", 1), broken])
    connections.close()
    assert places.done == []


def test_tasks_that_commit_in_one_turn_sync_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the records of two turns no file is synced twice but those of the next stage, which commits later."""
    syncs: Counter[int] = Counter()
    records = 0
    append = Commits.append_record

    def counting(commits: Commits, *arguments: object) -> Steps[None]:
        nonlocal records
        records += 1
        yield from append(commits, *arguments)  # type: ignore[arg-type]

    orders = Orders(tmp_path)
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start()
        orders.write()
        app.run(2 * INTERVAL_MS)
        monkeypatch.setattr(Commits, "append_record", counting)
        monkeypatch.setattr(os, "fsync", lambda descriptor: syncs.update([os.fstat(descriptor).st_ino]))
        orders.write()
        app.run(2 * INTERVAL_MS)
    orders.close()
    rounds = records / len(app.plan.stages) / 2  # of two tasks a stage
    assert records >= 6
    assert max(syncs.values()) <= 2 * rounds

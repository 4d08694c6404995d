"""Tasks of a container wait for the disk together, and each file is synced once for all of them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from driven_app import INTERVAL_MS, DrivenApp, Orders, orders_app

from headrace.core.errors import IndeterminateWriteError
from headrace.runtime.connections import Connections
from headrace.runtime.host.commits import Commits
from headrace.runtime.pauses import Steps
from headrace.systems.syncing import Unsynced, sync_all


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

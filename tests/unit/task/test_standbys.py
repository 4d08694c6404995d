"""The thread that keeps the standbys of a container: what is ordered, what fails, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from driven_app import DrivenApp, Orders, orders_app

from headrace.core.calls import Retry
from headrace.core.clock import WallClock
from headrace.core.errors import StateLockedError, UnavailableError
from headrace.plan.model import Plan
from headrace.stores.database import FolderLock
from headrace.systems.registry import home_log
from headrace.task import standby as standbys
from headrace.task.standby import Standbys
from headrace.task.standby_status import StandbyStatus
from simulator.objects import MemoryObjects

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standbys, "RETRY", Retry(None, 10.0, 10.0))
    monkeypatch.setattr(standbys, "LOOK_S", 0.01)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> MemoryObjects:
    objects = MemoryObjects()
    for module in ("container", "standby"):
        monkeypatch.setattr(f"headrace.task.{module}.open_objects", lambda place: objects)
    return objects


@pytest.fixture
def app(tmp_path: Path, objects: MemoryObjects) -> Iterator[DrivenApp]:
    """An app that has run for a while, and is over."""
    with (
        closing(Orders(tmp_path)) as orders,
        DrivenApp(orders_app(tmp_path, snapshots="s3://bucket/orders", standby=1)) as app,
    ):
        container = app.start()
        for _ in range(3):
            orders.write()
            app.run(400)
        app.kill(container)
        yield app


@pytest.fixture
def elsewhere(app: DrivenApp, tmp_path: Path) -> Plan:
    graph = app.plan.graph
    settings = replace(graph.settings, home=str(tmp_path / "b"), internal=home_log(str(tmp_path)))
    return replace(app.plan, graph=replace(graph, settings=settings))


@pytest.fixture
def kept(elsewhere: Plan) -> Iterator[Standbys]:
    with closing(Standbys(elsewhere, WallClock())) as kept:
        yield kept


def until(kept: Standbys, done: Callable[[dict[str, StandbyStatus]], bool]) -> None:
    never = threading.Event()
    for _ in range(round(PATIENCE_S / 0.01)):
        if done({look.task: look for look in kept.looks}):
            return
        never.wait(0.01)
    raise AssertionError(kept.looks)


def current(*tasks: str) -> Callable[[dict[str, StandbyStatus]], bool]:
    return lambda looks: {task for task, look in looks.items() if look.state == "current"} == set(tasks)


def is_free(folder: Path) -> bool:
    try:
        FolderLock(folder).release()
    except StateLockedError:
        return False
    return True


def test_what_is_ordered_is_kept_and_nothing_else(kept: Standbys, tmp_path: Path) -> None:
    assert not any(thread.name == "headrace-standbys" for thread in threading.enumerate())
    kept.order(["by-member/0", "by-region/1", "no-such/0"])
    until(kept, current("by-member/0", "by-region/1"))
    folder = tmp_path / "b/state/orders"
    assert not is_free(folder / "by-member-0")
    kept.order(["by-region/1"])
    until(kept, current("by-region/1"))
    assert is_free(folder / "by-member-0")
    kept.close()
    assert is_free(folder / "by-region-1")
    kept.order(["by-member/0"])
    assert not kept.looks


def test_one_whose_folder_is_taken_waits_and_the_others_go_on(
    kept: Standbys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standbys, "LOCKED_MS", 0.0)
    lock = FolderLock(tmp_path / "b/state/orders/by-member-0")
    kept.order(["by-member/0", "by-region/1"])
    until(kept, lambda looks: looks["by-member/0"].trouble == standbys.LOCKED if "by-member/0" in looks else False)
    until(kept, current("by-region/1"))
    lock.release()
    until(kept, current("by-member/0", "by-region/1"))
    assert [look.trouble for look in kept.looks] == ["", ""]


def test_one_that_fails_begins_again_and_says_why(
    kept: Standbys, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = objects.list

    def fails(prefix: str) -> dict[str, int]:
        if "by-member-0" in prefix:
            raise PermissionError("nobody may list it")
        return lists(prefix)

    monkeypatch.setattr(objects, "list", fails)
    kept.order(["by-member/0", "by-region/1"])
    until(kept, lambda looks: "nobody may list it" in looks["by-member/0"].trouble if looks else False)
    until(kept, current("by-region/1"))
    monkeypatch.setattr(objects, "list", lists)
    until(kept, current("by-member/0", "by-region/1"))


def test_without_the_store_it_tries_again(elsewhere: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, failures = MemoryObjects(), iter([True, True])

    def opened(place: object) -> MemoryObjects:
        if next(failures, False):
            raise UnavailableError("it is away")
        return objects

    monkeypatch.setattr(standbys, "open_objects", opened)
    with closing(Standbys(elsewhere, WallClock())) as kept:
        kept.order(["by-member/0"])
        until(kept, current("by-member/0"))


def test_a_standby_that_waits_for_its_snapshot_can_be_let_go(
    kept: Standbys, objects: MemoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(prefix: str) -> dict[str, int]:
        asked.set()
        assert answer.wait(PATIENCE_S)
        return {}

    monkeypatch.setattr(objects, "list", slow)
    kept.order(["by-member/0"])
    assert asked.wait(PATIENCE_S)
    kept.order([])
    until(kept, lambda looks: not looks)
    assert is_free(tmp_path / "b/state/orders/by-member-0")
    answer.set()

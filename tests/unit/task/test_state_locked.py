"""The folder of a task's local state belongs to one incarnation, also while that one throws it away or rebuilds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.clock import ManualClock
from headrace.core.ids import SSP, StreamId
from headrace.core.log import RecentWarnings
from headrace.protocol.record import LocalCheckpoint
from headrace.stores import database as state_folder
from headrace.task.naming import StateFolders
from headrace.task.state import task_state
from headrace.task.state.disk import Snapshot
from headrace.task.state.task_state import TaskState

CHANGELOG = SSP(StreamId("log", "app-stage-changelog"), 0)
LOCAL = LocalCheckpoint(100, 1, 5)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database is made at the first commit, although there is no state."""
    monkeypatch.setattr(task_state, "_MADE_AFTER_BYTES", 0)


@pytest.fixture
def folders(tmp_path: Path) -> StateFolders:
    return StateFolders(tmp_path / "state" / "stage-0", tmp_path / "snapshots" / "stage-0")


def _state(folders: StateFolders) -> TaskState:
    return TaskState(CHANGELOG, folders, RecentWarnings(ManualClock()))


@pytest.fixture
def states(folders: StateFolders) -> Iterator[list[TaskState]]:
    states = [_state(folders), _state(folders)]
    yield states
    for each in states:
        each.close()


def test_one_that_could_not_be_read_is_not_thrown_away_under_a_living_zombie(
    folders: StateFolders, states: list[TaskState]
) -> None:
    zombie, replacement = states
    zombie.begin({})
    zombie.persist(LOCAL)
    (folders.local / "UNREADABLE").touch()  # the zombie has met damage, and hangs
    replacement.begin({})
    assert "a folder of its own" in replacement.warnings[0]
    assert (folders.local / "CURRENT").exists()
    zombie.persist(LOCAL)


def test_nobody_comes_in_while_a_folder_is_rebuilt(
    folders: StateFolders, states: list[TaskState], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = states
    first.begin({})
    first.persist(LOCAL)
    opened = first._database
    assert opened is not None
    opened.snapshot(folders.snapshots / Snapshot.name(LOCAL))
    restore = state_folder.restore_snapshot

    def interrupted(snapshot: Path, folder: Path) -> None:
        """The folder is closed, and about to be replaced, when another incarnation starts."""
        monkeypatch.setattr(state_folder, "restore_snapshot", restore)
        second.begin({})
        restore(snapshot, folder)

    monkeypatch.setattr(state_folder, "restore_snapshot", interrupted)
    first.misfit()
    first.begin({})
    assert "a folder of its own" in second.warnings[0]
    for each in states:
        each.persist(LocalCheckpoint(200, 2, 6))
        each.close()
    states.append(_state(folders))
    assert states[-1].begin({}) == LocalCheckpoint(200, 2, 6)


def test_a_folder_is_free_when_its_state_is_closed(folders: StateFolders, states: list[TaskState]) -> None:
    first, second = states
    first.begin({})
    first.persist(LOCAL)
    first.close()
    assert second.begin({}) == LOCAL
    assert not second.warnings

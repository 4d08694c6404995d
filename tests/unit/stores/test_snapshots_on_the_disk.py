"""A snapshot is on the disk with its name before anything is given up for it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from headrace.stores.database import Database
from headrace.task.state.disk import Disk


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    found: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: found.add(os.fstat(descriptor).st_ino))
    return found


def test_a_snapshot_has_its_name_on_the_disk(tmp_path: Path, synced: set[int]) -> None:
    with closing(Database(tmp_path / "state")) as database:
        database.snapshot(tmp_path / "snapshots" / "0-1-1")
    assert (tmp_path / "snapshots").stat().st_ino in synced


def test_so_has_one_that_was_fetched(tmp_path: Path, synced: set[int]) -> None:
    snapshot = tmp_path / "snapshots" / "0-1-1"
    Disk().begin_draft(snapshot)
    Disk().fill_draft(snapshot, "CURRENT", 0, b"x")
    Disk().complete_draft(snapshot)
    assert (tmp_path / "snapshots").stat().st_ino in synced

"""A damaged local database raises when it is opened or read; entries are never lost silently."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.errors import CorruptLogError, StateCorruptError, StateLockedError, StorageError
from headrace.stores.database import (
    Batch,
    Database,
    KeySpace,
    PartOfBatch,
    discard_abandoned,
    discard_drafts,
    restore_snapshot,
    stand_in_for,
)

ENTRIES = 3000


def fill(folder: Path, size: int) -> None:
    database = Database(folder)
    for first in range(0, ENTRIES, 100):
        batch = Batch()
        for n in range(first, first + 100):
            batch.put(b"k%06d" % n, os.urandom(size))
        database.write(batch)
    database.close()
    Database(folder).close()  # the contents of the log are in tables now


def damage(folder: Path) -> None:
    """Damage the middle, which opening doesn't check."""
    for path in [*folder.glob("*.sst"), *folder.glob("*.blob")]:
        data = bytearray(path.read_bytes())
        if len(data) > 50_000:
            middle = len(data) // 2
            data[middle : middle + 200] = os.urandom(200)
            path.write_bytes(bytes(data))


READS: list[Callable[[Database], object]] = [
    lambda database: list(database.range(b"k", b"l")),
    lambda database: list(database.range(b"k", b"l", reverse=True)),
    lambda database: [database.get(b"k%06d" % n) for n in range(ENTRIES)],
    lambda database: database.get_many([b"k%06d" % n for n in range(ENTRIES)]),
    lambda database: database.verify(),
]


@pytest.mark.parametrize("size", [200, 5000])
@pytest.mark.parametrize("read", READS)
def test_damage_is_never_an_early_end(tmp_path: Path, read: Callable[[Database], object], size: int) -> None:
    folder = tmp_path / "state"
    fill(folder, size)
    database = Database(folder)
    read(database)
    database.close()
    damage(folder)
    database = Database(folder)
    with pytest.raises(StateCorruptError, match=f"{folder} can't be read") as caught:
        read(database)
    assert caught.value.hint == "nothing is lost: the next start rebuilds it"
    database.close()
    with pytest.raises(StateCorruptError, match="couldn't be read last time"):
        Database(folder)


def test_scans_end_at_the_ends(tmp_path: Path) -> None:
    database = Database(tmp_path / "state")
    assert list(database.range(b"", b"z")) == []
    batch = Batch()
    for key in (b"a", b"b1", b"b2", b"c"):
        batch.put(key, key)
    database.write(batch)
    assert [key for key, _ in database.range(b"b", b"c")] == [b"b1", b"b2"]
    assert [key for key, _ in database.range(b"c", b"d")] == [b"c"]
    assert [key for key, _ in database.range(b"d", b"e")] == []
    assert [key for key, _ in database.range(b"a", b"z", reverse=True)] == [b"c", b"b2", b"b1", b"a"]
    assert [key for key, _ in database.range(b"", b"a", reverse=True)] == []
    database.close()


def test_a_stand_in_is_discarded_when_no_process_has_it_open(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    stand_in = Database(stand_in_for(folder))
    stand_in.close()
    stand_in_for(folder).mkdir()
    other = Database(stand_in_for(tmp_path / "state-1"))
    other.close()
    discard_abandoned(folder)
    assert list(stand_in.folder.parent.iterdir()) == [other.folder]


def test_what_a_dead_process_left_is_deleted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="headrace.stores.database")
    folder = tmp_path / "state"
    stand_in = Database(stand_in_for(folder))
    stand_in.close()
    snapshots = tmp_path / "snapshots"
    (snapshots / ".1-1-1.draft").mkdir(parents=True)
    discard_abandoned(folder)
    discard_drafts(snapshots)
    assert [(r.levelname, r.getMessage(), vars(r)["folder"]) for r in caplog.records] == [
        ("INFO", "deleting the state folder of a dead process", str(stand_in.folder)),
        ("INFO", "deleting the unfinished snapshot of a killed process", str(snapshots / ".1-1-1.draft")),
    ]
    assert list(snapshots.iterdir()) == []


def test_the_stand_in_for_a_folder_belongs_to_one_task(tmp_path: Path) -> None:
    """Ids may have dots: the folder of task 3 of a step v-0.5 begins like that of task 0 of a step v."""
    other = Database(tmp_path / "v-0.5-3")
    discard_abandoned(tmp_path / "v-0")
    assert (tmp_path / "v-0.5-3" / "CURRENT").exists()
    other.close()


def test_a_folder_is_open_once(tmp_path: Path) -> None:
    database = Database(tmp_path / "state")
    with pytest.raises(StateLockedError, match="is open elsewhere"):
        Database(tmp_path / "state")
    database.close()
    Database(tmp_path / "state").close()


def entries_of(number: int, entries: int) -> dict[bytes, bytes]:
    values = random.Random(number)
    return {b"%08d" % (n * 7919 % 100_003): values.randbytes(100) for n in range(entries)}


REBUILDING = [(1, 10), *((number, 30_000 + number) for number in range(2, 8))]
"""The batches, each with its number of entries; the first one is written before the rebuilding begins."""
LATER = (8, 5000)


def rebuild_and_die(folder: Path, death: str) -> None:
    """Runs in a process of its own."""
    database = Database(folder)

    def write(number: int, entries: int) -> None:
        batch, values = Batch(), entries_of(number, entries)
        PartOfBatch(batch, "s").put_many(list(values), list(values.values()))
        batch.put(b"number", b"%d" % number)
        database.write(batch)

    for number, entries in REBUILDING:
        write(number, entries)
        database.begin_rebuilding()
    if death != "while rebuilding":
        database.end_rebuilding()
        database.end_rebuilding()
    if death == "after a later write":
        write(*LATER)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("death", "least"), [("while rebuilding", 1), ("when it has ended", 7), ("after a later write", 8)]
)
def test_what_is_left_of_a_rebuilding_is_what_was_after_one_of_its_batches(
    tmp_path: Path, death: str, least: int
) -> None:
    """Once it has ended, neither its result nor later writes can be lost."""
    process = multiprocessing.get_context("spawn").Process(target=rebuild_and_die, args=(tmp_path / "state", death))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    database = Database(tmp_path / "state")
    found = dict(database.range(b"", b"z"))
    database.close()
    last = int(found.pop(b"number"))
    assert last >= least
    written: dict[bytes, bytes] = {}
    for number, entries in [*REBUILDING, LATER][:last]:
        written |= {b"s\0" + key: value for key, value in entries_of(number, entries).items()}
    assert found == written


def test_of_equal_keys_the_last_one_counts(tmp_path: Path) -> None:
    database = Database(tmp_path / "state")
    keys = [b"%d" % (n % 5000) for n in range(10_000)]
    batch = Batch()
    PartOfBatch(batch, "s").put_many(keys, [b"%d" % n for n in range(10_000)])
    database.write(batch)
    assert KeySpace(database, "s").get_many(keys[:5000]) == [b"%d" % n for n in range(5000, 10_000)]
    database.close()


def test_a_snapshot_outlives_what_it_was_taken_of(tmp_path: Path) -> None:
    folder, snapshot = tmp_path / "state", tmp_path / "snapshots" / "1"
    fill(folder, 200)
    database = Database(folder)
    database.snapshot(snapshot)
    batch = Batch()
    batch.delete_range(b"k", b"l")
    database.write(batch)
    database.close()
    restore_snapshot(snapshot, folder)
    database = Database(folder)
    assert len(list(database.range(b"k", b"l"))) == ENTRIES
    database.close()


def test_a_folder_that_was_deleted_while_it_was_open_is_reported_as_unreadable(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    fill(folder, 200)
    database = Database(folder)
    try:
        shutil.rmtree(folder)
        error = database._unreadable(OSError("No such file"))
        assert isinstance(error, StateCorruptError)
        assert "nothing is lost" in (error.hint or "")
    finally:
        database.close()


def test_a_snapshot_whose_folder_can_not_be_made_is_reported_clearly(tmp_path: Path) -> None:
    (tmp_path / "snapshots").write_text("in the way")
    database = Database(tmp_path / "state")
    try:
        with pytest.raises(StorageError, match="snapshot"):
            database.snapshot(tmp_path / "snapshots" / "1")
    finally:
        database.close()


def test_a_copy_that_is_read_stays_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path / "state", 200)
    database = Database(tmp_path / "state")
    database.snapshot(tmp_path / "copy")
    database.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    first, second = (Database(tmp_path / "copy", read_only=True) for _ in range(2))
    assert [len(list(each.range(b"k", b"l"))) for each in (first, second)] == [ENTRIES] * 2
    with pytest.raises(StorageError, match="read only"):
        first.write(first.batch())
    first.close()
    second.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()} == before


def test_a_damaged_copy_is_not_marked_and_a_missing_one_not_made(tmp_path: Path) -> None:
    fill(tmp_path / "copy", 200)
    damage(tmp_path / "copy")
    for _ in range(2):
        database = Database(tmp_path / "copy", read_only=True)
        with pytest.raises(CorruptLogError, match=r"the copy of a task's state in .* can't be read"):
            database.verify()
        database.close()
    with pytest.raises(CorruptLogError, match="it has no database"):
        Database(tmp_path / "nothing", read_only=True)
    assert not (tmp_path / "nothing").exists()

"""What the file adds to the contract: several processes, a bounded wait, and refusal of other files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from headrace.core.errors import DataError, InfrastructureError, StorageError, UnavailableError
from headrace.life import metadata as sqlite
from headrace.life.metadata import SqliteMetadata


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metadata.db"


def test_survives_reopening(path):
    store = SqliteMetadata(path)
    version = store.put_if("ns", "k", b"v", None)
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["metadata.db"]
    again = SqliteMetadata(path)
    assert again.get("ns", "k") == (b"v", version)
    again.close()


@pytest.mark.parametrize("name", ["a-file/metadata.db", f"{'long' * 60}.db"])  # one fails in the system, one in SQLite
def test_where_no_file_can_be_made_the_error_says_so(tmp_path, name):
    (tmp_path / "a-file").write_text("")
    with pytest.raises(StorageError, match="can't create the metadata store") as caught:
        SqliteMetadata(tmp_path / name)
    assert caught.value.hint == "check that the home is a folder and writable, and that its disk isn't full"
    assert [file.name for file in tmp_path.iterdir()] == ["a-file"]


def test_threads_that_open_at_once_all_get_in(tmp_path):
    # Switching a file to write-ahead mode can't wait for another process that does: no process may see a draft.
    failed = []

    def open_and_close(file, together):
        try:
            together.wait(60)
            SqliteMetadata(file, busy_timeout_ms=60_000).close()
        except Exception as error:
            failed.append(error)

    for number in range(20):
        job = (tmp_path / f"{number}.db", threading.Barrier(5))
        threads = [threading.Thread(target=open_and_close, args=job) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    assert list(tmp_path.glob("*.db.*")) == [], "no draft is left"


INCREMENT = """
import sys
from pathlib import Path
from headrace.life.metadata import SqliteMetadata
from headrace.life.metadata import update
store = SqliteMetadata(Path(sys.argv[1]), busy_timeout_ms=60000)
for _ in range(25):
    update(store, "ns", "sum", lambda old: str(int(old or b"0") + 1).encode())
store.close()
"""


def test_processes_that_open_and_write_at_once_lose_nothing(path):
    # They also race for creating the file.
    processes = [subprocess.Popen([sys.executable, "-c", INCREMENT, str(path)]) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    store = SqliteMetadata(path)
    assert store.get("ns", "sum").value == b"75"
    store.close()


def test_a_writer_that_dies_in_a_transaction_leaves_no_trace(path):
    store = SqliteMetadata(path)
    version = store.put_if("ns", "k", b"before", None)
    dying = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); c.execute(\"UPDATE entries SET value = x'00'\"); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", dying, str(path)], timeout=120, check=False).returncode == 9
    assert store.get("ns", "k") == (b"before", version)
    assert store.put_if("ns", "k", b"after", version) is not None
    store.close()


def test_waits_no_longer_than_the_busy_timeout(path):
    store = SqliteMetadata(path, busy_timeout_ms=100)
    version = store.put_if("ns", "k", b"v", None)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    with pytest.raises(UnavailableError, match=r"metadata\.db: another process has held its lock for 100 ms"):
        store.put_if("ns", "k", b"w", version)
    assert time.monotonic() - begun < 30
    assert store.get("ns", "k") == (b"v", version), "readers don't wait for writers"
    holder.execute("ROLLBACK")
    holder.close()
    assert store.put_if("ns", "k", b"w", version) is not None, "the same call works later"
    store.close()


def test_refuses_a_newer_format(path):
    SqliteMetadata(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 2")
    other.close()
    with pytest.raises(InfrastructureError, match=r"of format 2; this version of Headrace reads 1"):
        SqliteMetadata(path)


def test_refuses_somebody_elses_database(path):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(DataError, match="not a Headrace metadata store"):
        SqliteMetadata(path)


def test_refuses_what_is_no_database(path):
    path.write_bytes(b"something else, and long enough to be looked at" * 100)
    with pytest.raises(DataError, match="damaged or isn't an SQLite file"):
        SqliteMetadata(path)


def test_a_folder_that_cant_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="can't create the metadata store"):
        SqliteMetadata(tmp_path / "file" / "metadata.db")


def test_a_file_that_cant_be_opened_may_be_somebody_elses(path):
    path.mkdir()
    with pytest.raises(StorageError, match="can't open the metadata store") as caught:
        SqliteMetadata(path)
    assert caught.value.hint == "check that you own the file: others may not read it"


def test_a_full_disk_is_reported_and_nothing_was_written(path):
    store = SqliteMetadata(path)
    store._connection.execute("PRAGMA max_page_count = 10")  # makes SQLite report a full disk
    with pytest.raises(StorageError, match="full"):
        store.put_if("ns", "k", bytes(1 << 20), None)
    assert store.get("ns", "k") is None
    assert store.put_if("ns", "k", b"small", None) is not None
    store.close()


def test_a_closed_handle_says_so(path):
    store = SqliteMetadata(path)
    store.close()
    with pytest.raises(UnavailableError, match="was closed"):
        store.get("ns", "k")


FORK = """
import os, sys
from pathlib import Path
from headrace.core.errors import UnavailableError
from headrace.life.metadata import SqliteMetadata
store = SqliteMetadata(Path(sys.argv[1]))
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    store.get("ns", "k")
except UnavailableError as error:
    assert "open it again" in str(error)
    os.write(1, b"refused\\n")
os._exit(0)
"""


def test_a_forked_process_is_told_to_open_its_own(path):
    run = subprocess.run([sys.executable, "-c", FORK, str(path)], timeout=120, check=True, capture_output=True)
    assert run.stdout == b"refused\n"


def test_a_long_wait_for_the_lock_is_logged(path, monkeypatch, caplog):
    store = SqliteMetadata(path)
    monkeypatch.setattr(sqlite, "_SLOW_S", float("inf"))
    store.put_if("ns", "k", b"1", None)
    assert caplog.records == []
    monkeypatch.setattr(sqlite, "_SLOW_S", -1.0)
    store.put_if("ns", "l", b"1", None)
    store.close()
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("WARNING", "waited long for the metadata store's lock")

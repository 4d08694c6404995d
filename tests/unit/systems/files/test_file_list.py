from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import DataError
from headrace.systems.files.stock import ROWS_MAX, Entry, ListFile, offset_of, place_of

GOLDEN = (
    b'{"format":1,"partitions":2}\n'
    b'{"entry":{"path":"/in/a.csv","partition":0,"start":0,"end":90,"size":100,"modified":1700000000000000000,'
    b'"sample":"1f"}}\n'
    b'{"entry":{"path":"/in/b.csv","partition":1,"start":0,"end":7,"size":7,"modified":5,"sample":""}}\n'
    b'{"ended":true}\n'
)


def entry(name: str, partition: int = 0, end: int = 7) -> Entry:
    return Entry(path=name, partition=partition, start=0, end=end, size=end, modified=5)


def test_golden_bytes(tmp_path: Path) -> None:
    file = ListFile(tmp_path / "app" / "in.jsonl")
    first = Entry(
        path="/in/a.csv", partition=0, start=0, end=90, size=100, modified=1_700_000_000_000_000_000, sample="1f"
    )
    assert file.append([first, entry("/in/b.csv", 1)], partitions=2, ended=True)
    assert file.path.read_bytes() == GOLDEN
    again = ListFile(file.path)
    assert again.refresh()
    assert not again.refresh()
    assert again.contents == file.contents
    assert again.contents.places == [[first], [entry("/in/b.csv", 1)]]
    assert again.contents.ended


def test_offsets_can_be_read() -> None:
    assert offset_of(3, 42) == 300000000042
    assert place_of(300000000042) == (3, 42)
    assert place_of(ROWS_MAX - 1) == (0, ROWS_MAX - 1)


def test_who_has_not_read_the_latest_entries_may_not_append(tmp_path: Path) -> None:
    one, other = ListFile(tmp_path / "list"), ListFile(tmp_path / "list")
    assert one.append([entry("a")], partitions=1)
    assert not other.append([entry("b")], partitions=1)
    assert other.refresh()
    assert other.append([entry("b")])
    assert not one.append([entry("b")])
    assert one.refresh()
    assert [e.path for e in one.contents.places[0]] == ["a", "b"]


def test_the_unfinished_line_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    file = ListFile(tmp_path / "list")
    assert file.append([entry("a")], partitions=1)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole + b'{"entry":{"path":"tor')
    again = ListFile(file.path)
    again.refresh()
    assert [e.path for e in again.contents.places[0]] == ["a"]
    assert again.append([entry("b")])
    assert file.path.read_bytes().startswith(whole + b'{"entry":{"path":"b"')
    file.refresh()
    assert [e.path for e in file.contents.places[0]] == ["a", "b"]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_bytes(GOLDEN.replace(b'"format":1', b'"format":2'))
    with pytest.raises(DataError, match="is of format 2; this version of Headrace reads 1"):
        ListFile(path).refresh()
    path.write_bytes(b"nonsense\n")
    with pytest.raises(DataError, match="is unreadable"):
        ListFile(path).refresh()


_APPENDER = """
import sys
from pathlib import Path
from headrace.systems.files.stock import Entry, ListFile
file = ListFile(Path(sys.argv[1]))
for n in range(50):
    while True:
        file.refresh()
        partitions = 0 if file.exists else 1
        name = f"{sys.argv[2]}-{n}"
        if file.append([Entry(path=name, partition=0, start=0, end=1, size=1, modified=0)], partitions=partitions):
            break
"""


def test_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _APPENDER, str(tmp_path / "list")]
    writers = [subprocess.Popen([*command, str(n)]) for n in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    file = ListFile(tmp_path / "list")
    file.refresh()
    assert {e.path for e in file.contents.places[0]} == {f"{n}-{i}" for n in range(3) for i in range(50)}
    assert len(file.contents.places[0]) == 150

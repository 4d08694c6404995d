from __future__ import annotations

import os
import threading
from pathlib import Path

import polars as pl
import pytest
from files_harness import read, rows_of, ssp, table

from headrace.core.errors import DataError, StorageError, UsageError
from headrace.systems.base import RowProducer
from headrace.systems.files import FilesSystem


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_what_is_written_is_read(tmp_path: Path, format: str) -> None:
    system = FilesSystem(str(tmp_path / "out"), format=format)
    admin = system.admin()
    assert admin.list() == []
    info = admin.create("out", 2, {"member": pl.String(), "ts": pl.Int64()})
    assert info == admin.create("out", 2, {"member": pl.String(), "ts": pl.Int64()})
    producer = system.producer()
    assert isinstance(producer, RowProducer)
    producer.send_rows("out", 0, table(10))
    producer.send_rows("out", 1, table(5))
    producer.send_rows("out", 0, table(20)[10:])
    assert list((tmp_path / "out").iterdir()) == []
    assert producer.flush() == {("out", 0): 20, ("out", 1): 5}
    assert producer.flush() == {}
    producer.send_rows("out", 1, table(8)[5:])
    producer.send_rows("out", 1, table(0))
    producer.close()
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [name[:11] for name in names] == ["part-00000-", "part-00001-", "part-00001-"]
    assert all(name.endswith(f".{format}") for name in names)
    admin.seal("out")
    assert (tmp_path / "out" / "_SUCCESS").exists()
    got = [row for n in range(3) for row in rows_of(read(FilesSystem(str(tmp_path / "out")), partition=n)[0])]
    assert got == table(20).rows() + table(8).rows()


def test_no_half_file_has_a_final_name(tmp_path: Path) -> None:
    """A reader that looks all the time never meets a file that it can't read whole."""
    system = FilesSystem(str(tmp_path), format="parquet")
    done = threading.Event()
    seen: dict[str, int] = {}

    def look() -> None:
        while not done.is_set():
            for path in tmp_path.glob("part-*"):
                seen[path.name] = pl.read_parquet(path).height

    looker = threading.Thread(target=look)
    looker.start()
    try:
        producer = system.producer()
        for _ in range(20):
            producer.send_rows("out", 0, table(20_000))
            producer.flush()
        producer.close()
    finally:
        done.set()
        looker.join()
    assert set(seen.values()) <= {20_000}
    assert not list(tmp_path.glob(".*"))


def test_rows_that_could_not_be_written_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = FilesSystem(str(tmp_path / "out"), format="jsonl").producer()
    producer.send_rows("out", 0, table(3))

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            producer.flush()
    assert list((tmp_path / "out").iterdir()) == []
    assert producer.flush() == {("out", 0): 3}
    producer.close()


def test_what_a_format_cannot_hold_is_reported(tmp_path: Path) -> None:
    producer = FilesSystem(str(tmp_path), format="csv").producer()
    producer.send_rows("out", 0, pl.DataFrame({"a": [[1, 2]]}))
    with pytest.raises(DataError, match="can't be written as csv"):
        producer.flush()
    assert list(tmp_path.iterdir()) == []


def test_an_output_is_a_folder_and_is_not_trimmed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="can't make the folder"):
        FilesSystem(str(tmp_path / "file")).admin().create("out", 1)
    admin = FilesSystem(str(tmp_path)).admin()
    with pytest.raises(UsageError, match="not trimmed"):
        admin.trim(ssp(), 5)
    admin.report_position(ssp(), "readers", 5)
    assert admin.reported_positions("input", "readers") == {0: 5}

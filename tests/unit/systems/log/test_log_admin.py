"""Holes, broken sidecars, half-made seals, refused names."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from log_harness import STREAM, append, log_file, new_log, read_all, ssp

from headrace.core.errors import (
    CorruptLogError,
    DataError,
    DeclarationError,
    StorageError,
    StreamSealedError,
    UsageError,
)
from headrace.systems.base import Edge
from headrace.systems.log import layout as holes
from headrace.systems.log.layout import Seal, StreamFolder
from headrace.systems.log.system import LogSystem, open_log


def test_trimming_gives_blocks_back_to_the_disk(tmp_path: Path) -> None:
    system = new_log(tmp_path, [bytes(100_000)] * 20)
    path = log_file(tmp_path)
    size, blocks = path.stat().st_size, path.stat().st_blocks
    point = 32 + 15 * 100_024
    system.admin().trim(ssp(), point)
    assert path.stat().st_size == size
    if holes.punch(path, 32, point):
        assert path.stat().st_blocks < blocks * 0.4
    assert len(read_all(system)[0]) == 5


def test_where_holes_cannot_be_made_only_the_point_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = new_log(tmp_path, [bytes(100_000)] * 3)
    blocks = log_file(tmp_path).stat().st_blocks
    monkeypatch.setattr(holes.sys, "platform", "plan9")
    system.admin().trim(ssp(), 32 + 100_024)
    assert log_file(tmp_path).stat().st_blocks == blocks
    assert len(read_all(system)[0]) == 2


def test_a_trim_point_that_is_no_record_is_refused(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"abc", b"def"])
    with pytest.raises(UsageError, match="no record begins at offset 36"):
        system.admin().trim(ssp(), 36)  # a byte of checksums may look like the remains of a torn append, a length not
    assert system.admin().extents(STREAM)[0].oldest == 32


def test_a_crashed_seal_is_finished_by_the_next(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"a"], partitions=2)
    StreamFolder(tmp_path, STREAM).write_seal(Seal(None))
    assert [extent.sealed for extent in system.admin().extents(STREAM)] == [False, False]
    producer = system.producer()
    with pytest.raises(StreamSealedError):
        producer.send(STREAM, 0, b"b")
    producer.close()
    system.admin().seal(STREAM)
    assert [extent.sealed for extent in system.admin().extents(STREAM)] == [True, True]
    assert read_all(system)[0] == [b"a"]


def test_broken_small_files_are_reported(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"a"])
    folder = StreamFolder(tmp_path, STREAM)
    folder.trim(0).write_text("nonsense")
    with pytest.raises(CorruptLogError, match="not an offset"):
        system.admin().extents(STREAM)
    stream_json = tmp_path / STREAM / "stream.json"
    good = json.loads(stream_json.read_text())
    for text, said in [
        ("{", "not JSON"),
        ("[]", "format version None"),
        (json.dumps(good | {"version": 9}), "format version 9"),
        (json.dumps({"version": 1}), "a field is missing or wrong"),
        (json.dumps(good | {"columns": {"a": "Int65"}}), "unknown column type"),
    ]:
        stream_json.write_text(text)
        with pytest.raises(DataError, match=said):
            system.admin().describe(STREAM)


def test_the_layout_on_disk_stays_as_it_is(tmp_path: Path) -> None:
    system = new_log(tmp_path / "root", [b"a"])
    system.admin().create("typed", 2, {"k": pl.String()}, ["k"])
    system.admin().add_columns("typed", {"k": pl.String(), "n": pl.List(pl.Int64())})
    system.admin().add_columns("typed", {"m": pl.Date()})
    system.admin().trim(ssp(), 57)
    system.admin().report_position(ssp(), "readers", 57)
    system.admin().seal(STREAM)
    names = sorted(str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*"))
    assert names == [
        "events",
        "events/p00000.log",
        "events/p00000.trim",
        "events/positions",
        "events/positions/readers",
        "events/seal.json",
        "events/stream.json",
        "typed",
        "typed/added-0001.json",
        "typed/added-0002.json",
        "typed/p00000.log",
        "typed/p00001.log",
        "typed/positions",
        "typed/stream.json",
    ]
    text = (tmp_path / "root/typed/stream.json").read_text()
    assert json.loads(text) == {"version": 1, "partitions": 2, "columns": {"k": "String"}, "key": ["k"]}
    assert [(tmp_path / f"root/typed/added-000{n}.json").read_text() for n in (1, 2)] == [
        '{\n "version": 1,\n "columns": {\n  "n": {\n   "List": "Int64"\n  }\n }\n}\n',
        '{\n "version": 1,\n "columns": {\n  "m": "Date"\n }\n}\n',
    ]
    assert (tmp_path / "root/events/p00000.trim").read_text() == "57\n"
    assert json.loads((tmp_path / "root/events/seal.json").read_text()) == {"version": 1, "ends": [57]}


def test_damaged_additions_are_named(tmp_path: Path) -> None:
    system = new_log(tmp_path / "root")
    system.admin().create("typed", 1, {"k": pl.String()})
    system.admin().add_columns("typed", {"n": pl.Int64()})
    added = tmp_path / "root/typed/added-0001.json"
    for text, said in [
        ("{", "not JSON"),
        ('{"version": 2, "columns": {}}', "format version 2"),
        ('{"version": 1}', "a field is missing or wrong"),
    ]:
        added.write_text(text)
        with pytest.raises(DataError, match=f"added-0001.json: {said}"):
            system.admin().describe("typed")


def test_a_log_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert LogSystem(tmp_path / "nowhere").admin().list() == []
    with pytest.raises(StorageError, match="can't create stream"):
        LogSystem(tmp_path / "file" / "log").admin().create("a", 1)
    with pytest.raises(DeclarationError, match="0 partitions"):
        LogSystem(tmp_path).admin().create("a", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_upcoming_amid_a_growing_record_is_that_record(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"a", b"x" * 500_000])
    path = log_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:300_000])
    consumer = system.consumer()
    consumer.register(ssp(), Edge.UPCOMING)
    assert consumer.position(ssp()) == 32 + 25
    path.write_bytes(whole)
    append(system, [b"b"])
    assert [len(item.payloads) for item in consumer.poll()] == [2]  # type: ignore[union-attr]
    consumer.close()


def test_options_of_a_log(tmp_path: Path) -> None:
    assert open_log("log", {"root": str(tmp_path), "buffer_bytes": 100}) == LogSystem(tmp_path, 100)
    with pytest.raises(DeclarationError, match="no option 'root'"):
        open_log("log", {})
    with pytest.raises(DeclarationError, match="unknown options"):
        open_log("log", {"root": "a", "color": "red"})


@pytest.mark.parametrize("size", [1, 7, 19, 20, 24, 27, 33])
def test_the_end_of_a_record_is_a_trim_point_even_before_a_torn_append(tmp_path: Path, size: int) -> None:
    """The next bytes for a reader that has read all records are those that a killed writer left."""
    system = new_log(tmp_path, [b"abc" * 20, b"def"])
    path = log_file(tmp_path)
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(path.read_bytes()[32:][:size])
    append(system, [b"ghi"])
    system.admin().trim(ssp(), whole)
    assert system.admin().extents(STREAM)[0].oldest == whole
    assert read_all(system)[0] == [b"ghi"]

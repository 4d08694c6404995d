"""A file that was cut, torn or damaged: never a wrong record, never a silent loss."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_harness import append, drain, log_file, new_log, read_all, ssp

from headrace.core.errors import CorruptLogError
from headrace.systems.base import Edge
from headrace.systems.log import segment
from headrace.systems.log.system import LogSystem

bodies = st.lists(st.binary(max_size=40) | st.just(segment.MARK * 3), min_size=1, max_size=8)


def boundaries(payloads: list[bytes]) -> list[int]:
    at = [segment.FILE_HEADER_SIZE]
    for payload in payloads:
        at.append(at[-1] + segment.HEADER_SIZE + len(payload))
    return at


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as path:
        yield Path(path)


def fresh(folder: Path, payloads: list[bytes]) -> tuple[LogSystem, Path]:
    root = folder / str(len(list(folder.iterdir())))
    return new_log(root, payloads), log_file(root)


@settings(deadline=None)
@given(bodies, bodies, st.data())
def test_a_torn_append_costs_what_was_torn_and_nothing_else(
    folder: Path, before: list[bytes], after: list[bytes], data: st.DataObject
) -> None:
    system, path = fresh(folder, before)
    size = path.stat().st_size
    append(system, [b"torn away" * 10])
    written = path.stat().st_size - size
    kept = data.draw(st.integers(0, written - 1))
    with path.open("r+b") as file:
        file.truncate(size + kept)
    assert read_all(system) == (before, 0)
    end = append(system, after)
    assert read_all(system) == (before + after, kept)
    # Resuming at the torn place, and at the end, are both right.
    assert read_all(system, size) == (after, kept)
    assert read_all(system, end) == ([], 0)


@settings(deadline=None)
@given(bodies, st.data())
def test_a_cut_file_gives_the_records_that_are_whole_and_waits(
    folder: Path, payloads: list[bytes], data: st.DataObject
) -> None:
    system, path = fresh(folder, payloads)
    cut = data.draw(st.integers(segment.FILE_HEADER_SIZE, path.stat().st_size))
    with path.open("r+b") as file:
        file.truncate(cut)
    whole = sum(end <= cut for end in boundaries(payloads)[1:])
    assert read_all(system) == (payloads[:whole], 0)
    assert system.admin().extents("events")[0].upcoming == boundaries(payloads)[whole]


@settings(deadline=None)
@given(bodies, st.data())
def test_damage_anywhere_is_reported_after_the_good_records(
    folder: Path, payloads: list[bytes], data: st.DataObject
) -> None:
    system, path = fresh(folder, payloads)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(segment.FILE_HEADER_SIZE, len(content) - 1))
    length = data.draw(st.integers(1, len(content) - at))
    damage = data.draw(st.binary(min_size=length, max_size=length) | st.just(bytes(length)))
    first_changed = next((i for i in range(length) if damage[i] != content[at + i]), None)
    content[at : at + length] = damage
    path.write_bytes(content)
    if first_changed is None:
        assert read_all(system) == (payloads, 0)
        return
    hurt = sum(end <= at + first_changed for end in boundaries(payloads)[1:])
    consumer = system.consumer()
    consumer.register(ssp(), Edge.OLDEST)
    good: list[bytes] = []
    with pytest.raises(CorruptLogError, match=rf"log.events\[0\], offset {boundaries(payloads)[hurt]}: "):
        while True:
            for item in consumer.poll():
                good.extend(item.payloads)  # type: ignore[union-attr]
    assert good == payloads[:hurt]
    with pytest.raises(CorruptLogError):
        consumer.poll()
    consumer.close()


def test_a_damaged_file_header_is_reported(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"a"])
    path = log_file(tmp_path)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(CorruptLogError, match="not a log partition"):
        read_all(system)


def test_damage_in_one_partition_keeps_no_record_of_another(tmp_path: Path) -> None:
    system = new_log(tmp_path, partitions=3)
    for partition in range(3):
        append(system, [b"%d" % partition], partition)
    path = log_file(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    consumer = system.consumer()
    for partition in range(3):
        consumer.register(ssp(partition), Edge.OLDEST)
    (first,) = consumer.poll()
    assert first.ssp == ssp(0)
    with pytest.raises(CorruptLogError, match=r"events\[1\]"):
        consumer.poll()
    assert drain_only(consumer, 2) == [b"2"]
    consumer.close()


def drain_only(consumer: object, partition: int) -> list[bytes]:
    polled = consumer.poll(ssps=[ssp(partition)])  # type: ignore[attr-defined]
    return [payload for item in polled for payload in item.payloads]


def test_an_offset_that_is_no_record_is_reported(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"some record", b"another"])
    with pytest.raises(CorruptLogError, match="offset 40: no record begins there"):
        read_all(system, 40)


def test_a_torn_record_claiming_more_than_follows_blocks_no_reader(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"a"])
    path = log_file(tmp_path)
    size = path.stat().st_size
    append(system, [b"x" * 1_000_000])
    with path.open("r+b") as file:
        file.truncate(size + 70_000)
    consumer = system.consumer()
    consumer.register(ssp(), Edge.OLDEST)
    assert drain(consumer) == [b"a"]
    append(system, [b"b"])
    assert drain(consumer) == [b"b"]
    assert consumer.torn_bytes == 70_000
    # Upcoming, too, finds the boundary after the tear; before the next append, it finds the tear itself.
    assert system.admin().extents("events")[0].upcoming == path.stat().st_size
    consumer.close()


def test_a_growing_record_is_not_read_again_until_the_file_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = new_log(tmp_path, [b"a" * 100_000])
    path = log_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:60_000])
    consumer = system.consumer()
    consumer.register(ssp(), Edge.OLDEST)
    assert consumer.poll() == []
    reads = []
    real_pread = os.pread

    def pread(fd: int, length: int, position: int) -> bytes:
        reads.append(length)
        return real_pread(fd, length, position)

    monkeypatch.setattr(os, "pread", pread)
    with path.open("r+b") as file:
        file.write(whole[:10])  # wakes the reader, but the file hasn't grown
    assert consumer.poll() == []
    assert reads == []
    with path.open("ab") as file:
        file.write(whole[60_000:])
    assert drain(consumer) == [b"a" * 100_000]
    assert reads
    consumer.close()

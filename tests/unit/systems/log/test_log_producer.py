"""Full disks, failing flushes, seals that race with appends."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_harness import STREAM, append, log_file, new_log, read_all, start_process

from headrace.core.errors import StorageError, StreamSealedError
from headrace.systems.log.system import LogSystem


@pytest.fixture
def limit_files() -> Iterator[Callable[[int | None], None]]:
    """Sets the largest file that this process may write: the kernel then ends writes early, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))

    yield limit
    limit(None)
    signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_is_an_error_and_the_flush_continues_when_there_is_room(
    tmp_path: Path, limit_files: Callable[[int | None], None]
) -> None:
    system = new_log(tmp_path, [b"acknowledged"])
    producer = system.producer()
    payloads = [b"%d" % i * 1000 for i in range(10, 30)]
    limit_files(log_file(tmp_path).stat().st_size + 5000)
    for payload in payloads:
        producer.send(STREAM, 0, payload)
    with pytest.raises(StorageError, match=r"events\[0\]: 18 records .* could not be written") as caught:
        producer.flush()
    assert caught.value.hint == "free up space on the disk"
    with pytest.raises(StorageError):
        producer.flush()
    assert read_all(system) == ([b"acknowledged", *payloads[:2]], 0)
    limit_files(None)
    append(system, [b"another writer was faster"])
    end = producer.flush()[STREAM, 0]
    assert end == log_file(tmp_path).stat().st_size
    got, torn = read_all(system)
    assert got == [b"acknowledged", *payloads[:2], b"another writer was faster", *payloads[2:]]
    assert 0 < torn < 2016
    producer.close()


def test_a_send_that_meets_a_full_disk_has_not_taken_its_record(
    tmp_path: Path, limit_files: Callable[[int | None], None]
) -> None:
    system = LogSystem(new_log(tmp_path).root, buffer_bytes=3000)
    producer = system.producer()
    limit_files(100)
    for i in range(2):
        producer.send(STREAM, 0, b"%d" % i * 1000)
    with pytest.raises(StorageError):
        producer.send(STREAM, 0, b"2" * 1000)
    limit_files(None)
    producer.close()
    assert read_all(system)[0] == [b"0" * 1000, b"1" * 1000]


@settings(deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 30, 20_000]), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 100) | st.integers(0, 20_000), max_size=6),
)
def test_whatever_write_calls_leave_undone_is_written_once(
    sizes: list[int], cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Write calls that end early, at any place: nothing is lost, doubled or out of order."""
    root = tmp_path_factory.mktemp("short")
    system = LogSystem(new_log(root).root, buffer_bytes=100)
    short = list(cuts)
    whole_next = False

    def cut(fd: int, data: bytes) -> int:
        nonlocal whole_next
        end = len(data) if whole_next or not short else min(len(data), 1 + short.pop())
        whole_next = not whole_next
        return real_write(fd, data[:end])

    real_write = os.write
    payloads = [bytes([i]) * size for i, size in enumerate(sizes)]
    producer = system.producer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", cut)
        patch.setattr(os, "writev", lambda fd, parts: cut(fd, b"".join(parts)))
        for payload in payloads:
            producer.send(STREAM, 0, payload)
        end = producer.flush()[STREAM, 0]
    assert end == log_file(root).stat().st_size
    assert read_all(system)[0] == payloads
    producer.close()


SEALED_WHILE_WRITING = """
import sys
from headrace.core.errors import StreamSealedError
from headrace.systems.log.system import LogSystem
producer = LogSystem(sys.argv[1]).producer()
count = 0
try:
    while True:
        producer.send("events", 0, b"%d" % count)
        producer.flush()
        count += 1
        if count == 200:
            print("going", flush=True)
except StreamSealedError:
    print(count, flush=True)
"""


def test_a_seal_amid_appends_keeps_all_that_was_acknowledged(tmp_path: Path) -> None:
    for attempt in range(3):
        root = tmp_path / str(attempt)
        system = new_log(root)
        writer = start_process(SEALED_WHILE_WRITING, root)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"going\n"
        system.admin().seal(STREAM)
        count = int(writer.communicate()[0])
        payloads, _ = read_all(system)
        assert payloads == [b"%d" % i for i in range(count)]


def test_an_append_that_ends_up_after_the_seal_is_not_acknowledged(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"before"])
    producer = system.producer()
    producer.send(STREAM, 0, b"late")
    real_write = os.write

    def seal_first(fd: int, data: bytes) -> int:
        patch.undo()
        system.admin().seal(STREAM)
        return real_write(fd, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", seal_first)
        with pytest.raises(StreamSealedError):
            producer.flush()
    producer.close()
    assert read_all(system)[0] == [b"before"]


def test_an_append_that_lands_before_a_seal_under_way_is_acknowledged(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    producer = system.producer()
    producer.send(STREAM, 0, b"in time")
    real_write = os.write

    def seal_after(fd: int, data: bytes) -> int:
        patch.undo()
        written = real_write(fd, data)
        system.admin().seal(STREAM)
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", seal_after)
        ends = producer.flush()
    assert system.admin().extents(STREAM)[0].upcoming == ends[STREAM, 0]
    assert read_all(system)[0] == [b"in time"]
    producer.close()

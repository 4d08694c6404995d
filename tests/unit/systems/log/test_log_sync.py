"""What the log has on the disk when it says so."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest

from headrace.core.errors import IndeterminateWriteError
from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Edge
from headrace.systems.log.system import LogSystem

ORDERS = StreamId("log", "orders")


class Disk:
    """How much of each file is on the disk, as its syncs have left it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: dict[int, int] = {}
        self.calls = 0
        self.broken = False
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        found = os.fstat(descriptor)
        self.calls += 1
        self.sizes[found.st_ino] = found.st_size

    def has(self, path: Path) -> bool:
        """All of the file."""
        found = path.stat()
        return self.sizes.get(found.st_ino) == found.st_size


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> LogSystem:
    return LogSystem(tmp_path / "streams")


def files(log: LogSystem) -> list[Path]:
    return sorted((log.root / "orders").glob("*.log"))


def test_a_new_stream_is_on_the_disk(disk: Disk, log: LogSystem) -> None:
    log.admin().create("orders", 2)
    assert len(files(log)) == 2
    for path in [log.root, log.root / "orders", *files(log)]:
        assert path.stat().st_ino in disk.sizes
    assert all(map(disk.has, files(log)))


def test_what_a_producer_has_flushed_is_on_the_disk_after_a_sync(disk: Disk, log: LogSystem) -> None:
    log.admin().create("orders", 2)
    one, other = files(log)
    with closing(log.producer()) as producer:
        producer.send("orders", 0, b"a")
        producer.flush()
        assert not disk.has(one)
        producer.sync()
        assert disk.has(one)
        calls = disk.calls
        producer.sync()
        assert disk.calls == calls  # nothing was written since
        producer.send("orders", 1, b"b")
        producer.flush()
        producer.sync()
        assert disk.has(other)
        assert disk.calls == calls + 1


def test_what_a_consumer_has_read_is_on_the_disk_after_a_sync(disk: Disk, log: LogSystem) -> None:
    log.admin().create("orders", 2)
    with closing(log.producer()) as producer, closing(log.consumer()) as consumer:
        for partition in range(2):
            consumer.register(SSP(ORDERS, partition), Edge.OLDEST)
        producer.send("orders", 0, b"a")
        producer.flush()
        consumer.poll()
        consumer.sync()
        assert disk.has(files(log)[0])
        calls = disk.calls
        consumer.poll()
        consumer.sync()
        assert disk.calls == calls


def test_a_disk_that_fails_is_reported(disk: Disk, log: LogSystem) -> None:
    log.admin().create("orders", 1)
    with closing(log.producer()) as producer, closing(log.consumer()) as consumer:
        consumer.register(SSP(ORDERS, 0), Edge.OLDEST)
        producer.send("orders", 0, b"a")
        producer.flush()
        consumer.poll()
        disk.broken = True
        for one in (producer, consumer):
            with pytest.raises(IndeterminateWriteError, match=r"orders\S*: fsync failed"):
                one.sync()
        disk.broken = False
        producer.sync()
        assert disk.has(files(log)[0])

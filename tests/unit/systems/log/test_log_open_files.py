"""Files that are closed until their next use: the same is read and written, and a thread has few files open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from log_harness import STREAM, log_file, new_log, ssp

from headrace.core import files as descriptors
from headrace.core.errors import StreamNotFoundError
from headrace.systems.base import Edge, Records, sync_all
from headrace.systems.log.layout import OpenFiles
from headrace.systems.log.partition import PartitionFile

PARTITIONS = 20
KEPT = 3


@pytest.fixture(autouse=True)
def _few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "SHARE_MAX", KEPT)


def open_in(folder: Path) -> int:
    """How many descriptors this process has in a folder."""
    links = list(Path("/proc/self/fd").iterdir())
    return sum(1 for link in links if link.is_symlink() and str(link.readlink()).startswith(f"{folder}/"))


def test_a_producer_that_writes_many_partitions_keeps_few_open(tmp_path: Path) -> None:
    system = new_log(tmp_path, partitions=PARTITIONS)
    producer, reader = system.producer(), system.consumer()
    for payload in (b"one", b"two"):
        for partition in range(PARTITIONS):
            producer.send(STREAM, partition, payload)
            producer.flush()
            sync_all(producer.unsynced())
        assert open_in(tmp_path) <= KEPT + 1
    for partition in range(PARTITIONS):
        reader.register(ssp(partition), Edge.OLDEST)
        (found,) = reader.poll([ssp(partition)])
        assert isinstance(found, Records)
        assert found.payloads == [b"one", b"two"]
    reader.close()
    producer.close()
    assert open_in(tmp_path) == 0


def test_what_a_power_cut_could_take_stays_open_until_it_is_synced(tmp_path: Path) -> None:
    system = new_log(tmp_path, partitions=PARTITIONS)
    producer = system.producer()
    for partition in range(PARTITIONS):
        producer.send(STREAM, partition, b"x")
    producer.flush()
    assert open_in(tmp_path) == PARTITIONS
    sync_all(producer.unsynced())
    assert list(producer.unsynced()) == []
    assert open_in(tmp_path) <= KEPT
    producer.close()


def test_a_group_that_reads_many_partitions_keeps_few_open(tmp_path: Path) -> None:
    system = new_log(tmp_path, partitions=PARTITIONS)
    group, producer = system.wakeups(), system.producer()
    assert group is not None
    consumers = [group.consumer() for _ in range(PARTITIONS)]
    for partition, consumer in enumerate(consumers):
        consumer.register(ssp(partition), Edge.OLDEST)
        consumer.poll()
        sync_all(consumer.unsynced())
    producer.send(STREAM, 0, b"x")
    producer.flush()
    producer.close()
    assert list(group.stirred()) == [consumers[0]]
    assert open_in(tmp_path) <= KEPT
    (found,) = consumers[0].poll()
    assert isinstance(found, Records)
    assert found.payloads == [b"x"]
    assert [consumer.lag(ssp(partition)) for partition, consumer in enumerate(consumers)] == [0] * PARTITIONS
    for consumer in consumers:
        consumer.close()
    assert open_in(tmp_path) == 0
    group.close()


def test_a_reader_closes_what_it_has_read_to_the_end(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"one"])
    reader = system.reader()
    reader.register(ssp(), Edge.OLDEST)
    assert len(reader.poll()) == 1
    assert open_in(tmp_path) == 0
    assert reader.poll() == []
    producer = system.producer()
    producer.send(STREAM, 0, b"two")
    producer.close()
    assert len(reader.poll()) == 1
    reader.close()


@pytest.mark.parametrize("how", ["deleted", "replaced", "replaced in place"])
def test_another_file_is_not_taken_for_the_one_that_was_closed(tmp_path: Path, how: str) -> None:
    new_log(tmp_path, [b"one"])
    new_log(tmp_path / "other", [b"of another stream"])
    file = PartitionFile(log_file(tmp_path), "events[0]")
    file.close()
    if how == "deleted":
        shutil.rmtree(tmp_path / STREAM)
    elif how == "replaced":
        log_file(tmp_path / "other").rename(log_file(tmp_path))
    else:  # as if the number of the deleted file was given to another one
        log_file(tmp_path).write_bytes(log_file(tmp_path / "other").read_bytes())
    with pytest.raises(StreamNotFoundError, match=how.partition(" ")[0]):
        file.bytes_at(0, 10)
    assert open_in(tmp_path) == 0


def test_the_file_that_is_used_stays_open_if_no_other_may_be_closed(tmp_path: Path) -> None:
    new_log(tmp_path, partitions=3)
    files = OpenFiles(kept=1)
    held = [PartitionFile(log_file(tmp_path, n), "held") for n in range(2)]
    for file in held:
        file.shared(files, lambda: True)
    used = PartitionFile(log_file(tmp_path, 2), "used")
    used.shared(files, lambda: False)
    files.trim()
    assert open_in(tmp_path) == 3
    for file in held:
        files.forget(file)
    files.forget(used)
    assert open_in(tmp_path) == 0

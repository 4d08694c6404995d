"""Consumers that are woken together: by one descriptor, each by its own files."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_harness import STREAM, new_log, ssp

from headrace.core.errors import StreamNotFoundError
from headrace.core.files import readable
from headrace.systems.base import Edge, Records
from headrace.systems.log import consumer as wakeups
from headrace.systems.log.consumer import LogWakeups
from headrace.systems.log.system import LogSystem


def group_of(system: LogSystem) -> LogWakeups:
    group = system.wakeups()
    assert group is not None
    return group


def written(system: LogSystem, partition: int) -> None:
    producer = system.producer()
    producer.send(STREAM, partition, b"x")
    producer.flush()
    producer.close()


def rings(group: LogWakeups) -> bool:
    return readable(group.fileno(), 0)


def test_a_write_names_those_who_read_the_file_and_nobody_else(tmp_path: Path) -> None:
    system = new_log(tmp_path, partitions=2)
    group = group_of(system)
    one, other, same = group.consumer(), group.consumer(), group.consumer()
    for consumer, partition in ((one, 0), (other, 1), (same, 0)):
        consumer.register(ssp(partition), Edge.OLDEST)
        assert consumer.poll() == []
    assert one.fileno() == other.fileno() == group.fileno()
    written(system, 0)
    assert rings(group)
    assert set(group.stirred()) == {one, same}
    assert not rings(group)
    for consumer in (one, same):
        (found,) = consumer.poll()
        assert isinstance(found, Records)
        assert found.payloads == [b"x"]
    assert other.poll() == []
    one.close()
    written(system, 0)
    assert set(group.stirred()) == {same}
    other.close()
    same.close()
    group.close()


def test_what_is_not_polled_at_once_is_not_forgotten(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    group = group_of(system)
    consumer = group.consumer()
    consumer.register(ssp(), Edge.OLDEST)
    assert consumer.poll() == []
    written(system, 0)
    assert list(group.stirred()) == [consumer]
    assert list(group.stirred()) == []
    assert len(consumer.poll()) == 1
    consumer.close()
    group.close()


def test_a_look_names_only_those_whose_files_have_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "LOOK_S", 0.0)
    system = new_log(tmp_path, partitions=2)
    group = group_of(system)
    consumers = [group.consumer() for _ in range(2)]
    for partition, consumer in enumerate(consumers):
        consumer.register(ssp(partition), Edge.OLDEST)
        consumer.poll()
    monkeypatch.setattr(group.watcher, "drain", set)  # a writer on another machine causes no event
    written(system, 1)
    assert list(group.stirred()) == [consumers[1]]
    assert len(consumers[1].poll()) == 1
    assert list(group.stirred()) == []
    for consumer in consumers:
        consumer.close()
    group.close()


def test_all_look_at_their_files_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "LOOK_S", 0.0)
    monkeypatch.setattr(wakeups, "LOOKS", 2)
    system = new_log(tmp_path)
    group = group_of(system)
    consumers = [group.consumer() for _ in range(3)]
    for consumer in consumers:
        consumer.register(ssp(), Edge.OLDEST)
        consumer.poll()
    assert not (set(group.stirred()) | set(group.stirred())), "nothing has changed"
    (tmp_path / STREAM).rename(tmp_path / "gone")
    assert set(group.stirred()) | set(group.stirred()) == set(consumers)
    for consumer in consumers:
        with pytest.raises(StreamNotFoundError):
            consumer.poll()
        consumer.close()
    group.close()

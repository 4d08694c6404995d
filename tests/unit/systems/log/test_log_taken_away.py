"""Streams that are deleted, moved away or replaced while they are read and written."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from log_harness import STREAM, append, drain, new_log, read_all, ssp

from headrace.core.errors import StreamNotFoundError
from headrace.systems.base import Edge
from headrace.systems.log.consumer import LogConsumer


def delete(root: Path) -> None:
    shutil.rmtree(root / STREAM)


def move_away(root: Path) -> None:
    (root / STREAM).rename(root / "elsewhere")


def replace(root: Path) -> None:
    move_away(root)
    new_log(root, [b"of another stream"] * 100)


def poll_for(consumer: LogConsumer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        consumer.poll()


@pytest.mark.parametrize(
    ("take_away", "said"), [(delete, "was deleted"), (move_away, "or moved"), (replace, "was replaced")]
)
def test_a_reader_notices_within_a_second(tmp_path: Path, take_away: object, said: str) -> None:
    system = new_log(tmp_path, [b"one"])
    consumer = system.consumer()
    consumer.register(ssp(), Edge.OLDEST)
    assert drain(consumer) == [b"one"]
    assert callable(take_away)
    take_away(tmp_path)
    with pytest.raises(StreamNotFoundError, match=rf"log\.events\[0\] was.*{said.removeprefix('was ')}") as caught:
        poll_for(consumer, 5)
    assert "put the" in (caught.value.hint or "")
    consumer.close()


@pytest.mark.parametrize("take_away", [delete, move_away, replace])
def test_a_writer_acknowledges_nothing_that_can_not_be_found(tmp_path: Path, take_away: object) -> None:
    system = new_log(tmp_path)
    producer = system.producer()
    producer.send(STREAM, 0, b"one")
    producer.flush()
    assert callable(take_away)
    take_away(tmp_path)
    producer.send(STREAM, 0, b"two")
    with pytest.raises(StreamNotFoundError, match=r"events\[0\] was .* while it was in use"):
        producer.flush()
    producer.close()


def test_a_stream_that_is_put_back_is_read_on(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"one"])
    position = append(system, [b"two"])
    consumer = system.consumer()
    consumer.register(ssp(), position)
    move_away(tmp_path)
    with pytest.raises(StreamNotFoundError):
        poll_for(consumer, 5)
    consumer.close()
    (tmp_path / "elsewhere").rename(tmp_path / STREAM)
    append(system, [b"three"])
    assert read_all(system, position) == ([b"three"], 0)


def test_a_position_in_a_stream_that_is_gone_is_not_a_full_disk(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    admin = system.admin()
    admin.report_position(ssp(), "readers", 5)
    delete(tmp_path)
    with pytest.raises(StreamNotFoundError, match="events was deleted"):
        admin.report_position(ssp(), "readers", 6)

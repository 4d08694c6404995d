"""What the log's tests share: a stream on disk, its bytes, its readers, and processes that write to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Edge, Ended, Position, Records
from headrace.systems.log.consumer import LogConsumer
from headrace.systems.log.system import LogSystem

STREAM = "events"


def ssp(partition: int = 0) -> SSP:
    return SSP(StreamId("log", STREAM), partition)


def new_log(root: Path, payloads: list[bytes] | None = None, partitions: int = 1) -> LogSystem:
    system = LogSystem(root)
    system.admin().create(STREAM, partitions)
    if payloads:
        append(system, payloads)
    return system


def append(system: LogSystem, payloads: list[bytes], partition: int = 0) -> int:
    producer = system.producer()
    for payload in payloads:
        producer.send(STREAM, partition, payload)
    end = producer.flush()[STREAM, partition]
    producer.close()
    return end


def log_file(root: Path, partition: int = 0) -> Path:
    return root / STREAM / f"p{partition:05d}.log"


def drain(consumer: LogConsumer, max_bytes: int = 1 << 20) -> list[bytes]:
    """All records that there are now."""
    payloads: list[bytes] = []
    while polled := consumer.poll(max_bytes=max_bytes):
        for item in polled:
            assert isinstance(item, Records | Ended)
            if isinstance(item, Records):
                payloads.extend(item.payloads)
    return payloads


def read_all(system: LogSystem, position: Position = Edge.OLDEST, partition: int = 0) -> tuple[list[bytes], int]:
    """Everything there is now, and the number of torn bytes that were skipped."""
    consumer = system.consumer()
    try:
        consumer.register(ssp(partition), position)
        return drain(consumer), consumer.torn_bytes
    finally:
        consumer.close()


def start_process(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    """A real process that runs ``code`` with this Python; its standard streams are pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

"""The embedded log alone: append and read speed by record size, and the wake-up time between two processes.

``python bench/bench_log.py [--json FILE]``. The figures hold for this machine, and include its page cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace.core.files import readable
from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Edge, Records
from headrace.systems.log.system import LogSystem

MEGABYTE = 1e6

ECHO = """
import sys
from headrace.core.ids import SSP, StreamId
from headrace.core.files import readable
from headrace.systems.base import Edge
from headrace.systems.log.system import LogSystem
system = LogSystem(sys.argv[1])
consumer, producer = system.consumer(), system.producer()
consumer.register(SSP(StreamId("log", "wake"), 0), Edge.OLDEST)
print("ready", flush=True)
count = 0
while count < int(sys.argv[2]):
    readable(consumer.fileno(), 5000)
    for item in consumer.poll():
        for payload in item.payloads:
            producer.send("wake", 1, payload)
            producer.flush()
            count += 1
"""


def throughput(root: Path, size: int, total: int) -> dict[str, float]:
    """Append ``total`` bytes in records of ``size`` bytes in one process, then read them."""
    name = f"records-{size}"
    system = LogSystem(root)
    system.admin().create(name, 1)
    producer, payload, count = system.producer(), b"x" * size, total // size
    start = time.perf_counter()
    for _ in range(count):
        producer.send(name, 0, payload)
    producer.close()
    append_s = time.perf_counter() - start
    consumer = system.consumer()
    consumer.register(SSP(StreamId("log", name), 0), Edge.OLDEST)
    start, got = time.perf_counter(), 0
    while got < count:
        got += sum(len(item.payloads) for item in consumer.poll() if isinstance(item, Records))
    read_s = time.perf_counter() - start
    consumer.close()
    return {
        "append_mb_s": total / append_s / MEGABYTE,
        "append_records_s": count / append_s,
        "read_mb_s": total / read_s / MEGABYTE,
        "read_records_s": count / read_s,
    }


def wake_up(root: Path, rounds: int, pause_s: float) -> dict[str, float]:
    """Send records to another process, which sends them back. Half of each round trip is one append and wake-up."""
    system = LogSystem(root)
    system.admin().create("wake", 2)
    echo = subprocess.Popen([sys.executable, "-c", ECHO, str(root), str(rounds)], stdout=subprocess.PIPE)
    consumer, producer = system.consumer(), system.producer()
    try:
        assert echo.stdout is not None
        echo.stdout.readline()
        consumer.register(SSP(StreamId("log", "wake"), 1), Edge.OLDEST)
        wake = consumer.fileno()
        times = []
        for _ in range(rounds):
            time.sleep(pause_s)
            start = time.perf_counter()
            producer.send("wake", 0, b"x" * 100)
            producer.flush()
            while not any(isinstance(item, Records) for item in consumer.poll()):
                readable(wake, 5000)
            times.append((time.perf_counter() - start) / 2 * 1e6)
    finally:
        echo.communicate()
        consumer.close()
        producer.close()
    times.sort()
    return {"p50_us": times[rounds // 2], "p99_us": times[rounds * 99 // 100]}


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, dict[str, float]] = {
            "100 B": throughput(Path(folder), 100, 50_000_000),
            "1 KB": throughput(Path(folder), 1000, 400_000_000),
            "1 MB": throughput(Path(folder), 1_000_000, 1_000_000_000),
            "wake-up": wake_up(Path(folder), 2000, 0.0002),
        }
    for name, row in figures.items():
        print(name.ljust(8), "  ".join(f"{key} {value:,.0f}" for key, value in row.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

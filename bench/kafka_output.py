"""What transactions cost an output into Kafka, against the same output at least once, on a broker of this machine.

``python -m bench.kafka_output [--broker kafka|kfake] [--rows N] [--rounds N] [--json FILE]``. Whole apps in one process
copy a stream of the log into a topic as JSON, with a checkpoint every second, in turns. Time is the wall's and that of
the app's own processor; the broker shares the machine. Then the target alone: how long a version takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr
from bench.measure import WrongResultError, percentile
from chaos.kafka_server import KafkaServer, KfakeServer
from headrace.connectors.kafka.client import NewTopic
from headrace.connectors.kafka.settings import KafkaSettings, TopicOptions
from headrace.connectors.kafka.target import KafkaTarget, PlainKafkaTarget
from headrace.connectors.kafka.topics import Topics
from headrace.systems.base import Target

PARTITIONS = 4
VERSIONS, VERSION_ROWS = 100, 1000
COLUMNS = {"member": pl.String, "n": pl.Int64, "text": pl.String}


def rows(first: int, count: int) -> pl.DataFrame:
    """Rows of which each becomes a record of about 100 bytes."""
    numbers = pl.int_range(first, first + count, eager=True).alias("n")
    return pl.DataFrame({"member": (numbers % 1000).cast(pl.String), "n": numbers, "text": ["x" * 60] * count})


def new_topic(address: str) -> str:
    """Create a topic, and return its name."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    client = Topics(KafkaSettings(address)).client
    client.raw.create_topics([NewTopic(name, PARTITIONS)])[name].result(30)
    return name


def copy(home: str, address: str, topic: str, transactions: str) -> None:
    """The app, in a process of its own: prints the seconds of the wall and of the processor."""
    app = hr.App(topic, home=home, checkpoint_interval="1s")
    system = hr.io.kafka(topic, brokers=address, key="member", transactions=transactions == "True")
    app.input("numbers", COLUMNS).send_to(app.output("copies", system=system))
    began, used = time.perf_counter(), time.process_time()
    app.run(local=True, progress=False)
    print(json.dumps([time.perf_counter() - began, time.process_time() - used]))


def copied(home: Path, address: str, count: int, transactions: bool) -> tuple[float, float]:
    """Run the app; raise unless all of it is there."""
    topic = new_topic(address)
    command = [sys.executable, "-m", "bench.kafka_output", "--copy", str(home), address, topic, str(transactions)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    ends = Topics(KafkaSettings(address), uncommitted=True).upcoming(topic, range(PARTITIONS))
    if sum(ends.values()) < count:
        raise WrongResultError(f"{sum(ends.values())} records of {count} are in {topic}")
    wall_s, cpu_s = json.loads(said.splitlines()[-1])
    return wall_s, cpu_s


def version_ms(address: str, transactions: bool) -> list[float]:
    """How long each version takes from ``publish`` until it is known to be there."""
    topic = new_topic(address)
    make = KafkaTarget if transactions else PlainKafkaTarget
    target: Target = make(TopicOptions(topic=topic, settings=KafkaSettings(address), key="member"))
    target.position(f"{topic}/stage/0/out")
    took = []
    for version in range(VERSIONS):
        accepted = [target.accept(rows(version * VERSION_ROWS, VERSION_ROWS))]
        began = time.perf_counter()
        while (again_ms := target.publish(f"{topic}/stage/0/out", version, accepted)) is not None:
            time.sleep(again_ms / 1000)
        took.append((time.perf_counter() - began) * 1000)
    target.close()
    return took[10:]


def measure(address: str, count: int, rounds: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        hr.streams.create_stream("numbers", PARTITIONS, COLUMNS, home=home)
        with hr.streams.StreamWriter("numbers", home=home) as writer:
            for first in range(0, count, 10_000):
                writer.write(rows(first, 10_000))
            writer.seal()
        runs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for round_ in range(2 * rounds):
            transactions = round_ % 4 in (0, 3)  # with, without, without, with: neither is always first
            runs[transactions].append(copied(home, address, count, transactions))
    result: dict[str, Any] = {}
    for transactions, name in ((True, "transactions"), (False, "at_least_once")):
        wall_s, cpu_s = (statistics.median(run[place] for run in runs[transactions]) for place in (0, 1))
        took = version_ms(address, transactions)
        result[name] = {
            "rows_per_s": round(count / wall_s),
            "cpu_us_per_row": round(cpu_s / count * 1e6, 2),
            "version_p50_ms": round(percentile(took, 0.5), 1),
            "version_p99_ms": round(percentile(took, 0.99), 1),
        }
    ours, plain = result["transactions"], result["at_least_once"]
    result["cost"] = {
        "wall": round(plain["rows_per_s"] / ours["rows_per_s"] - 1, 3),
        "cpu": round(ours["cpu_us_per_row"] / plain["cpu_us_per_row"] - 1, 3),
    }
    return result


def main(arguments: Sequence[str]) -> None:
    """Measure and print, or be the app that is measured."""
    if arguments[:1] == ["--copy"]:
        copy(*arguments[1:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=["kafka", "kfake"], default="kafka")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    with KafkaServer() if given.broker == "kafka" else KfakeServer() as broker:
        result = measure(broker.address, given.rows, given.rounds)
    text = json.dumps(result, indent=2)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

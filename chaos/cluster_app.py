"""The app under chaos on a cluster that shares no folder: its inputs, its log and its report are in Kafka.

As a program (``python -m chaos.cluster_app BROKERS MASTER STANDBY``) this is the driver. The metadata store is where
the environment says, and so are snapshots.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from functools import partial

import msgspec
import polars as pl
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typing_extensions import override

from chaos.kafka_plain import WAIT_S, create_topic, read_topic
from chaos.workload import Places, build, names
from chaos.world import OWN
from headrace.api.specs import Graph
from headrace.app import App
from headrace.connectors.kafka.client import OffsetSpec
from headrace.connectors.kafka.descriptor import KafkaLog, kafka, kafka_log
from headrace.core.deployment import SETTINGS
from headrace.core.errors import UnavailableError
from headrace.streams import read_stream

HOME = f"{OWN}/headrace"
PARTITIONS = 2
ORDERS, PAYMENTS, REGION_NAMES, REPORT = "orders", "payments", "region-names", "region-report"
SNAPSHOT_AFTER_BYTES = 64 << 10
_FAR_MS = 4_000_000_000_000


def log_at(brokers: str) -> KafkaLog:
    """The log of the app."""
    return kafka_log(brokers, prefix="chaos.")


def places_at(brokers: str) -> Places:
    """Where the app's streams are."""
    return Places(
        log=log_at(brokers),
        orders=kafka(ORDERS, brokers=brokers),
        payments=kafka(PAYMENTS, brokers=brokers),
        names=kafka(REGION_NAMES, brokers=brokers),
        report=kafka(REPORT, brokers=brokers, key="region"),
        partitions=PARTITIONS,
    )


def prepare(brokers: str) -> None:
    """Create the inputs, and write the names of the regions."""
    for topic, partitions in ((ORDERS, PARTITIONS), (PAYMENTS, PARTITIONS), (REGION_NAMES, 1)):
        create_topic(brokers, partitions, topic)
    writer = TopicWriter(brokers, REGION_NAMES, 1, {})
    writer.write(names())
    writer.close()


class TopicWriter:
    """Writes rows as JSON to a topic, row n to partition n, and so on in turn."""

    def __init__(self, brokers: str, topic: str, partitions: int, far: dict[str, int]) -> None:
        """``far`` is a row whose time is far in the future, and that the app drops."""
        self._producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 5})
        self._topic = topic
        self._partitions = partitions
        self._far = far

    def write(self, rows: pl.DataFrame) -> None:
        """Write rows, and wait until Kafka has them."""
        for number, row in enumerate(rows.iter_rows(named=True)):
            self._producer.produce(self._topic, msgspec.json.encode(row), partition=number % self._partitions)
        self._flush()

    def seal(self) -> None:
        """Let event time pass in every partition."""
        for partition in range(self._partitions):
            self._producer.produce(self._topic, msgspec.json.encode(self._far), partition=partition)
        self._flush()

    def close(self) -> None:
        """Leave Kafka."""
        self._producer.close()

    def _flush(self) -> None:
        if self._producer.flush(WAIT_S):
            raise UnavailableError(f"Kafka didn't take records of {self._topic} within {WAIT_S:g} s")


def writers(brokers: str) -> tuple[TopicWriter, TopicWriter]:
    """Writers of orders and of payments."""
    order = {"order": -1, "member": 0, "amount": 0, "ts": _FAR_MS}
    payment = {"order": -1, "paid": 0, "at": _FAR_MS}
    return TopicWriter(brokers, ORDERS, PARTITIONS, order), TopicWriter(brokers, PAYMENTS, PARTITIONS, payment)


def committed(brokers: str, stream: str) -> pl.DataFrame:
    """What readers of committed rows get of an output."""
    return read_stream(stream, system=log_at(brokers))


def trimmed(brokers: str) -> str:
    """How many changelogs have lost their beginning."""
    cluster = AdminClient({"bootstrap.servers": brokers})
    found = cluster.list_topics(timeout=WAIT_S).topics
    changelogs = [TopicPartition(name, n) for name in found if "changelog" in name for n in found[name].partitions]
    earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    begins = [one.result().offset for one in cluster.list_offsets(dict.fromkeys(changelogs, earliest)).values()]
    return f"{sum(begin > 0 for begin in begins)} of {len(begins)} changelogs trimmed"


def reported(brokers: str, schema: pl.Schema) -> pl.DataFrame:
    """What a plain consumer of committed records gets of the report."""
    rows = [msgspec.json.decode(record.value or b"") for record in read_topic(brokers, REPORT)]
    return pl.DataFrame(rows, schema)


class ManySnapshots(App):
    """An app that takes snapshots after little, so that a task whose machine is gone has one to begin with."""

    @override
    def graph(self) -> Graph:
        graph = super().graph()
        return replace(graph, settings=replace(graph.settings, snapshot_after_bytes=SNAPSHOT_AFTER_BYTES))


def main() -> None:
    """Run the app."""
    brokers, master, standby = sys.argv[1:]
    handler = logging.StreamHandler()
    form = "%(asctime)s %(name)s %(message)s %(task)s %(records)s"
    handler.setFormatter(logging.Formatter(form, defaults={"task": "", "records": ""}))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # Where there is no object store, a machine that is wiped needs the whole changelog.
    kind = partial(ManySnapshots, standby=int(standby)) if SETTINGS["snapshots"].variable in os.environ else App
    build(HOME, places_at(brokers), kind).run(
        master=master, containers=2, progress=False, conf={"spark.executor.memory": "512m", "spark.ui.enabled": "false"}
    )


if __name__ == "__main__":
    main()

"""29. Kafka: read each order of a topic once, even though a writer takes some of them back.

The topic's timestamps are the event time. Two orders are in a transaction that is aborted, so they never come. The app
reads up to where the topic ends when it starts; without `end=` it would keep running. This needs
`pip install "headrace[kafka]"`, and a broker at localhost:9092 or at the address that you give it. In a checkout,
`make kafka` starts one and runs this::

    docker run -p 9092:9092 apache/kafka:4.3.1
    python examples/29_kafka.py localhost:9092

It prints::

    {'member': 'ann', 'minute': '12:00', 'orders': 2, 'euros': 10.0}
    {'member': 'ann', 'minute': '12:01', 'orders': 1, 'euros': 5.0}
    {'member': 'bob', 'minute': '12:00', 'orders': 1, 'euros': 5.0}
    {'member': 'cem', 'minute': '12:01', 'orders': 2, 'euros': 10.0}
"""

import json
import os
import sys
from datetime import UTC, datetime
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

BROKERS = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("KAFKA_BROKERS", "localhost:9092")
TOPIC = f"headrace-lesson-{os.getpid()}"
NOON = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)


def declare(home: str, end: dict[int, int]) -> hr.App:
    app = hr.App("orders", home=home)
    source = hr.io.kafka(
        TOPIC, brokers=BROKERS, key_format="text", record_columns={"member": "key", "at": "timestamp"}, end=end
    )
    orders = app.input("orders", {"euros": pl.Float64}, system=source, event_time="at", lateness="1m")
    totals = orders.partition_by("member").window(hr.tumbling("1m"))
    minute = pl.col("window_start").dt.strftime("%H:%M").alias("minute")
    per_minute = totals.agg(orders=hr.count(), euros=hr.sum("euros"))
    per_minute.select("member", minute, "orders", "euros").send_to("totals")
    return app


def produce(producer, members: str, minute: int) -> None:
    for i, member in enumerate(members.split()):
        time_ms = NOON + minute * 60_000 + i * 1_000
        producer.produce(TOPIC, json.dumps({"euros": 5.0}), member, partition=i % 2, timestamp=time_ms)
    producer.flush(10)


def write_orders() -> None:
    """What other programs do."""
    from confluent_kafka import Producer

    plain = Producer({"bootstrap.servers": BROKERS, "log_level": 3})
    produce(plain, "ann bob ann", minute=0)
    careful = Producer({"bootstrap.servers": BROKERS, "transactional.id": TOPIC, "log_level": 3})
    careful.init_transactions(30)
    for members, minute in (("ann cem cem", 1), ("zoe zoe", 0)):
        careful.begin_transaction()
        produce(careful, members, minute)
        careful.abort_transaction(30) if members == "zoe zoe" else careful.commit_transaction(30)


if __name__ == "__main__":
    try:
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

        admin = AdminClient({"bootstrap.servers": BROKERS, "log_level": 0})
        admin.list_topics(timeout=5)
    except ImportError:
        sys.exit('This lesson needs confluent-kafka: pip install "headrace[kafka]"')
    except KafkaException:
        sys.exit(f"There is no Kafka at {BROKERS}. Start one: docker run -p 9092:9092 apache/kafka:4.3.1")
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result()
    try:
        write_orders()
        latest = admin.list_offsets({TopicPartition(TOPIC, p): OffsetSpec.latest() for p in range(2)})
        ends = {place.partition: found.result().offset for place, found in latest.items()}
        with TemporaryDirectory() as home:
            declare(home, ends).run(local=True, progress=False)
            for total in hr.streams.read_stream("totals", home=home).sort("member", "minute").to_dicts():
                print(total)
    finally:
        admin.delete_topics([TOPIC])[TOPIC].result()

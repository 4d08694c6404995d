"""Whole apps into topics of Kafka, without Spark: a plain reader of committed records has each result once."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from killed import Killed

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

import headrace as hr
from chaos.kafka_plain import Plain, create_topic, read_topic
from chaos.kafka_server import Broker, KfakeServer
from tests.watched_app import until

NUMBERS = 2_000
KILLS = 3


def write(home: Path, numbers: range) -> None:
    rows = pl.DataFrame({"n": pl.Series(numbers, dtype=pl.UInt32)})
    rows = rows.with_columns(ts=(pl.col("n").cast(pl.Int64) * 2).cast(pl.Datetime("ms")))
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        for batch in rows.iter_slices(100):
            writer.write(batch)


def table(found: list[Plain]) -> pl.DataFrame:
    return pl.read_ndjson(b"\n".join(record.value or b"" for record in found))


def kill_and_check(tmp_path: Path, broker: Broker) -> None:
    home, draw = tmp_path / "home", random.Random(7)
    home.mkdir()
    counts, copies = create_topic(broker.address, 3), create_topic(broker.address)
    hr.streams.create_stream("numbers", 2, {"n": pl.UInt32, "ts": pl.Datetime("ms")}, home=home)
    program = Killed("into_kafka_program.py", home, broker.address, counts, copies)
    seen = 0
    for first in range(0, KILLS * NUMBERS, NUMBERS):
        program.kill_when(
            lambda seen=seen: len(read_topic(broker.address, copies)) > seen,
            partial(write, home, range(first, first + NUMBERS)),
            later_s=draw.uniform(0, 0.3),
        )
        seen = len(read_topic(broker.address, copies))
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        writer.seal()
    program.end()

    numbers = pl.DataFrame({"n": range(KILLS * NUMBERS)}).with_columns(digit=pl.col("n") % 10)
    wanted = (
        numbers.group_by("digit", second=pl.col("n") // 500)
        .agg(n=pl.len().cast(pl.Int64), total=pl.col("n").sum())
        .sort("second", "digit")
    )
    found = read_topic(broker.address, counts)
    windows = table(found).with_columns(second=pl.col("window_start").str.to_datetime().dt.epoch("s"))
    assert windows.select(wanted.columns).sort("second", "digit").rows() == wanted.rows()
    assert all(record.key == str(row).encode() for record, row in zip(found, windows["digit"], strict=True))
    copied = read_topic(broker.address, copies)
    assert sorted(table(copied)["n"]) == list(range(KILLS * NUMBERS))
    assert {record.timestamp for record in copied} >= {n * 2 for n in range(1, KILLS * NUMBERS)}  # 0 means now


def test_an_app_that_is_killed_publishes_each_result_once(tmp_path: Path, kfake: KfakeServer) -> None:
    kill_and_check(tmp_path, kfake)


@pytest.mark.soak
def test_an_app_that_is_killed_publishes_each_result_once_to_apache_kafka(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kill_and_check(tmp_path, request.getfixturevalue("kafka_broker"))


def app_of(tmp_path: Path, topic: str, broker: Broker, **more: object) -> hr.App:
    app = hr.App(f"app-{topic}", home=tmp_path / "home")
    views = app.input(
        "views",
        {"member": pl.String, "n": pl.Int64},
        system=hr.io.files(str(tmp_path / "in/*.jsonl"), new_files="next_run"),
    )
    system = hr.io.kafka(topic, brokers=broker.address, key="member", **more)  # type: ignore[arg-type]
    views.send_to(app.output("out", system=system))
    return app


def run(tmp_path: Path, topic: str, broker: Broker, number: int, **more: object) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    pl.DataFrame({"member": ["ann"], "n": [number]}).write_ndjson(tmp_path / f"in/{number}.jsonl")
    app_of(tmp_path, topic, broker, **more).run(local=True, progress=False)


def test_a_topic_is_created_and_written_run_after_run(tmp_path: Path, kfake: KfakeServer) -> None:
    topic = f"{create_topic(kfake.address)}-new"
    for number in range(3):
        run(tmp_path, topic, kfake, number)
    assert table(read_topic(kfake.address, topic))["n"].to_list() == [0, 1, 2]
    assert "exactly-once" in str(app_of(tmp_path, topic, kfake).explain())


def test_without_transactions_the_plan_says_that_rows_may_come_again(tmp_path: Path, kfake: KfakeServer) -> None:
    topic = create_topic(kfake.address, 2)
    run(tmp_path, topic, kfake, 0, transactions=False)
    assert table(read_topic(kfake.address, topic))["n"].to_list() == [0]
    assert "transactions=False" in str(app_of(tmp_path, topic, kfake, transactions=False).explain())


def test_a_lost_progress_topic_stops_the_app(tmp_path: Path, kfake: KfakeServer) -> None:
    topic = create_topic(kfake.address)
    for number in range(2):
        run(tmp_path, topic, kfake, number)
    name = f"headrace.progress.app-{topic}"
    admin = AdminClient({"bootstrap.servers": kfake.address})
    admin.delete_topics([name])[name].result(10)
    with pytest.raises(hr.errors.InfrastructureError, match=r"nothing of .* was published"):
        run(tmp_path, topic, kfake, 2)
    assert table(read_topic(kfake.address, topic))["n"].to_list() == [0, 1]


def test_an_app_says_its_cluster_once(tmp_path: Path, kfake: KfakeServer) -> None:
    views, changes, carts, members = (create_topic(kfake.address, partitions) for partitions in (2, 1, 2, 1))
    app = hr.App("once", home=tmp_path, system=f"kafka://{kfake.address}", checkpoint_interval="50ms")
    rows = app.input(views, {"member": str, "url": str})
    rows.filter("url = '/cart'").send_to(carts, key="member")
    rows.partition_by("member").select("member").send_to(members)
    customers = app.input(changes, {"member": str, "deleted": bool}, format="debezium")
    customers.filter("not deleted").select("member").send_to(members)
    producer = Producer({"bootstrap.servers": kfake.address})
    for number, (member, url) in enumerate([("ann", "/cart"), ("bob", "/"), ("cem", "/cart")]):
        producer.produce(views, json.dumps({"member": member, "url": url}), partition=number % 2)
    producer.produce(changes, json.dumps({"op": "c", "before": None, "after": {"member": "dan"}}))
    assert producer.flush(10) == 0
    run = app.start(local=True, progress=False)
    try:
        found = until(lambda: (at := read_topic(kfake.address, carts)) and len(at) == 2 and at)
        seen = until(lambda: (at := read_topic(kfake.address, members)) and len(at) == 4 and at)
    finally:
        run.stop()
    assert sorted((one.key, json.loads(one.value or b"")) for one in found) == [
        (b"ann", {"member": "ann", "url": "/cart"}),
        (b"cem", {"member": "cem", "url": "/cart"}),
    ]
    assert sorted(table(seen)["member"]) == ["ann", "bob", "cem", "dan"]


def test_key_and_inputs_options_are_told_apart() -> None:
    with pytest.raises(hr.errors.DeclarationError, match="start of topic orders: only an input"):
        hr.App("a").output("out", system=hr.io.kafka("orders", brokers="localhost:9092", start="upcoming"))
    with pytest.raises(hr.errors.DeclarationError, match="key of topic orders: only an output"):
        hr.App("a").input("in", {"n": pl.Int64}, system=hr.io.kafka("orders", brokers="localhost:9092", key="n"))
    app = hr.App("a")
    rows = app.input("in", {"n": pl.Int64})
    with pytest.raises(hr.errors.DeclarationError, match="the key 'member' of the topic 'orders' isn't a column"):
        rows.send_to(app.output("out", system=hr.io.kafka("orders", brokers="localhost:9092", key="member")))
    with pytest.raises(hr.errors.DeclarationError, match="there is no column 'member'"):
        rows.send_to(app.output("two", system=hr.io.kafka("orders", brokers="localhost:9092")), key="member")

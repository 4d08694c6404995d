"""What an app that reads Kafka says when something is wrong, and what commands show of it. No secret is in either."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from in_thread import running
from kafka_program import ORDERS, order, shop

import headrace as hr
from chaos.kafka_server import KfakeServer
from headrace.connectors.kafka import consumer as fetching
from headrace.core.errors import HeadraceError, InfrastructureError, StreamNotFoundError, TrimmedOffsetError
from headrace.rows.hashing import partitions_of
from servers.kafka_topics import Topic

SECRET = "s3cret-password"


@pytest.fixture
def orders(kfake: KfakeServer) -> Topic:
    return Topic(kfake, 2)


def said_by(app: hr.App) -> str:
    """The error with which the app doesn't start."""
    with pytest.raises(HeadraceError) as caught:
        app.run(local=True, progress=False)
    return " ".join(str(caught.value).split())


def test_what_is_wrong_with_the_place_of_a_topic(orders: Topic, tmp_path: Path) -> None:
    said = said_by(shop(tmp_path, f"{orders.name}s", orders.brokers))
    assert "source stream 'orders' (" in said
    assert f"there is no topic '{orders.name}s' at {orders.brokers}" in said
    assert f"did you mean '{orders.name}'" in said
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        said = said_by(shop(tmp_path, orders.name, address))
    assert time.monotonic() - began < 20
    assert address in said
    assert "Connection refused" in said
    assert "hint: check brokers=" in said


def test_a_topic_that_is_deleted_while_the_app_reads_it(
    orders: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "LOOK_S", 0.5)
    with running(shop(tmp_path, orders.name, orders.brokers), tmp_path) as run:
        orders.put(map(order, range(10)))
        run.until(lambda: len(run.numbers()) == 10)
        orders.delete()
        run.until_failed()
    assert isinstance(run.errors[0], StreamNotFoundError)
    assert orders.name in str(run.errors[0])


def again(topic: Topic, kfake: KfakeServer, numbers: range) -> Topic:
    """The topic, deleted and created again, with other records."""
    topic.delete()
    new = Topic(kfake, topic.partitions, name=topic.name)
    for partition in range(topic.partitions):
        new.put(map(order, numbers), partition)
    return new


def test_a_topic_that_was_created_again_is_noticed_although_it_is_longer(
    kfake: KfakeServer, orders: Topic, tmp_path: Path
) -> None:
    app = shop(tmp_path, orders.name, orders.brokers)
    with running(app, tmp_path) as run:
        orders.put(map(order, range(10)))
        run.until(lambda: len(run.numbers()) == 10)
    again(orders, kfake, range(100, 120))
    app = shop(tmp_path, orders.name, orders.brokers, end={0: 20, 1: 20})
    said = said_by(app)
    assert "input 'orders': the stream was deleted and created again: its id was " in said
    assert "it is read again from its start" in said
    assert said.endswith("accept the loss: --drop-state orders")
    app.run(local=True, progress=False, drop_state=["orders"])
    assert run.numbers() == [*range(10), *sorted([*range(100, 120)] * 2)]


def test_a_topic_that_is_created_again_while_the_app_reads_it_is_noticed(
    kfake: KfakeServer, orders: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "LOOK_S", 0.2)
    with running(shop(tmp_path, orders.name, orders.brokers), tmp_path) as run:
        orders.put(map(order, range(10)))
        run.until(lambda: len(run.numbers()) == 10)
        again(orders, kfake, range(100, 120))
        run.until_failed()
    assert isinstance(run.errors[0], StreamNotFoundError)
    assert orders.name in str(run.errors[0])


def test_a_topic_with_another_number_of_partitions_than_the_output_says(orders: Topic, tmp_path: Path) -> None:
    app = hr.App("shop", home=tmp_path)
    system = hr.io.kafka(orders.name, brokers=orders.brokers)
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64}, home=tmp_path)
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.seal()
    app.input("numbers", {"n": pl.Int64}).send_to(app.output("copies", partitions=3, system=system))
    said = said_by(app)
    assert "is declared with 3 partitions, and has 2" in said
    assert "hint: leave partitions= out" in said


@pytest.mark.parametrize("lost", ["stop", "skip"])
def test_records_that_were_deleted_while_the_app_was_away(orders: Topic, tmp_path: Path, lost: str) -> None:
    app = shop(tmp_path, orders.name, orders.brokers, lost=lost)
    with running(app, tmp_path) as run:
        orders.put(map(order, range(10)))
        run.until(lambda: len(run.numbers()) == 10)
    orders.put(map(order, range(10, 20)))
    orders.delete_before(15)
    with running(app, tmp_path) as run:
        if lost == "stop":
            run.until_failed()
        else:
            run.until(lambda: run.numbers() == [*range(10), *range(15, 20)])
            run.until(lambda: (status := run.status()) and any("lost" in task.counters for task in status.tasks))
            status = run.status()
            assert status is not None
            assert sum(task.counters.get("lost", 0) for task in status.tasks) == 5
    if lost == "stop":
        (error,) = run.errors
        assert isinstance(error, TrimmedOffsetError)
        assert "offsets 10 to 14 were deleted before they were read, up to 5 records" in str(error)


@pytest.mark.parametrize("policy", ["skip", "dead_letter", "fail"])
def test_records_that_are_no_json(orders: Topic, tmp_path: Path, policy: Any) -> None:
    app = hr.App("shop", home=tmp_path, checkpoint_interval="100ms")
    letters = {"dead_letter": app.output("bad-orders")} if policy == "dead_letter" else {}
    source = hr.io.kafka(orders.name, brokers=orders.brokers)
    app.input("orders", ORDERS, system=source, on_error=policy, **letters).send_to(app.output("copies"))
    orders.put([*map(order, range(3)), b'{"member": ', *map(order, range(3, 6))])
    with running(app, tmp_path) as run:
        if policy == "fail":
            run.until_failed()
        else:
            run.until(lambda: run.numbers() == list(range(6)))
    place = f"{orders.name}, partition 0, offset 3"
    if policy == "fail":
        assert place in str(run.errors[0])
        return
    assert run.errors == []
    if policy == "dead_letter":
        rows = run.committed("bad-orders")
        assert rows is not None
        (letter,) = rows.to_dicts()
        assert (letter["offset"], letter["raw"]) == (3, b'{"member": ')
        assert place in letter["reason"]


def test_new_partitions_are_read_after_a_restart(orders: Topic, tmp_path: Path) -> None:
    app = shop(tmp_path, orders.name, orders.brokers)
    with running(app, tmp_path) as run:
        orders.put(map(order, range(10)))
        run.until(lambda: len(run.numbers()) == 10)
    orders.add_partitions(3)
    orders.put(map(order, range(10, 20)), 2)
    with running(app, tmp_path) as run:
        run.until(lambda: run.numbers() == list(range(20)))
    assert run.errors == []


def test_new_partitions_are_refused_where_state_is_kept_by_them(orders: Topic, tmp_path: Path) -> None:
    with running(keyed(orders, tmp_path), tmp_path) as run:
        orders.put(map(order, range(10)), ANNS, key=b"ann")
        run.until(lambda: orders.committed("headrace.shop.orders").get(ANNS) == 10)
    orders.add_partitions(3)
    said = said_by(keyed(orders, tmp_path))
    assert "partitions" in said
    assert "hint: " in said


ANNS = int(partitions_of(pl.Series([b"ann"]), 2)[0])


def keyed(orders: Topic, home: Path) -> hr.App:
    app = hr.App("shop", home=home, checkpoint_interval="100ms")
    columns = {**ORDERS, "who": pl.String}
    system = hr.io.kafka(orders.name, brokers=orders.brokers, key_format="text", record_columns={"who": "key"})
    app.input("orders", columns, key="who", system=system).send_to(app.table("last", key="who", schema=columns))
    return app


def test_a_record_in_another_partition_than_its_keys_stops_the_app(orders: Topic, tmp_path: Path) -> None:
    orders.put(map(order, range(10)), ANNS, key=b"ann")
    orders.put(map(order, range(1)), 1 - ANNS, key=b"ann")
    said = said_by(keyed(orders, tmp_path))
    assert f"partition {1 - ANNS}: 1 rows are in another partition than their key chooses with Kafka's" in said
    assert f"the first has who='ann', which belongs in partition {ANNS}" in said


PROGRAM = """
import headrace as hr, polars as pl
app = hr.App("shop", home={home!r}, checkpoint_interval="100ms")
login = {{
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "app",
    "sasl.password": hr.secret_env("KAFKA_PASSWORD"),
}}
source = hr.io.kafka("orders", brokers={brokers!r}, options=login, end={{0: 10}})
app.input("orders", {{"member": pl.String, "n": pl.Int64}}, system=source).send_to(app.output("copies"))
"""


def test_commands_work_and_show_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "app",
        "sasl.password": hr.secret_env("KAFKA_PASSWORD"),
    }
    try:
        broker = KfakeServer(user=("app", SECRET))
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with broker:
        topic = Topic(broker, name="orders", options=login)
        topic.put(map(order, range(10)))
        file, home = tmp_path / "shop.py", tmp_path / "home"
        file.write_text(textwrap.dedent(PROGRAM.format(home=str(home), brokers=broker.address)))

        def headrace(*arguments: str) -> str:
            ran = subprocess.run(
                [sys.executable, "-m", "headrace.operate.cli.main", *arguments],
                capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False,
                env=os.environ | {"KAFKA_PASSWORD": SECRET},
            )  # fmt: skip
            assert ran.returncode == 0, ran.stdout + ran.stderr
            assert SECRET not in ran.stdout + ran.stderr
            return ran.stdout

        assert "topic orders of" in headrace("plan", str(file))
        headrace("startpoint", "set", str(file), "orders", "--oldest", "--dry-run")
        headrace("run", str(file), "--local", "--quiet", "--log-level", "debug")
        found = json.loads(headrace("offsets", str(file), "--json"))
        assert "10" in json.dumps(found)
    kept = [path for path in home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert kept == []

"""A whole app reads Kafka: writers abort, brokers come and go, its process is killed. Each order counts once."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_thread import Running, running
from kafka_program import GROUP, last, order, shop, sums, sums_in
from killed import Killed

from chaos.kafka_server import Broker, KfakeServer
from headrace.connectors.kafka.topics import Topics
from headrace.core.errors import HeadraceError, InfrastructureError
from headrace.run.batch_ends import Until
from headrace.run.batch_ends import ends_of as batch_ends
from headrace.streams import read_stream
from headrace.task.batch import Reading
from headrace.task.connections import Connections
from headrace.task.metrics import TaskMetrics
from servers.kafka_topics import Topic


@pytest.fixture(params=["kfake", pytest.param("kafka_broker", marks=pytest.mark.soak)])
def orders(request: pytest.FixtureRequest) -> Topic:
    broker: Broker = request.getfixturevalue(request.param)
    return Topic(broker, 2)


def put(topic: Topic, numbers: range) -> None:
    """Write orders, every other one in a transaction, and some that are taken back."""
    topic.put([order(n) for n in numbers if n % 2 == 0], 0)
    with topic.transaction() as producer:
        topic.put([order(n) for n in numbers if n % 2], 1, producer=producer)
    with topic.transaction(abort=True) as producer:
        topic.put(map(order, numbers), 1, producer=producer)


def end_time(topic: Topic) -> None:
    for partition in range(2):
        topic.put([last()], partition)


def check_results(run: Running, numbers: range) -> None:
    """Everything comes out, and each order has counted once."""
    run.until(lambda: run.numbers() == list(numbers))
    run.until(lambda: sums_in(run.committed("sums")) == sums(numbers))


def test_orders_count_once_although_others_are_aborted(orders: Topic, tmp_path: Path) -> None:
    with running(shop(tmp_path, orders.name, orders.brokers), tmp_path) as run:
        for first in range(0, 90, 30):
            put(orders, range(first, first + 30))
            run.until(lambda: len(run.numbers()) == first + 30)  # noqa: B023 - it is used at once
        end_time(orders)
        check_results(run, range(90))
    assert run.errors == []
    assert orders.committed(GROUP) == ends_of(orders)


def test_nothing_is_lost_or_doubled_when_its_process_is_killed(orders: Topic, tmp_path: Path) -> None:
    def copied() -> int:
        try:
            return read_stream("copies", home=tmp_path).height
        except HeadraceError:
            return 0

    put(orders, range(40))
    program = Killed("kafka_program.py", tmp_path, orders.name, orders.brokers)
    program.kill_when(lambda: copied() >= 40, lambda: None)
    put(orders, range(40, 80))
    program.kill_when(lambda: copied() > 40, lambda: None)
    put(orders, range(80, 100))
    end_time(orders)
    with running(shop(tmp_path, orders.name, orders.brokers), tmp_path) as run:
        check_results(run, range(100))
    assert run.errors == []


def test_the_app_goes_on_when_a_broker_comes_back(tmp_path: Path) -> None:
    try:
        broker = KfakeServer()
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with broker:
        orders = Topic(broker, 2)
        with running(shop(tmp_path, orders.name, orders.brokers), tmp_path) as run:
            put(orders, range(20))
            run.until(lambda: len(run.numbers()) == 20)
            broker.stop()
            broker.start()
            put(orders, range(20, 40))
            end_time(orders)
            check_results(run, range(40))
        assert run.errors == []


def test_a_bounded_app_ends(orders: Topic, tmp_path: Path) -> None:
    put(orders, range(30))
    shop(tmp_path, orders.name, orders.brokers, end=ends_of(orders)).run(local=True, progress=False)
    assert sorted(read_stream("copies", home=tmp_path)["n"].to_list()) == list(range(30))
    assert sums_in(read_stream("sums", home=tmp_path)) == sums(range(30))


def test_a_batch_reads_up_to_where_the_topic_ends_now(orders: Topic, tmp_path: Path) -> None:
    put(orders, range(30))
    app = shop(tmp_path, orders.name, orders.brokers)
    plan = app.plan()
    ends = batch_ends(plan, Until.of("now"))
    assert {ssp.partition: end for ssp, end in ends.items()} == ends_of(orders)
    reading = Reading(plan, ends, connections := Connections())
    try:
        rows = [rows for ssp in ends for rows in reading.of(ssp, lambda *_: None, TaskMetrics())]
    finally:
        connections.close()
    assert sorted(n for one in rows for n in one["n"].to_list()) == list(range(30))


def ends_of(topic: Topic) -> dict[int, int]:
    """Where each partition ends."""
    return dict(Topics(topic.settings).upcoming(topic.name, range(2)))

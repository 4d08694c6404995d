"""Kafka with TLS, logins and rights: an Apache Kafka that asks for all of them. No secret gets anywhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Producer

import headrace as hr
from chaos.certificates import Authority
from chaos.kafka_plain import create_topic, read_topic
from chaos.kafka_secured import SecuredKafka
from headrace.core.errors import HeadraceError, InfrastructureError
from headrace.core.secrets import SecretPlace
from running_apps import wait_until
from servers.kafka_topics import Topic

SECRET, WRONG = "s3cret-passw0rd", "another-passw0rd"
ROWS = {"n": pl.Int64}
BOUND_S, LOOKS = 30, 1500
_numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[SecuredKafka]:
    try:
        broker = SecuredKafka({"shop": SECRET, "guest": SECRET})
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with broker:
        yield broker


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> Iterator[None]:
    """Secrets in their places; after the test they are nowhere else."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    monkeypatch.setenv("WRONG_PASSWORD", WRONG)
    yield
    kept = [path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()]
    logged = [f"{record.__dict__}".encode() for record in caplog.get_records("call")]
    assert kept or logged
    for secret in (SECRET.encode(), WRONG.encode()):
        assert not any(secret in one for one in [*kept, *logged])


def login(broker: SecuredKafka, **said: Any) -> dict[str, Any]:
    """Options that log the user ``shop`` in, with these changes; None leaves one out."""
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "shop",
        "sasl.password": hr.secret_env("KAFKA_PASSWORD"),
        "ssl.ca.location": str(broker.ca_file),
    }
    options |= {name.replace("_", "."): value for name, value in said.items()}
    return {name: value for name, value in options.items() if value is not None}


def orders(broker: SecuredKafka) -> str:
    """A topic with ten orders, which the user ``shop`` may read."""
    topic = Topic(broker, name=f"orders-{next(_numbers)}")
    topic.put(b'{"n": %d}' % n for n in range(10))
    broker.allow("shop", "TOPIC", topic.name, "READ", "DESCRIBE")
    return topic.name


def app_over(home: Path, brokers: str, options: Mapping[str, Any], source: str, into: str | None = None) -> hr.App:
    """An app that copies the ten orders into its log, or into another topic."""
    app = hr.App(f"shop-{source}", home=home / "home", checkpoint_interval="100ms")
    system = hr.io.kafka(source, brokers=brokers, options=options, end={0: 10})
    target = {} if into is None else {"system": hr.io.kafka(into, brokers=brokers, options=options)}
    app.input("orders", ROWS, system=system).send_to(app.output("copies", **target))
    return app


def failure(app: hr.App) -> str:
    """The error with which the app ends soon."""
    began = time.monotonic()
    with pytest.raises(HeadraceError) as caught:
        app.run(local=True, progress=False)
    assert time.monotonic() - began < BOUND_S
    said = " ".join(str(caught.value).split())
    assert SECRET not in said
    assert WRONG not in said
    return said


# -- with everything in order


@pytest.mark.parametrize(("mechanism", "place"), [("PLAIN", "env"), ("SCRAM-SHA-512", "file")])
def test_an_app_reads_and_writes_with_the_rights_that_the_docs_name(
    broker: SecuredKafka, tmp_path: Path, mechanism: str, place: str
) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    password: SecretPlace = hr.secret_env("KAFKA_PASSWORD") if place == "env" else hr.secret_file(file)
    options = login(broker, sasl_mechanism=mechanism, sasl_password=password)
    source = orders(broker)
    app = app_over(tmp_path, broker.secured, options, source, f"copies-of-{source}")
    broker.allow("shop", "TOPIC", f"copies-of-{source}", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE")
    broker.allow("shop", "TOPIC", f"headrace.progress.{app.name}", "READ", "WRITE", "DESCRIBE", "CREATE")
    broker.allow("shop", "TRANSACTIONAL_ID", f"headrace.{app.name}/", "WRITE", "DESCRIBE", prefixed=True)
    app.run(local=True, progress=False)
    found = [record.value for record in read_topic(broker.address, f"copies-of-{source}")]
    assert found == [b'{"n":%d}' % n for n in range(10)]


def test_an_apps_own_streams_are_in_a_log_that_wants_a_login(broker: SecuredKafka, tmp_path: Path) -> None:
    source = orders(broker)
    broker.allow("shop", "TOPIC", f"{source}.", "ALL", prefixed=True)
    broker.allow("shop", "GROUP", f"{source}.", "READ", prefixed=True)
    log = hr.io.kafka_log(broker.secured, prefix=f"{source}.", options=login(broker))
    app = hr.App("shop", home=tmp_path / "home", system=log, checkpoint_interval="100ms")
    system = hr.io.kafka(source, brokers=broker.secured, options=login(broker), end={0: 10})
    by_digit = app.input("orders", ROWS, system=system).partition_by("n", id="by-digit", partitions=2)
    by_digit.send_to(app.output("copies"))
    app.run(local=True, progress=False)
    assert sorted(hr.streams.read_stream("copies", system=log, home=tmp_path / "home")["n"]) == list(range(10))


def test_an_app_without_a_right_to_its_group_warns_and_reads_on(
    broker: SecuredKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = orders(broker)
    app = hr.App("shop", home=tmp_path / "home", checkpoint_interval="100ms")
    system = hr.io.kafka(source, brokers=broker.secured, options=login(broker), end={0: 20})
    app.input("orders", ROWS, system=system).send_to(app.output("copies"))
    with app.start(local=True, progress=False) as run:
        wait_until(lambda: "positions can't be shown to Kafka's tools" in caplog.messages, [], LOOKS)
        producer = Producer({"bootstrap.servers": broker.address})
        for n in range(10, 20):
            producer.produce(source, b'{"n": %d}' % n)
        producer.flush()
        run.wait()
    assert sorted(hr.streams.read_stream("copies", home=tmp_path / "home")["n"]) == list(range(20))


# -- a login that is wrong


@pytest.mark.parametrize(
    ("said", "reason", "remedy"),
    [
        ({"sasl_password": hr.secret_env("WRONG_PASSWORD")}, "invalid credentials", "sasl.password"),
        (
            {"sasl_password": hr.secret_env("WRONG_PASSWORD"), "sasl_mechanism": "PLAIN"},
            "Invalid username or password",
            "sasl.password",
        ),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "supported mechanisms: PLAIN,SCRAM-SHA-512", "sasl.mechanism"),
        ({"ssl_ca_location": "another"}, "certificate verify failed", "ssl.ca.location"),
        ({"ssl_ca_location": None}, "certificate verify failed", "ssl.ca.location"),
        ({"ssl_ca_location": "/nowhere/ca.pem"}, "there is no /nowhere/ca.pem", "options="),
        ({"security_protocol": "SASL_PLAINTEXT"}, "closed by peer", "security.protocol"),
        ({"security_protocol": "SSL", "sasl_mechanism": None}, "closed by peer", "security.protocol"),
    ],
)
def test_a_login_that_is_wrong_is_named_at_the_start(
    broker: SecuredKafka, tmp_path: Path, said: dict[str, Any], reason: str, remedy: str
) -> None:
    if said.get("ssl_ca_location") == "another":
        said = {"ssl_ca_location": str(tmp_path / "ca.pem")}
        (tmp_path / "ca.pem").write_bytes(Authority("another").pem)
    found = failure(app_over(tmp_path, broker.secured, login(broker, **said), "orders"))
    assert reason in found
    assert remedy in found.rpartition("hint: ")[2]
    assert broker.secured in found


def test_a_certificate_for_another_host_is_named(broker: SecuredKafka, tmp_path: Path) -> None:
    brokers = broker.secured.replace("127.0.0.1", "localhost")
    found = failure(app_over(tmp_path, brokers, login(broker), "orders"))
    assert "certificate verify failed" in found
    assert "for the host that brokers= names" in found


def test_a_listener_without_tls_is_named(broker: SecuredKafka, tmp_path: Path) -> None:
    found = failure(app_over(tmp_path, broker.address, login(broker), "orders"))
    assert "closed by peer" in found
    assert "security.protocol" in found.rpartition("hint: ")[2]


# -- rights that are missing

RIGHTS = {
    "topic": ("WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE"),
    "progress": ("READ", "WRITE", "DESCRIBE", "CREATE"),
    "ids": ("WRITE", "DESCRIBE"),
}


@pytest.mark.parametrize(
    ("of", "missing", "there", "said", "hint"),
    [
        ("topic", "CREATE", False, "creating topic 'copies", "kafka-topics.sh --create --topic copies"),
        ("topic", "WRITE", True, "writing to topic 'copies", "kafka-acls.sh --add --topic copies"),
        ("progress", "CREATE", True, "creating topic 'headrace.progress", "kafka-topics.sh --create --topic headrace."),
        ("progress", "WRITE", True, "writing to topic", "for --topic headrace.progress."),
        ("progress", "READ", True, "reading topic 'headrace.progress", "kafka-acls"),
        ("ids", "WRITE", True, "taking over the transactional id", "kafka-acls.sh --add --transactional-id headrace."),
    ],
)
def test_a_right_that_is_missing_is_named(
    broker: SecuredKafka, tmp_path: Path, of: str, missing: str, there: bool, said: str, hint: str
) -> None:
    source = orders(broker)
    broker.allow("guest", "TOPIC", source, "READ", "DESCRIBE")
    into = f"copies-of-{source}"
    if there:
        create_topic(broker.address, 1, into)
    app = app_over(tmp_path, broker.secured, login(broker, sasl_username="guest"), source, into)
    progress = f"headrace.progress.{app.name}"
    if missing == "READ":  # an empty one isn't read
        Topic(broker, name=progress, config={"cleanup.policy": "compact"}).put([b"{}"], key=b"another writer")
    rights = {name: [one for one in all_ if (name, one) != (of, missing)] for name, all_ in RIGHTS.items()}
    broker.allow("guest", "TOPIC", into, *rights["topic"])
    broker.allow("guest", "TOPIC", progress, *rights["progress"])
    broker.allow("guest", "TRANSACTIONAL_ID", f"headrace.{app.name}/", *rights["ids"], prefixed=True)
    found = failure(app)
    assert said in found
    assert hint in found.rpartition("hint: ")[2]
    assert not there or read_topic(broker.address, into) == []


def test_no_right_to_read_is_named(broker: SecuredKafka, tmp_path: Path) -> None:
    source = orders(broker)
    options = login(broker, sasl_username="guest")
    assert f"looking for topic '{source}'" in failure(app_over(tmp_path, broker.secured, options, source))
    broker.allow("guest", "TOPIC", source, "DESCRIBE")
    found = failure(app_over(tmp_path, broker.secured, options, source))
    assert f"partition 0 of topic '{source}'" in found
    assert "kafka-acls" in found.rpartition("hint: ")[2]

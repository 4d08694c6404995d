from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.connectors.kafka.settings import KafkaSettings, LogOptions, check_settings
from headrace.core.errors import DeclarationError, DeploymentError

SETTINGS = KafkaSettings("localhost:9092")


def test_names_of_topics() -> None:
    options = LogOptions(SETTINGS, prefix="views.")
    assert options.topic("a-changelog.2") == "views.a-changelog.2"
    assert options.registry == "views._streams"
    with pytest.raises(DeclarationError, match="not a usable id"):
        options.topic("_streams")
    longest = LogOptions(SETTINGS, prefix="p" * 100).topic("s" * 128)
    assert len(longest) < 249


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prefix": ""}, "prefix=''"),
        ({"prefix": "_x"}, "prefix='_x'"),
        ({"replication": 0}, "replication=0"),
        ({"record_bytes": 1000}, "record_bytes=1000"),
    ],
)
def test_options_that_can_not_be(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        LogOptions(SETTINGS, **wrong)


def test_a_spec_has_what_was_given_and_no_secret() -> None:
    log = hr.io.kafka_log(
        "localhost:9092",
        prefix="views.",
        replication=3,
        options={
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.password": hr.secret_env("KAFKA_PASSWORD"),
        },
    )
    spec = log.system("any")
    assert (spec.name, spec.kind) == ("kafka", "kafka-log")
    assert spec.options["prefix"] == "views." and spec.options["replication"] == 3
    assert spec.options["client"]["sasl.password"] == {"env": "KAFKA_PASSWORD"}
    assert LogOptions.of(spec.options) == log.log
    assert dict(hr.io.kafka_log("localhost:9092").system("any").options) == {"brokers": "localhost:9092"}
    with pytest.raises(DeclarationError, match="unknown options of a log in Kafka: topic"):
        LogOptions.of({"brokers": "localhost:9092", "topic": "x"})


def test_usual_values_give_way_to_the_users() -> None:
    options = LogOptions(KafkaSettings("localhost:9092", (("linger.ms", "7"),)))
    tuned = dict(options.settings.tuned({"linger.ms": "5", "fetch.wait.max.ms": "50"}).client)
    assert tuned == {"linger.ms": "7", "fetch.wait.max.ms": "50"}


@pytest.mark.parametrize(
    ("name", "value"), [("cleanup.policy", "compact"), ("retention.ms", "604800000"), ("retention.bytes", "1000")]
)
def test_a_topic_that_would_lose_frames_is_refused(name: str, value: str) -> None:
    good: dict[str, str | None] = dict(LogOptions(SETTINGS).topic_settings())
    check_settings("t", good)
    with pytest.raises(DeploymentError, match=f"{name} is {value}"):
        check_settings("t", {**good, name: value})


def test_an_app_keeps_what_is_its_own_in_the_log_that_it_names() -> None:
    app = hr.App("views", system=hr.io.kafka_log("localhost:9092"))
    app.input("raw").partition_by("key", id="by-key").send_to(app.output("out"))
    streams = app.graph().streams
    assert {spec.system.kind for spec in streams.values()} == {"kafka-log"}
    assert {str(spec.stream) for spec in streams.values()} == {"kafka.raw", "kafka.views-by-key", "kafka.out"}
    assert app.settings.internal_system().name == "kafka"
    assert hr.App("views", home="/h").settings.internal_system().options["root"] == "/h/streams"


@pytest.mark.parametrize("wrong", [hr.io.files("x.csv"), "kafka://host:9092", 7])
def test_an_app_keeps_frames_in_a_record_system_only(wrong: Any) -> None:
    with pytest.raises(DeclarationError, match=r"keeps rows|takes a system"):
        hr.App("views", internal=wrong)

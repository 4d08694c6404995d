"""What users write of a topic, what becomes of it, and what is refused."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.connectors.kafka.settings import TopicOptions
from headrace.core.errors import DeclarationError
from headrace.systems.registry import SystemSpec

BROKERS = "host:9092"
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "app",
    "sasl.password": hr.secret_env("KAFKA_PASSWORD"),
}


def spec_of(schema: Any = None, **said: Any) -> SystemSpec:
    app = hr.App("shop", home="unused")
    app.input("orders.eu", schema or {"n": pl.Int64}, system=hr.io.kafka("orders", **{"brokers": BROKERS, **said}))
    return app._draft.streams["orders.eu"].system


def test_what_is_said_arrives_in_the_options_of_the_system() -> None:
    spec = spec_of(
        {"n": pl.Int64, "k": pl.Struct({"member": pl.String})},
        key_format="json",
        start="2026-01-31T12:00:00Z",
        end={1: 20, 0: 10},
        record_columns={"k": "key", "sent": "timestamp"},
        uncommitted=True,
        lost="skip",
        options=LOGIN,
    )
    assert (spec.name, spec.kind) == ("kafka-orders-eu", "kafka")
    given = json.loads(json.dumps(dict(spec.options)))  # plans and the metadata store have them as JSON
    options = TopicOptions.of(spec.name, given)
    assert options == TopicOptions.of(spec.name, spec.options)
    assert options.end is not None
    assert (options.topic, options.settings.brokers, options.start) == ("orders", BROKERS, 1_769_860_800_000)
    assert dict(options.end.offsets) == {0: 10, 1: 20}
    assert (options.uncommitted, options.lost, options.key_format.name) == (True, "skip", "json")
    assert dict(options.settings.client)["sasl.password"] == hr.secret_env("KAFKA_PASSWORD")
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_little_is_said_of_a_plain_input() -> None:
    spec = spec_of()
    assert dict(spec.options) == {"topic": "orders", "brokers": BROKERS, "format": {"name": "json"}}
    options = TopicOptions.of(spec.name, spec.options)
    assert (options.start, options.end, options.uncommitted, options.lost) == ("oldest", None, False, "stop")


@pytest.mark.parametrize("time", ["2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC), "1769860800000"])
def test_times_begin_and_end(time: Any) -> None:
    options = TopicOptions.of("x", spec_of(start=time, end=time).options)
    assert options.end is not None
    assert options.start == options.end.time_ms == 1_769_860_800_000


@pytest.mark.parametrize(
    ("said", "schema", "columns"),
    [
        ({"record_columns": {"k": "key"}}, None, {"n": pl.Int64(), "k": pl.Binary()}),
        ({"record_columns": {"k": "key"}, "key_format": "text"}, None, {"n": pl.Int64(), "k": pl.String()}),
        (
            {"record_columns": {"p": "partition", "o": "offset"}},
            {"o": pl.Int64, "n": pl.Int64, "p": pl.Int64},
            {"o": pl.Int64(), "n": pl.Int64(), "p": pl.Int64()},
        ),
    ],
)
def test_columns_about_records(said: Any, schema: Any, columns: dict[str, pl.DataType]) -> None:
    app = hr.App("shop", home="unused")
    source = hr.io.kafka("orders", brokers=BROKERS, **said)
    assert dict(app.input("orders", schema or {"n": pl.Int64}, system=source).schema.columns) == columns


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"brokers": "host"}, "has no port"),
        ({"start": "latest"}, 'did you mean "upcoming"'),
        ({"end": 100}, "an offset for each partition"),
        ({"end": {0: -1}}, "an offset for each partition"),
        ({"end": {}}, "an offset for each partition"),
        ({"end": "upcoming"}, "--until now"),
        ({"lost": "ignore"}, "lost"),
        ({"record_columns": {"key": "k"}}, "the column comes first"),
        ({"record_columns": {"k": "sequence_number"}}, "which Kafka doesn't have"),
        ({"key_format": "text"}, "no column is the key"),
        ({"record_columns": {"k": "key"}, "key_format": "json"}, "its type isn't known"),
        ({"record_columns": {"n": "timestamp"}}, "is the timestamp of a record"),
        ({"options": {"group.id": "mine"}}, "can't be set"),
        ({"options": {"sasl.password": "s3cret"}}, "is a secret"),
        ({"oauth": "tokens:get"}, "OAUTHBEARER"),
        ({"format": "avro"}, "hr.io.avro"),
    ],
)
def test_what_cannot_be_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError) as error:
        spec_of(**said)
    assert message in str(error.value)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("topic", ["", "a b", "..", "x" * 250])
def test_names_that_no_topic_has(topic: Any) -> None:
    with pytest.raises(DeclarationError, match="is not the name of a topic"):
        hr.io.kafka(topic, brokers=BROKERS)


def test_where_reading_begins_is_said_at_one_place() -> None:
    app = hr.App("shop", home="unused")
    with pytest.raises(DeclarationError, match=r"belongs in hr\.io\.kafka"):
        app.input("orders", {"n": pl.Int64}, system=hr.io.kafka("orders", brokers=BROKERS), start="upcoming")


@pytest.mark.parametrize("options", [{"topic": "x"}, {"brokers": BROKERS}, {"topic": "x", "brokers": BROKERS, "y": 1}])
def test_options_that_are_missing_or_unknown(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match=r"system 'x' \(kafka\)"):
        TopicOptions.of("x", options)


def test_without_a_name_it_is_the_topic_of_the_stream_that_it_is_given_to():
    kafka = hr.io.kafka(brokers="localhost:9092")
    app = hr.App("copied")
    app.input("clicks", {"member": str}, system=kafka).send_to(app.output("copies", system=kafka))
    topics = {id_: spec.system.options["topic"] for id_, spec in app.graph().streams.items()}
    assert topics == {"clicks": "clicks", "copies": "copies"}
    with pytest.raises(hr.errors.DeclarationError, match="uncommitted of topic copies-2: only an input can have this"):
        app.output("copies-2", system=hr.io.kafka(brokers="localhost:9092", uncommitted=True))

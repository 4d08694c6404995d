from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.rows.formats import FormatSpec

REGISTRY = hr.io.registry("http://localhost:8081")
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}


def test_settings_of_formats_are_json_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "s3cret")
    registry = hr.io.registry(
        "http://localhost:8081",
        user="app",
        password=hr.secret_env("REGISTRY_PASSWORD"),
        ca_file="/ca.pem",
        timeout="1s",
    )
    spec = hr.io.debezium(hr.io.avro(registry=registry), deleted="gone", about={"at": "source_ts_ms"})
    options = json.loads(json.dumps(spec.options()))
    assert FormatSpec(**options) == spec
    assert options["settings"]["format"]["settings"]["registry"] == {
        "url": "http://localhost:8081",
        "user": "app",
        "password": {"env": "REGISTRY_PASSWORD"},
        "ca_file": "/ca.pem",
        "timeout_ms": 1000,
    }
    app = hr.App("shop")
    columns = {"id": pl.Int64, "gone": pl.Boolean, "at": pl.Int64}
    app.input("members", columns, system=hr.io.kinesis("members", format=spec)).filter("gone").send_to(app.output("o"))
    assert "s3cret" not in repr(app) + repr(spec)


def test_a_subject_is_given_to_what_has_a_registry_and_no_subject() -> None:
    plain, named = hr.io.avro(ORDER, registry=REGISTRY), hr.io.avro(ORDER, registry=REGISTRY, subject="mine")
    assert plain.under("orders-value").settings["subject"] == "orders-value"
    assert named.under("orders-value") == named
    assert hr.io.avro(ORDER).under("orders-value") == hr.io.avro(ORDER)
    inner = hr.io.changelog(plain).under("orders-value").settings["format"]
    assert inner["settings"]["subject"] == "orders-value"


WRONG: list[tuple[Any, str]] = [
    (lambda: hr.io.registry("localhost"), "isn't the address of a schema registry"),
    (lambda: hr.io.registry(5), "url=5 is not an address"),  # type: ignore[arg-type]
    (lambda: hr.io.registry("http://x:b@host"), "contains credentials"),
    (lambda: hr.io.registry("http://host", user="a", password="s3cret"), "takes a reference to a secret"),  # type: ignore[arg-type]
    (lambda: hr.io.registry("http://host", token="s3cret"), "takes a reference to a secret"),  # type: ignore[arg-type]
    (lambda: hr.io.registry("http://host", user="a"), "needs user= and password= together"),
    (lambda: hr.io.registry("http://host", timeout="soon"), "timeout"),
    (hr.io.avro, "needs a schema, or a registry that has it"),
    (lambda: hr.io.avro(ORDER, subject="a"), "registry= is missing"),
    (lambda: hr.io.avro(ORDER, register=True), "registry= is missing"),
    (lambda: hr.io.avro(ORDER, registry="http://host"), "is not a schema registry"),  # type: ignore[arg-type]
    (lambda: hr.io.avro(ORDER, registry=REGISTRY, subject=""), "is not a subject"),
    (lambda: hr.io.changelog("xml"), "format="),  # type: ignore[arg-type]
    (lambda: hr.io.changelog("json", deleted=""), "is not the name of a column"),
    (lambda: hr.io.changelog(hr.io.debezium()), "debezium already has a column for deletions"),
    (lambda: hr.io.debezium(hr.io.changelog()), "changelog already has a column for deletions"),
    (lambda: hr.io.debezium("text"), "envelopes of Debezium aren't text"),
    (lambda: hr.io.debezium(about={"at": "lsn"}), "which envelopes don't have"),  # type: ignore[dict-item]
    (lambda: hr.io.debezium(about=["op"]), "doesn't name columns"),  # type: ignore[arg-type]
    (lambda: hr.io.debezium(about={"deleted": "op"}), "marks deletions"),
]


@pytest.mark.parametrize(("declare", "message"), WRONG)
def test_wrong_formats_are_refused_where_they_are_declared(declare: Any, message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        declare()
    assert caught.value.hint
    assert "test_record_formats.py" in caught.value.message
    assert "s3cret" not in str(caught.value)


def test_an_input_has_the_column_of_deletions() -> None:
    app = hr.App("shop")
    with pytest.raises(hr.errors.DeclarationError, match=r"the column 'deleted', .* is missing in the schema"):
        app.input("a", {"id": pl.Int64}, system=hr.io.kinesis("a", format=hr.io.debezium()))
    with pytest.raises(hr.errors.DeclarationError, match="needs a schema"):
        app.input("a", system=hr.io.kinesis("a", format=hr.io.avro(registry=REGISTRY)))


def test_a_topic_names_the_subject_of_its_values() -> None:
    app = hr.App("shop")
    for format in (hr.io.avro(ORDER, registry=REGISTRY), hr.io.json_schema(registry=REGISTRY), hr.io.avro(ORDER)):
        topic = hr.io.kafka("orders", brokers="localhost:9092", format=format)
        settings = topic.system("orders").options["format"].get("settings", {})
        assert settings.get("subject") == ("orders-value" if "registry" in settings else None)
    app.input("orders", system=hr.io.kafka("orders", brokers="localhost:9092", format=hr.io.avro(ORDER)))

"""What users may say about a cluster, and that secrets are never part of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.connectors.kafka.settings import OURS, KafkaSettings
from headrace.core.errors import DeclarationError, InfrastructureError
from headrace.core.secrets import SecretPlace, is_secret

SASL = {"security.protocol": "sasl_ssl", "sasl.mechanism": "plain", "sasl.username": "app"}


@pytest.mark.parametrize(
    ("brokers", "kept"),
    [
        ("host:9092", "host:9092"),
        ("a:1, b.example.com:65535", "a:1,b.example.com:65535"),
        ("[::1]:9092", "[::1]:9092"),
        ("SASL_SSL://name.servicebus.windows.net:9093", "SASL_SSL://name.servicebus.windows.net:9093"),
    ],
)
def test_brokers_are_addresses_with_ports(brokers: str, kept: str) -> None:
    assert KafkaSettings.checked(brokers).brokers == kept


@pytest.mark.parametrize(
    ("brokers", "hint"),
    [
        ("", "host:9092"),
        (None, "host:9092"),
        ("host", '"host:9092"'),
        ("host:0", "host:9092"),
        ("host:70000", "host:9092"),
        ("a:1,,b:2", "host:9092"),
        ("http://host:9092/path", "host:9092"),
    ],
)
def test_what_is_no_address_is_refused_with_an_example(brokers: object, hint: str) -> None:
    with pytest.raises(DeclarationError) as error:
        KafkaSettings.checked(brokers)
    assert error.value.hint is not None
    assert hint in error.value.hint


def test_credentials_among_the_brokers_are_refused_and_not_repeated() -> None:
    with pytest.raises(DeclarationError) as error:
        KafkaSettings.checked("app:s3cret@host:9092")
    assert "s3cret" not in str(error.value)


def test_options_become_texts_and_are_the_same_after_json() -> None:
    settings = KafkaSettings.checked(
        "host:9092",
        {
            **SASL,
            "sasl.password": SecretPlace("env", "KAFKA_PASSWORD"),
            "ssl.key.password": SecretPlace("file", "/run/key"),
            "fetch.max.bytes": 1_000_000,
            "socket.keepalive.enable": True,
        },
    )
    options = settings.options()
    assert options["client"] == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "app",
        "sasl.password": {"env": "KAFKA_PASSWORD"},
        "ssl.key.password": {"file": "/run/key"},
        "fetch.max.bytes": "1000000",
        "socket.keepalive.enable": "true",
    }
    assert KafkaSettings.of(json.loads(json.dumps(options))) == settings


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
    ],
)
def test_a_secret_in_plain_text_is_refused_and_not_repeated(name: str) -> None:
    assert is_secret(name)
    with pytest.raises(DeclarationError) as error:
        KafkaSettings.checked("host:9092", {name: "s3cret-value"})
    assert "s3cret-value" not in str(error.value)
    assert "hr.secret_env(" in str(error.value)


@pytest.mark.parametrize("name", ["sasl.username", "ssl.ca.location", "ssl.certificate.pem", "ssl.key.location"])
def test_what_is_no_secret_may_be_written(name: str) -> None:
    assert not is_secret(name)
    KafkaSettings.checked("host:9092", {name: "value"})


@pytest.mark.parametrize("name", sorted(OURS))
def test_what_exactly_once_rests_on_cannot_be_set(name: str) -> None:
    with pytest.raises(DeclarationError, match="can't be set"):
        KafkaSettings.checked("host:9092", {name: "x"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sasl.jaas.config": "x"}, "Java"),
        ({"error_cb": print}, "callback"),
        ({"fetch_max_bytes": 1}, "fetch.max.bytes"),
        ({"fetch.max.bytes": None}, "NoneType"),
        ({"security.protocol": "SASL-SSL"}, "sasl_ssl"),
        ({"sasl.mechanism": "PLAIN"}, "which has no SASL"),
        ({"sasl.mechanism": "PLAIN", "sasl.mechanisms": "PLAIN"}, "twice"),
        ({1: "x"}, "the name of an option"),
        (["a"], "dict"),
    ],
)
def test_options_that_cannot_work_are_refused(options: object, said: str) -> None:
    with pytest.raises(DeclarationError) as error:
        KafkaSettings.checked("host:9092", options)
    assert said in str(error.value)


def test_oauth_names_a_function_and_needs_its_mechanism() -> None:
    bearer = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    assert KafkaSettings.checked("host:9092", bearer, "tokens:get").oauth == "tokens:get"
    for oauth, options in (("tokens", bearer), (print, bearer), ("tokens:get", SASL), ("tokens:get", None)):
        with pytest.raises(DeclarationError):
            KafkaSettings.checked("host:9092", options, oauth)


def test_a_secret_is_read_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\r\n")
    assert SecretPlace("file", str(file)).read({}) == "s3cret"
    assert SecretPlace("env", "PASSWORD").read({"PASSWORD": "s3cret"}) == "s3cret"


def test_a_secret_that_is_not_there_is_an_error_with_its_place(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe\x00")
    places = [
        SecretPlace("env", "PASSWORD"),
        *(SecretPlace("file", str(tmp_path / name)) for name in ("none", "empty")),
    ]
    for place in (*places, SecretPlace("file", str(binary))):
        with pytest.raises(InfrastructureError) as error:
            place.read({"PASSWORD": ""})
        assert place.name in error.value.message


@pytest.mark.parametrize("options", [{}, {"env": ""}, {"env": 1}, {"env": "A", "file": "b"}, {"vault": "x"}])
def test_only_known_places_are_taken(options: dict[str, object]) -> None:
    with pytest.raises(DeclarationError):
        SecretPlace.of(options)

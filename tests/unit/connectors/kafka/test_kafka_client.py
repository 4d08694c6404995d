"""What errors of Kafka's client mean, and that no message has a secret."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.connectors.kafka.client import Troubles, _Lines, open_admin, open_consumer, open_producer, problem_of
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.core.errors import (
    DataError,
    DeclarationError,
    FencedError,
    HeadraceError,
    IndeterminateWriteError,
    InfrastructureError,
    StreamNotFoundError,
    TrimmedOffsetError,
    UnavailableError,
)
from headrace.core.secrets import SecretOptions, SecretPlace


def problem(code: int, heard: KafkaError | None = None, secret: str = "") -> HeadraceError:
    troubles = Troubles(heard, SecretOptions.of({"sasl.password": secret} if secret else {}))
    return problem_of(KafkaError(code, f"text {secret}"), "reading", "host:9092", troubles)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TRANSPORT, UnavailableError),
        (KafkaError.NOT_LEADER_FOR_PARTITION, UnavailableError),
        (KafkaError.UNKNOWN, UnavailableError),
        (KafkaError._AUTHENTICATION, InfrastructureError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, InfrastructureError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, StreamNotFoundError),
        (KafkaError.OFFSET_OUT_OF_RANGE, TrimmedOffsetError),
        (KafkaError._AUTO_OFFSET_RESET, TrimmedOffsetError),
        (KafkaError._FENCED, FencedError),
        (KafkaError.MSG_SIZE_TOO_LARGE, DataError),
        (KafkaError._MSG_TIMED_OUT, IndeterminateWriteError),
        (KafkaError._FS, InfrastructureError),
    ],
)
def test_a_code_means_an_error(code: int, kind: type[HeadraceError]) -> None:
    found = problem(code)
    assert type(found) is kind
    assert "host:9092: reading" in found.message
    assert found.hint


def test_waiting_in_vain_is_explained_by_what_the_client_has_reported() -> None:
    refused = problem(KafkaError._TRANSPORT, KafkaError(KafkaError._RESOLVE, "no such host"))
    assert isinstance(refused, UnavailableError)
    assert "no such host" in refused.message
    login = problem(KafkaError._TIMED_OUT, KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    assert type(login) is InfrastructureError
    assert not login.retry
    assert "sasl.password" in str(login.hint)


def test_a_connection_that_brokers_close_is_explained_by_the_last_line_about_it() -> None:
    troubles = Troubles(brokers="host:9092")
    _Lines(troubles).log(20, "FAIL [rdkafka#producer-1] [thrd:x]: host:9092: Disconnected: connection closed by peer")
    troubles.heard(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    found = problem_of(KafkaError(KafkaError._TIMED_OUT), "reading", "host:9092", troubles)
    assert isinstance(found, UnavailableError)
    assert "1/1 brokers are down: host:9092: Disconnected: connection closed by peer" in found.message
    assert "security.protocol" in str(found.hint)
    troubles.heard(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
    found = problem_of(KafkaError(KafkaError._TIMED_OUT), "reading", "host:9092", troubles)
    assert "closed by peer" not in found.message
    assert "security.protocol" not in str(found.hint)


def test_a_certificate_that_is_not_trusted_is_not_called_a_wrong_password() -> None:
    found = problem(
        KafkaError._TIMED_OUT, KafkaError(KafkaError._SSL, "SSL handshake failed: certificate verify failed")
    )
    assert type(found) is InfrastructureError
    assert "ssl.ca.location" in str(found.hint)
    assert "password" not in str(found.hint)


def test_a_file_that_an_option_names_and_that_is_not_there_is_named() -> None:
    with pytest.raises(DeclarationError, match=r"ssl\.ca\.location.*there is no /nowhere/ca\.pem"):
        open_admin(
            KafkaSettings.checked("host:9092", {"security.protocol": "ssl", "ssl.ca.location": "/nowhere/ca.pem"})
        )


def test_secrets_are_cleaned_from_messages() -> None:
    heard = KafkaError(KafkaError._AUTHENTICATION, "s3cret-password is wrong")
    assert "s3cret" not in str(problem(KafkaError._TIMED_OUT, heard, "s3cret-password"))


def test_that_all_brokers_are_down_is_reported_and_does_not_hide_why(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles(brokers="host:9092")
    troubles.heard(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    troubles.heard(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert troubles.last is not None
    assert troubles.last.code() == KafkaError._TRANSPORT
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (warning.brokers, warning.why) == ("host:9092", "connection refused")  # type: ignore[attr-defined]
    troubles.over()
    assert troubles.last is None


def test_nobody_at_the_address_is_named_within_seconds() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        admin = open_admin(KafkaSettings.checked(address))
        began = time.monotonic()
        with pytest.raises(UnavailableError) as error, admin.translating("looking for topics"):
            admin.raw.list_topics(timeout=1)
    assert time.monotonic() - began < 30
    assert address in error.value.message
    assert "refused" in error.value.message


def test_an_unknown_option_is_refused_by_librdkafka_without_its_value() -> None:
    for opened in (open_admin, lambda s: open_consumer(s, "group"), open_producer):
        with pytest.raises(DeclarationError, match=r"no\.such\.option"):
            opened(KafkaSettings.checked("host:9092", {"no.such.option": "x"}))


def test_a_secret_that_librdkafka_refuses_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "-----BEGIN s3cret")
    settings = KafkaSettings.checked(
        "host:9092", {"security.protocol": "ssl", "ssl.key.pem": SecretPlace("env", "KEY")}
    )
    with pytest.raises(DeclarationError) as error:
        open_producer(settings)
    assert "s3cret" not in str(error.value)


def test_a_function_for_tokens_that_is_not_there_is_named() -> None:
    bearer = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(DeclarationError, match="no_such_module"):
        open_producer(KafkaSettings.checked("host:9092", bearer, "no_such_module:token"))


def test_tokens_come_from_the_function_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tokens.py").write_text(
        "import time\nasked = []\ndef token():\n    asked.append(1)\n    return 'abc', time.time() + 3600\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    bearer = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    producer = open_producer(KafkaSettings.checked("127.0.0.1:1", bearer, "my_tokens:token"))
    import my_tokens  # type: ignore[import-not-found]

    end = time.monotonic() + 5
    while not my_tokens.asked and time.monotonic() < end:
        producer.raw.poll(0.05)
    assert my_tokens.asked


def test_nothing_goes_to_stderr_and_lines_go_to_our_log(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "headrace.connectors.kafka.client")
    consumer = open_consumer(KafkaSettings.checked("127.0.0.1:1"), "group")
    consumer.raw.assign([TopicPartition("orders", 0, 0)])
    end = time.monotonic() + 5
    while not caplog.records and time.monotonic() < end:
        consumer.raw.poll(0.05)
    consumer.raw.close()
    assert caplog.records
    assert capfd.readouterr().err == ""


def test_a_call_that_raises_something_else_is_left_alone() -> None:
    admin = open_admin(KafkaSettings.checked("127.0.0.1:1"))
    with pytest.raises(KeyError), admin.translating("x"):
        raise KeyError
    with pytest.raises(UnavailableError), admin.translating("x"):
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.certificates import Authority
from headrace.connectors.formats.registry import Reference, Registered, RegistryClient, RegistrySettings
from headrace.core.errors import DataError, DeclarationError, HeadraceError, InfrastructureError, UnavailableError
from headrace.core.secrets import SecretPlace
from servers.schema_registry import Refusal, SchemaRegistry, basic, schema_registry

ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}'
OTHER = ORDER.replace("long", "string")
SECRET = "s3cret-and-long"


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with schema_registry() as registry:
        yield registry


def client(server: SchemaRegistry, **settings: object) -> RegistryClient:
    return RegistryClient(RegistrySettings(server.url, **settings))  # type: ignore[arg-type]


def test_a_schema_is_registered_and_found_again(server: SchemaRegistry) -> None:
    asking = client(server)
    assert asking.by_id(1) is None
    assert asking.lookup("orders-value", Registered(ORDER)) is None
    assert asking.register("orders-value", Registered(ORDER)) == 1
    assert asking.register("orders-value", Registered(ORDER)) == 1
    assert asking.lookup("orders-value", Registered(ORDER)) == (1, 1)
    assert asking.lookup("orders-value", Registered(OTHER)) is None
    assert asking.by_id(1) == Registered(ORDER)


def test_types_and_references_come_back(server: SchemaRegistry) -> None:
    asking = client(server)
    asking.register("money.proto", Registered('syntax = "proto3";', "PROTOBUF"))
    schema = Registered('import "money.proto";', "PROTOBUF", (Reference("money.proto", "money.proto", 1),))
    id = asking.register("a/b c-value", schema)
    assert asking.by_id(id) == schema
    assert asking.by_version("money.proto", 1) == Registered('syntax = "proto3";', "PROTOBUF")
    with pytest.raises(DataError, match=r"no version 7 of subject 'money\.proto'"):
        asking.by_version("money.proto", 7)


def test_a_change_that_breaks_the_rule_is_refused(server: SchemaRegistry) -> None:
    client(server).register("orders-value", Registered(ORDER))
    with pytest.raises(DataError, match=r"breaks the subject's compatibility rule: .*TYPE_MISMATCH: n") as caught:
        client(server).register("orders-value", Registered(OTHER))
    assert caught.value.hint
    with pytest.raises(DataError, match="refuses the schema: Invalid schema"):
        client(server).register("orders-value", Registered("{"))


def test_a_login_is_read_from_its_place(
    server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET + "\n")
    monkeypatch.setenv("REGISTRY_PASSWORD", SECRET)
    asking = client(server, user="app", password=SecretPlace("env", "REGISTRY_PASSWORD"))
    server.login = basic("app", SECRET)
    assert asking.by_id(1) is None
    server.login = f"Bearer {SECRET}"
    assert client(server, token=SecretPlace("file", str(file))).by_id(1) is None
    with pytest.raises(InfrastructureError, match="rejects the login") as caught:
        asking.by_id(1)
    assert not caught.value.retry
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(asking._settings)
    monkeypatch.delenv("REGISTRY_PASSWORD")
    with pytest.raises(InfrastructureError, match="REGISTRY_PASSWORD should hold a secret"):
        asking.by_id(1)


@pytest.mark.parametrize(
    ("status", "code", "kind", "message"),
    [
        (403, 40301, InfrastructureError, "forbids /schemas/ids/1: no"),
        (404, 404, InfrastructureError, "doesn't answer like a schema registry"),
        (429, 42901, UnavailableError, "can't answer now: no"),
        (500, 50001, UnavailableError, "can't answer now: no"),
        (503, 50301, UnavailableError, "can't answer now: no"),
    ],
)
def test_refusals_are_errors_that_say_whether_to_retry(
    server: SchemaRegistry, status: int, code: int, kind: type[HeadraceError], message: str
) -> None:
    server.refuse = Refusal(status, code, "no")
    with pytest.raises(kind, match=message) as caught:
        client(server).by_id(1)
    assert type(caught.value) is kind
    assert caught.value.hint


def test_a_server_that_is_away_or_too_slow_is_unavailable(server: SchemaRegistry) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="doesn't answer: Connection refused"):
            RegistryClient(RegistrySettings(url)).by_id(1)
    server.slow = threading.Event()
    with pytest.raises(UnavailableError, match="it took too long"):
        client(server, timeout_ms=50).by_id(1)


def test_an_answer_that_never_ends_is_given_up() -> None:
    """One byte at a time, so that no single read takes too long."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        done = threading.Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not done.wait(0.01):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        dripping = threading.Thread(target=drip)
        dripping.start()
        begun = time.monotonic()
        try:
            with pytest.raises(UnavailableError, match="it took too long"):
                RegistryClient(RegistrySettings(url, timeout_ms=200)).by_id(1)
        finally:
            done.set()
            dripping.join()
        assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("answer", "message"),
    [("[]", "a JSON object"), ("<html>", "JSON object"), ("{}", "has no schema"), ('{"schema": 5}', "has no schema")],
)
def test_something_else_than_a_registry_is_named(answer: str, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def reply() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\n\r\n{answer}".encode())

        replying = threading.Thread(target=reply)
        replying.start()
        with pytest.raises(InfrastructureError, match=message):
            RegistryClient(RegistrySettings(f"http://127.0.0.1:{listening.getsockname()[1]}")).by_id(1)
        replying.join()


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Who has to be trusted, and a server's context with a certificate of this machine's address."""
    authority = Authority()
    file, keys = folder / "ca.pem", folder / "keys.pem"
    file.write_bytes(authority.pem)
    keys.write_bytes(b"".join(authority.issue()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys)
    return file, context


def test_certificates_are_checked(tmp_path: Path) -> None:
    ca_file, context = certificate(tmp_path)
    with schema_registry(context) as server:
        assert client(server, ca_file=str(ca_file)).by_id(1) is None
        with pytest.raises(InfrastructureError, match=r"isn't trusted: .*certificate verify failed") as caught:
            client(server).by_id(1)
        assert not caught.value.retry
        assert "ca_file" in (caught.value.hint or "")
        with pytest.raises(InfrastructureError, match=r"can't be read from .*missing"):
            client(server, ca_file=str(tmp_path / "missing")).by_id(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "localhost:8081"}, "isn't the address of a schema registry"),
        ({"url": "ftp://host"}, "isn't the address of a schema registry"),
        ({"url": "http://x:word@host:8081"}, "contains credentials"),
        ({"url": "http://host", "user": "eve"}, "needs user= and password= together"),
        ({"url": "http://host", "user": "a:b", "password": {"env": "P"}}, "can't contain a colon"),
        ({"url": "http://host", "user": "a", "password": {"env": "P"}, "token": {"env": "T"}}, "not both"),
        ({"url": "http://host", "passwort": {}}, "unknown settings"),
        ({"user": "eve"}, "no url"),
        ({"url": "http://host", "token": "s3cret"}, "reference to a secret|place of a secret"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(DeclarationError, match=message) as caught:
        RegistrySettings.of(settings)
    assert "s3cret" not in str(caught.value)


def test_settings_are_made_of_their_options() -> None:
    place = SecretPlace("env", "PASSWORD")
    for settings in (
        RegistrySettings("http://host:8081"),
        RegistrySettings("https://host", "app", place, ca_file="/etc/ca.pem", timeout_ms=100),
        RegistrySettings("https://host", token=SecretPlace("file", "/run/token")),
    ):
        assert RegistrySettings.of(settings.options()) == settings

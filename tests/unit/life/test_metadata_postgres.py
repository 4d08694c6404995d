"""What PostgreSQL adds to the contract: lost connections, answers that never come, and secrets. On a real server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from chaos.postgres_server import PostgresServer
from headrace.core.errors import (
    HeadraceError,
    IndeterminateWriteError,
    InfrastructureError,
    UnavailableError,
    UsageError,
)
from headrace.core.secrets import SecretUrl
from headrace.kit.contracts import check_metadata
from headrace.life.metadata import Delete, Put, update

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

from headrace.connectors.sql import metadata as module  # noqa: E402
from headrace.connectors.sql.metadata import PostgresMetadata  # noqa: E402


@pytest.fixture
def url(postgres: PostgresServer) -> SecretUrl:
    """A schema of the test's own: there are the tables."""
    schema = f"m{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return SecretUrl(f"{postgres.url}?options=-csearch_path%3D{schema}")


@pytest.fixture
def store(url: SecretUrl) -> Iterator[PostgresMetadata]:
    store = PostgresMetadata(url)
    yield store
    store.close()


def run(url: SecretUrl, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url.text, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def backend(store: PostgresMetadata) -> int:
    assert store._connection is not None
    return store._connection.info.backend_pid


def test_postgres_keeps_the_contract(url: SecretUrl) -> None:
    check_metadata(lambda: PostgresMetadata(url))


def test_handles_that_open_at_once_all_get_in(url: SecretUrl) -> None:
    together, failed = threading.Barrier(6), []

    def open_and_close() -> None:
        try:
            together.wait(60)
            PostgresMetadata(url).close()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=open_and_close) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


INCREMENT = """
import sys
from headrace.core.secrets import SecretUrl
from headrace.connectors.sql.metadata import PostgresMetadata
from headrace.life.metadata import update
store = PostgresMetadata(SecretUrl(sys.argv[1]))
for _ in range(20):
    update(store, "ns", "sum", lambda old: str(int(old or b"0") + 1).encode())
store.close()
"""


def test_processes_that_open_and_write_at_once_lose_nothing(url: SecretUrl) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", INCREMENT, url.text]) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert run(url, "SELECT value FROM headrace_metadata_entries") == [(b"60",)]


def test_reading_creates_nothing(url: SecretUrl) -> None:
    reader = PostgresMetadata(url, create=False)
    assert reader.scan("ns") == {}
    assert reader.get("ns", "k") is None
    with pytest.raises(UsageError, match="has no tables"):
        reader.put_if("ns", "k", b"1", None)
    reader.close()
    assert run(url, "SELECT to_regclass('headrace_metadata')") == [(None,)]


def test_a_server_that_goes_and_comes_back(postgres: PostgresServer, store: PostgresMetadata) -> None:
    version = store.put_if("ns", "k", b"1", None)
    postgres.stop()
    try:
        for _ in range(2):
            with pytest.raises(UnavailableError) as caught:
                store.put_if("ns", "k", b"2", version)
            assert caught.value.retry
            assert "nothing" not in str(caught.value)
    finally:
        postgres.start()
    assert store.get("ns", "k") == (b"1", version)
    assert store.put_if("ns", "k", b"2", version) is not None


def test_a_connection_that_died_while_nobody_used_it_is_replaced(url: SecretUrl, store: PostgresMetadata) -> None:
    version = store.put_if("ns", "k", b"1", None)
    for _ in range(2):
        run(url, f"SELECT pg_terminate_backend({backend(store)}, 5000)")
        assert store.get("ns", "k") == (b"1", version)
    run(url, f"SELECT pg_terminate_backend({backend(store)}, 5000)")
    assert store.put_if("ns", "k", b"2", version) is not None


class Relay:
    """Stands between client and server, and loses the next commit (``request``) or what answers it (``answer``)."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lose: str | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.refuse = False
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refuse:
                    client.close()
                    continue
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                self._start(self._carry, client, server, True)
                self._start(self._carry, server, client, False)

    def _carry(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                # Both the statement and the server's answer to it end like this.
                if b"COMMIT\x00" in data and self.lose == ("request" if to_server else "answer"):
                    self.lose = None
                    self.meanwhile()
                    break
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for one in self._sockets:
            one.close()


@pytest.fixture
def relay(postgres: PostgresServer) -> Iterator[Relay]:
    relay = Relay(postgres.port)
    yield relay
    relay.close()


@pytest.fixture
def far(postgres: PostgresServer, relay: Relay, url: SecretUrl) -> Iterator[PostgresMetadata]:
    """A handle whose connections go through the relay."""
    text = url.text.replace(f":{postgres.port}/", f":{relay.port}/")
    store = PostgresMetadata(SecretUrl(f"{text}&sslmode=disable"))
    yield store
    store.close()


CHANGES = {
    "put": lambda version: [Put("k", b"2", version), Put("new", b"2", None)],
    "delete": lambda version: [Delete("k", version)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_without_an_answer_is_looked_up(
    relay: Relay, far: PostgresMetadata, store: PostgresMetadata, change: str
) -> None:
    version = far.put_if("ns", "k", b"1", None)
    relay.lose = "answer"
    versions = far.write("ns", CHANGES[change](version))
    assert versions is not None, "it has happened"
    assert [entry.version for entry in store.scan("ns").values()] == [v for v in versions if v]


@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_that_never_arrived_has_not_happened(
    relay: Relay, far: PostgresMetadata, store: PostgresMetadata, change: str
) -> None:
    version = far.put_if("ns", "k", b"1", None)
    relay.lose = "request"
    with pytest.raises(UnavailableError, match="nothing was changed"):
        far.write("ns", CHANGES[change](version))
    assert store.scan("ns") == {"k": (b"1", version)}
    assert far.write("ns", CHANGES[change](version)) is not None


def test_what_was_overwritten_meanwhile_has_happened_all_the_same(
    relay: Relay, far: PostgresMetadata, store: PostgresMetadata
) -> None:
    version = far.put_if("ns", "k", b"1", None)
    relay.lose = "answer"
    relay.meanwhile = lambda: update(store, "ns", "k", lambda old: old + b"!" if old else None) and None
    written = far.put_if("ns", "k", b"2", version)
    entry = store.get("ns", "k")
    assert entry is not None and entry.value == b"2!"
    assert written is not None and written < entry.version


def test_too_many_writes_later_nobody_can_say(
    relay: Relay, far: PostgresMetadata, store: PostgresMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WRITES_KEPT", 3)
    version = far.put_if("ns", "k", b"1", None)
    relay.lose = "answer"

    def write_on() -> None:
        for _ in range(3):
            update(store, "ns", "other", lambda old: (old or b"") + b"!")

    relay.meanwhile = write_on
    with pytest.raises(IndeterminateWriteError, match="too many writes have followed"):
        far.put_if("ns", "k", b"2", version)


def test_while_the_server_is_away_nobody_can_say(
    relay: Relay, far: PostgresMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RESOLVE_S", 0.2)
    monkeypatch.setattr(module, "_RESOLVE_PAUSE_S", 0.05)
    version = far.put_if("ns", "k", b"1", None)
    relay.lose, relay.refuse = "answer", True
    with pytest.raises(IndeterminateWriteError, match="may or may not have happened"):
        far.put_if("ns", "k", b"2", version)
    relay.refuse = False
    entry = far.get("ns", "k")
    assert entry is not None and entry.value == b"2"


def test_a_server_that_never_answers_is_given_up(store: PostgresMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CALL_S", 0.3)
    version = store.put_if("ns", "k", b"1", None)
    frozen = backend(store)
    os.kill(frozen, signal.SIGSTOP)
    try:
        assert store.get("ns", "k") == (b"1", version), "on another connection"
        assert backend(store) != frozen
    finally:
        os.kill(frozen, signal.SIGCONT)


def test_waits_for_a_lock_no_longer_than_it_says(
    url: SecretUrl, store: PostgresMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOCK_WAIT", "100ms")
    version = store.put_if("ns", "k", b"1", None)
    with psycopg.connect(url.text) as other:
        other.execute("SELECT * FROM headrace_metadata FOR UPDATE")
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="lock timeout"):
            store.put_if("ns", "k", b"2", version)
        assert time.monotonic() - began < 30
        assert store.get("ns", "k") == (b"1", version), "readers don't wait for writers"
    assert store.put_if("ns", "k", b"2", version) is not None


def test_a_writer_that_stops_in_a_transaction_loses_the_lock(url: SecretUrl, store: PostgresMetadata) -> None:
    """The server ends it: another machine may have frozen."""
    with psycopg.connect(url.text, autocommit=True) as other:
        with module._transaction(other):
            ((limit,),) = other.execute("SHOW idle_in_transaction_session_timeout").fetchall()
            ((lock,),) = other.execute("SHOW lock_timeout").fetchall()
            other.execute("ROLLBACK")
        assert (limit, lock) == ("5s", "3s")
        assert other.execute("SHOW idle_in_transaction_session_timeout").fetchall() == [("0",)]


def test_refuses_a_newer_format(url: SecretUrl, store: PostgresMetadata) -> None:
    run(url, "UPDATE headrace_metadata SET format = 2")
    with pytest.raises(InfrastructureError, match="of format 2; this version of Headrace reads 1"):
        PostgresMetadata(url)


def test_who_may_not_create_tables_is_told(postgres: PostgresServer, url: SecretUrl) -> None:
    name = f"u{uuid.uuid4().hex[:8]}"
    schema = url.text.partition("%3D")[2]
    run(url, f"CREATE ROLE {name} LOGIN PASSWORD 'pw'; GRANT USAGE ON SCHEMA {schema} TO {name}")
    other = SecretUrl(url.text.replace(f"tester:{postgres.password}", f"{name}:pw"))
    with pytest.raises(InfrastructureError, match="permission denied") as caught:
        PostgresMetadata(other)
    assert "allowed to create tables" in str(caught.value.hint)


def test_the_password_never_shows(postgres: PostgresServer, url: SecretUrl, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "headrace")
    plain = postgres.password.replace("%40", "@")
    wrong = [
        url.text.replace("tester", "nobody"),
        url.text.replace(f":{postgres.port}/", ":1/"),
        url.text.replace("/postgres?", "/missing?"),
        f"{url.text}&unknown_option=1",
    ]
    for text in wrong:
        with pytest.raises(HeadraceError) as caught:
            PostgresMetadata(SecretUrl(text))
        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert plain not in shown and postgres.password not in shown
        assert "***" in shown
    assert plain not in caplog.text and postgres.password not in caplog.text


def test_a_closed_handle_says_so(store: PostgresMetadata) -> None:
    store.close()
    with pytest.raises(UnavailableError, match="was closed"):
        store.get("ns", "k")


FORK = """
import os, sys
from headrace.core.errors import UnavailableError
from headrace.core.secrets import SecretUrl
from headrace.connectors.sql.metadata import PostgresMetadata
store = PostgresMetadata(SecretUrl(sys.argv[1]))
child = os.fork()
if child:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    store.put_if("ns", "k", b"1", None)
    store.close()
    sys.exit(code)
try:
    store.get("ns", "k")
except UnavailableError as error:
    assert "open it again" in str(error)
    os.write(1, b"refused\\n")
os._exit(0)
"""


def test_a_forked_process_is_told_to_open_its_own(url: SecretUrl) -> None:
    run = subprocess.run([sys.executable, "-c", FORK, url.text], timeout=120, check=True, capture_output=True)
    assert run.stdout == b"refused\n"

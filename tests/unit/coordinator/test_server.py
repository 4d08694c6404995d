"""The coordinator over real connections: the conversation, refusals, waiting, and a clean end."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from urllib.parse import urlsplit

import msgspec
import pytest
from conversation import Process, new_ledger, task

from headrace.coordinator import messages as m
from headrace.coordinator.address import Endpoint
from headrace.coordinator.client import CoordinatorClient
from headrace.coordinator.server import Coordinator
from headrace.core.clock import ManualClock
from headrace.core.errors import FencedError, InfrastructureError, ProtocolError, UnavailableError, UsageError
from headrace.core.ids import TaskName
from headrace.life.metadata import Generations, MemoryMetadata, SqliteMetadata
from headrace.run.container import ContainerSession


@pytest.fixture
def metadata():
    return MemoryMetadata()


@pytest.fixture
def coordinator(metadata):
    threads = set(threading.enumerate())
    with Coordinator(new_ledger(), metadata) as coordinator:
        yield coordinator
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def client(coordinator):
    client = CoordinatorClient(coordinator.url, coordinator.token)
    yield client
    client.close()


def grants(assignment):
    return {grant.name: grant.generation for grant in assignment.tasks}


# -- the conversation ----------------------------------------------------------------------------------


def test_a_whole_life(coordinator, client):
    zero, one = Process(0, "u0"), Process(1, "u1")
    assignment = client.register(zero.register())
    assert (grants(assignment), assignment.heartbeat_ms) == ({"a/0": 1, "b/0": 1}, 500)
    assert grants(client.register(one.register())) == {"a/1": 1}
    assert client.heartbeat(zero.heartbeat(0, task("a/0", rows_in=1), task("b/0"))) == m.Orders()
    assert coordinator.state == "starting"
    client.heartbeat(one.heartbeat(0, task("a/1")))
    assert coordinator.state == "running"
    assert client.generation(zero.ask("b/0")) == m.TaskGrant(name="b/0", generation=2)
    assert client.drain() == m.Orders(drain=True)
    assert client.heartbeat(zero.heartbeat(1)) == m.Orders(drain=True)
    client.finished(zero.finished("a/0", "b/0"))
    assert client.finished(one.finished("a/1")) == m.Orders(drain=True, stop=True)
    assert coordinator.wait(30) == "finished"
    status = client.status()
    assert [container.state for container in status.containers] == ["finished", "finished"]
    assert status.tasks[0].rows_in == 1


def test_a_restarted_container_gets_new_generations(client):
    client.register(Process(0, "u0").register())
    assignment = client.register(Process(0, "u0b", attempt=1).register())
    assert (grants(assignment), assignment.superseded) == ({"a/0": 2, "b/0": 2}, "u0")
    with pytest.raises(FencedError, match="answered /heartbeat with status 409: incarnation u0 of container 0"):
        client.heartbeat(Process(0, "u0").heartbeat(1))
    with pytest.raises(FencedError, match="is not the current one"):
        client.generation(Process(0, "u0").ask("a/0"))
    assert grants(client.register(Process(0, "u0b", attempt=1).register())) == {"a/0": 2, "b/0": 2}


def test_the_next_driver_continues_the_generations(tmp_path):
    for expected in (1, 2):
        metadata = SqliteMetadata(tmp_path / "metadata.db")
        with Coordinator(new_ledger(), metadata) as coordinator:
            client = CoordinatorClient(coordinator.url, coordinator.token)
            assert grants(client.register(Process(1, f"u{expected}").register())) == {"a/1": expected}
            client.close()
        metadata.close()


class Hesitant(MemoryMetadata):
    """A store that can't be reached at its first write."""

    def __init__(self):
        super().__init__()
        self.failures = 1

    def write(self, namespace, changes):
        if self.failures:
            self.failures -= 1
            raise UnavailableError("the store is busy")
        return super().write(namespace, changes)


def test_a_registration_is_repeated_when_the_store_was_busy():
    with Coordinator(new_ledger(), Hesitant()) as coordinator:
        client = CoordinatorClient(coordinator.url, coordinator.token)
        assert grants(client.register(Process(0, "u0").register())) == {"a/0": 1, "b/0": 1}
        client.close()


class Pausing(MemoryMetadata):
    """A store that waits in its second write, so that a test can do something meanwhile."""

    def __init__(self):
        super().__init__()
        self.reached, self.go_on, self.writes = threading.Event(), threading.Event(), 0

    def write(self, namespace, changes):
        self.writes += 1
        if self.writes == 2:
            self.reached.set()
            assert self.go_on.wait(30)
        return super().write(namespace, changes)


def test_a_registration_cant_come_between_a_check_and_its_generation():
    # Otherwise the replacement would get 2 and the zombie 3, and the zombie would fence its replacement.
    store, got = Pausing(), {}
    with Coordinator(new_ledger(), store) as coordinator:
        clients = [CoordinatorClient(coordinator.url, coordinator.token) for _ in range(2)]
        clients[0].register(Process(0, "old").register())

        def roll_back():
            got["old"] = clients[0].generation(Process(0, "old").ask("a/0")).generation

        def replace():
            got["new"] = grants(clients[1].register(Process(0, "new", attempt=1).register()))["a/0"]

        threads = [threading.Thread(target=roll_back), threading.Thread(target=replace)]
        threads[0].start()
        assert store.reached.wait(30)
        threads[1].start()
        # Heartbeats don't wait for the store.
        beating = CoordinatorClient(coordinator.url, coordinator.token)
        assert beating.status().containers[0].attempt == 0
        store.go_on.set()
        for thread in threads:
            thread.join()
        for client in (*clients, beating):
            client.close()
    assert got == {"old": 2, "new": 3}
    assert Generations(store, "app").latest()[TaskName("a", 0)] == 3


def test_failures_reach_the_driver(coordinator, client):
    client.register(Process(0, "u0").register())
    failure = Process(0, "u0").failure(
        type="UserFunctionError", message="your line", fault="user", retry=False, traceback="Traceback ..."
    )
    assert client.failure(failure) == m.Orders(stop=True)
    assert coordinator.wait(30) == "failed"
    error = coordinator.status().error
    assert (error.type, error.message, error.traceback) == ("UserFunctionError", "your line", "Traceback ...")


# -- waiting ---------------------------------------------------------------------------------------------


def test_wait_returns_at_the_timeout(coordinator):
    begun = time.monotonic()
    assert coordinator.wait(0.05) == "starting"
    assert 0.04 < time.monotonic() - begun < 10


def test_waiting_is_ended_by_the_end_of_the_app(coordinator):
    waited = []
    thread = threading.Thread(target=lambda: waited.append(coordinator.wait(30)))
    thread.start()
    coordinator.fail(UsageError("no"))
    thread.join(10)
    assert waited == ["failed"]


def test_the_status_shows_the_lost(metadata):
    clock = ManualClock()
    with Coordinator(new_ledger(lost_after_ms=80), metadata, clock=clock) as coordinator:
        client = CoordinatorClient(coordinator.url, coordinator.token)
        client.register(Process(0, "u0").register())
        clock.advance(80)
        assert coordinator.status().containers[0].state == "lost"
        client.close()


def test_the_driver_orders_and_fails(coordinator, client):
    client.register(Process(0, "u0").register())
    coordinator.drain()
    assert client.heartbeat(Process(0, "u0").heartbeat(0)) == m.Orders(drain=True)
    coordinator.fail(InfrastructureError("Spark has gone"))
    assert client.heartbeat(Process(0, "u0").heartbeat(1)) == m.Orders(drain=True, stop=True)
    assert (coordinator.wait(0), coordinator.status().error.message) == ("failed", "Spark has gone")


# -- what is refused -------------------------------------------------------------------------------------


def ask(coordinator, method, path, body=b"", **headers):
    parts = urlsplit(coordinator.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    try:
        given = {"Authorization": f"Bearer {coordinator.token}"} | {k.replace("_", "-"): v for k, v in headers.items()}
        connection.request(method, path, body, given)
        response = connection.getresponse()
        return response.status, msgspec.json.decode(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("token", ["", "Bearer", "Bearer wrong", "Basic x", "Bearer é"])
@pytest.mark.parametrize("path", ["/status", "/register", "/nowhere"])
def test_every_path_needs_the_token(coordinator, token, path):
    status, answer = ask(coordinator, "GET", path, Authorization=token.encode())
    assert status == 401
    assert answer["error"]["message"] == "the token is missing or wrong"
    assert coordinator.token not in str(answer)


def test_the_client_reports_a_wrong_token(coordinator):
    client = CoordinatorClient(coordinator.url, "wrong")
    with pytest.raises(UsageError, match=r"answered /status with status 401: the token is missing or wrong"):
        client.status()
    client.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "text"),
    [
        ("GET", "/nowhere", b"", {}, 404, "no such route: GET /nowhere"),
        ("GET", "/register", b"", {}, 404, "no such route: GET /register"),
        ("PUT", "/register", b"{}", {}, 501, "Unsupported method"),
        ("POST", "/heartbeat", b"not json", {}, 400, "not a message of type Heartbeat"),
        ("POST", "/heartbeat", b"{}", {}, 400, "missing required field `container`"),
        ("POST", "/drain", b'{"version":9}', {}, 400, "format 9"),
        ("POST", "/register", b"", {"Content_Length": "9999999999"}, 413, "at most 8388608 are accepted"),
        ("POST", "/register", b"", {"Content_Length": "9" * 5000}, 413, "at most 8388608 are accepted"),
        ("POST", "/register", b"", {"Content_Length": "-1"}, 400, "'-1' is not a content-length"),
        ("POST", "/register", b"", {"Transfer_Encoding": "chunked"}, 411, "must state its content-length"),
    ],
)
def test_refuses_with_json(coordinator, method, path, body, headers, status, text):
    found, answer = ask(coordinator, method, path, body, **headers)
    assert (found, text in answer["error"]["message"]) == (status, True), answer


def test_an_unexpected_error_is_reported_and_survived(coordinator, client, monkeypatch):
    monkeypatch.setattr(coordinator._ledger, "heartbeat", lambda *_: 1 // 0)
    status, answer = ask(coordinator, "POST", "/heartbeat", m.encode(Process(0, "u").heartbeat(0)))
    assert (status, answer["error"]["type"], answer["error"]["traceback"]) == (500, "ZeroDivisionError", "")
    assert client.status().state == "starting"


def test_an_unknown_container_is_the_callers_error(client):
    with pytest.raises(ProtocolError, match="answered /register with status 400: app 'app' has 2 containers"):
        client.register(Process(7, "u").register())


@pytest.mark.parametrize(
    "bytes_sent", [b"", b"GET", b"rubbish\r\n\r\n", b"POST /status HTTP/1.1\r\ncontent-length: 5\r\n"]
)
def test_half_a_request_does_no_harm(coordinator, client, bytes_sent):
    parts = urlsplit(coordinator.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as rude:
        rude.sendall(bytes_sent)
    assert client.status().app == "app"


def test_nothing_is_written_to_the_terminal(coordinator, client, capfd):
    client.status()
    ask(coordinator, "GET", "/nowhere", Authorization="Bearer wrong")
    ask(coordinator, "PUT", "/nowhere")
    assert capfd.readouterr() == ("", "")


# -- its beginning and end -------------------------------------------------------------------------------


def test_close_cuts_idle_connections_and_leaves_no_thread(metadata):
    threads = set(threading.enumerate())
    coordinator = Coordinator(new_ledger(), metadata)
    coordinator.start()
    clients = [CoordinatorClient(coordinator.url, coordinator.token, patience_s=0) for _ in range(5)]
    for client in clients:
        client.status()
    begun = time.monotonic()
    coordinator.close()
    coordinator.close()
    assert time.monotonic() - begun < 10
    assert set(threading.enumerate()) <= threads
    for client in clients:
        with pytest.raises(UnavailableError):
            client.status()
        client.close()


def test_one_that_never_started_closes_too(metadata):
    Coordinator(new_ledger(), metadata).close()


def test_a_taken_port_is_a_clear_error(coordinator, metadata):
    port = urlsplit(coordinator.url).port
    with pytest.raises(InfrastructureError, match=f"{port}: another process uses this port"):
        Coordinator(new_ledger(), metadata, endpoint=Endpoint(port=port))


def test_it_listens_only_on_this_machine_by_default(metadata):
    with Coordinator(new_ledger(), metadata) as coordinator:
        assert coordinator.url.startswith("http://127.0.0.1:")
    everywhere = Endpoint(host="0.0.0.0", advertised_host="localhost")
    with Coordinator(new_ledger(), metadata, endpoint=everywhere) as coordinator:
        assert coordinator.url.startswith("http://localhost:")
        client = CoordinatorClient(coordinator.url, coordinator.token)
        assert client.status().app == "app"
        client.close()


# -- warnings ------------------------------------------------------------------------------------------


def test_warnings_about_a_container_outlive_it_and_are_logged(coordinator, client, caplog):
    client.register(Process(0, "u0").register())
    assert [container.warnings for container in coordinator.status().containers] == [[], []]
    client.failure(Process(0, "u0").failure())
    client.register(Process(0, "u0b", attempt=1).register())
    texts = ["the container failed, and starts again: E: broke", "attempt 1 has replaced attempt 0"]
    zero, one = client.status().containers
    assert ([warning.message for warning in zero.warnings], one.warnings) == (texts, [])
    logged = [(r.levelname, r.getMessage(), r.app, r.container) for r in caplog.records]
    assert logged == [("WARNING", text, "app", 0) for text in texts]


def test_a_refused_request_is_logged_without_what_it_sent(coordinator, caplog):
    caplog.set_level("INFO", logger="headrace.coordinator.listener")
    stranger = CoordinatorClient(coordinator.url, "a wrong token")
    with pytest.raises(UsageError):
        stranger.status()
    stranger.close()
    (record,) = caplog.records
    assert (record.getMessage(), record.status) == ("request refused", 401)
    assert "token" not in str(vars(record)["client"])


def test_a_container_that_waits_before_it_begins_has_heartbeats(coordinator):
    session = ContainerSession(coordinator)
    orders = coordinator.heartbeat(session.heartbeat())
    assert not orders.stop
    (container,) = [one for one in coordinator.status().containers if one.id == session.number]
    assert container.state == "running"

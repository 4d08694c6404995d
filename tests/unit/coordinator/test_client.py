"""The client with servers that are slow, dead or misbehaving; and the heartbeat thread."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conversation import Process, new_ledger, task

from headrace.coordinator import messages as m
from headrace.coordinator.client import CoordinatorClient, HeartbeatThread
from headrace.coordinator.server import Coordinator
from headrace.core.errors import FencedError, ProtocolError, UnavailableError, UsageError
from headrace.life.metadata import MemoryMetadata


@pytest.fixture
def coordinator():
    with Coordinator(new_ledger(), MemoryMetadata()) as coordinator:
        yield coordinator


@pytest.fixture
def client(coordinator):
    client = CoordinatorClient(coordinator.url, coordinator.token)
    yield client
    client.close()


@pytest.fixture
def silent():
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def answering(answers):
    """Start a server that sends each connection the next of ``answers`` and closes it. Returns URL and thread."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with server:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(30)
                    connection.recv(65536)
                    connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return f"http://127.0.0.1:{server.getsockname()[1]}", thread


def http_answer(status, body):
    return b"HTTP/1.1 %d x\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(body), body)


@pytest.mark.parametrize("url", ["", "localhost:80", "https://x:1", "http://x", "coordinator.json"])
def test_refuses_what_is_no_address(url):
    with pytest.raises(UsageError, match="not the address of a coordinator"):
        CoordinatorClient(url, "t")


def test_a_driver_that_is_gone_is_reported_soon():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    client = CoordinatorClient(url, "t", patience_s=60)
    begun = time.monotonic()
    with pytest.raises(UnavailableError, match=r"doesn't answer /status: .*refused"):
        client.status()
    assert time.monotonic() - begun < 20, "refused connections don't use up the patience"
    client.close()


def test_silence_is_waited_for_within_bounds(silent):
    client = CoordinatorClient(silent, "t", timeout_s=0.1, patience_s=0.3)
    begun = time.monotonic()
    with pytest.raises(UnavailableError, match="timed out"):
        client.status()
    assert 0.1 < time.monotonic() - begun < 20
    client.close()


def test_tries_again_after_a_cut_and_a_busy_answer():
    refusal = m.encode(m.Refusal(error=m.ErrorReport(type="UnavailableError", message="busy")))
    url, thread = answering([b"", http_answer(503, refusal), http_answer(200, m.encode(m.Orders(drain=True)))])
    client = CoordinatorClient(url, "t")
    assert client.heartbeat(Process(0, "u").heartbeat(0)) == m.Orders(drain=True)
    client.close()
    thread.join()


def test_a_coordinator_that_is_away_for_a_while_is_reported_once_and_when_it_answers(caplog):
    caplog.set_level("INFO", logger="headrace.coordinator.client")
    refusal = m.encode(m.Refusal(error=m.ErrorReport(type="UnavailableError", message="busy")))
    busy = [http_answer(503, refusal)] * 3
    url, thread = answering([*busy, http_answer(200, m.encode(m.Orders()))])
    client = CoordinatorClient(url, "the token")
    assert client.heartbeat(Process(0, "u").heartbeat(0)) == m.Orders()
    client.close()
    thread.join()
    away, back = caplog.records
    assert (away.levelname, away.getMessage()) == ("WARNING", "the coordinator doesn't answer; trying again")
    assert (back.levelname, back.getMessage(), back.tries) == ("INFO", "the coordinator answers again", 4)
    assert "busy" in away.error
    assert away.at_most_s in (14, 15)
    assert "the token" not in str(vars(away))


def test_patience_ends_with_the_reason():
    refusal = m.encode(m.Refusal(error=m.ErrorReport(type="UnavailableError", message="the store is busy")))
    url, thread = answering([http_answer(503, refusal)])
    client = CoordinatorClient(url, "t", patience_s=0)
    with pytest.raises(UnavailableError, match="the store is busy"):
        client.status()
    client.close()
    thread.join()


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (http_answer(404, b"<html>"), ProtocolError, "answered /status with status 404 and an unreadable reason"),
        (http_answer(200, b"<html>"), ProtocolError, "not a message of type AppStatus"),
    ],
)
def test_a_server_that_is_no_coordinator_is_reported(answer, error, text):
    url, thread = answering([answer])
    client = CoordinatorClient(url, "t")
    with pytest.raises(error, match=text):
        client.status()
    client.close()
    thread.join()


def test_a_connection_is_kept(client, coordinator):
    client.status()
    kept = client._connection.sock
    client.status()
    assert client._connection.sock is kept


def test_a_kept_connection_that_was_cut_costs_no_pause(coordinator):
    client = CoordinatorClient(coordinator.url, coordinator.token, patience_s=0)  # no time for a pause
    client.status()
    client._connection.sock.shutdown(socket.SHUT_RDWR)
    assert client.status().app == "app"
    client.close()


def test_close_ends_a_call_in_another_thread(silent):
    client = CoordinatorClient(silent, "t", timeout_s=60, patience_s=60)
    ended = []

    def call():
        try:
            client.status()
        except UnavailableError as error:
            ended.append(error.message)

    thread = threading.Thread(target=call)
    thread.start()
    while client._connection is None or client._connection.sock is None:
        threading.Event().wait(0.001)
    client.close()
    thread.join(30)
    assert ended == [f"this client of the coordinator at {silent} was closed"]
    with pytest.raises(UnavailableError, match="was closed"):
        client.status()


DRIVER = """
import sys
sys.path[:0] = sys.argv[1:]
from conversation import new_ledger
from headrace.life.metadata import MemoryMetadata
from headrace.coordinator.server import Coordinator
coordinator = Coordinator(new_ledger(), MemoryMetadata())
coordinator.start()
print(coordinator.url, coordinator.token, flush=True)
coordinator.wait(60)
"""


def test_a_container_hears_of_its_drivers_death():
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(Path(__file__).parents[2])],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        client = CoordinatorClient(*driver.stdout.readline().split())
        process, lost, beaten = Process(0, "u0"), [], threading.Event()
        client.register(process.register())
        beats = iter(range(10**9))
        gone = threading.Event()

        def on_lost(error):
            lost.append(error)
            gone.set()

        thread = HeartbeatThread.over(
            client, lambda: process.heartbeat(next(beats)), lambda _: beaten.set(), on_lost, interval_s=0.05
        )
        thread.start()
        assert beaten.wait(30)
        driver.send_signal(signal.SIGKILL)
        assert gone.wait(30)
        thread.close()
        client.close()
        assert [type(error) for error in lost] == [UnavailableError]
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()


# -- the heartbeat thread ----------------------------------------------------------------------------------


class Beating:
    """A heartbeat thread of container 0, and what its callables were given."""

    def __init__(self, client, interval_s=60.0, snapshot=None):
        self.process = Process(0, "u0")
        client.register(self.process.register())
        self.sent = 0
        self.orders, self.lost = [], []
        self.happened = threading.Condition()
        self.thread = HeartbeatThread.over(client, snapshot or self.snapshot, self.on_orders, self.on_lost, interval_s)

    def snapshot(self):
        self.sent += 1
        return self.process.heartbeat(self.sent, task("a/0", rows_in=self.sent))

    def on_orders(self, orders):
        with self.happened:
            self.orders.append(orders)
            self.happened.notify_all()

    def on_lost(self, error):
        with self.happened:
            self.lost.append(error)
            self.happened.notify_all()

    def wait_for(self, reached):
        with self.happened:
            assert self.happened.wait_for(reached, 30)


def test_beats_at_once_at_intervals_and_when_poked(client, coordinator):
    beating = Beating(client)
    beating.thread.start()
    beating.wait_for(lambda: len(beating.orders) == 1)
    coordinator.drain()
    beating.thread.poke()
    beating.wait_for(lambda: len(beating.orders) == 2)
    beating.thread.close()
    assert beating.orders == [m.Orders(), m.Orders(drain=True)]
    assert coordinator.status().tasks[0].rows_in == 2

    beating = Beating(client, interval_s=0.01)
    beating.thread.start()
    beating.wait_for(lambda: len(beating.orders) >= 3)
    beating.thread.close()
    assert beating.lost == []


def test_a_superseded_container_is_notified_once(client):
    beating = Beating(client, interval_s=0.01)
    beating.thread.start()
    beating.wait_for(lambda: beating.orders)
    client.register(Process(0, "u0b", attempt=1).register())
    beating.wait_for(lambda: beating.lost)
    beating.thread.close()
    assert [type(error) for error in beating.lost] == [FencedError]


def test_a_snapshot_that_raises_ends_the_container(client):
    def broken():
        raise ZeroDivisionError("a defect")

    beating = Beating(client, snapshot=broken)
    beating.thread.start()
    beating.wait_for(lambda: beating.lost)
    beating.thread.close()
    assert [str(error) for error in beating.lost] == ["a defect"]


def test_close_is_prompt_in_the_middle_of_a_call(silent):
    asked = threading.Event()

    def snapshot():
        asked.set()
        return Process(0, "u0").heartbeat(0)

    lost = []
    client = CoordinatorClient(silent, "t", timeout_s=60, patience_s=60)
    thread = HeartbeatThread.over(client, snapshot, lambda _: None, lost.append, 60)
    thread.start()
    assert asked.wait(30)
    begun = time.monotonic()
    thread.close()
    thread.close()
    assert time.monotonic() - begun < 20
    assert lost == [], "the code that closes it needs no notice"
    client.close()


def test_close_before_start_is_fine(client):
    HeartbeatThread.over(client, lambda: Process(0, "u").heartbeat(0), lambda _: None, lambda _: None, 1).close()

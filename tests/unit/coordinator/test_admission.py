"""Nobody without the token can keep others away from the coordinator."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.coordinator.listener import STRANGERS_MAX, Admission, Listener

AUTHORIZED = {"authorization": "Bearer secret"}


def test_a_stranger_has_some_seconds_to_show_the_token() -> None:
    admission = Admission[str](known_max=10, stranger_s=5)
    assert admission.arrived("a", "here", 100) is None
    assert admission.arrived("b", "here", 102) is None
    assert admission.next_s() == 105
    assert admission.showed_token("b")
    assert admission.overdue(104.9) == []
    assert admission.overdue(200) == ["a"]
    assert not admission.showed_token("a")
    assert admission.showed_token("b")
    assert admission.next_s() is None


def test_the_oldest_of_the_address_with_the_most_goes() -> None:
    admission = Admission[str](known_max=10, strangers_max=3)
    admission.arrived("quiet", "there", 1)
    admission.arrived("first", "here", 2)
    admission.arrived("second", "here", 3)
    assert admission.arrived("third", "elsewhere", 4) == "first"
    assert not admission.showed_token("first")
    assert admission.showed_token("quiet")


def test_there_is_a_limit_for_known_ones_too() -> None:
    admission = Admission[int](known_max=2)
    for one in range(3):
        admission.arrived(one, "here", 1)
    assert [admission.showed_token(one) for one in range(3)] == [True, True, False]
    admission.left(0)
    admission.arrived(3, "here", 2)
    assert admission.showed_token(3)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["arrives", "shows", "leaves", "waits"]), st.integers(0, 9)), min_size=1, max_size=200
    )
)
@settings(max_examples=examples(300))
def test_a_known_connection_stays_until_it_leaves(steps: list[tuple[str, int]]) -> None:
    admission = Admission[int](known_max=5, strangers_max=4, stranger_s=3)
    known: set[int] = set()
    now, number = 0.0, 0
    for what, which in steps:
        match what:
            case "arrives":
                number += 1
                assert admission.arrived(number, f"host-{which % 3}", now) not in known
            case "shows" if number:
                one = max(1, number - which)
                stays = admission.showed_token(one)
                assert stays or one not in known
                known |= {one} if stays else set()
            case "leaves" if number:
                admission.left(max(1, number - which))
                known.discard(max(1, number - which))
            case _:
                now += which
                assert known.isdisjoint(admission.overdue(now))
        assert len(known) <= 5


@pytest.fixture
def admission() -> Admission[socket.socket]:
    return Admission(known_max=100, stranger_s=1.0)


@pytest.fixture
def listener(admission: Admission[socket.socket]) -> Iterator[Listener]:
    listener = Listener("127.0.0.1", 0, "secret", {("GET", "/"): lambda body: b"{}"}, admission=admission)
    listener.start()
    yield listener
    listener.close()


def test_a_client_gets_through_a_crowd(listener: Listener) -> None:
    with ExitStack() as stack:
        before = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=20)
        stack.callback(before.close)
        for number in range(4 * STRANGERS_MAX):
            if number == 10:
                before.request("GET", "/", headers=AUTHORIZED)
                assert before.getresponse().read() == b"{}"
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), 20))
        after = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=20)
        stack.callback(after.close)
        for connection in (after, before):  # a new one, and one that was there and is kept
            connection.request("GET", "/", headers=AUTHORIZED)
            assert connection.getresponse().read() == b"{}"


def test_one_that_sends_a_byte_now_and_then_is_cut(listener: Listener) -> None:
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", listener.port), 20) as dripping:
        dripping.settimeout(0.1)
        sent = 0
        while time.monotonic() - begun < 20:
            try:
                dripping.sendall(b"G")
                sent += 1
                if not dripping.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert 0.9 < time.monotonic() - begun < 15
    assert sent > 2


def test_without_the_token_a_connection_isnt_kept(listener: Listener) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=20)
    connection.request("GET", "/", headers={"authorization": "Bearer wrong"})
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("connection")) == (401, "close")
    connection.close()

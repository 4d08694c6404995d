"""Events: the whole, then changes; resumed, bounded, and ended."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from headrace.core.errors import UnavailableError
from headrace.operate.page import live as feeds
from headrace.operate.page.live import GRACE, KEPT, Feed


def parsed(data: bytes) -> tuple[str, str, Any]:
    """The id, the name and the data of an event."""
    fields = dict(line.split(": ", 1) for line in data.decode().strip().split("\n"))
    return fields.get("id", ""), fields["event"], json.loads(fields["data"])


@pytest.fixture
def feed():
    return Feed(lambda document: {"view": document})


def test_a_listener_gets_the_whole_and_then_what_changes(feed):
    feed.publish(lambda: {"a": 1, "b": 1})
    events = iter(feed.listen())
    _, name, data = parsed(next(events))
    assert (name, data) == ("whole", {"view": {"a": 1, "b": 1}})
    feed.publish(lambda: {"a": 2, "b": 1}, {"point": 7})
    assert parsed(next(events))[1:] == ("change", {"patch": {"a": 2}, "point": 7})


def test_one_that_was_cut_off_gets_what_it_has_missed(feed):
    feed.publish(lambda: {"a": 0})
    listening = feed.listen()
    last, _, _ = parsed(next(iter(listening)))
    listening.close()
    for number in (1, 2):
        feed.publish(lambda number=number: {"a": number})
    again = iter(feed.listen(last))
    assert [parsed(next(again))[2] for _ in range(2)] == [{"patch": {"a": 1}}, {"patch": {"a": 2}}]


def test_one_that_has_missed_too_much_gets_the_whole(feed):
    feed.publish(lambda: {"a": 0})
    other, slow = iter(feed.listen()), iter(feed.listen())
    next(other), next(slow)
    for number in range(1, KEPT + 2):
        feed.publish(lambda number=number: {"a": number})
    assert parsed(next(slow))[1:] == ("whole", {"view": {"a": KEPT + 1}})


@pytest.mark.parametrize("last", ["", "x", "cafe-3", "-1", "abcd-²", "0-99999999999999999999"])
def test_an_id_of_another_run_counts_for_nothing(feed, last):
    feed.publish(lambda: {"a": 1})
    assert parsed(next(iter(feed.listen(last))))[1] == "whole"


def test_no_document_is_made_while_nobody_listens(feed):
    made = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"a": len(made)}

    for _ in range(5):
        feed.publish(make)
    assert made == []
    listening = feed.listen()
    next(iter(listening))
    listening.close()
    for _ in range(3 * GRACE):
        feed.publish(make)
    assert len(made) <= GRACE + 1


def test_there_are_only_so_many_listeners():
    feed = Feed(lambda document: document, most=2)
    first, _ = feed.listen(), feed.listen()
    with pytest.raises(UnavailableError, match="2 pages are watching"):
        feed.listen()
    assert (feed.seen().watching, feed.seen().refused) == (2, 1)
    first.close()
    feed.listen()


def test_a_heartbeat_comes_if_nothing_changes(feed, monkeypatch):
    monkeypatch.setattr(feeds, "BEAT_S", 0.01)
    feed.publish(lambda: {"a": 1})
    events = iter(feed.listen())
    next(events)
    assert parsed(next(events))[1] == "beat"


def test_closing_wakes_listeners_and_gives_them_the_last_change(feed):
    feed.publish(lambda: {"a": 1})
    listening = feed.listen()
    got = []
    started = threading.Event()

    def read() -> None:
        for data in listening:
            got.append(parsed(data)[1])
            started.set()
        listening.close()

    thread = threading.Thread(target=read)
    thread.start()
    assert started.wait(10)
    feed.publish(lambda: {"a": 2})
    feed.close()
    thread.join(10)
    assert got[0] == "whole" and got[-1] == "end" and "change" in got
    assert feed.seen().watching == 0

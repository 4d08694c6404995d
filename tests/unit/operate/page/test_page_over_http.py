"""The live page over real connections: who may see it, its files, its events, and a clean end."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from headrace.coordinator.server import Coordinator
from headrace.life.metadata import MemoryMetadata
from headrace.operate.page.live import LivePage, page_token, page_url
from page_scene import ledger, rendered

TOKEN = "the-token-of-the-coordinator"


@pytest.fixture
def page() -> LivePage:
    return LivePage(rendered())


@pytest.fixture
def coordinator(page) -> Iterator[Coordinator]:
    threads = set(threading.enumerate())
    site = page.site(page_token(TOKEN))
    with Coordinator(ledger(), MemoryMetadata(), token=TOKEN, pages=site, watched=page.feed.seen) as coordinator:
        yield coordinator
    assert set(threading.enumerate()) <= threads


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.text = response.read().decode()


def get(coordinator: Coordinator, path: str, **headers: str) -> Answer:
    parts = urlsplit(coordinator.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def entered(coordinator: Coordinator) -> str:
    """The cookie of a browser that has opened the address."""
    url = urlsplit(page_url(coordinator.url, coordinator.token))
    return get(coordinator, f"{url.path}?{url.query}").headers["set-cookie"].partition(";")[0]


def events(
    coordinator: Coordinator, cookie: str, last: str = ""
) -> tuple[socket.socket, Iterator[tuple[str, str, dict]]]:
    parts = urlsplit(coordinator.url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)
    head = f"GET /dashboard/events HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\nLast-Event-ID: {last}\r\n\r\n"
    connection.sendall(head.encode())
    stream = connection.makefile("r", encoding="utf-8")
    names = {}
    for line in stream:
        if line in {"\n", "\r\n"}:
            break
        name, _, value = line.strip().partition(": ")
        names[name] = value
    assert (names["content-type"], names["x-accel-buffering"]) == ("text/event-stream", "no")

    def read() -> Iterator[tuple[str, str, dict]]:
        found: dict[str, str] = {}
        for line in stream:
            name, _, value = line.strip().partition(": ")
            if name:
                found[name] = value
            elif found:
                yield found.get("id", ""), found["event"], json.loads(found["data"])
                found = {}

    return connection, read()


def test_the_token_becomes_a_cookie_and_leaves_the_address(coordinator):
    url = urlsplit(page_url(coordinator.url, coordinator.token))
    answer = get(coordinator, f"{url.path}?{url.query}")
    assert (answer.status, answer.headers["location"]) == (303, "/dashboard")
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert set(attributes) == {"Path=/dashboard", "HttpOnly", "SameSite=Strict"}
    shown = get(coordinator, "/dashboard", Cookie=f"other=1; {cookie}")
    assert shown.status == 200
    assert "stage views" in shown.text
    policy = shown.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert shown.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard?token=wrong", "/dashboard/events", "/dashboard/live.js"])
def test_without_the_token_a_page_says_what_to_do(coordinator, path):
    answer = get(coordinator, path)
    assert answer.status == 401
    assert "headrace dashboard views" in answer.text
    assert "stage views" not in answer.text


@pytest.mark.parametrize("cookie", ["headrace-x=1", '"', "=; ;", "headrace-\x7f=é"])
def test_strange_cookies_are_refused(coordinator, cookie):
    assert get(coordinator, "/dashboard", Cookie=cookie.encode("latin-1").decode("latin-1")).status == 401


def test_the_token_of_the_page_lets_nobody_do_anything(coordinator):
    token = page_token(TOKEN)
    assert token not in TOKEN and TOKEN not in token
    assert get(coordinator, "/status", Authorization=f"Bearer {token}").status == 401
    assert get(coordinator, "/status", Cookie=entered(coordinator)).status == 401
    assert get(coordinator, "/status", Authorization=f"Bearer {TOKEN}").status == 200


def test_a_page_needs_nothing_from_elsewhere(coordinator):
    cookie = entered(coordinator)
    index = get(coordinator, "/dashboard", Cookie=cookie).text
    assert "<script>" not in index and "<style" not in index
    for name in ("live.js", "charts.js", "words.js", "plan_page.js", "live.css", "plan_page.css"):
        answer = get(coordinator, f"/dashboard/{name}", Cookie=cookie)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/javascript" if name.endswith("js") else "text/css")
        assert "http://" not in answer.text.replace("http://www.w3.org/", "") and "https://" not in answer.text
    assert get(coordinator, "/dashboard/../etc/passwd", Cookie=cookie).status == 404


def test_events_begin_with_the_whole_and_go_on(coordinator, page):
    page.look(coordinator.status())
    connection, stream = events(coordinator, entered(coordinator))
    last, name, data = next(stream)
    assert name == "whole"
    assert len(data["history"]) == 1
    assert set(data["view"]["tasks"]) == {"views/0", "views/1", "by-member/0", "by-member/1"}
    assert coordinator.status().pages.watching == 1
    coordinator.drain()
    page.look(coordinator.status())
    later, name, data = next(stream)
    assert (name, data["patch"]["app"]) == ("change", {"state": "draining"})
    assert "t" in data["point"]
    again, resumed = events(coordinator, entered(coordinator), last)
    assert next(resumed)[:2] == (later, "change")
    connection.close()
    again.close()


def test_the_last_state_is_sent_at_the_end(coordinator, page):
    page.look(coordinator.status())
    connection, stream = events(coordinator, entered(coordinator))
    assert next(stream)[1] == "whole"
    coordinator.fail(ValueError("broken"))
    page.end(coordinator.status())
    found = list(stream)
    connection.close()
    assert found[0][2]["patch"]["app"] == {"state": "failed"}
    assert found[-1][1] == "end"


def test_too_many_pages_are_refused_and_counted(coordinator, page):
    page.look(coordinator.status())
    kept = [events(coordinator, entered(coordinator)) for _ in range(16)]
    for _, stream in kept:
        next(stream)
    answer = get(coordinator, "/dashboard/events", Cookie=entered(coordinator))
    assert answer.status == 503
    assert "16 pages are watching" in answer.text
    assert coordinator.status().pages.refused == 1
    for connection, _ in kept:
        connection.close()


def test_a_listener_that_takes_nothing_is_dropped(coordinator, page, monkeypatch):
    from headrace.coordinator import listener

    monkeypatch.setattr(listener, "SLOW_S", 0.05)
    page.look(coordinator.status())
    big = {"x": "y" * 4_000_000}
    gone = threading.Event()
    leave = page.feed.leave
    monkeypatch.setattr(page.feed, "leave", lambda: (leave(), gone.set()))
    connection, stream = events(coordinator, entered(coordinator))
    next(stream)
    for number in range(10):
        page.feed.publish(lambda number=number: {"n": number, **big, "more": f"{number}{big}"})
    assert gone.wait(20)
    connection.close()


def test_trouble_with_the_page_is_no_trouble_of_the_app(coordinator, page, monkeypatch):
    page.look(coordinator.status())
    monkeypatch.setattr(page, "look", lambda status: 1 / 0)
    page.end(coordinator.status())
    assert get(coordinator, "/status", Authorization=f"Bearer {TOKEN}").status == 200
    assert page.feed.seen().watching == 0

"""The live page of an app and that of all apps: files, events, and questions to containers.

A page gets server-sent events: a document, first as a whole and then as changes. One thread publishes. Each listener
has a thread of its own, which takes events from the feed and may block on its connection; a listener that is too slow
for the events that are kept gets the whole document again, and the connection's timeout drops one that takes nothing.
Without listeners, nothing is kept, and no document is made.

A question to containers is answered at once with the result so far, so the page asks again until the answer is
complete. The connection's thread waits for the containers, for some seconds at most.

A page has its own token, which allows no actions: it is derived from the coordinator's, and can't be turned back into
that. It comes in the address that is printed, becomes a cookie, and leaves the address by a redirect. Cookies are sent
to all ports of a host, so each page has another name for its one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from math import ceil
from pathlib import PurePosixPath
from string import Template
from typing import Any

import msgspec
from typing_extensions import override

from headrace.coordinator.listener import EventStream, Response, Visit
from headrace.coordinator.messages import AppStatus, PagesStatus
from headrace.coordinator.watchers import WatchedRun, Watcher
from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, UnavailableError, UsageError
from headrace.core.log import Throttle, logger
from headrace.core.worker import RepeatedStep
from headrace.life.startpoints import StartpointState
from headrace.operate.diagnosis import held_back
from headrace.operate.page.view import Between, Document, History, PlanFacts, Sample, difference, point_of, view_of
from headrace.plan.model import Plan
from headrace.plan.render import RenderedPlan, render
from headrace.run.looks import Asking, as_collapsed, peek, profile

_ID = re.compile(r"[a-zA-Z0-9-]{1,40}")


class Desk:
    """Answers the questions of pages, once it is connected. Safe from any thread."""

    def __init__(self, *, peek: bool) -> None:
        self.peek = peek
        self._run: tuple[Asking, Callable[[], AppStatus]] | None = None

    def connect(self, ask: Asking, status: Callable[[], AppStatus]) -> None:
        self._run = ask, status

    def answer(self, what: str, query: Mapping[str, str]) -> Response | None:
        """Answer a question; return None for an unknown one."""
        if what not in ("peek", "profile"):
            return None
        try:
            if self._run is None:
                raise UnavailableError("the app is only starting", hint="try again in a moment")
            ask, status = self._run
            return _peeked(ask, status(), query) if what == "peek" else _profiled(ask, status(), query)
        except HeadraceError as error:
            return Response(msgspec.json.encode({"error": error.message, "hint": error.hint}))


def _peeked(ask: Asking, status: AppStatus, query: Mapping[str, str]) -> Response:
    found = peek(ask, status, query.get("step", ""), _id(query), query.get("stage"))
    rows = [[task, *row] for task, row in found.rows]
    return Response(msgspec.json.encode({"columns": ["task", *found.columns], "rows": rows, "over": found.over}))


def _profiled(ask: Asking, status: AppStatus, query: Mapping[str, str]) -> Response:
    container = _number(query, "container")
    found = profile(ask, status, container, _number(query, "seconds"), _id(query))
    if query.get("as") != "collapsed":
        return Response(msgspec.json.encode(found))
    name = f"{status.app}-container-{container}.collapsed.txt"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(as_collapsed(found).encode(), "text/plain; charset=utf-8", headers=headers)


def _id(query: Mapping[str, str]) -> str:
    if not _ID.fullmatch(query.get("id", "")):
        raise UsageError("the question has no id")
    return query["id"]


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise UsageError(f"{name}={text[:20]!r} isn't a number")
    return int(text)


MOST_LISTENERS = 16
KEPT = 120  # so many events are kept for listeners that were cut off, and come back
GRACE = 30  # for so many more changes a document is kept when the last listener has left, who may have been cut off
BEAT_S = 5.0  # if nothing has changed for this long, listeners get a heartbeat
_ENCODER = msgspec.json.Encoder()


class Feed:
    """A document and its listeners. Thread-safe: ``whole`` is called on listeners' threads, under a lock."""

    def __init__(self, whole: Callable[[Document], Document], *, most: int = MOST_LISTENERS) -> None:
        self._whole, self._most = whole, most
        self._run = secrets.token_hex(4)
        self._changed = threading.Condition()
        self._document: Document | None = None
        self._make: Callable[[], Document] | None = None  # makes the present document, unless it exists
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._listening = self._refused = 0
        self._alone = GRACE  # the number of changes without listeners
        self._closed = False

    def seen(self) -> PagesStatus:
        with self._changed:
            return PagesStatus(watching=self._listening, refused=self._refused)

    def publish(self, make: Callable[[], Document], more: Mapping[str, Any] | None = None) -> None:
        """Take a new state of the document. ``more`` goes to present listeners along with the changes."""
        with self._changed:
            self._alone = 0 if self._listening else self._alone + 1
            if self._alone > GRACE or self._document is None:
                self._document, self._make = None, make
                self._kept.clear()
                self._number += 1  # earlier documents are no longer a basis for changes
                self._changed.notify_all()
                return
            document = make()
            patch = difference(self._document, document)
            self._document = document
            if not patch and not more:
                return
            self._number += 1
            data = _ENCODER.encode({"patch": patch, **(more or {})})
            self._kept.append((self._number, event("change", data, self._id)))
            self._changed.notify_all()

    def close(self, timeout_s: float = 1.0) -> None:
        """End all events; wait a moment, so that listeners get the last ones. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._listening, timeout_s)

    def listen(self, last: str = "") -> Subscription:
        """Return a new listener. ``last`` is the id of the last event that it has got."""
        run, _, number = last.partition("-")
        at = int(number) if run == self._run and number.isascii() and number.isdigit() else -1
        with self._changed:
            if self._listening >= self._most:
                self._refused += 1
                raise UnavailableError(
                    f"{self._most} pages are watching this app already", hint="close one of them; this one tries again"
                )
            self._listening += 1
            self._alone = 0
        return Subscription(self, at)

    def next(self, at: int) -> tuple[list[bytes], int, bool]:
        """Wait for events after number ``at``. Return them, the number of the last one, and whether that is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_news(at), BEAT_S)
            news, at = self._news(at)
            return news, at, self._closed

    def leave(self) -> None:
        with self._changed:
            self._listening -= 1
            self._changed.notify_all()

    def _has_news(self, at: int) -> bool:
        return (self._document is not None or self._make is not None) and at != self._number

    def _news(self, at: int) -> tuple[list[bytes], int]:
        """Return the events for a listener that has seen event ``at``: later ones, or the whole if they aren't kept."""
        if not self._has_news(at):
            return [], at
        if self._document is None and self._make is not None:
            self._document = self._make()
        later = [data for number, data in self._kept if number > at]
        if 0 <= at < self._number and len(later) == self._number - at:
            return later, self._number
        data = _ENCODER.encode(self._whole(self._document or {}))
        return [event("whole", data, self._id)], self._number

    @property
    def _id(self) -> str:
        return f"{self._run}-{self._number}"


class Subscription:
    """The events for one listener."""

    def __init__(self, feed: Feed, at: int) -> None:
        self._feed, self._at = feed, at

    def __iter__(self) -> Iterator[bytes]:
        ended = False
        while not ended:
            news, self._at, ended = self._feed.next(self._at)
            yield from news or [event("beat", b"{}")]
        yield event("end", b"{}")

    def close(self) -> None:
        self._feed.leave()


def event(name: str, data: bytes, id_: str = "") -> bytes:
    """Return a server-sent event. JSON has no line breaks, so the data is one line."""
    head = f"id: {id_}\n" if id_ else ""
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"


PATH = "/dashboard"
INDEX = "index.html"

_TYPES = {
    ".css": "text/css; charset=utf-8", ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
}  # fmt: skip
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)  # no script and no style but its own files; attributes place the boxes of the plan
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def page_token(token: str) -> str:
    """Return the token with which a browser may look at what a coordinator with this token shows."""
    return hmac.new(token.encode(), b"headrace page", hashlib.sha256).hexdigest()[:40]


def page_url(url: str, token: str) -> str:
    return f"{url}{PATH}?token={page_token(token)}"


class Site:
    """A page, its files (texts by name) and its events. ``token`` opens it; ``help_`` says how to get its address."""

    def __init__(
        self,
        token: str,
        files: Callable[[], Mapping[str, str]],
        feed: Feed,
        help_: str,
        ask: Callable[[str, Mapping[str, str]], Response | None] = lambda what, query: None,
    ) -> None:
        """``ask`` answers what the page asks, by the name below it."""
        self._token, self._make, self._feed, self._help, self._ask = token, files, feed, help_, ask
        self._cookie = f"headrace-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    def owns(self, path: str) -> bool:
        return path == PATH or path.startswith(f"{PATH}/")

    def knows(self, visit: Visit) -> bool:
        given = visit.query.get("token", "") if visit.path == PATH else ""
        return any(hmac.compare_digest(one.encode(), self._token.encode()) for one in (given, self._in_cookie(visit)))

    def answer(self, visit: Visit) -> Response | EventStream:
        if visit.path == PATH and "token" in visit.query:
            cookie = f"{self._cookie}={self._token}; Path={PATH}; HttpOnly; SameSite=Strict"
            headers = {**_HEADERS, "location": PATH, "set-cookie": cookie}
            return Response(b"", "text/plain; charset=utf-8", HTTPStatus.SEE_OTHER, headers)
        if visit.path == f"{PATH}/events":
            return self._feed.listen(visit.query.get("after", "") or visit.last_event)
        name = INDEX if visit.path == PATH else visit.path.removeprefix(f"{PATH}/")
        if (answer := self._ask(name, visit.query)) is not None:
            return replace(answer, headers={**_HEADERS, **answer.headers})
        text = self._files.get(name)
        if text is None:
            return Response(b"there is no such page\n", "text/plain; charset=utf-8", HTTPStatus.NOT_FOUND, _HEADERS)
        return Response(text.encode(), _TYPES[PurePosixPath(name).suffix], headers=_HEADERS)

    def refusal(self, visit: Visit) -> Response:
        from headrace.operate.page.plan_page import asset

        del visit
        body = Template(asset("refused.html")).substitute(help=escape(self._help))
        return Response(body.encode(), _TYPES[".html"], HTTPStatus.UNAUTHORIZED, _HEADERS)

    def close(self) -> None:
        self._feed.close()

    @cached_property
    def _files(self) -> Mapping[str, str]:
        return self._make()

    def _in_cookie(self, visit: Visit) -> str:
        try:
            found = SimpleCookie(visit.cookie).get(self._cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value


EVERY_S = 1.0
TASKS_A_SECOND = 100  # with more tasks, checks are rarer, because a page isn't worth one percent of a processor
RECENT = 4  # rates are those of so many looks: containers report twice a second, at other moments than these

_log = logger(__name__)


class LivePage:
    """The contents of an app's pages. Only one thread calls ``look``."""

    def __init__(self, plan: RenderedPlan, *, peek: bool = False) -> None:
        self.desk = Desk(peek=peek)
        self._plan = plan
        self._facts = PlanFacts.of(plan)
        self._clock = WallClock()
        self._history = History()
        self._throttle = Throttle(_log)
        self._lock = threading.Lock()  # guards the history, which threads of listeners read
        self._samples: deque[Sample] = deque(maxlen=RECENT)
        self.tasks = plan.tasks()
        self.feed = Feed(self._whole)

    def site(self, token: str) -> Site:
        help_ = f"run: headrace dashboard {self._plan.app}"
        return Site(token, self._page, self.feed, help_, self.desk.answer)

    def look(self, status: AppStatus) -> None:
        now_ms = self._clock.now_ms()
        sample = Sample.of(status, self._clock.monotonic_ms(), self._samples[-1] if self._samples else None)
        self._samples.append(sample)
        before = self._samples[-2] if len(self._samples) > 1 else sample
        recent, last = Between(self._samples[0], sample), Between(before, sample)
        point = point_of(self._facts, status, recent, last, now_ms)
        with self._lock:
            self._history.add(point)
        self.feed.publish(lambda: view_of(self._facts, status, recent, now_ms), {"point": point})

    def end(self, status: AppStatus) -> None:
        """Show the last status, and end all events. Called when no other thread looks any more."""
        self.try_to_look(status)
        self.feed.close()

    def try_to_look(self, status: AppStatus) -> None:
        """Check the status; if that fails, only log, because a page must not end the app."""
        try:
            self.look(status)
        except Exception as error:  # noqa: BLE001 - whatever it is, the app goes on
            self._throttle.warning("the live page can't be updated", error=repr(error))

    def _whole(self, document: Document) -> Document:
        with self._lock:
            return {"view": document, "history": self._history.points()}

    def _page(self) -> Mapping[str, str]:
        from headrace.operate.page.plan_page import live_files

        return live_files(self._plan, peek=self.desk.peek)


class Looking(RepeatedStep):
    """A thread that looks at the status every second, or more rarely if there are very many tasks."""

    def __init__(self, page: LivePage, status: Callable[[], AppStatus]) -> None:
        super().__init__("headrace-live-page", EVERY_S * max(1, ceil(page.tasks / TASKS_A_SECOND)))
        self._page, self._status = page, status

    @override
    def step(self) -> bool:
        self._page.try_to_look(self._status())
        return True


class PageWatcher(Watcher):
    """The live page as the coordinator has it."""

    def __init__(self, plan: Plan, token: str) -> None:
        self._page = LivePage(render(plan), peek=plan.graph.settings.peek)
        self.pages = self._page.site(page_token(token))

    @override
    def watching(self) -> PagesStatus:
        return self._page.feed.seen()

    @override
    def threads(self, run: WatchedRun) -> Sequence[Looking]:
        self._page.desk.connect(run.ask, run.status)
        return [Looking(self._page, run.status)]

    @override
    def greeting(self, url: str, token: str) -> str:
        return f"live page: {page_url(url, token)}"

    @override
    def end(self, ending: AppStatus) -> None:
        self._page.end(ending)


OVERVIEW_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Deployed:
    """The status of a deployment, the address of its page if it runs, and its app's open startpoints."""

    status: AppStatus
    url: str | None = None
    startpoints: tuple[StartpointState, ...] = ()


def overview_of(place: str, found: Sequence[Deployed], now_ms: int) -> Document:
    return {"place": place, "now": now_ms, "apps": [_app(one) for one in found]}


def _app(one: Deployed) -> Document:
    status = one.status
    open_ = [stage for stage in status.stages if stage.finished < stage.tasks]
    marks = [stage.watermark for stage in open_ if stage.watermark is not None and stage.idle < stage.tasks]
    shown = {
        "name": status.app, "state": status.state, "url": one.url, "started": status.started_at,
        "ended": status.ended_at, "stages": ", ".join(stage.name for stage in status.stages),
        "rate": round(sum(stage.rows_per_second for stage in status.stages), 1),
        "lag": sum(stage.lag or 0 for stage in status.stages), "watermark": min(marks, default=None),
        "tasks": len(status.tasks), "containers": len(status.containers),
        "held": any(held_back(task) for task in status.tasks if task.state != "finished") or None,
        "trouble": None if status.error is None else status.error.message,
        "hint": None if status.error is None else status.error.hint,
        "startpoints": [state.in_words for state in one.startpoints] or None,
    }  # fmt: skip
    return {name: value for name, value in shown.items() if value is not None}


class Overview(RepeatedStep):
    """Checks all apps repeatedly, and feeds the page; ``found`` asks them."""

    def __init__(self, place: str, found: Callable[[], Sequence[Deployed]]) -> None:
        super().__init__("headrace-overview", OVERVIEW_EVERY_S)
        self._place, self._found = place, found
        self._clock = WallClock()
        self._throttle = Throttle(_log)
        self.feed = Feed(lambda document: {"view": document})
        self.step()

    def site(self, token: str) -> Site:
        from headrace.operate.page.plan_page import overview_files

        return Site(token, overview_files, self.feed, "run: headrace dashboard")

    @override
    def step(self) -> bool:
        try:
            found = self._found()
        except HeadraceError as error:  # the next check may succeed
            self._throttle.warning("can't look at the apps", error=error.message)
            return True
        document = overview_of(self._place, found, self._clock.now_ms())
        self.feed.publish(lambda: document)
        return True

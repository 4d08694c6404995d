"""The access to a page, and its files.

A page has its own token, which allows no actions: it is derived from the coordinator's, and can't be turned back
into that. It comes in the address that is printed, becomes a cookie, and leaves the address by a redirect. Cookies are
sent to all ports of a host, so each page has another name for its one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import PurePosixPath

from headrace.runners.coordination.listener import Answer, Events, Visit
from headrace.runners.dashboard.feed import Feed

PATH = "/dashboard"
INDEX = "index.html"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No script and no style but its own files. Attributes place the boxes of the plan."""

_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def page_token(token: str) -> str:
    """The token with which a browser may look at what a coordinator with this token shows."""
    return hmac.new(token.encode(), b"headrace page", hashlib.sha256).hexdigest()[:40]


def page_url(url: str, token: str) -> str:
    """The address of the page of a coordinator at ``url`` with ``token``."""
    return f"{url}{PATH}?token={page_token(token)}"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file for the browser."""

    body: bytes
    content_type: str

    @classmethod
    def of(cls, name: str, text: str) -> Asset:
        """A text file; its name says what it is."""
        return cls(text.encode(), _TYPES[PurePosixPath(name).suffix])


class Site:
    """A page, its files and its events. ``token`` opens it. ``help_`` says how to get an address that works."""

    def __init__(
        self,
        token: str,
        files: Callable[[], Mapping[str, Asset]],
        feed: Feed,
        help_: str,
        ask: Callable[[str, Mapping[str, str]], Answer | None] = lambda what, query: None,
    ) -> None:
        """``ask`` answers what the page asks, by the name below it."""
        self._ask = ask
        self._token = token
        self._make = files
        self._feed = feed
        self._help = help_
        self._cookie = f"headrace-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    def owns(self, path: str) -> bool:
        """Whether it is the page, or below it."""
        return path == PATH or path.startswith(f"{PATH}/")

    def knows(self, visit: Visit) -> bool:
        """Whether the token is in the address or in the cookie."""
        given = visit.query.get("token", "") if visit.path == PATH else ""
        return self._is_token(given) or self._is_token(self._in_cookie(visit.cookie))

    def answer(self, visit: Visit) -> Answer | Events:
        """The page, one of its files, or its events."""
        if visit.path == PATH and "token" in visit.query:
            return self._enter()
        if visit.path == f"{PATH}/events":
            return Events(self._feed.listen(visit.query.get("after", "") or visit.last_event))
        name = INDEX if visit.path == PATH else visit.path.removeprefix(f"{PATH}/")
        if (answer := self._ask(name, visit.query)) is not None:
            return replace(answer, headers={**_HEADERS, **answer.headers})
        asset = self._files.get(name)
        if asset is None:
            return Answer(b"there is no such page\n", "text/plain; charset=utf-8", HTTPStatus.NOT_FOUND, _HEADERS)
        return Answer(asset.body, asset.content_type, headers=_HEADERS)

    def refusal(self, visit: Visit) -> Answer:
        """A page that says what to do."""
        del visit
        body = _REFUSED.format(help=escape(self._help))
        return Answer(body.encode(), _TYPES[".html"], HTTPStatus.UNAUTHORIZED, _HEADERS)

    def close(self) -> None:
        """End all events."""
        self._feed.close()

    @cached_property
    def _files(self) -> Mapping[str, Asset]:
        return self._make()

    def _enter(self) -> Answer:
        """Keep the token in the browser and out of its history."""
        cookie = f"{self._cookie}={self._token}; Path={PATH}; HttpOnly; SameSite=Strict"
        headers = {**_HEADERS, "location": PATH, "set-cookie": cookie}
        return Answer(b"", "text/plain; charset=utf-8", HTTPStatus.SEE_OTHER, headers)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _in_cookie(self, header: str) -> str:
        try:
            found = SimpleCookie(header).get(self._cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value


_REFUSED = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headrace: the token is missing</title>
</head>
<body>
<h1>This page needs its token</h1>
<p>The token is missing or wrong: it changes each time the app starts.</p>
<p>To get an address that works, {help}, and open the address that it prints.</p>
<p>If a link of another site has led you here, <a href="/dashboard">try again</a>.</p>
</body>
</html>
"""

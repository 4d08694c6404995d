"""The questions that a page may ask running containers: incoming rows of a step, if the app allows it, and profiles.

Each question is answered at once with the result so far, so the page asks again until the answer is complete. The
connection's thread waits for the containers, for some seconds at most.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from headrace.core.errors import HeadraceError, UnavailableError, UsageError
from headrace.runners.coordination.listener import Answer
from headrace.runners.coordination.messages import AppStatus
from headrace.runners.looks.asking import Asking, as_collapsed, peek, profile

_ID = re.compile(r"[a-zA-Z0-9-]{1,40}")


class Desk:
    """Answers the questions of pages, once it is connected. Safe from any thread."""

    def __init__(self, *, peek: bool) -> None:
        self.peek = peek
        self._ask: Asking | None = None
        self._status: Callable[[], AppStatus] | None = None

    def connect(self, ask: Asking, status: Callable[[], AppStatus]) -> None:
        """From now on ask running containers."""
        self._status = status
        self._ask = ask

    def answer(self, what: str, query: Mapping[str, str]) -> Answer | None:
        """Answer a question; return None for an unknown one."""
        if what not in ("peek", "profile"):
            return None
        try:
            ask, status = self._ask, self._status
            if ask is None or status is None:
                raise UnavailableError("the app is only starting", hint="try again in a moment")
            return self._peeked(ask, status(), query) if what == "peek" else self._profiled(ask, status(), query)
        except HeadraceError as error:
            return _json({"error": error.message, "hint": error.hint})

    def _peeked(self, ask: Asking, status: AppStatus, query: Mapping[str, str]) -> Answer:
        found = peek(ask, status, query.get("step", ""), _id(query), query.get("stage"))
        rows = [[task, *row] for task, row in found.rows]
        return _json({"columns": ["task", *found.columns], "rows": rows, "over": found.over})

    def _profiled(self, ask: Asking, status: AppStatus, query: Mapping[str, str]) -> Answer:
        container, seconds, id_ = _number(query, "container"), _number(query, "seconds"), _id(query)
        found = profile(ask, status, container, seconds, id_)
        if query.get("as") != "collapsed":
            return _json(msgspec.to_builtins(found))
        name = f"{status.app}-container-{container}.collapsed.txt"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Answer(as_collapsed(found).encode(), "text/plain; charset=utf-8", headers=headers)


def _id(query: Mapping[str, str]) -> str:
    if not _ID.fullmatch(query.get("id", "")):
        raise UsageError("the question has no id")
    return query["id"]


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise UsageError(f"{name}={text[:20]!r} isn't a number")
    return int(text)


def _json(data: object) -> Answer:
    return Answer(msgspec.json.encode(data))

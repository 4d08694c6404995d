"""Server-sent events: a document to a few listeners, first as a whole and then as changes. Thread-safe.

One thread publishes. Each listener has a thread of its own, which takes events from here and may block on its
connection; a listener that is too slow for the events that are kept gets the whole document again, and the connection's
timeout drops one that takes nothing. Without listeners, nothing is kept, and no document is made.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.core.errors import UnavailableError
from headrace.runners.dashboard.patch import Document, difference

MOST_LISTENERS = 16
KEPT = 120
"""How many events are kept for listeners that were cut off, and come back."""

GRACE = 30
"""How many more changes a document is kept for after the last listener has left, who may have been cut off."""

BEAT_S = 5.0
"""If nothing has changed for this long, listeners get a heartbeat."""

_ENCODER = msgspec.json.Encoder()


class Seen(NamedTuple):
    """The number of present listeners, and of those refused because of the limit."""

    listening: int
    refused: int


class Feed:
    """A document and its listeners.

    ``whole`` makes the first event's data of the present document. It is called on listeners' threads, under a lock.
    """

    def __init__(self, whole: Callable[[Document], Document], *, most: int = MOST_LISTENERS) -> None:
        self._whole = whole
        self._most = most
        self._run = secrets.token_hex(4)
        self._changed = threading.Condition()
        self._document: Document | None = None
        self._make: Callable[[], Document] | None = None
        """Make the present document, unless it exists."""
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._listening = 0
        self._refused = 0
        self._alone = GRACE
        """The number of changes without listeners."""
        self._closed = False

    @property
    def seen(self) -> Seen:
        """How listeners have fared."""
        with self._changed:
            return Seen(self._listening, self._refused)

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

    def listen(self, last: str = "") -> Listening:
        """A new listener. ``last`` is the id of the last event that it has got.

        Raises ``UnavailableError`` if there are too many.
        """
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
        return Listening(self, at)

    def next(self, at: int) -> tuple[list[bytes], int, bool]:
        """Wait for events after number ``at``. Return them, the number of the last one, and whether that is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_news(at), BEAT_S)
            news, at = self._news(at)
            return news, at, self._closed

    def leave(self) -> None:
        """Note that a listener has left."""
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


class Listening:
    """The events for one listener."""

    def __init__(self, feed: Feed, at: int) -> None:
        self._feed = feed
        self._at = at

    def __iter__(self) -> Iterator[bytes]:
        """Yield events as they come, and heartbeats, until the feed is closed."""
        ended = False
        while not ended:
            news, self._at, ended = self._feed.next(self._at)
            yield from news or [event("beat", b"{}")]
        yield event("end", b"{}")

    def close(self) -> None:
        """Make room for others."""
        self._feed.leave()


def event(name: str, data: bytes, id_: str = "") -> bytes:
    """A server-sent event. JSON has no line breaks, so the data is one line."""
    head = f"id: {id_}\n" if id_ else ""
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"

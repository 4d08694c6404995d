"""Decide which connections may stay: those that have shown the token, and briefly some that haven't. Pure.

Any client that reaches the port can open connections and send nothing, or a byte now and then. So a connection that
hasn't shown the token, a *stranger*, must show it within a few seconds. If there are too many strangers, the oldest one
of the address with the most is closed. So no client can take the places of others, and containers need no reserved
places.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, NamedTuple, TypeVar

STRANGERS_MAX = 128
STRANGER_S = 5.0
"""How long a connection has to show the token."""

C = TypeVar("C")


class _Stranger(NamedTuple):
    address: str
    until: float


class Admission(Generic[C]):
    """The connections of a server. The caller has the clock, closes connections, and holds a lock."""

    def __init__(self, known_max: int, strangers_max: int = STRANGERS_MAX, stranger_s: float = STRANGER_S) -> None:
        self._known_max = known_max
        self._strangers_max = strangers_max
        self._stranger_s = stranger_s
        self._strangers: dict[C, _Stranger] = {}  # in order of arrival
        self._known: set[C] = set()

    def arrived(self, connection: C, address: str, now_s: float) -> C | None:
        """Add a new connection. Return the connection to close for it, if one has to make room."""
        gone = None
        if len(self._strangers) >= self._strangers_max:
            counts = Counter(stranger.address for stranger in self._strangers.values())
            ((crowded, _),) = counts.most_common(1)
            gone = next(one for one, stranger in self._strangers.items() if stranger.address == crowded)
            del self._strangers[gone]
        self._strangers[connection] = _Stranger(address, now_s + self._stranger_s)
        return gone

    def showed_token(self, connection: C) -> bool:
        """Note that the connection has shown the token. Return whether it may stay, because even these are limited."""
        if connection in self._known:
            return True
        if self._strangers.pop(connection, None) is None or len(self._known) >= self._known_max:
            return False
        self._known.add(connection)
        return True

    def left(self, connection: C) -> None:
        """Note that the connection is closed."""
        self._strangers.pop(connection, None)
        self._known.discard(connection)

    def overdue(self, now_s: float) -> list[C]:
        """Return and forget the strangers whose time is over."""
        late = [one for one, stranger in self._strangers.items() if stranger.until <= now_s]
        for one in late:
            del self._strangers[one]
        return late

    def next_s(self) -> float | None:
        """Return when the next stranger is overdue; None if there are no strangers."""
        return next((stranger.until for stranger in self._strangers.values()), None)

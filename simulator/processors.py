"""What simulated tasks do with messages, and how their final state is checked.

A ``Processor`` sees messages, the rising watermark and the end, keeps its state in the task's store and hands
results to the task. Any operator chain can stand in its place. These here differ at each attempt, on purpose: where
results go, and how many there are, is drawn again, so that a replay never hides a doubled effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from typing_extensions import override

from simulator.world import World

WINDOW = 40


class Port(Protocol):
    """What a processor may ask of its task."""

    world: World

    def get(self, key: str) -> int:
        """A value of the store; 0 when there is none."""
        ...

    def put(self, key: str, value: int | None) -> None:
        """Set a value; None removes it."""
        ...

    def names(self) -> list[str]:
        """All keys of the store."""
        ...

    def emit(self, key: int, time: int) -> None:
        """Send a message on, to whichever stream and partition chance will have."""
        ...


class Processor:
    """Passes messages on: none, one or two for each."""

    def __init__(self, port: Port) -> None:
        self.port = port

    def message(self, stream: str, key: int, time: int) -> None:
        """Take a message."""
        for _ in range(self.port.world.chance.choice((0, 1, 1, 1, 2))):
            self.port.emit(key, time)

    def watermark(self, time: int) -> None:
        """Nothing older will come."""

    def end(self) -> None:
        """Nothing will come."""

    @classmethod
    def check(cls, state: dict[str, int], consumed: Iterable[tuple[str, int]]) -> str | None:
        """What is wrong with the state after these messages (stream, key)? None: nothing."""
        return f"a stateless task has state: {state}" if state else None


class Count(Processor):
    """Counts messages by key."""

    @override
    def message(self, stream: str, key: int, time: int) -> None:
        self.port.put(f"n{key}", self.port.get(f"n{key}") + 1)
        if self.port.world.chance.random() < 0.8:
            self.port.emit(key, time)

    @classmethod
    @override
    def check(cls, state: dict[str, int], consumed: Iterable[tuple[str, int]]) -> str | None:
        expected = {f"n{key}": count for key, count in Counter(key for _, key in consumed).items()}
        return None if state == expected else f"counted {state}, committed {expected}"


class Window(Processor):
    """Counts messages in tumbling windows; a window leaves when the watermark has passed it."""

    @override
    def message(self, stream: str, key: int, time: int) -> None:
        name = f"w{time // WINDOW}"
        self.port.put(name, self.port.get(name) + 1)

    @override
    def watermark(self, time: int) -> None:
        for name in self.port.names():
            if name[0] == "w" and (int(name[1:]) + 1) * WINDOW <= time:
                self._fire(name)

    @override
    def end(self) -> None:
        for name in self.port.names():
            if name[0] == "w":
                self._fire(name)

    def _fire(self, name: str) -> None:
        self.port.put("fired", self.port.get("fired") + self.port.get(name))
        self.port.put(name, None)
        self.port.emit(0, (int(name[1:]) + 1) * WINDOW)

    @classmethod
    @override
    def check(cls, state: dict[str, int], consumed: Iterable[tuple[str, int]]) -> str | None:
        found, expected = sum(state.values()), len(list(consumed))
        return None if found == expected else f"{found} messages in windows, {expected} committed: {state}"


class Join(Processor):
    """Joins two streams by key: each message meets all of the other side that came before."""

    @override
    def message(self, stream: str, key: int, time: int) -> None:
        side, other = ("l", "r") if stream == "left" else ("r", "l")
        self.port.put(f"{side}{key}", self.port.get(f"{side}{key}") + 1)
        matches = self.port.get(f"{other}{key}")
        if matches:
            self.port.put(f"p{key}", self.port.get(f"p{key}") + matches)
            for _ in range(min(matches, 2)):
                self.port.emit(key, time)

    @classmethod
    @override
    def check(cls, state: dict[str, int], consumed: Iterable[tuple[str, int]]) -> str | None:
        """See ``Processor``: whatever the order, the pairs of a key are left times right."""
        sides = Counter(("l" if stream == "left" else "r", key) for stream, key in consumed)
        expected = {f"{side}{key}": count for (side, key), count in sides.items()}
        for key in {key for _, key in sides}:
            if sides["l", key] * sides["r", key]:
                expected[f"p{key}"] = sides["l", key] * sides["r", key]
        return None if state == expected else f"joined {state}, committed {expected}"


PROCESSORS: dict[str, type[Processor]] = {"route": Processor, "count": Count, "window": Window, "join": Join}

"""Windows in plain Python: a window keeps its messages in a list, and is computed again at every event.

Like an operator, the oracle gets batches and time. It has no columns, partial results or stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace.api.specs import Alternative, Deadline, GlobalWindow, Hopping, Session, Trigger, Tumbling

NEVER, FOREVER = -(2**63), 2**63 - 1

Key = str | None
Message = tuple[Key, int, int]
"""Key, time, value."""

Result = tuple[Key, int, int, str, int, int, tuple[int, ...]]
"""Key, start, end, pane, index of the pane, how many messages, their values (sorted)."""


@dataclass
class Held:
    """A window of a key, and what has arrived since its last pane."""

    start: int
    end: int
    messages: list[tuple[int, int]] = field(default_factory=list)
    fresh: list[tuple[int, int]] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    panes: int = 0

    def add(self, time: int, value: int, now: int) -> None:
        self.messages.append((time, value))
        self.fresh.append((time, value))
        self.arrivals.append(now)


class Oracle:
    """Tumbling, hopping, session and global windows with triggers and lateness."""

    def __init__(
        self,
        shape: Tumbling | Hopping | Session | GlobalWindow,
        early: Trigger | None = None,
        late: Trigger | None = None,
        lateness: int = 0,
        *,
        accumulating: bool = True,
    ) -> None:
        self.shape = shape
        self.early = early.alternatives if early else ()
        self.late = late.alternatives if late else ()
        self.lateness = lateness
        self.accumulating = accumulating
        self.windows: dict[Key, list[Held]] = {}
        self.time = NEVER
        self.now = 0
        self.too_late: list[Message] = []
        self.results: list[Result] = []

    # -- what happens

    def batch(self, messages: Iterable[Message]) -> None:
        if isinstance(self.shape, Session):
            self._sessions(list(messages), self.shape.gap_ms)
        else:
            for key, time, value in messages:
                self._one(key, time, value)
                self._look(self.time, self.time)
        self._look(self.time, self.time)

    def advance(self, time: int) -> None:
        if time > self.time:
            before, self.time = self.time, time
            self._look(before, time)

    def clock(self, now: int) -> None:
        self.now = now
        for key, window in self._all():
            if window.fresh and any(self._passed(window, a, processing=True) for a in self._alternatives(window)):
                self._speak(key, window, "early" if window.end > self.time else "late")

    # -- messages

    def _one(self, key: Key, time: int, value: int) -> None:
        spans = [(start, end) for start, end in self._spans(time) if not self._over(end)]
        if not spans:
            self.too_late.append((key, time, value))
        held = self.windows.setdefault(key, [])
        for start, end in spans:
            window = next((w for w in held if w.start == start), None)
            if window is None:
                held.append(window := Held(start, end))
            window.add(time, value, self.now)
            self._count(key, window, len(window.fresh))

    def _spans(self, time: int) -> Iterator[tuple[int, int]]:
        match self.shape:
            case Tumbling(size_ms=size, offset_ms=offset):
                start = (time - offset) // size * size + offset
                yield start, start + size
            case Hopping(size_ms=size, every_ms=every, offset_ms=offset):
                first = (time - size - offset) // every * every + offset
                yield from (
                    (start, start + size) for start in range(first, time + 1, every) if start <= time < start + size
                )
            case _:
                yield 0, FOREVER

    def _sessions(self, messages: list[Message], gap: int) -> None:
        """A batch is processed as a whole: find the sessions that exist after it."""
        for key in dict.fromkeys(key for key, _, _ in messages):
            mine = [(time, value) for k, time, value in messages if k == key]
            spans = [(w.start, w.end) for w in self.windows.get(key, [])] + [(t, t + gap) for t, _ in mine]
            whole: list[tuple[int, int]] = []
            for start, end in sorted(spans):
                if whole and start < whole[-1][1]:
                    whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
                else:
                    whole.append((start, end))
            for start, end in whole:
                parts = [w for w in self.windows.get(key, []) if start <= w.start < end]
                new = [(time, value) for time, value in mine if start <= time < end]
                if not parts and self._over(end):
                    self.too_late += [(key, time, value) for time, value in new]
                elif new:
                    self._grow(key, start, end, parts, new)

    def _grow(self, key: Key, start: int, end: int, parts: list[Held], new: list[tuple[int, int]]) -> None:
        held = self.windows.setdefault(key, [])
        for part in parts:
            held.remove(part)
        window = Held(
            start,
            end,
            [m for part in parts for m in part.messages],
            [m for part in parts for m in part.fresh],
            [now for part in parts for now in part.arrivals],
            max((part.panes for part in parts), default=0),
        )
        held.append(window)
        limit = self._limit(window)
        counted = len(window.fresh) if limit is None else min(len(window.fresh), limit - 1)
        for time, value in new:
            window.add(time, value, self.now)
            counted += 1
            if self._count(key, window, counted):
                counted = 0

    # -- triggers

    def _alternatives(self, window: Held) -> list[Alternative]:
        chosen = self.early if window.end > self.time else self.late
        return [a for a in chosen if a.repeats or window.panes == 0]

    def _limit(self, window: Held) -> int | None:
        return min((a.count for a in self._alternatives(window) if not a.deadlines), default=None)

    def _count(self, key: Key, window: Held, counted: int) -> bool:
        limit = self._limit(window)
        full = limit is not None and counted >= limit
        if full:
            self._speak(key, window, "early" if window.end > self.time else "late")
        return full

    def _passed(self, window: Held, alternative: Alternative, *, processing: bool) -> bool:
        if not alternative.deadlines or alternative.processing != processing:
            return False
        if len(window.fresh) < max(1, alternative.count):
            return False
        return all(self._moment(window, d) <= (self.now if processing else self.time) for d in alternative.deadlines)

    def _moment(self, window: Held, deadline: Deadline) -> int:
        times = window.arrivals if deadline.processing else [time for time, _ in window.fresh]
        match deadline.since:
            case "first":
                return min(times) + deadline.ms
            case "last":
                return max(times) + deadline.ms
            case "tick":
                # The last tick counts, too: a message with an earlier time waits for the next tick.
                since = min(times) if deadline.processing else max(min(times), self._ticked)
                return (since // deadline.ms + 1) * deadline.ms

    # -- time

    def _look(self, before: int, time: int) -> None:
        self._ticked = before
        for key, window in self._all():
            if before < window.end <= time:
                if self.accumulating or window.fresh:
                    self._speak(key, window, "on_time")
            elif window.fresh and (
                self._over(window.end)
                or any(self._passed(window, a, processing=False) for a in self._alternatives(window))
            ):
                self._speak(key, window, "early" if window.end > time else "late")
            if self._over(window.end):
                self.windows[key].remove(window)

    def _over(self, end: int) -> bool:
        return self.time == FOREVER or (end + self.lateness <= self.time)

    def _all(self) -> list[tuple[Key, Held]]:
        return [(key, window) for key, held in self.windows.items() for window in list(held)]

    def _speak(self, key: Key, window: Held, pane: str) -> None:
        told = window.messages if self.accumulating else window.fresh
        values = tuple(sorted(value for _, value in told))
        self.results.append((key, window.start, window.end, pane, window.panes, len(told), values))
        window.panes += 1
        window.fresh, window.arrivals = [], []

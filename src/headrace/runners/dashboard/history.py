"""The last hour for the charts of the page: one point per second, and one per ten seconds for older times. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Point = Mapping[str, Any]
"""``t`` is a time in ms since the epoch. What wasn't measured is missing. ``parts`` are milliseconds by part."""

FINE, SPAN_MS = 300, 3_600_000
COARSE_MS = 10_000
_SUMMED = frozenset({"restarts", "rollbacks", "errors"})
_WORST = frozenset({"p50", "p99", "committed", "state", "early", "lag"})


class History:
    """At most ``FINE`` fine points, and coarse ones for ``SPAN_MS``; older points are forgotten."""

    def __init__(self) -> None:
        self._coarse: deque[Point] = deque(maxlen=SPAN_MS // COARSE_MS)
        self._fine: deque[Point] = deque()
        self._filling: list[Point] = []

    def add(self, point: Point) -> None:
        """Append a point. Points normally arrive in order of time; one that doesn't is appended anyway."""
        self._fine.append(point)
        while len(self._fine) > FINE:
            self._thin(self._fine.popleft())

    def points(self) -> list[Point]:
        """All points, the oldest first."""
        filling = [merged(self._filling)] if self._filling else []
        return [*self._coarse, *filling, *self._fine]

    def _thin(self, point: Point) -> None:
        full = len(self._filling) >= COARSE_MS // 1000
        if self._filling and (full or point["t"] // COARSE_MS != self._filling[0]["t"] // COARSE_MS):
            self._coarse.append(merged(self._filling))
            self._filling = []
        self._filling.append(point)


def merged(points: Sequence[Point]) -> Point:
    """One point for several: rates are averages, latencies and sizes the largest ones, and events are added up."""
    made: dict[str, Any] = {"t": points[0]["t"]}
    for name in dict.fromkeys(name for point in points for name in point):
        values = [point[name] for point in points if name in point]
        if name == "t":
            continue
        if name == "parts":
            made[name] = {
                part: _mean([value[part] for value in values if part in value])
                for part in dict.fromkeys(part for value in values for part in value)
            }
        else:
            made[name] = _how(name)(values)
    return made


def _how(name: str) -> Callable[[Sequence[float]], float]:
    if name in _SUMMED:
        return sum
    return max if name in _WORST else _mean


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)

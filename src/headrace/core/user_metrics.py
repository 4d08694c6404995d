"""What a user's own code counts, by task: a bounded number of series, added to from any thread.

The code that counts doesn't know its task. Whoever calls it says so by ``enter``, in the context of the calling thread;
calls that run elsewhere take that context along. Outside of tasks nothing is counted.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from headrace.core.errors import UsageError

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]

SERIES_MAX = 100
"""How many series the user's code has in one task. More are left out, with a warning."""

VALUE_CHARS_MAX = 100


@dataclass(slots=True)
class Cell:
    """One series. A histogram has ``buckets``, and ``value`` is the sum of what was observed."""

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, str]
    bounds: Sequence[float] = ()
    value: float = 0.0
    buckets: list[int] = field(default_factory=list)


class UserMetrics:
    """The series of one task. ``complain`` gets a message about what is left out."""

    def __init__(self, task: str | None = None, complain: Callable[[str], None] = lambda message: None) -> None:
        self.task = task
        self._complain = complain
        self._lock = threading.Lock()
        self._cells: dict[tuple[str, Labels], Cell] = {}
        self._kinds: dict[str, Kind] = {}

    def add(self, like: Cell, labels: Mapping[str, object], by: float) -> None:
        """Add to a counter."""
        with self._lock:
            if (cell := self._cell(like, labels)) is not None:
                cell.value += by

    def set(self, like: Cell, labels: Mapping[str, object], value: float) -> None:
        """Set a gauge."""
        with self._lock:
            if (cell := self._cell(like, labels)) is not None:
                cell.value = value

    def observe(self, like: Cell, labels: Mapping[str, object], value: float) -> None:
        """Count a value of a histogram."""
        with self._lock:
            if (cell := self._cell(like, labels)) is not None:
                cell.buckets[bisect_left(cell.bounds, value)] += 1
                cell.value += value

    def cells(self) -> list[Cell]:
        """All series."""
        with self._lock:
            return list(self._cells.values())

    def _cell(self, like: Cell, labels: Mapping[str, object]) -> Cell | None:
        key = (like.name, tuple((name, str(labels[name])) for name in sorted(labels)) if labels else ())
        if (cell := self._cells.get(key)) is not None and cell.kind == like.kind:
            return cell
        if (kind := self._kinds.setdefault(like.name, like.kind)) != like.kind:
            raise UsageError(
                f"the metric {like.name!r} is a {kind} here, but a {like.kind} elsewhere", hint="rename one of them"
            )
        if len(self._cells) >= SERIES_MAX:
            self._complain(f"the app's own metrics have more than {SERIES_MAX} series in one task; more are left out")
            return None
        found = {name: str(value)[:VALUE_CHARS_MAX] for name, value in labels.items()}
        buckets = [0] * (len(like.bounds) + 1) if like.kind == "histogram" else []
        cell = self._cells[key] = Cell(like.name, like.kind, like.help, found, like.bounds, buckets=buckets)
        return cell


_entered: ContextVar[UserMetrics | None] = ContextVar("headrace_user_metrics", default=None)


def enter(metrics: UserMetrics) -> None:
    """From now on, code that is called on this thread counts for this task."""
    _entered.set(metrics)


def entered() -> UserMetrics | None:
    """The metrics of the task that the calling code works for; None outside of tasks."""
    return _entered.get()

"""The time of a run: every part has a share of what is left of it, and what takes longer is cut short, and says so."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench.measure import CutShortError

T = TypeVar("T")
GRACE = 1.25
"""How much longer than its share a part may take before it is interrupted in the middle of a run."""


@dataclass(slots=True)
class Deadline:
    """When a part should end. ``cut`` tells what was left out."""

    at_s: float = float("inf")
    now: Callable[[], float] = time.monotonic
    cut: list[str] = field(default_factory=list)

    def each(self, items: Iterable[T], name: Callable[[T], str] = str, *, reserve: int = 0) -> Iterator[T]:
        """Give the items one after the other, until there may be no time for another that takes as long as the last.

        ``reserve`` is how many more of the same length must have time after it.
        """
        todo = list(items)
        for number, item in enumerate(todo):
            began = self.now()
            yield item
            took = self.now() - began
            if (rest := todo[number + 1 :]) and self.now() + (1 + reserve) * took > self.at_s:
                self.cut.append(f"no time for {', '.join(map(name, rest))}")
                return


@dataclass(slots=True)
class Budget:
    """The seconds of a run, and its parts in their order with the weight of each."""

    seconds: float
    weights: Mapping[str, float]
    now: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.now()

    def left_s(self) -> float:
        """Return what is left of the whole time."""
        return self.seconds - (self.now() - self.began)

    def share_s(self, part: str) -> float:
        """Return a part's share of what is left: its weight against those of itself and the parts after it."""
        names = list(self.weights)
        rest = sum(self.weights[name] for name in names[names.index(part) :])
        return max(0.0, self.left_s()) * self.weights[part] / rest


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise ``CutShortError`` in the main thread if what is inside takes longer."""

    def interrupt(*_: Any) -> None:
        raise CutShortError(f"interrupted after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

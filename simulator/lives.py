"""What a task of an app has done, as its commits say: the oracle's knowledge of order, clocks and watermarks.

A run has many incarnations of a task, zombies and attempts that came to nothing. What counts is the line of its
commits. Between two of them lie the frames that were processed, in order, each with what the clock showed; and at each
stands how far event time had come. So what depends on the order of arrival, on a clock or on a watermark is no chance
to the oracle: it follows from these, but for watermarks that rose between two commits, where either is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Arrival:
    """A frame was processed: what was in it, by which incarnation and when, in virtual time and by the task's clock.

    ``heard`` is when the incarnation last learned the outcome of its writes. ``latest`` is the latest that the clock
    has shown in that attempt: a store goes by it when the clock was set back.
    """

    stream: str
    rows: Sequence[Mapping[str, Any]]
    incarnation: int
    heard: int
    at: int
    clock: int
    latest: int


@dataclass(frozen=True)
class Version:
    """What came between two commits of a task, and where event time and clock were at the second."""

    at: int
    arrivals: tuple[Arrival, ...]
    watermark: int
    latest: int


Life = Sequence[Version]
"""The commits of a task."""

Lives = Mapping[str, Sequence[Life]]
"""Of each stage the lives of its tasks, by their number."""


def arrivals(life: Life) -> Iterator[Arrival]:
    """All that a task has processed, in order."""
    for version in life:
        yield from version.arrivals

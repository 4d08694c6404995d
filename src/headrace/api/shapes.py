"""Windows as data: their shapes, and the triggers that say when a window emits results. No rules, nothing runs.

A trigger is kept as alternatives of conditions, any of which will do; ``triggers`` builds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

Since = Literal["first", "last", "tick"]
Panes = Literal["accumulating", "discarding"]
TimeAxis = Literal["event", "processing"]


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, side by side, aligned to the epoch (plus ``offset_ms``)."""

    size_ms: int
    offset_ms: int = 0


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one size, one beginning every ``every_ms``: a message is in several of them."""

    size_ms: int
    every_ms: int
    offset_ms: int = 0


@dataclass(frozen=True, slots=True)
class Sliding:
    """A window for each message of a key: it ends with the message and is ``size_ms`` long."""

    size_ms: int


@dataclass(frozen=True, slots=True)
class Session:
    """A window that lasts while messages of a key come less than ``gap_ms`` after each other."""

    gap_ms: int


@dataclass(frozen=True, slots=True)
class CountWindow:
    """The last ``size`` messages of a key, each time that ``every`` more have arrived."""

    size: int
    every: int


@dataclass(frozen=True, slots=True)
class GlobalWindow:
    """One window for all of time."""


WindowShape = Tumbling | Hopping | Sliding | Session | CountWindow | GlobalWindow


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment, ``ms`` after the first or last message since the last pane; or the next multiple of ``ms``."""

    since: Since
    ms: int
    processing: bool = False


@dataclass(frozen=True, slots=True)
class Alternative:
    """Fires when there are ``count`` messages since the last pane and all deadlines have passed.

    ``repeats``: again and again; otherwise only as a window's first pane.
    """

    repeats: bool
    count: int = 0
    deadlines: tuple[Deadline, ...] = ()

    @property
    def processing(self) -> bool:
        """Its deadlines are of processing time."""
        return any(deadline.processing for deadline in self.deadlines)


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a window speaks before or after its end: when any of the alternatives fires. None: never."""

    text: str
    alternatives: tuple[Alternative, ...] = ()

    @override
    def __str__(self) -> str:
        return self.text

"""Windows as data: their shapes, and the triggers that decide when a window emits results.

Plans show ``str`` of a shape. A trigger is a list of alternatives, and fires when any of them does; the module
``triggers`` builds triggers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from headrace.api.operators.wording import offset
from headrace.core.duration import format_ms

Since = Literal["first", "last", "tick"]
Panes = Literal["accumulating", "discarding"]
TimeAxis = Literal["event", "processing"]


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, one after the other, aligned to the epoch (plus ``offset_ms``)."""

    size_ms: int
    offset_ms: int = 0

    @override
    def __str__(self) -> str:
        return f"tumbling {format_ms(self.size_ms)}{offset(self.offset_ms)}"


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one size that begin every ``every_ms``: a message is in several of them."""

    size_ms: int
    every_ms: int
    offset_ms: int = 0

    @override
    def __str__(self) -> str:
        return f"hopping {format_ms(self.size_ms)} every {format_ms(self.every_ms)}{offset(self.offset_ms)}"


@dataclass(frozen=True, slots=True)
class Sliding:
    """A window of ``size_ms`` for each message of a key, which ends with the message."""

    size_ms: int

    @override
    def __str__(self) -> str:
        return f"sliding {format_ms(self.size_ms)}"


@dataclass(frozen=True, slots=True)
class Session:
    """A window that lasts while the messages of a key are less than ``gap_ms`` apart."""

    gap_ms: int

    @override
    def __str__(self) -> str:
        return f"session with a gap of {format_ms(self.gap_ms)}"


@dataclass(frozen=True, slots=True)
class CountWindow:
    """The last ``size`` messages of a key, each time ``every`` more have arrived."""

    size: int
    every: int

    @override
    def __str__(self) -> str:
        return f"{self.size} messages" + (f" every {self.every}" if self.every != self.size else "")


@dataclass(frozen=True, slots=True)
class GlobalWindow:
    """One window for all time."""

    @override
    def __str__(self) -> str:
        return "all of time"


WindowShape = Tumbling | Hopping | Sliding | Session | CountWindow | GlobalWindow


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time: ``ms`` after the first or last message since the last pane, or the next multiple of ``ms``."""

    since: Since
    ms: int
    processing: bool = False


@dataclass(frozen=True, slots=True)
class Alternative:
    """Fires when ``count`` messages have arrived since the last pane and all deadlines have passed.

    With ``repeats``, it fires again after each pane; otherwise only for a window's first pane.
    """

    repeats: bool
    count: int = 0
    deadlines: tuple[Deadline, ...] = ()

    @property
    def processing(self) -> bool:
        """Whether its deadlines are in processing time."""
        return any(deadline.processing for deadline in self.deadlines)


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a window emits results before or after its end: when any alternative fires; without any, never."""

    text: str
    alternatives: tuple[Alternative, ...] = ()

    @override
    def __str__(self) -> str:
        return self.text

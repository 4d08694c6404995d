"""Time: the clock as a parameter, durations as users write them, and moments as people read them."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from typing_extensions import override

from headrace.core.errors import DeclarationError, HeadraceError, UsageError


class Clock(Protocol):
    """Milliseconds: wall time for labels and timers, monotonic time for waits."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch."""

    def monotonic_ms(self) -> float:
        """Milliseconds since an arbitrary moment; they never decrease."""


class WallClock(Clock):
    """The machine's clock."""

    @override
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @override
    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000


class ManualClock(Clock):
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._behind_ms = 0

    @override
    def now_ms(self) -> int:
        return self._now_ms - self._behind_ms

    @override
    def monotonic_ms(self) -> float:
        return float(self._now_ms)

    def set_back(self, ms: int) -> None:
        """Show an earlier wall time from now on, as when the clock is set. Monotonic time isn't affected."""
        self._behind_ms += ms

    def wait(self, ms: int) -> None:
        self.advance(ms)
        self.set_back(ms)

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError("time doesn't go back")
        self._now_ms += ms


Duration = str | timedelta

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")
_WHOLE = re.compile(r"[+-]?(\d+(ms|s|m|h|d))+")


def to_ms(
    value: Duration, what: str = "duration", *, minimum: int | None = 0, error: type[HeadraceError] = DeclarationError
) -> int:
    """Return the duration in ms. Raises ``error``, naming ``what``, if it isn't one or is below ``minimum``."""
    bare: object = value  # what users pass may be of any type
    if isinstance(value, timedelta):
        ms, rest = divmod(value, timedelta(milliseconds=1))
        if rest:
            raise error(f"{what}: {value!r} isn't a whole number of milliseconds")
    elif isinstance(value, str) and _WHOLE.fullmatch(value.replace(" ", "")):
        text = value.replace(" ", "")
        total = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
        ms = -total if text.startswith("-") else total
    elif isinstance(bare, int | float) and not isinstance(bare, bool) and math.isfinite(bare):
        raise error(f"{what}: {bare!r} has no unit", hint=_with_unit(bare))
    else:
        hint = 'write a number and a unit (ms, s, m, h, d), as in "10s", "1m30s" or "250ms", or a timedelta'
        raise error(f"{what}: {value!r} isn't a duration", hint=hint)
    if minimum is not None and ms < minimum:
        raise error(f"{what}: {value!r} is below {minimum} ms")
    return ms


def _with_unit(number: float) -> str:
    if number != int(number):
        return f'write milliseconds, as in "{round(number * 1000)}ms" for {number} seconds, or a timedelta'
    return f'write "{int(number)}s" for seconds, "{int(number)}ms" for milliseconds, or a timedelta'


def format_ms(ms: int) -> str:
    """Return a short text that ``to_ms`` reads back: ``90_000`` is ``90s``."""
    for unit, size in reversed(_UNITS_MS.items()):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_text(ms: int) -> str:
    """Return milliseconds since the epoch as text: ``2026-01-31 12:00:00.250Z``, without ``.000``."""
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms since the epoch"
    precision = "milliseconds" if ms % 1000 else "seconds"
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec=precision) + "Z"


def moment_ms(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)


def parse_moment(text: str) -> tuple[int, bool]:
    """Read an ISO 8601 time, or milliseconds since the epoch; return it, and whether its zone is known (else UTC)."""
    if text.isascii() and text.isdigit():
        return int(text), True
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} isn't a time", hint="write it as 2026-01-31T12:00:00+01:00, or as milliseconds since the epoch"
        ) from error
    return moment_ms(moment), moment.tzinfo is not None


def check_past(ms: int, now_ms: int) -> int:
    if ms > now_ms:
        hint = "to read only new messages, use upcoming; times without a zone are UTC"
        raise UsageError(f"{utc_text(ms)} is in the future: now is {utc_text(now_ms)}", hint=hint)
    return ms

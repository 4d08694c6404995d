"""Durations as users write them: ``"10s"``, ``"5m"``, ``"250ms"`` or a ``timedelta``. A bare number has no unit."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from headrace.core.errors import DeclarationError, HeadraceError

Duration = str | timedelta

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")
_WHOLE = re.compile(r"[+-]?(\d+(ms|s|m|h|d))+")


def to_ms(
    value: Duration,
    what: str = "duration",
    *,
    minimum: int | None = 0,
    error: type[HeadraceError] = DeclarationError,
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
        raise error(
            f"{what}: {value!r} isn't a duration",
            hint='write a number and a unit (ms, s, m, h, d), as in "10s", "1m30s" or "250ms", or a timedelta',
        )
    if minimum is not None and ms < minimum:
        raise error(f"{what}: {value!r} is below {minimum} ms")
    return ms


def _with_unit(number: float) -> str:
    """What to write instead of a bare number."""
    if number != int(number):
        return f'write milliseconds, as in "{round(number * 1000)}ms" for {number} seconds, or a timedelta'
    return f'write "{int(number)}s" for seconds, "{int(number)}ms" for milliseconds, or a timedelta'


def format_ms(ms: int) -> str:
    """Return a short text that ``to_ms`` reads back: ``90_000`` is ``90s``."""
    for unit, size in reversed(_UNITS_MS.items()):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"

"""Durations as users write them: ``"10s"``, ``"5m"``, ``"250ms"``, a ``timedelta`` or milliseconds."""

from __future__ import annotations

import re
from datetime import timedelta

from headrace.core.errors import DeclarationError

Duration = str | int | timedelta

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")
_WHOLE = re.compile(r"[+-]?(\d+(ms|s|m|h|d))+")


def to_ms(value: Duration, what: str = "duration", *, minimum: int | None = 0) -> int:
    """Return the duration in ms. Raises ``DeclarationError`` naming ``what`` if it is none, or below ``minimum``."""
    if isinstance(value, bool):
        ms = None
    elif isinstance(value, int):
        ms = value
    elif isinstance(value, timedelta):
        ms = int(value / timedelta(milliseconds=1))
    elif isinstance(value, str) and _WHOLE.fullmatch(value.replace(" ", "")):
        text = value.replace(" ", "")
        total = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
        ms = -total if text.startswith("-") else total
    else:
        ms = None
    if ms is None:
        raise DeclarationError(
            f"{what}: {value!r} is not a duration",
            hint='write "10s", "1m30s", "250ms", a timedelta or a number of milliseconds',
        )
    if minimum is not None and ms < minimum:
        raise DeclarationError(f"{what}: {value!r} is below {minimum} ms")
    return ms


def format_ms(ms: int) -> str:
    """Return a short text that ``to_ms`` reads back: ``90_000`` is ``90s``."""
    for unit, size in reversed(_UNITS_MS.items()):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"

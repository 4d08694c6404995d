"""How operators describe themselves in plans."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from headrace.api.operators.spec import OnError
from headrace.core.duration import format_ms

_EXPRESSION_CHARS_MAX = 200

ON_ERROR: dict[OnError, str] = {
    "fail": "",
    "skip": ", failed messages are skipped and counted",
    "dead_letter": ", failed messages go to dead letters",
}


def call_of(function: Callable[..., object]) -> str:
    """A function as plans name it: ``enrich()``."""
    return f"{getattr(function, '__qualname__', type(function).__name__)}()"


def names(columns: tuple[str, ...]) -> str:
    """Columns as a list: ``shop, order``."""
    return ", ".join(columns)


def signed(ms: int) -> str:
    """A duration with its sign: ``+5s``, ``-1m``; ``0`` has none."""
    if ms == 0:
        return "0"
    return f"{'-' if ms < 0 else '+'}{format_ms(abs(ms))}"


def offset(ms: int) -> str:
    """A duration with its sign, and a space before it; empty for 0."""
    return f" {signed(ms)}" if ms else ""


def on_one_line(expr: pl.Expr) -> str:
    """An expression as Polars prints it, on one line; a long one is cut."""
    text = " ".join(str(expr).split())
    return text if len(text) <= _EXPRESSION_CHARS_MAX else text[: _EXPRESSION_CHARS_MAX - 1] + "…"

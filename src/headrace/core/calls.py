"""How slow calls are made: how many at once, how often a failed one is repeated, and how many per second.

Retries and rates are pure: the caller has the clock, does the waiting and draws the random number.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from headrace.core.clock import format_ms


@dataclass(frozen=True, slots=True)
class Retry:
    """At most ``attempts`` attempts (None: no limit), with pauses that double from ``first_ms`` to ``longest_ms``."""

    attempts: int | None
    first_ms: float
    longest_ms: float

    def pause_ms(self, failures: int, chance: float) -> float | None:
        """Return how long to wait after this many failures in a row (1 or more); None to stop.

        ``chance``, from [0, 1), decides about half of it: clients that lost a server together don't return together.
        """
        if self.attempts is not None and failures >= self.attempts:
            return None
        full = min(self.longest_ms, self.first_ms * 2.0 ** min(failures - 1, 60))
        return full * (0.5 + chance / 2)

    @override
    def __str__(self) -> str:
        if self.attempts is None:
            return "tried forever"
        return "tried once" if self.attempts == 1 else f"tried up to {self.attempts} times"


@dataclass(frozen=True, slots=True)
class Calling:
    """At most ``concurrency`` calls at once; each attempt of one may take ``timeout_ms``."""

    concurrency: int
    timeout_ms: int
    retry: Retry

    @override
    def __str__(self) -> str:
        return f"at most {self.concurrency} at once, {format_ms(self.timeout_ms)} each, {self.retry}"


def is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(called_by(function))


def called_by(function: Callable[..., object]) -> Callable[..., object]:
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) or isinstance(function, type) else type(function).__call__


class TokenBucket:
    """A bucket of at most ``burst`` tokens that gains ``per_s`` tokens per second. It may be overdrawn.

    If every caller waits as ``take`` says, no period has more than what the bucket gains in it, plus ``burst``.
    """

    def __init__(self, per_s: float, burst: float | None = None) -> None:
        """By default ``burst`` is what the bucket gains in a tenth of a second, but at least one token."""
        if per_s <= 0:
            raise ValueError(f"a rate must be above 0, not {per_s}")
        self._per_ms = per_s / 1000
        self._burst = max(1.0, per_s / 10) if burst is None else burst
        self._tokens = self._burst
        self._at_ms: float | None = None

    def take(self, amount: float, now_ms: float) -> float:
        """Take ``amount`` tokens; return how long (ms) to wait before using them."""
        if self._at_ms is not None and now_ms > self._at_ms:
            self._tokens = min(self._burst, self._tokens + (now_ms - self._at_ms) * self._per_ms)
        self._at_ms = now_ms if self._at_ms is None else max(now_ms, self._at_ms)
        self._tokens -= amount
        return max(0.0, -self._tokens / self._per_ms)

"""How a slow function is called: how many calls at once, how long each may take, and when a failed one is repeated."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from headrace.core.duration import format_ms
from headrace.core.retry import Retry


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
    """Whether calling the function returns a coroutine, as far as can be known without calling it."""
    return inspect.iscoroutinefunction(called_by(function))


def called_by(function: Callable[..., object]) -> Callable[..., object]:
    """Return what a call of ``function`` runs: the function of a partial one, the method of an instance."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) or isinstance(function, type) else type(function).__call__

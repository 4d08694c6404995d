"""How a function that takes time is called: how many at once, how long each may take, what when it fails."""

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
    """Whether calling it gives a coroutine, as far as can be told before."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return inspect.iscoroutinefunction(function)
    return inspect.iscoroutinefunction(type(function).__call__)

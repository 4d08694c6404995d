"""The checked settings for calls of users' slow functions: concurrency, timeout and retries."""

from __future__ import annotations

from headrace.api.location import Declaring
from headrace.core.calling import Calling
from headrace.core.duration import Duration, to_ms
from headrace.core.errors import DeclarationError
from headrace.core.retry import Retry

CONCURRENCY_MAX = 10_000


def retry(attempts: int | None = 5, first: Duration = "100ms", longest: Duration = "10s") -> Retry:
    """Set how often a failed call is repeated, and how long to wait between two attempts.

    Each pause is twice as long as the one before. Half of it is random, so that tasks that lost a server at the same
    moment don't return at the same moment.

    Parameters
    ----------
    attempts
        The number of attempts, including the first. None sets no limit.
    first
        The pause after the first attempt.
    longest
        The longest pause.

    Returns
    -------
    Retry
        For ``map_async(retry=)``, ``hr.tables.remote`` and ``hr.tables.sql_table``.

    Examples
    --------
    >>> hr.calls.retry(attempts=3, first="50ms")
    Retry(attempts=3, first_ms=50, longest_ms=10000)
    """
    with Declaring("retry"):
        if attempts is not None:
            check_count("attempts", attempts)
        first_ms = to_ms(first, "first", minimum=1)
        longest_ms = to_ms(longest, "longest", minimum=1)
        if longest_ms < first_ms:
            raise DeclarationError(f"the longest pause, {longest!r}, is shorter than the first, {first!r}")
        return Retry(attempts, first_ms, longest_ms)


def calling_of(*, concurrency: int, timeout: Duration, retry: Retry | None, default: Retry | None = None) -> Calling:
    """The checked settings of calls; without ``retry`` the ``default`` applies."""
    check_count("concurrency", concurrency, CONCURRENCY_MAX)
    if retry is not None and not isinstance(retry, Retry):
        raise DeclarationError(
            f"retry={retry!r} isn't a result of hr.calls.retry(...)", hint="write retry=hr.calls.retry(attempts=5)"
        )
    return Calling(concurrency, to_ms(timeout, "timeout", minimum=1), retry or default or Retry(5, 100, 10_000))


def check_count(what: str, value: object, most: int | None = None) -> None:
    """Raise unless ``value`` is a whole number from 1 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        upto = "up" if most is None else f"up to {most}"
        raise DeclarationError(f"{what}={value!r} is not a whole number from 1 {upto}")

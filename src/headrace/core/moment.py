"""Moments as people read and write them: UTC, to the millisecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headrace.core.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def utc_text(ms: int) -> str:
    """Return milliseconds since the epoch as text: ``2026-01-31 12:00:00.250Z``, without ``.000``."""
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms since the epoch"
    precision = "milliseconds" if ms % 1000 else "seconds"
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec=precision) + "Z"


def moment_ms(moment: datetime) -> int:
    """Return a moment as milliseconds since the epoch; one without a zone is in UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MILLISECOND


def parse_moment(text: str) -> tuple[int, bool]:
    """Read an ISO 8601 time, or milliseconds since the epoch; return it, and whether its zone is known.

    Without a zone, it is read as UTC. Raises ``UsageError``.
    """
    if text.isascii() and text.isdigit():
        return int(text), True
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} isn't a time",
            hint="write it as 2026-01-31T12:00:00+01:00, or as milliseconds since the epoch",
        ) from error
    return moment_ms(moment), moment.tzinfo is not None


def check_past(ms: int, now_ms: int) -> int:
    """Return a time that is not in the future; else raise ``UsageError``."""
    if ms > now_ms:
        raise UsageError(
            f"{utc_text(ms)} is in the future: now is {utc_text(now_ms)}",
            hint="to read only new messages, use upcoming; times without a zone are UTC",
        )
    return ms

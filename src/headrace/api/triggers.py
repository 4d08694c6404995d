"""Triggers decide when a window emits results before its end (``early=``) and after it (``late=``).

Counts and times begin at the previous pane of the same window and key, so messages that a pane has included don't bring
the next one forward. A count is checked with each message, and a time whenever time moves.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Literal

from headrace.api.location import Declaring
from headrace.api.shapes import Alternative, Deadline, Since, Trigger
from headrace.core.duration import Duration, format_ms, to_ms
from headrace.core.errors import DeclarationError

Clock = Literal["event", "processing"]


def after(messages: int) -> Trigger:
    """Fire once, at the n-th message of a window and key.

    Parameters
    ----------
    messages
        How many messages.

    Returns
    -------
    Trigger
        For ``window(early=, late=)``.

    Examples
    --------
    >>> print(hr.triggers.after(100))
    after 100
    """
    with Declaring("after"):
        return Trigger(f"after {messages}", (Alternative(False, _number(messages)),))


def every(step: int | str | timedelta, time: Clock = "event") -> Trigger:
    """Fire after every n messages, or at full multiples of a duration.

    A multiple counts only if it comes after the earliest message since the previous result. With ``every("1s")``, a
    message of 12:00:04 makes a result when the watermark reaches 12:00:05, which has whatever has arrived by then.

    Parameters
    ----------
    step
        A number of messages, or a duration.
    time
        The clock: ``"event"`` or ``"processing"`` time.

    Returns
    -------
    Trigger
        For ``window(early=, late=)``.

    Examples
    --------
    >>> print(hr.triggers.every(100))
    every 100
    >>> print(hr.triggers.every("10s", time="processing"))
    every 10s of processing time
    """
    with Declaring("every"):
        if isinstance(step, int):
            return Trigger(f"every {step}", (Alternative(True, _number(step)),))
        return _deadline("every", "tick", step, time, repeats=True)


def since_first(duration: Duration, time: Clock = "event") -> Trigger:
    """Fire once, this long after the first message of a window and key.

    Parameters
    ----------
    duration
        How long.
    time
        The clock: ``"event"`` or ``"processing"`` time.

    Returns
    -------
    Trigger
        For ``window(early=, late=)``.

    Examples
    --------
    >>> print(hr.triggers.since_first("5s"))
    5s since the first
    """
    with Declaring("since_first"):
        return _deadline("{} since the first", "first", duration, time, repeats=False)


def since_last(duration: Duration, time: Clock = "event") -> Trigger:
    """Fire once, when no message of a window and key has arrived for this long.

    In event time, it counts from the message with the latest time, in whatever order messages arrive.

    Parameters
    ----------
    duration
        How long.
    time
        The clock: ``"event"`` or ``"processing"`` time.

    Returns
    -------
    Trigger
        For ``window(early=, late=)``.

    Examples
    --------
    >>> print(hr.triggers.repeated(hr.triggers.since_last("5s", time="processing")))
    repeatedly 5s since the last of processing time
    """
    with Declaring("since_last"):
        return _deadline("{} since the last", "last", duration, time, repeats=False)


def any_of(*triggers: Trigger | int | str | timedelta) -> Trigger:
    """Fire when one of several triggers does.

    Parameters
    ----------
    *triggers
        Two or more. A number or a duration means ``every`` of it.

    Returns
    -------
    Trigger
        For ``window(early=, late=)``.

    Examples
    --------
    >>> print(hr.triggers.any_of(hr.triggers.every(1000), hr.triggers.every("10s")))
    any of (every 1000, every 10s)
    """
    with Declaring("any_of"):
        parts = _several(triggers)
        return Trigger(_listed("any of", parts), tuple(a for part in parts for a in part.alternatives))


def all_of(*triggers: Trigger | int | str | timedelta) -> Trigger:
    """Fire when all of several triggers would fire. If one of them uses time, this is checked when time moves.

    Parameters
    ----------
    *triggers
        Two or more. A number or a duration means ``every`` of it.

    Returns
    -------
    Trigger
        For ``window(early=, late=)``.

    Examples
    --------
    >>> both = hr.triggers.all_of(hr.triggers.after(100), hr.triggers.since_first("1m"))
    >>> print(hr.triggers.repeated(both))
    repeatedly all of (after 100, 1m since the first)
    """
    with Declaring("all_of"):
        parts = _several(triggers)
        chosen = product(*(part.alternatives for part in parts))
        return Trigger(_listed("all of", parts), tuple(_both(alternatives) for alternatives in chosen))


def repeated(trigger: Trigger | int | str | timedelta) -> Trigger:
    """Use a trigger again after each result.

    Parameters
    ----------
    trigger
        A trigger. A number or a duration means ``every`` of it.

    Returns
    -------
    Trigger
        For ``window(early=, late=)``.

    Examples
    --------
    >>> print(hr.triggers.repeated(hr.triggers.since_first("5s")))
    repeatedly 5s since the first
    """
    with Declaring("repeated"):
        inner = as_trigger(trigger)
        return Trigger(f"repeatedly {inner}", tuple(replace(a, repeats=True) for a in inner.alternatives))


def at_close() -> Trigger:
    """Never fire: as ``late=``, it collects late messages into one result when the window closes.

    Returns
    -------
    Trigger
        For ``window(early=, late=)``.

    Examples
    --------
    >>> print(hr.triggers.at_close())
    at close
    """
    return Trigger("at close")


def as_trigger(value: object) -> Trigger:
    """Return a trigger unchanged, and a number or a duration as ``every`` of it."""
    if isinstance(value, Trigger):
        return value
    if isinstance(value, int | str | timedelta) and not isinstance(value, bool):
        return every(value)
    raise DeclarationError(
        f"{type(value).__name__} {value!r:.80} is not a trigger",
        hint='write hr.triggers.every(100), hr.triggers.every("10s"), hr.triggers.since_first("5s"), '
        'hr.triggers.since_last("5s"), '
        "hr.triggers.any_of(...) or hr.triggers.all_of(...)",
    )


def _number(messages: object) -> int:
    if not isinstance(messages, int) or isinstance(messages, bool):
        raise DeclarationError(f"{messages!r} is not a number of messages", hint="write a whole number, like 100")
    if messages < 1:
        raise DeclarationError(f"a trigger can't wait for {messages} messages", hint="write 1 or more")
    return messages


def _deadline(text: str, since: Since, duration: Duration, time: object, *, repeats: bool) -> Trigger:
    if time not in ("event", "processing"):
        raise DeclarationError(f"time={time!r} is not a clock", hint='"event" or "processing"')
    ms = to_ms(duration, "the duration", minimum=1)
    processing = time == "processing"
    words = f"{text} {format_ms(ms)}" if since == "tick" else text.format(format_ms(ms))
    words += " of processing time" if processing else ""
    return Trigger(words, (Alternative(repeats, 0, (Deadline(since, ms, processing),)),))


def _several(triggers: tuple[object, ...]) -> list[Trigger]:
    if len(triggers) < 2:
        raise DeclarationError("there is only one trigger to combine", hint="name two or more")
    return [as_trigger(trigger) for trigger in triggers]


def _listed(how: str, parts: list[Trigger]) -> str:
    return f"{how} ({', '.join(map(str, parts))})"


def _both(alternatives: tuple[Alternative, ...]) -> Alternative:
    deadlines = tuple(dict.fromkeys(d for a in alternatives for d in a.deadlines))
    if len({deadline.processing for deadline in deadlines}) > 1:
        raise DeclarationError(
            "event time and processing time can't be combined",
            hint="the two clocks are independent: combine them with any_of, or use only one of them",
        )
    return Alternative(all(a.repeats for a in alternatives), max(a.count for a in alternatives), deadlines)

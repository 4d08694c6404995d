"""The shapes of windows, and the triggers that decide when they emit results before (``early=``) and after their end.

Counts and times begin at the previous pane of the same window and key. A count is checked with each message.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Literal

from headrace.api.checks import Declaring
from headrace.api.specs import (
    Alternative,
    CountWindow,
    Deadline,
    GlobalWindow,
    Hopping,
    Session,
    Since,
    Sliding,
    Trigger,
    Tumbling,
)
from headrace.core.clock import Duration, format_ms, to_ms
from headrace.core.errors import DeclarationError


def tumbling(size: Duration, offset: Duration = "0s") -> Tumbling:
    """Windows of one ``size``, one after the other: every message is in exactly one of them.

    They are aligned to the epoch, shifted by ``offset``: ``"1h"`` windows begin at full hours (UTC).

    Examples
    --------
    >>> hr.tumbling("10s")
    Tumbling(size_ms=10000, offset_ms=0)
    >>> hr.tumbling("1d", offset="-2h")  # days that begin at 22:00 UTC
    Tumbling(size_ms=86400000, offset_ms=-7200000)
    """
    with Declaring("tumbling"):
        return Tumbling(to_ms(size, "size", minimum=1), to_ms(offset, "offset", minimum=None))


HOPPING_WINDOWS_MAX = 10_000
"""How many windows of one step a message may be in. Each is a row of the state."""


def hopping(size: Duration, every: Duration, offset: Duration = "0s") -> Hopping:
    """Windows of one ``size`` that overlap: a message is in several of them.

    They begin at multiples of ``every`` since the epoch, which need not divide ``size``, shifted by ``offset``.

    Examples
    --------
    >>> hr.hopping("1m", every="10s")
    Hopping(size_ms=60000, every_ms=10000, offset_ms=0)
    """
    with Declaring("hopping"):
        size_ms, every_ms = to_ms(size, "size", minimum=1), to_ms(every, "every", minimum=1)
        if every_ms > size_ms:
            raise DeclarationError(
                f"a window of {format_ms(size_ms)} every {format_ms(every_ms)} would lose messages between two windows",
                hint="every= is at most the size; to keep only a sample, filter() by time first",
            )
        if size_ms > every_ms * HOPPING_WINDOWS_MAX:
            raise DeclarationError(
                f"with a window of {format_ms(size_ms)} every {format_ms(every_ms)} each message would be in "
                f"{-(-size_ms // every_ms):,} windows",
                hint=f"at most {HOPPING_WINDOWS_MAX:,} are allowed: choose a longer every=, or use sliding()",
            )
        return Hopping(size_ms, every_ms, to_ms(offset, "offset", minimum=None))


def sliding(size: Duration) -> Sliding:
    """For each message, the window that ends with it: all messages of its key in the last ``size``, including itself.

    A window is (t - size, t] for each time t at which the key has a message, so ``window_end`` is t + 1 ms. Messages of
    one key and time share one result.

    Examples
    --------
    >>> hr.windows.sliding("10s")
    Sliding(size_ms=10000)
    """
    with Declaring("sliding"):
        return Sliding(to_ms(size, "size", minimum=1))


def session(gap: Duration) -> Session:
    """Windows of activity: a message that arrives ``gap`` or more after the previous one begins a new session.

    A session lasts from its first message until ``gap`` after its last. A message out of order may merge two sessions.

    Examples
    --------
    >>> hr.session("30m")
    Session(gap_ms=1800000)
    """
    with Declaring("session"):
        return Session(to_ms(gap, "gap", minimum=1))


def count(size: int, every: int | None = None) -> CountWindow:
    """The last ``size`` messages of a key in order of arrival, each time ``every`` more have arrived.

    By default ``every`` is ``size``, so windows don't overlap. Time plays no part. When the input ends, incomplete
    windows are emitted.

    Examples
    --------
    >>> hr.windows.count(100)
    CountWindow(size=100, every=100)
    >>> hr.windows.count(100, every=10)
    CountWindow(size=100, every=10)
    """
    with Declaring("windows.count"):
        for name, number in (("size", size), ("every", size if every is None else every)):
            if not isinstance(number, int) or isinstance(number, bool):
                raise DeclarationError(f"{name}: {number!r} is not a number of messages", hint="write one, like 100")
            if number < 1:
                raise DeclarationError(f"{name}: a window can't have {number} messages", hint="write 1 or more")
        step = size if every is None else every
        if step > size:
            raise DeclarationError(
                f"keeping the last {size} of every {step} messages would lose the others",
                hint="every= is at most the size",
            )
        return CountWindow(size, step)


def global_() -> GlobalWindow:
    """One window for all time, whose result is emitted when the input ends, and at ``early=`` triggers.

    Examples
    --------
    >>> hr.windows.global_()
    GlobalWindow()
    """
    return GlobalWindow()


# -- triggers ----------------------------------------------------------------------------------------
Clock = Literal["event", "processing"]


def after(messages: int) -> Trigger:
    """Fire once, at the n-th message of a window and key; ``messages`` is n.

    Examples
    --------
    >>> print(hr.triggers.after(100))
    after 100
    """
    with Declaring("after"):
        return Trigger(f"after {messages}", (Alternative(False, _number(messages)),))


def every(step: int | str | timedelta, time: Clock = "event") -> Trigger:
    """Fire after every ``step`` messages, or at full multiples of the duration ``step``, by the clock ``time``.

    A multiple counts only if it comes after the earliest message since the previous result. With ``every("1s")``, a
    message of 12:00:04 makes a result when the watermark reaches 12:00:05, which has whatever has arrived by then.

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
    """Fire once, at ``duration`` after the first message of a window and key, by the clock ``time``.

    Examples
    --------
    >>> print(hr.triggers.since_first("5s"))
    5s since the first
    """
    with Declaring("since_first"):
        return _deadline("{} since the first", "first", duration, time, repeats=False)


def since_last(duration: Duration, time: Clock = "event") -> Trigger:
    """Fire once, when no message of a window and key has arrived for ``duration``, by the clock ``time``.

    In event time, it counts from the message with the latest time, in whatever order messages arrive.

    Examples
    --------
    >>> print(hr.triggers.repeated(hr.triggers.since_last("5s", time="processing")))
    repeatedly 5s since the last of processing time
    """
    with Declaring("since_last"):
        return _deadline("{} since the last", "last", duration, time, repeats=False)


def any_of(*triggers: Trigger | int | str | timedelta) -> Trigger:
    """Fire when one of two or more ``triggers`` does. A number or a duration means ``every`` of it.

    Examples
    --------
    >>> print(hr.triggers.any_of(hr.triggers.every(1000), hr.triggers.every("10s")))
    any of (every 1000, every 10s)
    """
    with Declaring("any_of"):
        parts = _several(triggers)
        return Trigger(_listed("any of", parts), tuple(a for part in parts for a in part.alternatives))


def all_of(*triggers: Trigger | int | str | timedelta) -> Trigger:
    """Fire when all of two or more ``triggers`` would fire. If one of them uses time, this is checked when time moves.

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
    """Use ``trigger`` again after each result. A number or a duration means ``every`` of it.

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

    Examples
    --------
    >>> print(hr.triggers.at_close())
    at close
    """
    return Trigger("at close")


def as_trigger(value: object) -> Trigger:
    """A trigger unchanged, and a number or a duration as ``every`` of it."""
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

"""The shapes of windows."""

from __future__ import annotations

from headrace.api.location import Declaring
from headrace.api.shapes import CountWindow, GlobalWindow, Hopping, Session, Sliding, Tumbling
from headrace.core.duration import Duration, format_ms, to_ms
from headrace.core.errors import DeclarationError


def tumbling(size: Duration, offset: Duration = "0s") -> Tumbling:
    """Windows of one size, one after the other: every message is in exactly one of them.

    They are aligned to the epoch: ``"1h"`` windows begin at full hours (UTC).

    Parameters
    ----------
    size
        How long a window is.
    offset
        Shifts all windows by this much.

    Returns
    -------
    Tumbling
        A shape for ``window``.

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
    """Windows of one size that overlap: a message is in several of them.

    They begin at multiples of ``every`` since the epoch.

    Parameters
    ----------
    size
        How long a window is.
    every
        The time between the beginnings of two windows. It need not divide ``size``.
    offset
        Shifts all windows by this much.

    Returns
    -------
    Hopping
        A shape for ``window``.

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

    Parameters
    ----------
    size
        How long a window is.

    Returns
    -------
    Sliding
        A shape for ``window``.

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

    Parameters
    ----------
    gap
        How long a key must be idle for its session to end.

    Returns
    -------
    Session
        A shape for ``window``.

    Examples
    --------
    >>> hr.session("30m")
    Session(gap_ms=1800000)
    """
    with Declaring("session"):
        return Session(to_ms(gap, "gap", minimum=1))


def count(size: int, every: int | None = None) -> CountWindow:
    """The last ``size`` messages of a key in order of arrival, each time ``every`` more have arrived.

    Time plays no part. When the input ends, incomplete windows are emitted.

    Parameters
    ----------
    size
        How many messages a window holds.
    every
        How many messages of a key are between two results. By default ``size``, so windows don't overlap.

    Returns
    -------
    CountWindow
        A shape for ``window``.

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

    Returns
    -------
    GlobalWindow
        A shape for ``window``.

    Examples
    --------
    >>> hr.windows.global_()
    GlobalWindow()
    """
    return GlobalWindow()

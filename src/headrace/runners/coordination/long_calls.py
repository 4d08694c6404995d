"""Calls of the app's own code that take long: what heartbeats say of them, and when they have taken too long. Pure.

A container in a call isn't lost: another thread sends its heartbeats. But nothing else happens in it, so there are two
limits: a drain doesn't wait long for one call, and no call may take forever.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.api.settings import DRAIN_TIMEOUT_MS, HUNG_AFTER_MS
from headrace.core.duration import format_ms
from headrace.core.errors import UserFunctionError
from headrace.runners.coordination.messages import ErrorReport, Heartbeat, Holdup

_SAME_MS = 100
"""Each heartbeat works out when a call began. Of one call that differs by less than this."""


@dataclass(frozen=True, slots=True)
class LongCall:
    """A call that takes long, as a heartbeat has described it last, and when the first one arrived.

    A function that takes single messages is called for each of a batch, and all of these count as one call here.
    """

    holdup: Holdup
    heard_ms: float

    def after(self, message: Heartbeat) -> LongCall | None:
        """The call that a heartbeat reports, if it is this one."""
        holdup = _reported(message)
        if holdup is None or abs(holdup.since_ms - self.holdup.since_ms) >= _SAME_MS:
            return None
        return LongCall(msgspec.structs.replace(holdup, since_ms=self.holdup.since_ms), self.heard_ms)

    @property
    def where(self) -> str:
        """The function, as text."""
        return self.holdup.where


def long_call(message: Heartbeat, before: LongCall | None, now_ms: float) -> LongCall | None:
    """The call of the app's own code that a heartbeat reports; ``before`` is the one that was known."""
    if before is not None and (same := before.after(message)) is not None:
        return same
    holdup = _reported(message)
    return None if holdup is None else LongCall(holdup, now_ms)


def _reported(message: Heartbeat) -> Holdup | None:
    calls = (holdup for status in message.tasks for holdup in status.holdups if holdup.what == "user code")
    return next(calls, None)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long one call may take. ``replaced``: a container in which one hangs can be killed, and starts again."""

    drain_timeout_ms: float = DRAIN_TIMEOUT_MS
    hung_after_ms: float = HUNG_AFTER_MS
    replaced: bool = True

    def holds_up_drain(self, call: LongCall, now_ms: float, draining_since_ms: float) -> bool:
        """Whether a drain has waited for it long enough."""
        return now_ms - max(draining_since_ms, call.heard_ms) >= self.drain_timeout_ms

    def hangs(self, call: LongCall) -> bool:
        """Whether it will probably never end: for so long it hasn't gone on to another message."""
        return call.holdup.still_ms >= self.hung_after_ms

    def gave_up_drain(self, container: int, call: LongCall) -> ErrorReport:
        """The error that ends an app whose drain waits for a call."""
        waited = format_ms(round(self.drain_timeout_ms))
        error = UserFunctionError(
            f"gave up the drain after {waited}: container {container} is still in {call.where}",
            hint="the next run repeats what isn't committed; make the function faster, or raise drain_timeout",
        )
        return ErrorReport.of(error, with_traceback=False)

    def hung(self, container: int, host: str, call: LongCall) -> ErrorReport:
        """The error of a container in which a call hangs."""
        done = "it was killed and starts again" if self.replaced else "the app ends"
        return ErrorReport(
            type="UserFunctionError",
            message=f"container {container} on {host} has been in one call for more than "
            f"{format_ms(round(self.hung_after_ms))}, so {done}\n  in {call.where}",
            hint="add a timeout to what the function waits for; if a call may take this long, raise hung_after",
            fault="user",
            retry=self.replaced,
        )

"""Calls of the app's own code that take long: what heartbeats say of them, and when they have taken too long. Pure.

A container in a call isn't lost: another thread sends its heartbeats. But nothing else happens in it, so there are two
limits: a drain doesn't wait long, and no call may take forever. A turn of a run loop that takes long outside of a call
is treated alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.api.settings import DRAIN_TIMEOUT_MS, HUNG_AFTER_MS
from headrace.core.duration import format_ms
from headrace.core.errors import UserFunctionError
from headrace.runners.coordination.messages import ContainerState, ErrorReport, Heartbeat, Holdup, TaskStatus

_NAMED_MAX = 5

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
        """The function, or what the run loop is in, as text."""
        return self.holdup.where


def long_call(message: Heartbeat, before: LongCall | None, now_ms: float) -> LongCall | None:
    """The call of the app's own code that a heartbeat reports; ``before`` is the one that was known."""
    if before is not None and (same := before.after(message)) is not None:
        return same
    holdup = _reported(message)
    return None if holdup is None else LongCall(holdup, now_ms)


def _reported(message: Heartbeat) -> Holdup | None:
    calls = (one for status in message.tasks for one in status.holdups if one.what in ("user code", "run loop"))
    return next(calls, None)


def doing_still(container: int, state: ContainerState, call: LongCall | None, tasks: Iterable[TaskStatus]) -> str:
    """Say what a container does instead of ending."""
    if state == "running" and call is not None:
        return f"container {container} is still in {call.where}"
    counts = Counter(task.state for task in tasks if task.state != "finished")
    return f"container {container} is {state} ({', '.join(f'tasks {one}: {count}' for one, count in counts.items())})"


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long a drain and one call may take; None: forever.

    ``replaced``: a container in which a call hangs can be killed, and starts again.
    """

    drain_timeout_ms: int = DRAIN_TIMEOUT_MS
    hung_after_ms: int | None = HUNG_AFTER_MS
    replaced: bool = True

    def hangs(self, call: LongCall) -> bool:
        """Whether it will probably never end: for so long it hasn't gone on to another message."""
        return self.hung_after_ms is not None and call.holdup.still_ms >= self.hung_after_ms

    def gave_up_drain(self, waits: Sequence[str]) -> ErrorReport:
        """The error that ends an app whose drain takes too long; ``waits`` says what each container does."""
        more = [f"{len(waits) - _NAMED_MAX} more containers"] if len(waits) > _NAMED_MAX else []
        error = UserFunctionError(
            f"the drain didn't end within {format_ms(self.drain_timeout_ms)}: "
            f"{'; '.join([*waits[:_NAMED_MAX], *more])}",
            hint="the next run repeats what isn't committed; make functions faster, or raise drain_timeout",
        )
        return ErrorReport.of(error, with_traceback=False)

    def hung(self, container: int, host: str, call: LongCall) -> ErrorReport:
        """The error of a container in which a call hangs."""
        done = "it was killed and starts again" if self.replaced else "the app ends"
        ours = call.holdup.what == "run loop"
        return ErrorReport(
            type="InfrastructureError" if ours else "UserFunctionError",
            message=f"container {container} on {host} has been in one {'turn' if ours else 'call'} for more than "
            f"{format_ms(self.hung_after_ms or 0)}, so {done}\n  in {call.where}",
            hint="check the load of the machine and its disks; if a turn may take this long, raise hung_after"
            if ours
            else "add a timeout to the call that the function waits for; if a call may take this long, raise "
            "hung_after",
            fault="environment" if ours else "user",
            retry=self.replaced,
        )

"""Track long calls of the app's own code, from heartbeats, and decide when they have taken too long. Pure.

A container in a call isn't lost, because another thread sends its heartbeats. But it does nothing else, so there are
two limits: on the duration of a drain, and on the duration of a call. A long turn of a run loop outside a call is
treated the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.api.settings import DRAIN_TIMEOUT_MS, HUNG_AFTER_MS
from headrace.core.duration import format_ms
from headrace.core.errors import UserFunctionError
from headrace.runners.coordination.error_report import ErrorReport
from headrace.runners.coordination.messages import ContainerState, Heartbeat, Holdup, TaskStatus

_NAMED_MAX = 5

_SAME_MS = 100
"""Each heartbeat computes when a call began. For one call, the results differ by less than this."""


@dataclass(frozen=True, slots=True)
class LongCall:
    """A long call, as the last heartbeat has described it, and when the first heartbeat about it arrived.

    A function of single messages is called for each message of a batch; all of these count as one call here.
    """

    holdup: Holdup
    heard_ms: float

    def after(self, message: Heartbeat) -> LongCall | None:
        """Return the call that a heartbeat reports, if it is this one."""
        holdup = _reported(message)
        if holdup is None or abs(holdup.since_ms - self.holdup.since_ms) >= _SAME_MS:
            return None
        return LongCall(msgspec.structs.replace(holdup, since_ms=self.holdup.since_ms), self.heard_ms)

    @property
    def where(self) -> str:
        """The function or the activity of the run loop, as text."""
        return self.holdup.where


def long_call(message: Heartbeat, before: LongCall | None, now_ms: float) -> LongCall | None:
    """Return the call of the app's own code that a heartbeat reports; ``before`` is the one known so far."""
    if before is not None and (same := before.after(message)) is not None:
        return same
    holdup = _reported(message)
    return None if holdup is None else LongCall(holdup, now_ms)


def _reported(message: Heartbeat) -> Holdup | None:
    calls = (one for status in message.tasks for one in status.holdups if one.what in ("user code", "run loop"))
    return next(calls, None)


def doing_still(container: int, state: ContainerState, call: LongCall | None, tasks: Iterable[TaskStatus]) -> str:
    """Describe what a container does instead of ending."""
    if state == "running" and call is not None:
        return f"container {container} is still in {call.where}"
    counts = Counter(task.state for task in tasks if task.state != "finished")
    return f"container {container} is {state} ({', '.join(f'tasks {one}: {count}' for one, count in counts.items())})"


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits on a drain and on one call; None means no limit.

    ``replaced``: a container with a hanging call can be killed and restarted.
    """

    drain_timeout_ms: int = DRAIN_TIMEOUT_MS
    hung_after_ms: int | None = HUNG_AFTER_MS
    replaced: bool = True

    def hangs(self, call: LongCall) -> bool:
        """Return whether the call will probably never end, because it hasn't moved to another message for too long."""
        return self.hung_after_ms is not None and call.holdup.still_ms >= self.hung_after_ms

    def gave_up_drain(self, waits: Sequence[str]) -> ErrorReport:
        """Return the error that ends an app whose drain takes too long; ``waits`` describes each container."""
        more = [f"{len(waits) - _NAMED_MAX} more containers"] if len(waits) > _NAMED_MAX else []
        error = UserFunctionError(
            f"the drain didn't end within {format_ms(self.drain_timeout_ms)}: "
            f"{'; '.join([*waits[:_NAMED_MAX], *more])}",
            hint="the next run repeats what isn't committed; make functions faster, or raise drain_timeout",
        )
        return ErrorReport.of(error, with_traceback=False)

    def hung(self, container: int, host: str, call: LongCall) -> ErrorReport:
        """Return the error of a container with a hanging call."""
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

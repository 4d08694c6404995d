"""Judge an app's health by its status and the user's limits: a verdict and one line for monitoring tools. Pure.

Verdicts are those of monitoring plugins: 0 healthy, 1 warning, 2 critical, 3 unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from headrace.core.duration import format_ms, to_ms
from headrace.core.errors import UsageError
from headrace.runners.coordination.messages import RESTARTS_KEPT, AppStatus, TaskStatus

_RESTARTS = re.compile(r"(?P<most>\d+)/(?P<within>.+)")
_NAMED = 3


class Verdict(IntEnum):
    """The result of a check; its value is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits beyond which an app is critical; None means no limit. Times are in milliseconds.

    More than ``most_restarts`` restarts of all containers together within ``restarts_within_ms`` are too many.
    """

    lag_ms: int | None = None
    checkpoint_age_ms: int | None = None
    most_restarts: int | None = None
    restarts_within_ms: int = 0

    @classmethod
    def of(cls, lag: str | None, checkpoint_age: str | None, restarts: str | None) -> Limits:
        """Return the limits that options set. Raises ``UsageError``."""
        most, within = (None, 0) if restarts is None else _restarts(restarts)
        return cls(
            None if lag is None else to_ms(lag, "--max-lag", error=UsageError),
            None if checkpoint_age is None else to_ms(checkpoint_age, "--max-checkpoint-age", error=UsageError),
            most,
            within,
        )


def _restarts(text: str) -> tuple[int, int]:
    matched = _RESTARTS.fullmatch(text)
    if matched is None:
        raise UsageError(f"--max-restarts {text!r}: expected N/TIME", hint="write 3/10m: 3 restarts in 10 minutes")
    if int(matched["most"]) >= RESTARTS_KEPT:
        raise UsageError(f"--max-restarts {text!r}: that many aren't remembered", hint=f"stay below {RESTARTS_KEPT}")
    return int(matched["most"]), to_ms(matched["within"], "--max-restarts", minimum=1, error=UsageError)


def check(statuses: Sequence[AppStatus], limits: Limits, now_ms: int) -> tuple[Verdict, str]:
    """Return the worst verdict about an app's deployments, and one line about it. ``now_ms`` is the time of day."""
    found = [one for status in statuses for one in _found(status, limits, now_ms)]
    worst = max((verdict for verdict, _ in found), default=Verdict.OK)
    told = [text for verdict, text in sorted(found, key=lambda one: -one[0])] or ["is well"]
    return worst, f"{worst.name}: {statuses[0].app} {'; '.join(told)}"


def _found(status: AppStatus, limits: Limits, now_ms: int) -> Iterator[tuple[Verdict, str]]:
    match status.state:
        case "unreachable":
            yield Verdict.UNKNOWN, "can't be reached"
            return
        case "failed" | "gone":
            yield Verdict.CRITICAL, "has failed" if status.state == "failed" else "is gone: its driver has died"
            return
        case "finished" | "stopped":
            return
        case "starting":
            yield Verdict.WARNING, "is starting"
        case _:
            pass
    away = [f"container {c.id} {c.away}" for c in status.containers if c.away]
    if away:
        yield Verdict.WARNING, _listed(away)
    open_ = [task for task in status.tasks if task.state != "finished"]
    if limits.lag_ms is not None:
        lags = ((task.name, _lag_ms(task, now_ms)) for task in open_)
        yield from _beyond("lag", lags, limits.lag_ms)
    if limits.checkpoint_age_ms is not None:
        ages = ((t.name, t.uptime_ms if t.checkpoint is None else t.checkpoint.age_ms) for t in open_)
        yield from _beyond("last commit", ages, limits.checkpoint_age_ms)
    if limits.most_restarts is not None:
        ago = (ms for container in status.containers for ms in container.restarted_ago_ms)
        times = sum(ms <= limits.restarts_within_ms for ms in ago)
        if times > limits.most_restarts:
            within = format_ms(limits.restarts_within_ms)
            yield Verdict.CRITICAL, f"{times} restarts in {within}, more than {limits.most_restarts}"


def _beyond(what: str, values: Iterable[tuple[str, int]], limit_ms: int) -> Iterator[tuple[Verdict, str]]:
    beyond = sorted(((ms, name) for name, ms in values if ms > limit_ms), reverse=True)
    if beyond:
        tasks = _listed([f"{name} {ms / 1000:.0f}s" for ms, name in beyond])
        yield Verdict.CRITICAL, f"{what} above {format_ms(limit_ms)}: {tasks}"


def _lag_ms(task: TaskStatus, now_ms: int) -> int:
    """Return how far the slowest input with unread messages is behind the clock."""
    behind = [
        now_ms - one.watermark
        for one in task.inputs.values()
        if one.lag != 0 and one.watermark is not None and not one.ended
    ]
    return max(0, *behind, 0)


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more

"""What a task waits for: from the facts of one task to records that name what, where, since when, and the remedy. Pure.

Only what has stood still for some seconds counts. A task that can't read isn't said to wait for time as well, because
time can't move then. ``since_ms`` is milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.core.duration import format_ms
from headrace.runners.coordination.messages import Holdup, TaskStatus, What
from headrace.runtime.at_work import Work

STILL_MS = 5000
"""What has not moved for this long holds a task up."""

CALL_MS = 2000
"""A function of the app that has been running for this long holds up all tasks of its container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """One input partition. Times of its watermark are event time; None: there is none yet.

    ``still_ms``: for how long the watermark has not risen. For intermediate streams: ``missing`` says who has never
    reported, ``slowest`` who holds the watermark back, and ``uneven`` whether others of its writers are ahead of them.
    """

    name: str
    watermark: int | None
    still_ms: float
    lag: int | None = None
    idle: bool = False
    ended: bool = False
    idle_timeout_ms: int | None = None
    missing: str = ""
    slowest: tuple[str, ...] = ()
    uneven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """A task at one moment, ``now_ms`` (since the epoch). ``timed``: some input of the app has an event time.

    ``blocked`` says what keeps it from reading, and for how long. ``TaskStatus`` explains the rest.
    """

    now_ms: int
    up_ms: float = 0
    timed: bool = True
    restoring: bool = False
    side_inputs_percent: int | None = None
    blocked: Mapping[What, tuple[str, float]] = field(default_factory=dict)
    waits_for: Mapping[str, Sequence[str]] = field(default_factory=dict)
    overdue_ms: int = 0
    inputs: Sequence[InputFacts] = ()


_REMEDIES: Mapping[What, str] = {
    "restore": "nothing to do: it goes on by itself",
    "side inputs": "nothing to do: it goes on by itself",
    "readers": "start the stage that reads it, or look at what holds that stage up",
    "target": "make the target reachable again; what is committed will be published",
    "calls": "look at the service that is called; the step's concurrency and timeout may be too low",
    "data": "nothing to do: it goes on when messages come, or when the input ends; if others wait for this "
    "input meanwhile, give it an idle_timeout",
}


def holdups(facts: TaskFacts) -> list[Holdup]:
    """Return everything that the task waits for; nothing if it gets on."""
    found: list[Holdup] = []
    if facts.restoring and facts.up_ms >= STILL_MS:
        found.append(_holdup(facts, "restore", "its state is being restored", facts.up_ms))
    if facts.side_inputs_percent is not None:
        found.append(_holdup(facts, "side inputs", f"{facts.side_inputs_percent} % are read", facts.up_ms))
    found += [_holdup(facts, what, where, for_ms) for what, (where, for_ms) in facts.blocked.items()]
    for where, tasks in facts.waits_for.items():
        remedy = f"look at what holds {tasks[0]} up"
        found.append(_holdup(facts, "checkpoint", where, facts.overdue_ms, remedy, tasks))
    return found or list(_time(facts))


def _time(facts: TaskFacts) -> Iterator[Holdup]:
    """Yield the inputs that hold event time back, or that send nothing."""
    awake = [one for one in facts.inputs if not one.ended and not one.idle]
    if not facts.timed or not awake:
        return
    lowest = min(_order(one.watermark) for one in awake)
    ahead = any(_order(one.watermark) > lowest for one in facts.inputs)
    for one in awake:
        if _order(one.watermark) > lowest or one.still_ms < STILL_MS or one.lag:
            continue
        if one.missing:
            remedy = "look at what holds that stage up, and start it if it doesn't run"
            yield _holdup(facts, "watermark", f"{one.name}: nothing from {one.missing}", one.still_ms, remedy)
        elif one.slowest and (one.uneven or ahead):
            remedy = f"look at what holds {one.slowest[0]} up"
            where = f"{one.name}: the watermark of {_listed(one.slowest)} stands still"
            yield _holdup(facts, "watermark", where, one.still_ms, remedy, one.slowest)
        elif ahead:
            yield _holdup(facts, "watermark", f"{one.name}: {_said(one)}", one.still_ms, _wake(one))
        else:
            yield _holdup(facts, "data", one.name, one.still_ms, by=one.slowest)


def _said(one: InputFacts) -> str:
    return "no message has come yet" if one.watermark is None else "no newer message has come"


def _wake(one: InputFacts) -> str:
    if one.idle_timeout_ms is not None:
        return f"nothing to do: it counts as idle after {format_ms(one.idle_timeout_ms)}"
    return "write to this partition or seal the stream, or give the input an idle_timeout, so that nobody waits for it"


def _order(watermark: int | None) -> float:
    return float("-inf") if watermark is None else watermark


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _holdup(
    facts: TaskFacts, what: What, where: str, for_ms: float, remedy: str = "", by: Sequence[str] = ()
) -> Holdup:
    since_ms = facts.now_ms - round(for_ms)
    return Holdup(what=what, where=where, since_ms=since_ms, remedy=remedy or _REMEDIES[what], by=list(by))


# -- the run loop itself ----------------------------------------------------------------------------------


def held_by_run_loop(
    statuses: Sequence[TaskStatus],
    work: Work | None,
    monotonic_ms: float,
    observed_ms: float,
    now_ms: int,
    line: Callable[[], str | None] = lambda: None,
    moved_ms: float | None = None,
) -> list[TaskStatus]:
    """Return the statuses of a container's tasks as of now; while its run loop does one thing for long, they say that.

    ``observed_ms`` is when (monotonic) the run loop reported the statuses. ``line`` returns the line of the app's own
    code at which it is. ``moved_ms`` is when (monotonic) the function was last called for another message.
    """
    holdup: Holdup | None = None
    if work is not None and monotonic_ms - work.since_ms >= CALL_MS:
        since_ms = now_ms - round(monotonic_ms - work.since_ms)
        place = f", on {work.place}" if work.place else ""
        at = "" if (now := line()) is None else f", at {now}"
        holdup = Holdup(
            what="user code",
            where=f"the function of step {work.step!r} in task {work.task}{place}{at}",
            since_ms=since_ms,
            remedy="make the function faster; if it waits for a service, call it with map_async",
            by=[work.task],
            still_ms=round(monotonic_ms - (work.since_ms if moved_ms is None else moved_ms)),
        )
    elif statuses and monotonic_ms - observed_ms >= STILL_MS:
        holdup = Holdup(
            what="run loop",
            where="one turn of the container's run loop, outside of the app's functions",
            since_ms=now_ms - round(monotonic_ms - observed_ms),
            remedy="look at the machine's disks and processors; a very large batch takes long, too",
        )
    statuses = [_older(one, round(monotonic_ms - observed_ms)) for one in statuses]
    if holdup is None:
        return statuses
    return [one if one.state == "finished" else msgspec.structs.replace(one, holdups=[holdup]) for one in statuses]


def _older(status: TaskStatus, ms: int) -> TaskStatus:
    """The status of a task some time later, in which it has committed nothing."""
    if status.state == "finished" or status.checkpoint is None or ms <= 0:
        return status
    checkpoint = msgspec.structs.replace(status.checkpoint, age_ms=status.checkpoint.age_ms + ms)
    return msgspec.structs.replace(status, checkpoint=checkpoint)


class Standstill:
    """Since when values have been what they are. The oldest are kept as long as they are asked for."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def for_ms(self, key: Hashable, value: object, now_ms: float) -> float:
        """For how long the value of ``key`` has been this one."""
        known = self._seen.get(key)
        if known is None or known[0] != value:
            self._seen[key] = value, now_ms
            return 0.0
        return now_ms - known[1]

"""What a task waits for: from the facts of one task to records that name what, where, since when, and the remedy. Pure.

Only what has stood still for some seconds counts. A task that can't read isn't said to wait for time as well, because
time can't move then. ``since_ms`` is milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import msgspec

from headrace.coordinator.messages import REASONS, Holdup, TaskStatus, What
from headrace.core.clock import format_ms, utc_text
from headrace.run.progress import set_aside
from headrace.task.scope import Work

STILL_MS = 5000
"""What has not moved for this long holds a task up."""
CALL_MS = 2000
"""A function of the app that has been running for this long holds up all tasks of its container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """One input partition. Times of its watermark are event time; None: there is none yet.

    ``still_ms``: for how long the watermark has not risen, ``quiet_ms``: for how long no message has arrived. ``aside``
    counts the messages of the task that have had no effect since the watermark stands still. For intermediate streams:
    ``missing`` says who has never reported, ``slowest`` who holds the watermark back, and ``uneven`` whether others of
    its writers are ahead of them.
    """

    name: str
    watermark: int | None
    still_ms: float
    lag: int | None = None
    idle: bool = False
    ended: bool = False
    idle_timeout_ms: int | None = None
    quiet_ms: float = inf
    aside: Mapping[str, int] = field(default_factory=dict)
    timed: bool = True
    missing: str = ""
    slowest: tuple[str, ...] = ()
    uneven: bool = False


def holdups(
    status: TaskStatus,
    now_ms: int,
    inputs: Sequence[InputFacts],
    blocked: Mapping[What, tuple[str, float]],
    *,
    timed: bool = True,
) -> list[Holdup]:
    """Return everything that a task waits for at ``now_ms`` (since the epoch); nothing if it gets on.

    ``blocked`` says what keeps it from reading, and for how long. ``timed``: some input of the app has an event time.
    """
    found: list[Holdup] = []
    if status.state == "finished":
        return found
    if status.state == "restoring" and status.uptime_ms >= STILL_MS:
        found.append(_holdup(now_ms, "restore", "its state is being restored", status.uptime_ms))
    if status.side_inputs_percent is not None:
        found.append(_holdup(now_ms, "side inputs", f"{status.side_inputs_percent} % are read", status.uptime_ms))
    found += [_holdup(now_ms, what, where, for_ms) for what, (where, for_ms) in blocked.items()]
    for where, tasks in status.waits_for.items():
        remedy = f"find out what holds {tasks[0]} up"
        found.append(_holdup(now_ms, "checkpoint", where, status.overdue_ms, remedy, tasks))
    return found or (list(_time(now_ms, inputs)) if timed else [])


def _time(now_ms: int, inputs: Sequence[InputFacts]) -> Iterator[Holdup]:
    awake = [one for one in inputs if not one.ended and not one.idle]
    lowest = min((_order(one) for one in awake), default=0)
    ahead = any(_order(one) > lowest for one in inputs)
    for one in awake:
        if _order(one) > lowest or one.still_ms < STILL_MS or one.lag:
            continue
        if one.missing:
            remedy = "find out what holds that stage up, and start it if it isn't running"
            yield _holdup(now_ms, "watermark", f"{one.name}: nothing from {one.missing}", one.still_ms, remedy)
        elif one.slowest and (one.uneven or ahead or _arriving(one)):
            remedy = f"find out what holds {one.slowest[0]} up"
            others = f" and {len(one.slowest) - 1} more" if len(one.slowest) > 1 else ""
            where = f"{one.name}: the watermark of {one.slowest[0]}{others} stands still{_aside(one)}"
            yield _holdup(now_ms, "watermark", where, one.still_ms, remedy, one.slowest)
        elif _arriving(one) and one.timed:
            since = "" if one.watermark is None else f", which is at {utc_text(one.watermark)}"
            where = f"{one.name}: messages arrive, but none moves event time on{since}{_aside(one)}"
            yield _holdup(now_ms, "late", where, one.still_ms, _refused(one))
        elif ahead:
            yield _holdup(now_ms, "watermark", f"{one.name}: {_said(one)}", one.still_ms, _wake(one))
        else:
            yield _holdup(now_ms, "data", one.name, one.still_ms, by=one.slowest)


def _arriving(one: InputFacts) -> bool:
    return one.quiet_ms < STILL_MS


def _aside(one: InputFacts) -> str:
    words = set_aside(one.aside) if _arriving(one) else ""
    return f"; since then, of the task's messages, {words}" if words else ""


def _refused(one: InputFacts) -> str:
    refused = one.aside.get("skipped", 0) + one.aside.get("dead_lettered", 0)
    return "see in the log or in the dead letters why they don't fit the input's schema" if refused else ""


def _said(one: InputFacts) -> str:
    if _arriving(one):
        return "messages arrive, but the input has no event time"
    return "no message has arrived yet" if one.watermark is None else "no newer message has arrived"


def _wake(one: InputFacts) -> str:
    if _arriving(one):
        return "give the input an event_time, so that its messages move time on"
    if one.idle_timeout_ms is not None:
        return f"wait: it counts as idle after {format_ms(one.idle_timeout_ms)}"
    return "write to this partition or seal the stream, or give the input an idle_timeout, so that no task waits for it"


def _order(one: InputFacts) -> float:
    return -inf if one.watermark is None else one.watermark


def _holdup(now_ms: int, what: What, where: str, for_ms: float, remedy: str = "", by: Sequence[str] = ()) -> Holdup:
    since_ms = now_ms - round(for_ms)
    return Holdup(what=what, where=where, since_ms=since_ms, remedy=remedy or REASONS[what].remedy, by=list(by))


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """What a container's run loop is doing at ``now_ms``. These times are monotonic.

    ``turned_ms`` is when it last came round, ``work`` the call of the app's own code that is under way, and
    ``moved_ms`` when that was last called for another message. ``line`` returns the line of that code at which the run
    loop is. Under a debugger (``debugged``), it may stand still for any time. ``calls_since_ms`` and ``calls_line`` are
    of the event loop of calls, while one of them blocks it.
    """

    now_ms: float
    turned_ms: float
    work: Work | None = None
    moved_ms: float | None = None
    line: Callable[[], str | None] = lambda: None
    debugged: bool = False
    calls_since_ms: float | None = None
    calls_line: Callable[[], str | None] = lambda: None


def held_by_run_loop(doing: Doing, epoch_ms: int) -> Holdup | None:
    """Return what the run loop has been doing for long, which holds up all tasks of its container; None: nothing."""
    work, now_ms = doing.work, doing.now_ms
    if work is not None and now_ms - work.since_ms >= CALL_MS:
        moved_ms = work.since_ms if doing.moved_ms is None else doing.moved_ms
        place = f", on {work.place}" if work.place else ""
        what: What = "user code"
        where = f"the function of step {work.step!r} in task {work.task}{place}{_at(doing.line())}"
        since_ms, by, remedy = work.since_ms, [work.task], _FASTER
    elif work is None and now_ms - doing.turned_ms >= STILL_MS:
        since_ms = moved_ms = doing.turned_ms
        line, by = doing.line(), []
        what = "run loop" if line is None else "user code"
        within = "outside of" if line is None else "in"
        where = f"one turn of the container's run loop, {within} the app's own code{_at(line)}"
        remedy = _OUTSIDE if line is None else _FASTER
    elif doing.calls_since_ms is not None and now_ms - doing.calls_since_ms >= CALL_MS:
        what, by, remedy = "user code", [], _AWAITED
        where = f"an async function that lets no other call go on{_at(doing.calls_line())}"
        since_ms = moved_ms = doing.calls_since_ms
    else:
        return None
    still_ms = 0 if doing.debugged else round(now_ms - moved_ms)
    since_ms = epoch_ms - round(now_ms - since_ms)
    return Holdup(what=what, where=where, since_ms=since_ms, remedy=remedy, by=by, still_ms=still_ms)


def holding_all(statuses: Sequence[TaskStatus], holdup: Holdup) -> list[TaskStatus]:
    """Return the statuses of tasks that wait for nothing but their run loop."""
    return [one if one.state == "finished" else msgspec.structs.replace(one, holdups=[holdup]) for one in statuses]


_FASTER = "make the function faster; if it waits for a service, call it with map_async"
_AWAITED = "await the slow call, or make it a plain function, which map_async calls in a thread"
_OUTSIDE = "check the machine's disks and processors; a very large batch also takes long"


def _at(line: str | None) -> str:
    return "" if line is None else f", at {line}"


def older(status: TaskStatus, ms: int) -> TaskStatus:
    if status.state == "finished" or status.checkpoint is None or ms <= 0:
        return status
    checkpoint = msgspec.structs.replace(status.checkpoint, age_ms=status.checkpoint.age_ms + ms)
    return msgspec.structs.replace(status, checkpoint=checkpoint)


class Standstill:
    """Records since when values are unchanged, and what has been counted since. All are kept."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[object, float]] = {}
        self._counts: dict[Hashable, tuple[float, Mapping[str, int]]] = {}

    def for_ms(self, key: Hashable, value: object, now_ms: float) -> float:
        known = self._seen.get(key)
        if known is None or known[0] != value:
            self._seen[key] = value, now_ms
            return 0.0
        return now_ms - known[1]

    def counted(self, key: Hashable, counts: Mapping[str, int]) -> dict[str, int]:
        since_ms = self._seen[key][1]
        if key not in self._counts or self._counts[key][0] != since_ms:
            self._counts[key] = since_ms, counts
        before = self._counts[key][1]
        return {name: count - before[name] for name, count in counts.items()}

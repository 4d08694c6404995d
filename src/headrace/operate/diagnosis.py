"""What holds an app up, and whether it is healthy: sentences and verdicts. Pure.

Tasks wait for others: for their watermark, for their commit, or until they have read frames. A task that waits for no
other is at the end of such a chain: it is the culprit, and its own holdup says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from headrace.coordinator.messages import REASONS, RESTARTS_KEPT, AppStatus, ContainerStatus, Holdup, TaskStatus, What
from headrace.core.clock import format_ms, to_ms
from headrace.core.errors import UsageError
from headrace.core.ids import stage_of

SLOT_REMEDY = "add a machine or cores to the cluster, or end another job of this Spark session"
_BUSY = 0.9
_PARTITION = re.compile(r"\S+\[\d+\]")


@dataclass(frozen=True, slots=True)
class Reason:
    """One culprit. ``tasks`` wait for it, directly or not; ``task`` is itself a task, or empty for a container."""

    kind: str
    text: str
    remedy: str
    since_ms: int
    task: str
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Wait:
    task: str
    what: What
    since_ms: int


@dataclass(frozen=True, slots=True)
class _Chain:
    waiter: str
    steps: tuple[_Wait, ...]

    @property
    def end(self) -> str:
        return self.steps[-1].task if self.steps else self.waiter


def reasons(
    status: AppStatus, readers: Mapping[str, Sequence[str]], busy: Callable[[str], float], now_ms: int
) -> list[Reason]:
    """Return every culprit, the longest-lasting first. ``readers`` are the tasks that read ``system.stream[n]``."""
    tasks = {task.name: task for task in status.tasks if task.state != "finished"}
    hosts = {name: container for container in status.containers for name in container.tasks}
    inquiry = _Inquiry(tasks, hosts, readers, busy, now_ms)
    chains: dict[str, list[_Chain]] = {}
    for name, task in tasks.items():
        held = any(holdup.what not in ("restore", "side inputs") for holdup in task.holdups)
        if held or inquiry.away(name) is not None:
            chain = inquiry.followed(name)
            chains.setdefault(inquiry.culprit(chain.end), []).append(chain)
    found = [inquiry.reason(of) for of in chains.values()]
    return sorted((one for one in found if one is not None), key=lambda one: (one.since_ms, one.text))


def held_back(task: TaskStatus) -> bool:
    """Return whether anything but a lack of messages holds the task up."""
    return task.state == "blocked" or any(not holdup.words.passes for holdup in task.holdups)


@dataclass(frozen=True, slots=True)
class _Inquiry:
    tasks: Mapping[str, TaskStatus]
    hosts: Mapping[str, ContainerStatus]
    readers: Mapping[str, Sequence[str]]
    busy: Callable[[str], float]
    now_ms: int

    def away(self, task: str) -> ContainerStatus | None:
        container = self.hosts.get(task)
        return container if container is not None and container.away else None

    def culprit(self, end: str) -> str:
        """The common key of chains with the same culprit: tasks of one container may wait for one function."""
        if (container := self.away(end)) is not None:
            return f"container {container.id}"
        for holdup in self.tasks[end].holdups if end in self.tasks else ():
            if holdup.words.whole:
                return f"{self.hosts[end].id if end in self.hosts else ''} {holdup.where}"
        return end

    def followed(self, name: str) -> _Chain:
        """The chain of waits from a task on. A circle ends where it closes."""
        steps: list[_Wait] = []
        seen, at = {name}, name
        while at in self.tasks and self.away(at) is None:
            ahead = [step for step in self._waits(self.tasks[at]) if step.task not in seen]
            if not ahead:
                break
            steps.append(min(ahead, key=lambda one: one.since_ms))
            at = steps[-1].task
            seen.add(at)
        return _Chain(name, tuple(steps))

    def _waits(self, task: TaskStatus) -> Iterator[_Wait]:
        for holdup in task.holdups:
            others: Sequence[str] = holdup.by if holdup.words.other else ()
            if holdup.what == "readers" and (partition := _PARTITION.match(holdup.where)) is not None:
                others = self.readers.get(partition[0], ())
            yield from (_Wait(other, holdup.what, holdup.since_ms) for other in others if other != task.name)

    def reason(self, chains: Sequence[_Chain]) -> Reason | None:
        """The sentence for chains that end at one culprit; None if no task waits and it passes by itself."""
        longest = max(chains, key=lambda chain: len(chain.steps))
        end = longest.end
        kind, why, remedy, since_ms = self._why(end)
        waiting = sorted({chain.waiter for chain in chains} - {end})
        if not waiting and kind == "data":
            return None
        if longest.steps:
            since_ms = min(since_ms, *(step.since_ms for chain in chains for step in chain.steps))
        told = f"{_told(longest, waiting)}: {why}" if longest.steps else why
        return Reason(kind, told, remedy, since_ms, end if end in self.tasks else "", tuple(waiting))

    def _why(self, end: str) -> tuple[str, str, str, int]:
        tasks, now_ms = self.tasks, self.now_ms
        if (container := self.away(end)) is not None:
            since = now_ms - (container.last_seen_ms or 0)
            if container.lacks:
                return "slot", f"container {container.id} {container.away}", SLOT_REMEDY, since
            cause = f": {container.error.message.splitlines()[0]}" if container.error is not None else ""
            hint = container.error.hint if container.error is not None else None
            remedy = hint or "wait for its restart if its process has died; otherwise check its machine"
            where = f"container {container.id} on {container.host or 'no host yet'}"
            return "container", f"{where} {container.away}{cause}", remedy, since
        task = tasks.get(end)
        if task is None:
            said = f"{end} isn't part of this deployment, or has ended"
            return "elsewhere", said, "look at the stage that it is of", now_ms
        if task.holdups:
            holdup = min(task.holdups, key=lambda holdup: (holdup.words.passes, holdup.since_ms))
            said = holdup.words.alone.format(task=end, where=holdup.where)
            return holdup.what, said, holdup.remedy, holdup.since_ms
        if (share := self.busy(end)) >= _BUSY:
            remedy = "make its functions faster, or give the stage more partitions"
            return "busy", f"{end} works as fast as it can ({share:.0%} busy)", remedy, now_ms
        if task.state in ("starting", "restoring"):
            return "restore", f"{end} is {task.state}", "wait: it continues by itself", now_ms
        beside = self.hosts[end].tasks if end in self.hosts else ()
        if begun := [one for one in beside if one in tasks and tasks[one].state in ("starting", "restoring")]:
            said = f"its container {self.hosts[end].id} still starts {len(begun)} of its tasks"
            return "restore", said, "wait: it continues by itself", now_ms
        said = f"{end} is running, but hasn't got there yet"
        return "running", said, "look at its container and its machine", now_ms


def _told(chain: _Chain, waiting: Sequence[str]) -> str:
    others = len(waiting) - 1
    waits = "waits" if others < 1 else "wait"
    more = "" if others < 1 else f" and {others} other{'' if others == 1 else 's'}"
    links = [f"{REASONS[step.what].other} {step.task}" for step in chain.steps]
    return f"{chain.waiter}{more} {waits} for {', which waits for '.join(links)}"


def alike(status: AppStatus) -> list[list[tuple[str, Holdup]]]:
    """Return the holdups of tasks, similar ones together, causes before effects; not those of ``AppStatus.held_up``."""
    found: dict[tuple[object, ...], list[tuple[str, Holdup]]] = {}
    for task in status.tasks:
        for holdup in task.holdups:
            if task.state == "finished" or holdup.what == "checkpoint":
                continue
            same = (holdup.where,) if holdup.words.whole else (stage_of(task.name), holdup.what, *holdup.by)
            found.setdefault((*same, holdup.remedy), []).append((task.name, holdup))

    def order(some: list[tuple[str, Holdup]]) -> tuple[bool, int]:
        first = some[0][1]
        return bool(first.by) and first.what in ("watermark", "data"), first.since_ms

    return sorted(found.values(), key=order)


_RESTARTS = re.compile(r"(?P<most>\d+)/(?P<within>.+)")
_NAMED = 3


class Health(IntEnum):
    """The result of a check; its value is the exit code, as of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits (in ms) beyond which an app is critical; None means no limit. Restarts are those of all containers."""

    lag_ms: int | None = None
    checkpoint_age_ms: int | None = None
    most_restarts: int | None = None
    restarts_within_ms: int = 0

    @classmethod
    def of(cls, lag: str | None, checkpoint_age: str | None, restarts: str | None) -> Limits:
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


_VERDICTS = {
    "unreachable": (Health.UNKNOWN, "can't be reached"),
    "failed": (Health.CRITICAL, "has failed"),
    "gone": (Health.CRITICAL, "is gone: its driver has died"),
    "starting": (Health.WARNING, "is starting"),
}


def check(statuses: Sequence[AppStatus], limits: Limits, now_ms: int) -> tuple[Health, str]:
    """Return the worst verdict about an app's deployments, and one line about it. ``now_ms`` is the time of day."""
    found = [one for status in statuses for one in _found(status, limits, now_ms)]
    worst = max((verdict for verdict, _ in found), default=Health.OK)
    told = [text for verdict, text in sorted(found, key=lambda one: -one[0])] or ["is well"]
    return worst, f"{worst.name}: {statuses[0].app} {'; '.join(told)}"


def _found(status: AppStatus, limits: Limits, now_ms: int) -> Iterator[tuple[Health, str]]:
    if status.state in _VERDICTS:
        yield _VERDICTS[status.state]
    if status.state in ("unreachable", "failed", "gone", "finished", "stopped"):
        return
    if away := [f"container {c.id} {c.away}" for c in status.containers if c.away]:
        yield Health.WARNING, _listed(away)
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
            yield Health.CRITICAL, f"{times} restarts in {within}, more than {limits.most_restarts}"


def _beyond(what: str, values: Iterable[tuple[str, int]], limit_ms: int) -> Iterator[tuple[Health, str]]:
    beyond = sorted(((ms, name) for name, ms in values if ms > limit_ms), reverse=True)
    if beyond:
        tasks = _listed([f"{name} {ms / 1000:.0f}s" for ms, name in beyond])
        yield Health.CRITICAL, f"{what} above {format_ms(limit_ms)}: {tasks}"


def _lag_ms(task: TaskStatus, now_ms: int) -> int:
    unread = (one.watermark for one in task.inputs.values() if one.lag != 0 and not one.ended)
    return max((now_ms - watermark for watermark in unread if watermark is not None and watermark < now_ms), default=0)


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more

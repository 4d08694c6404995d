"""Find the culprits of delays: follow all tasks' waits to their ends, with a sentence and a remedy for each. Pure.

Tasks wait for others: for their watermark, for their commit, or until they have read frames. A task that waits for no
other is at the end of such a chain: it is the culprit, and its own holdup says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.runners.coordination.messages import AppStatus, ContainerStatus, Holdup, TaskStatus, What

_WAITS: Mapping[What, str] = {
    "watermark": "the watermark of",
    "data": "messages from",
    "checkpoint": "the commit of",
    "readers": "its reader",
    "user code": "the run loop of",
}
"""The reason why a task waits for another one."""

_ALONE: Mapping[What, str] = {
    "restore": "{task} isn't ready: {where}",
    "side inputs": "{task} reads its side inputs first: {where}",
    "target": "{task} can't write to its target: {where}",
    "calls": "{task} waits for calls of {where}",
    "watermark": "{task} waits for {where}",
    "late": "the event time of {task} stands still: {where}",
    "user code": "{where} is running",
    "run loop": "{task} waits for the end of {where}",
    "readers": "{where}, and no task of this deployment reads it",
    "checkpoint": "{where} isn't complete",
}
"""The causes within a task that hold it up."""

SLOT_REMEDY = "add a machine or cores to the cluster, or end another job of this Spark session"
_BUSY = 0.9
_PARTITION = re.compile(r"\S+\[\d+\]")
_QUIET: frozenset[What] = frozenset({"data", "restore", "side inputs"})
"""Holdups that pass by themselves, and matter only if another task waits for them."""


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
class _Step:
    """A task waits for another one: why, and since when."""

    task: str
    what: What
    since_ms: int


@dataclass(frozen=True, slots=True)
class _Chain:
    """The waits of one task to their end."""

    waiter: str
    steps: tuple[_Step, ...]

    @property
    def end(self) -> str:
        return self.steps[-1].task if self.steps else self.waiter


def reasons(
    status: AppStatus,
    readers: Mapping[str, Sequence[str]],
    busy: Callable[[str], float],
    now_ms: int,
) -> list[Reason]:
    """Return every culprit, the longest-lasting first.

    ``readers`` are the tasks that read a partition (``system.stream[n]``); ``busy`` is the share of its time that a
    task is busy.
    """
    tasks = {task.name: task for task in status.tasks if task.state != "finished"}
    hosts = {name: container for container in status.containers for name in container.tasks}
    chains: dict[str, list[_Chain]] = {}
    for name, task in tasks.items():
        if _held(task) or _away(hosts.get(name)) is not None:
            chain = _followed(name, tasks, hosts, readers)
            chains.setdefault(_culprit(chain.end, tasks, hosts), []).append(chain)
    found = [_reason(of, tasks, hosts, busy, now_ms) for of in chains.values()]
    return sorted((one for one in found if one is not None), key=lambda one: (one.since_ms, one.text))


def held_back(task: TaskStatus) -> bool:
    """Return whether anything but a lack of messages holds the task up."""
    return task.state == "blocked" or any(holdup.what not in _QUIET for holdup in task.holdups)


def _held(task: TaskStatus) -> bool:
    return any(holdup.what not in ("restore", "side inputs") for holdup in task.holdups)


def _away(container: ContainerStatus | None) -> ContainerStatus | None:
    return container if container is not None and container.away else None


def _culprit(end: str, tasks: Mapping[str, TaskStatus], hosts: Mapping[str, ContainerStatus]) -> str:
    """The common key of chains with the same culprit: tasks of one container may wait for one function."""
    if (container := _away(hosts.get(end))) is not None:
        return f"container {container.id}"
    for holdup in tasks[end].holdups if end in tasks else ():
        if holdup.what in ("user code", "run loop"):
            return f"{hosts[end].id if end in hosts else ''} {holdup.where}"
    return end


def _followed(
    name: str,
    tasks: Mapping[str, TaskStatus],
    hosts: Mapping[str, ContainerStatus],
    readers: Mapping[str, Sequence[str]],
) -> _Chain:
    """The chain of waits from a task on. A circle ends where it closes."""
    steps: list[_Step] = []
    seen = {name}
    at = name
    while at in tasks and _away(hosts.get(at)) is None:
        ahead = [step for step in _waits(tasks[at], readers) if step.task not in seen]
        if not ahead:
            break
        step = min(ahead, key=lambda one: one.since_ms)
        steps.append(step)
        seen.add(step.task)
        at = step.task
    return _Chain(name, tuple(steps))


def _waits(task: TaskStatus, readers: Mapping[str, Sequence[str]]) -> Iterator[_Step]:
    for holdup in task.holdups:
        for other in _others(holdup, readers):
            if other != task.name:
                yield _Step(other, holdup.what, holdup.since_ms)


def _others(holdup: Holdup, readers: Mapping[str, Sequence[str]]) -> Sequence[str]:
    if holdup.what == "readers" and (partition := _PARTITION.match(holdup.where)) is not None:
        return readers.get(partition[0], ())
    return holdup.by if holdup.what in _WAITS else ()


def _reason(
    chains: Sequence[_Chain],
    tasks: Mapping[str, TaskStatus],
    hosts: Mapping[str, ContainerStatus],
    busy: Callable[[str], float],
    now_ms: int,
) -> Reason | None:
    """Return the sentence for chains that end at one culprit; None if no task waits and it passes by itself."""
    longest = max(chains, key=lambda chain: len(chain.steps))
    end = longest.end
    kind, why, remedy, since_ms = _why(end, tasks, hosts, busy, now_ms)
    waiting = sorted({chain.waiter for chain in chains} - {end})
    if not waiting and kind == "data":
        return None
    if longest.steps:
        since_ms = min(since_ms, *(step.since_ms for chain in chains for step in chain.steps))
    told = f"{_told(longest, waiting)}: {why}" if longest.steps else why
    return Reason(kind, told, remedy, since_ms, end if end in tasks else "", tuple(waiting))


def _told(chain: _Chain, waiting: Sequence[str]) -> str:
    """Describe the waits, down to the culprit."""
    others = len(waiting) - 1
    waits = "waits" if others < 1 else "wait"
    more = "" if others < 1 else f" and {others} other{'' if others == 1 else 's'}"
    links = [f"{_WAITS[step.what]} {step.task}" for step in chain.steps]
    return f"{chain.waiter}{more} {waits} for {', which waits for '.join(links)}"


def _why(
    end: str,
    tasks: Mapping[str, TaskStatus],
    hosts: Mapping[str, ContainerStatus],
    busy: Callable[[str], float],
    now_ms: int,
) -> tuple[str, str, str, int]:
    """Return the kind, sentence, remedy and time of the culprit's own holdup."""
    if (container := _away(hosts.get(end))) is not None:
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
        return (
            "elsewhere",
            f"{end} isn't part of this deployment, or has ended",
            "look at the stage that it is of",
            now_ms,
        )
    own = sorted(task.holdups, key=lambda holdup: (holdup.what in _QUIET, holdup.since_ms))
    for holdup in own:
        if holdup.what == "data":
            return "data", f"{end} waits for messages of {holdup.where}", holdup.remedy, holdup.since_ms
        said = _ALONE[holdup.what].format(task=end, where=holdup.where)
        return holdup.what, said, holdup.remedy, holdup.since_ms
    if (share := busy(end)) >= _BUSY:
        remedy = "make its functions faster, or give the stage more partitions"
        return "busy", f"{end} works as fast as it can ({share:.0%} busy)", remedy, now_ms
    if task.state in ("starting", "restoring"):
        return "restore", f"{end} is {task.state}", "wait: it continues by itself", now_ms
    beside = hosts[end].tasks if end in hosts else ()
    if begun := [one for one in beside if one in tasks and tasks[one].state in ("starting", "restoring")]:
        said = f"its container {hosts[end].id} still starts {len(begun)} of its tasks"
        return "restore", said, "wait: it continues by itself", now_ms
    return "running", f"{end} is running, but hasn't got there yet", "look at its container and its machine", now_ms

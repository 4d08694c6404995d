"""Find the task that keeps others from completing their next version, from all tasks' reports. Pure.

A version travels through the graph: a task commits it when every upstream task has closed it. So a late task may itself
wait for another late task. Following the waits to their end finds the task to name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from headrace.runners.coordination.messages import ContainerStatus, HeldUp, TaskStatus


def held_up(tasks: Iterable[TaskStatus], containers: Iterable[ContainerStatus]) -> list[HeldUp]:
    """Return each task that others wait for but that waits for none itself, the longest wait first."""
    hosts = {task: container for container in containers for task in container.tasks}
    known = {task.name: _as_of_now(task, hosts.get(task.name)) for task in tasks}
    late: defaultdict[str, list[TaskStatus]] = defaultdict(list)
    for task in known.values():
        for culprit in sorted(_culprits(task, known)):
            late[culprit].append(task)
    found = [
        HeldUp(
            by=culprit,
            reason=_reason(known.get(culprit), hosts.get(culprit)),
            for_ms=max(task.overdue_ms for task in waiting),
            tasks=sorted(task.name for task in waiting),
        )
        for culprit, waiting in late.items()
    ]
    return sorted(found, key=lambda one: (-one.for_ms, one.by))


def _as_of_now(task: TaskStatus, container: ContainerStatus | None) -> TaskStatus:
    """A finished task, or one whose container sends no heartbeats, waits for none, whatever it reported last."""
    absent = container is not None and container.state != "running"
    return msgspec.structs.replace(task, waits_for={}) if absent or task.state == "finished" else task


def _culprits(task: TaskStatus, known: Mapping[str, TaskStatus]) -> set[str]:
    """Return the tasks at which the waits of this one end."""
    found: set[str] = set()
    seen: set[str] = set()
    ahead = list(_waits_for(task))
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        upstream = known.get(name)
        further = [] if upstream is None else list(_waits_for(upstream))
        ahead += further
        if not further:
            found.add(name)
    return found


def _waits_for(task: TaskStatus) -> Iterator[str]:
    for names in task.waits_for.values():
        yield from names


def _reason(task: TaskStatus | None, container: ContainerStatus | None) -> str:
    if task is None:
        return "it isn't part of this deployment"
    if container is not None and container.state != "running":
        return f"its container {container.id} is {container.state}"
    for holdup in task.holdups:
        if holdup.what in ("user code", "run loop"):
            return f"its run loop is in {holdup.where}"
    if task.state == "blocked" and task.blocked_by is not None:
        return f"it is blocked: {task.blocked_by}"
    if task.state in ("starting", "restoring"):
        return f"it is {task.state}"
    return "it is running, but hasn't committed it"

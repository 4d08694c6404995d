"""Assign tasks to containers: deterministic, balanced, and if possible to the host with their state. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from headrace.core.errors import UsageError
from headrace.core.ids import TaskName

Seats = tuple[tuple[TaskName, ...], ...]
"""The tasks of each container."""


def assign(stages: Mapping[str, Sequence[TaskName]], containers: int) -> Seats:
    """Return the tasks of each container.

    The tasks of each stage are dealt out in turn, so the containers' numbers of tasks differ by at most one, within
    each stage and in total. Stages start at different containers. Otherwise task n of every stage would be in the same
    container, although a partition that is busy in one stage tends to be busy in the next.
    """
    if containers < 1:
        raise UsageError(f"an app can't run in {containers} containers", hint="give at least 1")
    seats: list[list[TaskName]] = [[] for _ in range(containers)]
    fullest = 0  # where the next remaining task goes, to keep the totals balanced
    for number, tasks in enumerate(stages.values()):
        odd = len(tasks) % containers
        # Without a remainder every start is equally balanced, so the stage's number decides.
        first = fullest if odd else number
        for n, task in enumerate(tasks):
            seats[(first + n) % containers].append(task)
        fullest += odd
    return tuple(tuple(seat) for seat in seats)


def placed(seats: Seats, hosts: Mapping[int, str], held: Mapping[TaskName, str]) -> Seats:
    """Return the same seats, reassigned so that more tasks are on the host that held them last.

    ``hosts`` are the hosts of containers, and ``held`` the hosts of tasks' state; both may be incomplete. Each
    container gets as many tasks of each stage as some seat had, so the balance stays.
    """
    moved = _moved(seats, hosts, held)
    choices = [seats, moved, _swapped(seats, hosts, held), _swapped(moved, hosts, held)]
    return max(choices, key=lambda one: at_home(one, hosts, held))  # the first of equally good ones


def second_best(
    held: Mapping[TaskName, str], copied: Mapping[TaskName, Sequence[str]], present: Collection[str]
) -> dict[TaskName, str]:
    """Return ``held``, with a host where there is a copy of a task's state for the one that held it and is absent."""
    copies = {task: [host for host in copied.get(task, ()) if host in present] for task in held}
    return {task: copies[task][0] if host not in present and copies[task] else host for task, host in held.items()}


def at_home(seats: Seats, hosts: Mapping[int, str], held: Mapping[TaskName, str]) -> int:
    """Return how many tasks are on the host with their state."""
    return sum(held.get(task, "") == hosts.get(number) for number, seat in enumerate(seats) for task in seat)


def _moved(seats: Seats, hosts: Mapping[int, str], held: Mapping[TaskName, str]) -> Seats:
    """Give whole seats to containers on the host with most of their tasks' state, the clearest cases first."""
    free: dict[str, list[int]] = {}
    for container in range(len(seats)):
        if container in hosts:
            free.setdefault(hosts[container], []).append(container)
    wishes = [
        (-count, number, host)
        for number, seat in enumerate(seats)
        for host, count in Counter(held[task] for task in seat if task in held).items()
    ]
    to: dict[int, int] = {}
    for _, number, host in sorted(wishes):
        if number not in to and free.get(host):
            to[number] = free[host].pop(0)
    taken = set(to.values())
    left = iter([container for container in range(len(seats)) if container not in taken])
    dealt = {to[number] if number in to else next(left): seat for number, seat in enumerate(seats)}
    return tuple(dealt[container] for container in range(len(seats)))


def _swapped(seats: Seats, hosts: Mapping[int, str], held: Mapping[TaskName, str]) -> Seats:
    """Keep each container's numbers of tasks, but exchange tasks: first it gets those whose state it has."""
    rooms: dict[str, Counter[int]] = {}
    for number, seat in enumerate(seats):
        for task in seat:
            rooms.setdefault(task.stage, Counter())[number] += 1
    present = [(number, task) for number, seat in enumerate(seats) for task in seat]
    dealt: dict[TaskName, int] = {}
    for at_home_only in (True, False):
        for number, task in present:
            room = rooms[task.stage]
            fits = (n for n in (number, *room) if room[n] and task not in dealt)
            home = held.get(task, "")
            found = next((n for n in fits if not at_home_only or hosts.get(n) == home), None)
            if found is not None:
                dealt[task] = found
                room[found] -= 1
    return tuple(tuple(task for _, task in present if dealt[task] == number) for number in range(len(seats)))

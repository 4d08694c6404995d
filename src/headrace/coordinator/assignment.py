"""Which container gets which tasks and standbys (copies of a task's state on another host). Pure and deterministic.

All tasks of a container have their standbys on the same hosts, because Spark starts the replacement of a container as
a whole. Orders go with the answers to heartbeats, so a keeper learns after a moment that it has to let go; a task that
begins on its host waits for that moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product

from headrace.core.errors import UsageError
from headrace.core.ids import TaskName

Seats = tuple[tuple[TaskName, ...], ...]


def assign(stages: Mapping[str, Sequence[TaskName]], containers: int) -> Seats:
    """Deal out the tasks of each stage in turn: containers get equal numbers of each stage and in total, or one more.

    Stages start at different containers: a partition that is busy in one stage tends to be busy in the next.
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
    moved = _moved(seats, hosts, held)
    choices = [seats, moved, _swapped(seats, hosts, held), _swapped(moved, hosts, held)]
    return max(choices, key=lambda one: at_home(one, hosts, held))  # the first of equally good ones


def second_best(
    held: Mapping[TaskName, str], copied: Mapping[TaskName, Sequence[str]], present: Collection[str]
) -> dict[TaskName, str]:
    copies = {task: [host for host in copied.get(task, ()) if host in present] for task in held}
    return {task: copies[task][0] if host not in present and copies[task] else host for task, host in held.items()}


def at_home(seats: Seats, hosts: Mapping[int, str], held: Mapping[TaskName, str]) -> int:
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


_NOWHERE: Mapping[TaskName, Collection[str]] = {}


def deal_standbys(
    seats: Seats,
    hosts: Mapping[int, str],
    kept: Mapping[int, Collection[TaskName]],
    wanted: int,
    noted: Mapping[TaskName, Collection[str]] = _NOWHERE,
) -> dict[int, tuple[TaskName, ...]]:
    """Return of which tasks each container keeps standbys; live containers have ``hosts``.

    The present ones, ``kept``, stay, unless their task is now on that host. ``noted`` names hosts that have state of
    tasks which no container keeps current. Otherwise, hosts and their containers get equal numbers of tasks.
    """
    there: dict[str, list[int]] = {}
    for container, host in sorted(hosts.items()):
        there.setdefault(host, []).append(container)
    chosen = _chosen_hosts(seats, hosts, there, kept, wanted, noted)
    keeper = {(hosts[container], task): container for container, tasks in kept.items() for task in tasks}
    dealt: dict[int, list[TaskName]] = {container: [] for container in hosts}
    left: list[tuple[str, TaskName]] = []
    for seat, places in zip(seats, chosen, strict=True):
        for host, task in product(places, seat):
            if (host, task) in keeper:
                dealt[keeper[host, task]].append(task)
            else:
                left.append((host, task))
    for host, task in left:
        dealt[min(there[host], key=lambda one: (len(dealt[one]), one))].append(task)
    return {container: tuple(sorted(tasks)) for container, tasks in dealt.items()}


def _chosen_hosts(
    seats: Seats,
    hosts: Mapping[int, str],
    there: Mapping[str, Sequence[int]],
    kept: Mapping[int, Collection[TaskName]],
    wanted: int,
    noted: Mapping[TaskName, Collection[str]],
) -> list[list[str]]:
    """The hosts for the standbys of each seat: first those that keep most of them, then those with least to keep."""
    order = {host: number for number, host in enumerate(there)}
    load: Counter[str] = Counter()
    chosen: list[list[str]] = []
    for number, seat in enumerate(seats):
        mine = set(seat)
        keep = Counter({hosts[one]: 0 for one in kept})
        for one, tasks in kept.items():
            keep[hosts[one]] += len(mine.intersection(tasks))
        keep.pop(hosts.get(number, ""), None)
        chosen.append([host for count, host in sorted((-n, host) for host, n in keep.items()) if count][:wanted])
        load.update(dict.fromkeys(chosen[-1], len(seat)))
    fixed = [len(places) for places in chosen]
    for number, (seat, places) in enumerate(zip(seats, chosen, strict=True)):
        own = hosts.get(number, "")
        lies = Counter(host for task in seat for host in noted.get(task, ()))
        others = len(set(there) - {own})
        for _ in range(min(wanted, others) - len(places) if seat else 0):
            # Those behind the own one come first, so that hosts don't all choose the same one.
            best = min(
                (-lies[host], load[host], (order[host] - order.get(own, 0)) % len(order), host)
                for host in there
                if host != own and host not in places
            )[-1]
            places.append(best)
            load[best] += len(seat)
    _level(seats, hosts, chosen, fixed, load)
    return chosen


def _level(
    seats: Seats, hosts: Mapping[int, str], chosen: Sequence[list[str]], fixed: Sequence[int], load: Counter[str]
) -> None:
    moved = True
    while moved:
        moved = False
        for number, (seat, places) in enumerate(zip(seats, chosen, strict=True)):
            for at in range(fixed[number], len(places)):
                own = {hosts.get(number, ""), *places}
                least = min((host for host in set(hosts.values()) - own), key=lambda h: (load[h], h), default=None)
                if least is not None and load[least] + len(seat) < load[places[at]]:
                    load[places[at]] -= len(seat)
                    load[least] += len(seat)
                    places[at] = least
                    moved = True

"""Which container keeps standbys of which tasks: pure and deterministic.

A standby is a copy of a task's state on another host. All tasks of a container have theirs on the same hosts, because
Spark starts the replacement of a container as a whole: it finds all of them there, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product

from headrace.core.ids import TaskName
from headrace.runners.coordination.assignment import Seats

_NOWHERE: Mapping[TaskName, Collection[str]] = {}


def deal_standbys(
    seats: Seats,
    hosts: Mapping[int, str],
    kept: Mapping[int, Collection[TaskName]],
    wanted: int,
    noted: Mapping[TaskName, Collection[str]] = _NOWHERE,
) -> dict[int, tuple[TaskName, ...]]:
    """Return of which tasks each container keeps standbys.

    ``seats`` are the tasks of each container, and ``hosts`` the hosts of live containers. ``kept`` are the present
    standbys: they stay where they are, unless their task is now on that host. ``noted`` names hosts that have state of
    tasks which no container keeps current. Otherwise, hosts and the containers of each host get equal numbers of tasks.
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
    """Move choices that aren't ``fixed`` to hosts that have less, while that makes their numbers more equal."""
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

"""Which container gets which tasks, standbys and startpoints. Pure and deterministic.

A standby is a copy of a task's state on another host. All tasks of a container have theirs on the same hosts,
because Spark starts the replacement of a container as a whole: it finds all of them there, or none. They are dealt
again when containers or tasks come or go. Orders go with the answers to heartbeats, so a keeper learns after a
moment that it has to let go. A task that begins on its host waits for that moment.

A startpoint for a partition becomes an order for each task that reads it: for one task, or for several if the input
is broadcast. A startpoint for a task goes only to that task and takes precedence there until it is applied, so one
without a task never overwrites it. Otherwise a newer startpoint replaces an older one. A startpoint that fits
nothing that the app reads is kept with a reason, so that none is dropped silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Protocol

import msgspec

from headrace.coordinator.messages import ContainerState, Register
from headrace.core.errors import UsageError
from headrace.core.ids import TaskName
from headrace.life.startpoints import FanOut, StartpointKey, StartpointState, UnfinishedStartpoints

# -- assignment --------------------------------------------------------------------------------------
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
    """Return the same seats, reassigned so that more tasks are on the host that held them last, where that is known.

    Each container gets as many tasks of each stage as some seat had, so the balance stays.
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


# -- standbys ----------------------------------------------------------------------------------------
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


# -- standby book ------------------------------------------------------------------------------------
GATHERING_MS = 30_000
"""How long standbys wait for all containers to register: those that come late find everything dealt out."""
GONE_MS = 60_000
"""A container that is silent for so long keeps nothing any more. Until then it is expected back."""


class StandbyKeeper(Protocol):
    """A container as the book sees it."""

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """All its tasks."""
        ...

    @property
    def state(self) -> ContainerState:
        """Whether it has ended."""
        ...

    @property
    def registered(self) -> Register | None:
        """Where it is."""
        ...

    @property
    def seen_ms(self) -> float | None:
        """When its last message came."""
        ...


class StandbyBook:
    """The standbys of one deployment; ``wanted`` of each task of these stages. Without any wanted, there are none."""

    def __init__(
        self, wanted: int = 0, stages: Collection[str] = (), noted: Mapping[TaskName, Collection[str]] | None = None
    ) -> None:
        """``noted`` says on which hosts there is state of tasks already."""
        self._wanted = wanted
        self._stages = frozenset(stages)
        self._noted = {task: set(hosts) for task, hosts in (noted or {}).items()}
        self._kept: dict[int, tuple[TaskName, ...]] = {}
        self._hosts: dict[int, str] = {}
        self._seats: list[tuple[TaskName, ...]] = []
        self._first_ms: float | None = None
        self._warned = False

    def of(self, container: int) -> list[str]:
        """The tasks of which a container is to keep standbys."""
        return [str(task) for task in self._kept.get(container, ())]

    def deal(
        self,
        containers: Sequence[StandbyKeeper],
        left: Callable[[Iterable[TaskName]], Sequence[TaskName]],
        now_ms: float,
    ) -> str:
        """Deal the standbys again if something has changed. Return what there is to be warned of, once."""
        if not self._wanted:
            return ""
        hosts = {number: host for number, one in enumerate(containers) if (host := _host(one, now_ms))}
        seats = [tuple(task for task in left(one.tasks) if task.stage in self._stages) for one in containers]
        if self._first_ms is None and hosts:
            self._first_ms = now_ms
        late = self._first_ms is not None and now_ms - self._first_ms >= GATHERING_MS
        gathered = late or all(one.registered is not None for one in containers)
        if not gathered or (hosts, seats) == (self._hosts, self._seats):
            return ""
        for container, tasks in self._kept.items():
            for task in tasks:
                self._noted.setdefault(task, set()).add(self._hosts[container])
        kept = {n: tasks for n, tasks in self._kept.items() if hosts.get(n) == self._hosts[n]}
        self._kept = deal_standbys(tuple(seats), hosts, kept, self._wanted, self._noted)
        self._hosts, self._seats = hosts, seats
        return self._warning(len(set(hosts.values())))

    def _warning(self, hosts: int) -> str:
        if self._warned or hosts > self._wanted or not any(self._seats):
            return ""
        self._warned = True
        if hosts < 2:
            return f"no task has a standby (standby={self._wanted}): all containers are on one host"
        return f"tasks have fewer standbys than standby={self._wanted}: the containers are on {hosts} hosts"


def _host(container: StandbyKeeper, now_ms: float) -> str:
    """Where a container keeps standbys, or is expected back; "" if it doesn't any more."""
    who, seen_ms = container.registered, container.seen_ms
    gone = container.state == "finished" or seen_ms is None or now_ms - seen_ms >= GONE_MS
    return "" if gone or who is None else who.host


# -- fan out -----------------------------------------------------------------------------------------
Partitions = Mapping[tuple[str, int], Sequence[str]]
"""The tasks that read each partition, by the name under which positions in the input are stored."""


@dataclass(slots=True)
class _Orders:
    """The resulting orders by key, with the orders that they replace."""

    before: Mapping[StartpointKey, StartpointState]
    now_ms: int
    new: dict[StartpointKey, StartpointState] = field(default_factory=dict)
    done: list[StartpointState] = field(default_factory=list)

    def give(self, task: str, point: StartpointState) -> None:
        """Give a task this order, in place of its former one for the partition."""
        key = StartpointKey(point.stream, point.partition, task)
        old = self.new.get(key) or self.before.get(key)
        if old is not None:
            self.done.append(msgspec.structs.replace(old, state="replaced", at_ms=self.now_ms))
        self.new[key] = msgspec.structs.replace(point, task=task, state="ordered", at_ms=self.now_ms, reason=None)

    def yields(self, task: str, point: StartpointState) -> bool:
        """Return whether a startpoint without a task may go to this task: not over an unapplied one that names it."""
        key = StartpointKey(point.stream, point.partition, task)
        old = self.new.get(key) or self.before.get(key)
        return old is None or not old.named or old.offset is not None

    def pass_over(self, task: str, point: StartpointState) -> None:
        """Note that a task doesn't get this startpoint, because it has one of its own."""
        reason = f"task {task} has a startpoint of its own"
        self.done.append(msgspec.structs.replace(point, task=task, state="replaced", at_ms=self.now_ms, reason=reason))


def fan_out(present: UnfinishedStartpoints, partitions: Partitions, now_ms: int) -> FanOut:
    """Return the changes of the fan-out of these startpoints. ``partitions`` are all that the app reads."""
    orders = _Orders(present.ordered, now_ms)
    removed: list[StartpointKey] = []
    kept: list[StartpointState] = []
    # Startpoints that name a task come first, so that the others find them.
    for key, point in sorted(present.written.items(), key=lambda item: (item[0].task is None, _order(item[0]))):
        reason = _misfit(key, partitions)
        if reason is not None:
            if point.reason != reason:
                kept.append(msgspec.structs.replace(point, state="failed", reason=reason, at_ms=now_ms))
            continue
        removed.append(key)
        if key.task is not None:
            orders.give(key.task, point)
            continue
        for task in partitions[key.stream, key.partition]:
            if orders.yields(task, point):
                orders.give(task, point)
            else:
                orders.pass_over(task, point)
    stranded = [
        msgspec.structs.replace(old, state="failed", reason=reason, at_ms=now_ms)
        for key, old in present.ordered.items()
        if key not in orders.new and (reason := _misfit(key, partitions)) is not None and old.reason != reason
    ]
    return FanOut([*orders.new.values(), *stranded], removed, kept, orders.done)


def next_orders(present: UnfinishedStartpoints, partitions: Partitions) -> dict[StartpointKey, StartpointState]:
    """Return the startpoint that each task applies next, if it starts now: those written and those ordered already."""
    written = {state.startpoint.id: state for state in present.written.values()}
    due = [*present.ordered.values(), *fan_out(present, partitions, 0).ordered]
    return {state.key: written.get(state.startpoint.id, state) for state in due}


def _misfit(key: StartpointKey, partitions: Partitions) -> str | None:
    """Return why the app can't use a startpoint with this key; None if it can."""
    readers = partitions.get((key.stream, key.partition))
    if readers is None:
        numbers = sorted(partition for stream, partition in partitions if stream == key.stream)
        if not numbers:
            return f"the app reads no input {key.stream!r}; delete the startpoint, or start the app that reads it"
        return f"{key.stream} has no partition {key.partition}, only 0 to {numbers[-1]}; delete the startpoint"
    if key.task is not None and key.task not in readers:
        return (
            f"task {key.task} doesn't read {key.stream}[{key.partition}]; what reads it: {', '.join(readers)}; "
            "delete the startpoint"
        )
    return None


def _order(key: StartpointKey) -> tuple[str, int, str]:
    return key.stream, key.partition, key.task or ""

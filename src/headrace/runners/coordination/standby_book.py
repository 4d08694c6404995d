"""The standbys of a run: who keeps which now, and what is ordered. Pure; ``standbys`` does the dealing.

Everything is dealt again when containers or tasks come or go. Orders go with the answers to heartbeats, so a keeper
learns after a moment that it has to let go. A task that begins on its host waits for that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from headrace.core.ids import TaskName
from headrace.runners.coordination.messages import ContainerState, Register
from headrace.runners.coordination.standbys import deal_standbys

GATHERING_MS = 30_000
"""How long standbys wait for all containers to register: those that come late find everything dealt out."""
GONE_MS = 60_000
"""A container that is silent for so long keeps nothing any more. Until then it is expected back."""


class Keeper(Protocol):
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
        self,
        wanted: int = 0,
        stages: Collection[str] = (),
        noted: Mapping[TaskName, Collection[str]] | None = None,
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
        self, containers: Sequence[Keeper], left: Callable[[Iterable[TaskName]], Sequence[TaskName]], now_ms: float
    ) -> str:
        """Deal the standbys again if something has changed. Return what there is to be warned of, once.

        ``left`` returns those of the tasks that haven't ended.
        """
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


def _host(container: Keeper, now_ms: float) -> str:
    """Where a container keeps standbys, or is expected back; "" if it doesn't any more."""
    who, seen_ms = container.registered, container.seen_ms
    gone = container.state == "finished" or seen_ms is None or now_ms - seen_ms >= GONE_MS
    return "" if gone or who is None else who.host

"""The coordinator's state: containers, tasks, their progress and ends. Pure.

The server owns the clock, the lock and all I/O. A container has a number and a current incarnation, the process that
registered last. Any other one is refused with ``FencedError``, which ends it.

A container that dies silently is restarted. That doesn't help against a function that ends its process, because the
next life takes the same message again. The difference is progress: after a commit, it begins at another message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from headrace.api.specs import INTERVAL_MS, RESTARTS_MAX
from headrace.coordinator import messages
from headrace.coordinator.assignment import Seats, assign, deal_standbys
from headrace.coordinator.books import CutBook, CutOrder, CutReport, SlotBook, SlottedInput
from headrace.coordinator.messages import (
    ContainerState,
    ErrorReport,
    Holdup,
    LastWords,
    Series,
    StageStatus,
    TaskStatus,
)
from headrace.coordinator.progress import CallLimits, Rate, doing_still, held_up, long_call, stage_status, summed, watch
from headrace.core.calls import Retry
from headrace.core.errors import FencedError, ProtocolError, UsageError
from headrace.core.ids import TaskName
from headrace.systems.slot_reports import SlotReport

TRANSITIONS: Mapping[ContainerState, frozenset[ContainerState]] = {
    "waiting": frozenset({"running", "finished", "failed"}),
    "running": frozenset({"lost", "hung", "finished", "failed"}),
    "lost": frozenset({"running", "failed"}),
    "hung": frozenset({"finished", "failed"}),
    "failed": frozenset({"running", "finished", "failed"}),
    "finished": frozenset({"finished", "failed"}),
}
"""What each state of a container may become: ``failed`` and ``finished`` also what they are, if it is said again.

It is ``lost`` while heartbeats are overdue, and ``hung`` until the driver has killed it.
"""


@dataclass(slots=True)
class ContainerRecord:
    """A container of a run. A life lasts from a registration until the next one."""

    number: int
    tasks: tuple[TaskName, ...]
    state: ContainerState = "waiting"
    """Only ``become`` changes it."""
    registered: messages.Register | None = None
    superseded: str | None = None
    seen_ms: float | None = None
    grants: dict[TaskName, int] = field(default_factory=dict)
    heartbeat: messages.Heartbeat | None = None
    error: ErrorReport | None = None
    born_ms: float = 0.0
    restarts: int = 0
    restarted_ms: deque[float] = field(default_factory=lambda: deque(maxlen=messages.RESTARTS_KEPT))
    failures: int = 0
    committed: set[str] = field(default_factory=set)
    """The tasks that have committed, or ended, in this life."""
    pause_ms: int = 0
    call: Holdup | None = None
    waited_for: int = 0
    lacks: str = ""

    def become(self, state: ContainerState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise ProtocolError(f"container {self.number} is {self.state}, so it can't become {state}")
        self.state = state

    @property
    def alive(self) -> bool:
        return self.state in {"running", "lost", "hung"}

    def host_kept(self, now_ms: float) -> str:
        gone = self.state == "finished" or self.seen_ms is None or now_ms - self.seen_ms >= GONE_MS
        return "" if gone or self.registered is None else self.registered.host

    def begin_life(self, registered: messages.Register, now_ms: float) -> None:
        self.superseded = None
        if self.registered is not None:
            self.restarts += 1
            self.restarted_ms.append(now_ms)
            self.superseded = self.registered.incarnation
        self.registered = registered
        self.seen_ms = self.born_ms = now_ms
        self.grants = {}
        self.heartbeat = None
        self.committed = set()
        self.call = None
        self.lacks = ""

    def progressed(self, tasks: Iterable[str]) -> None:
        self.committed.update(tasks)
        if self.committed and self.alive:
            self.error = None

    def status(self, now_ms: float) -> messages.ContainerStatus:
        who, heartbeat, seen_ms = self.registered, self.heartbeat, self.seen_ms
        return messages.ContainerStatus(
            id=self.number,
            state=self.state,
            host=who.host if who else None,
            pid=who.pid if who else None,
            attempt=who.attempt if who else None,
            last_seen_ms=None if seen_ms is None else max(0, round(now_ms - seen_ms)),
            tasks=[str(task) for task in self.tasks],
            cpu_ms=heartbeat.cpu_ms if heartbeat else 0,
            rss_bytes=heartbeat.rss_bytes if heartbeat else 0,
            failures=self.failures,
            restarts=self.restarts,
            restarted_ago_ms=[max(0, round(now_ms - at)) for at in self.restarted_ms],
            error=self.error,
            lacks=self.lacks,
            standbys=heartbeat.standbys if heartbeat else [],
        )


@dataclass(frozen=True, slots=True)
class _Note:
    """An event of the app or of one container. The server logs it after releasing its lock."""

    level: Literal["info", "warning"]
    what: str
    container: int | None
    fields: Mapping[str, str | int]


_UNDER_WAY = {"running", "blocked", "finished"}


class _TaskBook:
    """The tasks of a run by stage. A task that has ended stays ended, whatever arrives late."""

    def __init__(self, stages: Mapping[str, Sequence[TaskName]]) -> None:
        self._stages = {name: tuple(tasks) for name, tasks in stages.items()}
        self.reports: dict[TaskName, TaskStatus] = {}
        self._before: dict[TaskName, list[Series]] = {}
        self._rates: dict[TaskName, Rate] = {}
        self._ended: set[TaskName] = set()
        self._under_way: set[TaskName] = set()
        self.start(task for tasks in self._stages.values() for task in tasks)

    def start(self, tasks: Iterable[TaskName]) -> None:
        for task in tasks:
            if task in self.reports:
                self._before[task] = self.reports[task].series
            self.reports[task] = TaskStatus(name=str(task), state="starting", series=self._before.get(task, []))
            self._rates[task] = Rate()

    def grant(self, generations: Mapping[TaskName, int]) -> None:
        for task, generation in generations.items():
            self.reports[task] = msgspec.structs.replace(self.reports[task], generation=generation)

    def report(self, task: TaskName, status: TaskStatus, sent_ms: float) -> None:
        self._rates[task].add(sent_ms, status.rows_in)
        if self.reports[task] is status:
            return  # an unchanged report of a task in this process
        if before := self._before.get(task):
            status = msgspec.structs.replace(status, series=summed(before, status.series))
        self.reports[task] = status
        if status.state in _UNDER_WAY:
            self._under_way.add(task)

    def end(self, tasks: Collection[TaskName]) -> None:
        self._ended.update(tasks)
        self._under_way.update(tasks)

    def left(self, tasks: Iterable[TaskName]) -> tuple[TaskName, ...]:
        return tuple(task for task in tasks if task not in self._ended)

    def ended(self, tasks: Iterable[TaskName]) -> tuple[TaskName, ...]:
        return tuple(task for task in tasks if task in self._ended)

    @property
    def all_ended(self) -> bool:
        return len(self._ended) == len(self.reports)

    @property
    def all_under_way(self) -> bool:
        return len(self._under_way) == len(self.reports)

    @property
    def statuses(self) -> dict[TaskName, TaskStatus]:
        """The latest reports; a task that has ended is finished, even if a late heartbeat says otherwise."""
        return {
            task: msgspec.structs.replace(report, state="finished") if task in self._ended else report
            for task, report in self.reports.items()
        }

    def stage_statuses(self, absent: Collection[TaskName]) -> list[StageStatus]:
        statuses = self.statuses
        rates = {task: 0.0 if task in absent else rate.per_second for task, rate in self._rates.items()}
        stages = self._stages.items()
        return [stage_status(name, [(statuses[task], rates[task]) for task in tasks]) for name, tasks in stages]


GATHERING_MS = 30_000
"""How long standbys wait for all containers to register: those that come late find everything dealt out."""
GONE_MS = 60_000
"""A container that is silent for so long keeps nothing any more. Until then it is expected back."""


class StandbyBook:
    """The standbys of one deployment; ``wanted`` of each task of these stages. Without any wanted, there are none."""

    def __init__(
        self, wanted: int = 0, stages: Collection[str] = (), noted: Mapping[TaskName, Collection[str]] | None = None
    ) -> None:
        self._wanted = wanted
        self._stages = frozenset(stages)
        self._noted = {task: set(hosts) for task, hosts in (noted or {}).items()}
        self._kept: dict[int, tuple[TaskName, ...]] = {}
        self._hosts: dict[int, str] = {}
        self._seats: list[tuple[TaskName, ...]] = []
        self._first_ms: float | None = None
        self._warned = False

    def of(self, container: int) -> list[str]:
        return [str(task) for task in self._kept.get(container, ())]

    def deal(
        self,
        containers: Sequence[ContainerRecord],
        left: Callable[[Iterable[TaskName]], Sequence[TaskName]],
        now_ms: float,
    ) -> str:
        """Deal the standbys again if something has changed. Return what there is to be warned of, once."""
        if not self._wanted:
            return ""
        hosts = {number: host for number, one in enumerate(containers) if (host := one.host_kept(now_ms))}
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


_PAUSES = Retry(attempts=None, first_ms=500, longest_ms=5000)


def pause_ms(failures: int, chance: float) -> int:
    return 0 if failures < 2 else round(_PAUSES.pause_ms(failures - 1, chance) or 0)


def death(container: int, host: str, peak_bytes: int, words: LastWords | None, *, frozen: bool) -> ErrorReport:
    """Return the error of a container that died silently. ``frozen``: it was killed because it seemed dead."""
    words = words or LastWords()
    how = words.how or "was killed from outside, or native code ended it"
    if frozen and not words.how:
        how = "sent no heartbeats and was killed"
    memory = f"; it had used up to {peak_bytes / 2**30:.1f} GiB of memory" if peak_bytes and not words.how else ""
    where = f"\n  in the function of step {words.step!r}, task {words.task}" if words.step else ""
    place = f", on {words.place}" if words.place else ""
    return ErrorReport(
        type="UserFunctionError" if words.by_itself and words.step else "InfrastructureError",
        message=f"container {container} on {host} {how}{memory}{where}{place}",
        hint=_hint(words, frozen),
        fault="user" if words.by_itself and words.step else "environment",
        retry=True,
    )


def _hint(words: LastWords, frozen: bool) -> str:
    if words.by_itself:
        return "fix the code that ends the process; a function that can't continue should raise an error"
    if frozen and not words.how:
        return "look at the machine: it may be overloaded, or native code holds Python's lock"
    return (
        "if memory ran out, the kernel's log says so (`dmesg`): give the machine or the executor more memory, or run "
        "fewer containers on it"
    )


STEADY_MS = 60_000
"""After a life of this length, a container's failures count from 1 again."""
_NOTES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Seat:
    """The answer to a registration: the tasks left to run, and the former grants if it is repeated."""

    tasks: tuple[TaskName, ...]
    grants: Mapping[TaskName, int]
    superseded: str | None
    pause_ms: int = 0


class Ledger:
    """The state of one run. ``until_caught_up``: it drains once it has read everything that existed at its start."""

    def __init__(
        self,
        app: str,
        stages: Mapping[str, Sequence[TaskName]],
        containers: int,
        *,
        started_at: int,
        guarantee: str,
        until_caught_up: bool = False,
        heartbeat_ms: int = 500,
        lost_after_ms: int = 5000,
        restarts_max: int = RESTARTS_MAX,
        calls: CallLimits | None = None,
        interval_ms: int = INTERVAL_MS,
        saves: bool = False,
        chance: Callable[[], float] = lambda: 1.0,
        slots: SlotBook | None = None,
        standbys: StandbyBook | None = None,
        scattered: bool = False,
    ) -> None:
        """``chance`` gives numbers in [0, 1). ``saves``: drain after a savepoint. ``scattered``: no shared disk."""
        if not any(stages.values()):
            raise UsageError(f"app {app!r} has no tasks to run")
        self.app = app
        self.heartbeat_ms = heartbeat_ms
        self.error: ErrorReport | None = None
        self._started_at = started_at
        self._guarantee = guarantee
        self._lost_after_ms = lost_after_ms
        self._restarts_max = restarts_max
        self._calls = calls or CallLimits()
        self._draining_since: float | None = None
        self._cuts = CutBook(guarantee, interval_ms, heartbeat_ms, scattered=scattered)
        self._chance = chance
        self._containers = [ContainerRecord(number, tasks) for number, tasks in enumerate(assign(stages, containers))]
        self._tasks = _TaskBook(stages)
        self._drain = False
        self._stopped = False
        self.saving = saves
        self.watching = watch(list(stages.values()), guarantee) if until_caught_up else None
        self._restarts: dict[TaskName, int] = {}
        """The generation that has to end, by task. A later one has started over already."""
        self.slots = slots or SlotBook()
        self._standbys = standbys or StandbyBook()
        self._notes: deque[_Note] = deque(maxlen=_NOTES_MAX)

    # -- messages of containers --------------------------------------------------------------------
    def register(self, message: messages.Register, now_ms: float) -> Seat:
        """Make this incarnation the current one. Return its remaining tasks; none if the app is over."""
        container = self._container(message.container)
        current = container.registered
        if current is not None and current.incarnation == message.incarnation:
            return self._seat(container)  # its first answer was lost
        container.pause_ms = 0
        if current is not None and container.alive:
            if message.attempt < current.attempt:
                raise self._fenced(message.container, f"attempt {message.attempt}")
            self._died(container, current, message.left.get(current.incarnation))
        container.begin_life(message, now_ms)
        self._tasks.start(self._left(container))
        if self._left(container):
            container.become("running")
            if current is None:
                self._note("info", "the container has started", container, host=message.host, pid=message.pid)
            else:
                replaced = f"attempt {message.attempt} has replaced attempt {current.attempt}"
                self._note("warning", replaced, container, host=message.host, pid=message.pid)
        elif not self._over:
            container.become("finished")
        return self._seat(container)

    def granted(self, message: messages.Register | messages.GenerationRequest, grants: Mapping[TaskName, int]) -> None:
        container = self._container(message.container)
        container.grants.update(grants)
        self._restarts = {task: ends for task, ends in self._restarts.items() if grants.get(task, ends) <= ends}
        self._tasks.grant(grants)

    def check_request(self, message: messages.GenerationRequest, now_ms: float) -> TaskName:
        """Return the task that may get a new generation. Raises ``FencedError`` if the sender may not run it."""
        container = self.check_current(message.container, message.incarnation)
        (task,) = self._of_container(message.container, [message.task])
        if not container.alive or task not in self._left(container):
            raise FencedError(
                f"container {message.container} of app {self.app!r} may not restart task {task}: the container"
                f" is {container.state}, the app is {self.state}, open tasks: {_listed(self._left(container))}"
            )
        self._seen(container, now_ms)
        return task

    def check_report(self, container: int, incarnation: str, task: str, generations: Iterable[int]) -> None:
        current = self.check_current(container, incarnation)
        (name,) = self._of_container(container, [task])
        if strangers := set(generations) - {current.grants.get(name)}:
            raise FencedError(
                f"generation {_listed(strangers)} of task {task} of app {self.app!r} isn't the current one, "
                f"{current.grants.get(name)}"
            )

    def heartbeat(self, message: messages.Heartbeat, now_ms: float) -> messages.Orders:
        container = self.check_current(message.container, message.incarnation)
        if not container.alive:
            return messages.Orders(stop=True)
        self._seen(container, now_ms)
        if container.heartbeat is None or message.sent_ms > container.heartbeat.sent_ms:
            statuses = self._of_container(message.container, [status.name for status in message.tasks])
            container.heartbeat = message
            container.call = long_call(message, container.call)
            for task, status in zip(statuses, message.tasks, strict=True):
                self._tasks.report(task, status, message.sent_ms)
            container.progressed(s.name for s in message.tasks if s.checkpoint is not None)
        if message.wants_shutdown and not self._drain:
            self.drain()
        if self.watching is not None and not self._drain and self.watching.caught_up(self._tasks.reports):
            self._note("info", "the app has read all that was there when it started, and stops")
            self.drain()
        return self.orders_for(message.container)

    def finished(self, message: messages.Finished, now_ms: float) -> messages.Orders:
        container = self.check_current(message.container, message.incarnation)
        tasks = self._of_container(message.container, message.tasks)
        self._tasks.end(tasks)
        container.progressed(map(str, tasks))
        if container.alive:
            self._seen(container, now_ms)
            if not self._tasks.left(container.tasks):
                container.become("finished")
                self._note("info", "the container has ended: all its tasks are over", container)
        return self.orders

    def failed(self, message: messages.Failure, now_ms: float) -> messages.Orders:
        """Note that the container is dying. If a restart would fail the same way, the app fails; otherwise it restarts.

        Transient errors of the environment, such as a full disk, are retried without limit. Any other error ends the
        app when a container has failed more often in a row than it may restart.
        """
        container = self.check_current(message.container, message.incarnation)
        error = message.error
        if container.state != "failed":  # otherwise this message is a repetition, because the first answer was lost
            container.failures = 1 if now_ms - container.born_ms >= STEADY_MS else container.failures + 1
        container.seen_ms = now_ms
        container.become("failed")
        container.error = error
        if error.fatal:
            self.fail(error)
        elif container.failures > self._restarts_max and not (error.retry and error.fault == "environment"):
            times = f"container {message.container} failed {container.failures} times in a row, the last time with"
            self.fail(msgspec.structs.replace(error, message=f"{times}: {error.message}"))
        what = f"{error.type}: {error.message}"
        if self._over:  # the driver raises the error, so a warning isn't needed here
            self._note("info", f"the container failed, and the app ends: {what}", container)
            return messages.Orders(stop=True)
        pause = pause_ms(container.failures, self._chance())
        self._note("warning", f"the container failed, and starts again: {what}", container, pause_ms=pause)
        return messages.Orders(stop=True, pause_ms=pause)

    # -- calls of the driver -----------------------------------------------------------------------
    def seat(self, seats: Seats) -> None:
        for container, tasks in zip(self._containers, seats, strict=True):
            container.tasks = tasks

    def drain(self) -> None:
        if not self._drain:
            self._note("info", "the app drains")
        self._drain = True

    def stop(self) -> None:
        if not self._over:
            self._note("info", "the app stops")
            self._stopped = True

    def cut(self, message: CutOrder, clock_ms: int) -> CutReport:
        gone = {task for c in self._containers if not c.alive for task in self._tasks.ended(c.tasks)}
        return self._cuts.order(message, self._tasks.reports, gone, clock_ms)

    def restart(self, tasks: Iterable[TaskName]) -> list[TaskName]:
        wanted = set(tasks)
        found: dict[TaskName, int] = {}
        for container in self._containers:
            found |= {t: container.grants[t] for t in self._left(container) if t in wanted and t in container.grants}
        if found:
            self._note("info", "tasks start over in place", tasks=_listed(found))
        self._restarts |= found
        return list(found)

    def lack(self, reasons: Mapping[int, str]) -> None:
        for container in self._containers:
            why = reasons.get(container.number, "")
            if why and not container.lacks:
                self._note("warning", f"the container waits for a slot: {why}", container)
            container.lacks = why

    def fail(self, error: ErrorReport) -> None:
        """End the app with this error. The first error is kept, because later ones usually follow from it."""
        if not self._over:
            self.error = error

    def tick(self, now_ms: float) -> None:
        if self.state == "draining" and not self.saving:
            self._draining_since = now_ms if self._draining_since is None else self._draining_since
            self._watch_drain(now_ms - self._draining_since)
        for container in self._containers:
            overdue = container.seen_ms is not None and now_ms - container.seen_ms >= self._lost_after_ms
            if container.state == "running" and overdue:
                container.become("lost")
                self._note("warning", "the container sends no heartbeats", container)
            self._watch_call(container)
        if warning := self._standbys.deal(self._containers, self._tasks.left, now_ms):
            self._note("warning", warning, self._containers[0])

    # -- queries -----------------------------------------------------------------------------------
    def slot_reports(self, of: SlottedInput) -> list[SlotReport | None]:
        return self.slots.reports(of, self._tasks.reports)

    @property
    def orders(self) -> messages.Orders:
        return messages.Orders(drain=self._drain and not self.saving, stop=self._over, cut=self._cuts.cut)

    def orders_for(self, container: int) -> messages.Orders:
        tasks, keep = self._container(container).tasks, self._standbys.of(container)
        restart = {str(task): self._restarts[task] for task in tasks if task in self._restarts}
        return msgspec.structs.replace(self.orders, restart=restart, slots=self.slots.directions(tasks), keep=keep)

    @property
    def state(self) -> messages.AppState:
        if self.error is not None:
            return "failed"
        if self._stopped:
            return "stopped"
        if self._tasks.all_ended:
            return "finished"
        if self._drain:
            return "draining"
        return "running" if self._tasks.all_under_way else "starting"

    @property
    def assignments(self) -> Seats:
        return tuple(container.tasks for container in self._containers)

    def state_of(self, container: int) -> ContainerState:
        return self._container(container).state

    def status(self, now_ms: float) -> messages.AppStatus:
        statuses = list(self._tasks.statuses.values())
        absent = {t for c in self._containers if c.state != "running" for t in c.tasks}
        containers = [container.status(now_ms) for container in self._containers]
        return messages.AppStatus(
            app=self.app,
            state=self.state,
            drained=self._drain,
            started_at=self._started_at,
            guarantee=self._guarantee,
            stages=self._tasks.stage_statuses(absent),
            tasks=statuses,
            containers=containers,
            held_up=held_up(statuses, containers),
            error=self.error,
        )

    def take_notes(self) -> list[_Note]:
        notes = list(self._notes)
        self._notes.clear()
        return notes

    def _note(
        self, level: Literal["info", "warning"], what: str, about: ContainerRecord | None = None, **fields: str | int
    ) -> None:
        self._notes.append(_Note(level, what, None if about is None else about.number, fields))

    @property
    def _over(self) -> bool:
        return self.state in messages.OVER

    def _container(self, number: int) -> ContainerRecord:
        if not 0 <= number < len(self._containers):
            raise ProtocolError(f"app {self.app!r} has {len(self._containers)} containers, but no {number}")
        return self._containers[number]

    def check_current(self, number: int, incarnation: str) -> ContainerRecord:
        container = self._container(number)
        if container.registered is None or container.registered.incarnation != incarnation:
            raise self._fenced(number, f"incarnation {incarnation}")
        return container

    def _fenced(self, number: int, who: str) -> FencedError:
        current = self._containers[number].registered
        by = "it never registered with this run"
        if current:
            by = f"attempt {current.attempt} (pid {current.pid} on {current.host}) has replaced it"
        hint = "ignore this: the older copy ends without having changed anything"
        return FencedError(f"{who} of container {number} of app {self.app!r} is not the current one: {by}", hint=hint)

    def _of_container(self, number: int, names: Iterable[str]) -> list[TaskName]:
        own, names = {str(task): task for task in self._containers[number].tasks}, list(names)
        if strangers := [name for name in names if name not in own]:
            raise ProtocolError(
                f"container {number} of app {self.app!r} reports tasks that it doesn't have:"
                f" {_listed(strangers)}; it has {_listed(own)}"
            )
        return [own[name] for name in names]

    def _left(self, container: ContainerRecord) -> tuple[TaskName, ...]:
        return () if self._over else self._tasks.left(container.tasks)

    def _seat(self, container: ContainerRecord) -> Seat:
        return Seat(self._left(container), dict(container.grants), container.superseded, container.pause_ms)

    def _died(self, container: ContainerRecord, who: messages.Register, words: messages.LastWords | None) -> None:
        """Note that a container has died silently. Too many such lives in a row without a commit end the app."""
        at_work = words.task if words is not None else ""
        progress = at_work in container.committed if at_work else bool(container.committed)
        peak = container.heartbeat.rss_bytes if container.heartbeat is not None else 0
        hung = container.error if container.state == "hung" else None
        error = hung or death(container.number, who.host, peak, words, frozen=container.state == "lost")
        container.failures = 1 if progress else container.failures + 1
        container.become("failed")
        container.error = error
        if container.failures > self._restarts_max:
            first, _, rest = error.message.partition("\n")
            times = f"{container.failures} times in a row, without a commit in between"
            self.fail(msgspec.structs.replace(error, message=f"{first}, {times}" + (rest and f"\n{rest}")))
            return
        container.pause_ms = pause_ms(container.failures, self._chance())
        self._note("warning", f"the container died: {error.message}", container, pause_ms=container.pause_ms)

    def _watch_drain(self, for_ms: float) -> None:
        waiting = [container for container in self._containers if self._left(container)]
        for one in waiting:
            if one.call is not None and one.waited_for != one.call.since_ms:
                one.waited_for = one.call.since_ms
                self._note("warning", f"the drain waits for the end of {one.call.where}", one)
        if for_ms >= self._calls.drain_timeout_ms:
            of = self._tasks.statuses
            doing = [doing_still(one.number, one.state, one.call, [of[task] for task in one.tasks]) for one in waiting]
            self.fail(self._calls.gave_up_drain(doing))

    def _watch_call(self, container: ContainerRecord) -> None:
        call, who = container.call, container.registered
        if container.state != "running" or call is None or who is None or not self._calls.hangs(call):
            return
        container.error = self._calls.hung(container.number, who.host, call)
        if self._calls.replaced:
            container.become("hung")  # the driver kills it
            self._note("warning", f"the container hangs in {call.where}", container)
        else:
            self.fail(container.error)

    def _seen(self, container: ContainerRecord, now_ms: float) -> None:
        container.seen_ms = now_ms
        if container.state == "lost":  # it was slow, but wasn't replaced
            container.become("running")
            self._note("info", "the container sends heartbeats again", container)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"

"""What the coordinator keeps beside the ledger: queries, slots and cuts. Pure and bounded.

A container gets its oldest unanswered question repeatedly until it answers, so a lost answer, or the replacement of a
container, costs only time. The client stops waiting at its time limit; later answers are ignored.

Orders about slots belong to the generation whose reports they follow from; a task with another one ignores them.

A savepoint needs a version that every task of the app commits exactly (``protocol.protocol``). Its creator chooses
the version and a folder, and orders the same cut from every deployment of the app.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from headrace.coordinator import messages
from headrace.coordinator.messages import Message
from headrace.core.errors import ProtocolError, UnavailableError, UsageError
from headrace.core.ids import SSP, TaskName
from headrace.protocol.record import Cut
from headrace.systems.slot_reports import SlotOrders, SlotReport

WAITING_MAX = 64
ANSWER_BYTES_MAX = 3 << 20
"""The approximate size of all tasks' answers together. As base64, they must fit into one request."""
TASK_BYTES_MIN = 32 << 10


@dataclass(slots=True)
class _Asked:
    ask: messages.Ask
    bytes_max: int
    open: dict[int, list[str]]
    answers: dict[str, messages.TaskAnswer] = field(default_factory=dict)


class QueryBook:
    """The queries of one run. Each has a number."""

    def __init__(self, containers: Iterable[Sequence[object]]) -> None:
        self._asked: dict[int, _Asked] = {}
        self.seat(containers)
        self._next = 1
        self._answered = self._timed_out = self._refused = 0

    def seat(self, containers: Iterable[Sequence[object]]) -> None:
        self._container_of = {str(task): number for number, tasks in enumerate(containers) for task in tasks}
        for asked in self._asked.values():
            asked.open = self._by_container(asked.ask)

    def ask(self, ask: messages.Ask) -> int:
        if not ask.tasks or len(set(ask.tasks)) != len(ask.tasks):
            raise UsageError(f"a query of table {ask.table!r} has to name at least one task, and each once")
        if unknown := [task for task in ask.tasks if task not in self._container_of]:
            raise UsageError(f"no container of this run has the tasks {', '.join(unknown)}")
        if len(ask.tasks) > messages.TASKS_MAX:
            raise UsageError(f"a query of {len(ask.tasks)} tasks at once", hint=f"ask at most {messages.TASKS_MAX}")
        if not 1 <= ask.rows <= messages.ROWS_MAX:
            raise UsageError(f"a query for {ask.rows} rows", hint=f"a page has 1 to {messages.ROWS_MAX} rows")
        if len(ask.keys) > messages.KEYS_MAX:
            raise UsageError(f"a query for {len(ask.keys)} keys at once", hint=f"ask for at most {messages.KEYS_MAX}")
        if len(self._asked) >= WAITING_MAX:
            self._refused += 1
            hint = "ask again in a moment; headrace status shows whether a container is missing"
            raise UnavailableError(f"{WAITING_MAX} queries of tables are waiting already", hint=hint)
        number, self._next = self._next, self._next + 1
        bytes_max = max(TASK_BYTES_MIN, ANSWER_BYTES_MAX // len(ask.tasks))
        self._asked[number] = _Asked(ask, bytes_max, self._by_container(ask))
        return number

    def _by_container(self, ask: messages.Ask) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for task in ask.tasks:
            found.setdefault(self._container_of[task], []).append(task)
        return found

    def next(self, container: int) -> messages.Question | None:
        for number, asked in self._asked.items():
            if tasks := asked.open.get(container):
                ask = asked.ask
                return messages.Question(
                    number=number,
                    table=ask.table,
                    tasks=tasks,
                    keys=ask.keys,
                    low=ask.low,
                    high=ask.high,
                    rows=ask.rows,
                    bytes_max=asked.bytes_max,
                    at_ms=ask.at_ms,
                    look=ask.look,
                )
        return None

    def answer(self, container: int, answer: messages.Answer) -> None:
        """Take a container's answer. A repeated or late answer changes nothing."""
        asked = self._asked.get(answer.number)
        if asked is None or container not in asked.open:
            return
        found = [one.task for one in answer.answers]
        if found != asked.open[container]:
            raise ProtocolError(
                f"container {container} answered for tasks {found}, but was asked about {asked.open[container]}"
            )
        del asked.open[container]
        asked.answers |= {one.task: one for one in answer.answers}

    def waits_for(self, number: int) -> dict[int, list[str]]:
        return self._asked[number].open

    def take(self, number: int, missing: messages.ErrorReport | None = None) -> list[messages.TaskAnswer]:
        asked = self._asked.pop(number)
        if asked.open:
            self._timed_out += 1
        else:
            self._answered += 1
        return [asked.answers.get(task) or messages.TaskAnswer(task=task, error=missing) for task in asked.ask.tasks]

    def status(self) -> messages.QueriesStatus:
        return messages.QueriesStatus(
            waiting=len(self._asked), answered=self._answered, timed_out=self._timed_out, refused=self._refused
        )


@dataclass(frozen=True, slots=True)
class SlottedInput:
    """An input of a stage whose partitions are slots: the slots in order, each with the task that reads it."""

    stage: str
    stream: str
    slots: tuple[tuple[TaskName, SSP], ...]


class SlotBook:
    """The slots of one deployment."""

    def __init__(self, inputs: Iterable[SlottedInput] = ()) -> None:
        self.inputs = tuple(inputs)
        self._orders: dict[TaskName, dict[SSP, tuple[int, SlotOrders]]] = {}
        self._numbers: dict[TaskName, int] = {}
        self._number = 0

    def reports(self, of: SlottedInput, tasks: Mapping[TaskName, messages.TaskStatus]) -> list[SlotReport | None]:
        return [tasks[task].slots.get(str(ssp)) for task, ssp in of.slots]

    def order(
        self, of: SlottedInput, reports: Sequence[SlotReport | None], orders: Sequence[SlotOrders | None]
    ) -> None:
        self._number += 1
        for (task, ssp), report, one in zip(of.slots, reports, orders, strict=True):
            if report is not None and one is not None:
                self._numbers[task] = self._number
                self._orders.setdefault(task, {})[ssp] = (report.generation, one)

    def directions(self, tasks: Iterable[TaskName]) -> dict[str, messages.SlotDirections]:
        found: dict[str, messages.SlotDirections] = {}
        for task in tasks:
            if orders := self._orders.get(task):
                newest = max(generation for generation, _ in orders.values())
                slots = {str(ssp): dict(one) for ssp, (generation, one) in orders.items() if generation == newest}
                found[str(task)] = messages.SlotDirections(generation=newest, number=self._numbers[task], slots=slots)
        return found


CutState = Literal["waiting", "kept", "missed", "over", "apart"]
"""*Over*: the task and its container have ended. *Apart*: the task's machine doesn't see the folder of the cut."""
SPARE_HEARTBEATS = 4
SPARE_INTERVALS = 2


class CutOrder(Message, frozen=True, kw_only=True):
    """A cut to take part in; None cancels it. With ``ask``, the order changes nothing and only asks for the answer."""

    cut: Cut | None = None
    ask: bool = False


class CutReport(Message, frozen=True, kw_only=True, rename="camel"):
    """The progress of the present cut in each task. A cut must be ``margin_ms`` ahead, for all tasks to learn of it."""

    id: str | None = None
    states: Mapping[str, CutState] = {}
    guarantee: str
    now_ms: int
    interval_ms: int
    margin_ms: int
    scattered: bool = False


class CutBook:
    """The present cut of one deployment."""

    def __init__(self, guarantee: str, interval_ms: int, heartbeat_ms: int, *, scattered: bool = False) -> None:
        self.cut: Cut | None = None
        margin_ms = SPARE_HEARTBEATS * heartbeat_ms + SPARE_INTERVALS * interval_ms
        self._report = CutReport(
            guarantee=guarantee, now_ms=0, interval_ms=interval_ms, margin_ms=margin_ms, scattered=scattered
        )

    def order(
        self,
        message: CutOrder,
        statuses: Mapping[TaskName, messages.TaskStatus],
        gone: Collection[TaskName],
        now_ms: int,
    ) -> CutReport:
        if not message.ask:
            self.cut = message.cut
        states = {} if self.cut is None else {str(t): self._state(t, s, gone) for t, s in statuses.items()}
        id_ = None if self.cut is None else self.cut.id
        return msgspec.structs.replace(self._report, id=id_, states=states, now_ms=now_ms)

    def _state(self, task: TaskName, status: messages.TaskStatus, gone: Collection[TaskName]) -> CutState:
        known = status.cut is not None and self.cut is not None and status.cut.id == self.cut.id
        state: CutState = status.cut.state if status.cut is not None and known else "waiting"
        # The last heartbeat of a container may be older than the end of its tasks.
        return "over" if state == "waiting" and task in gone else state


def choose(reports: Collection[CutReport]) -> int:
    interval = max(report.interval_ms for report in reports)
    soonest = max(report.now_ms + report.margin_ms for report in reports)
    return (soonest // interval + 1) * interval

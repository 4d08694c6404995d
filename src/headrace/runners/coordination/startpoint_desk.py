"""The coordinator's part in startpoints: fan them out, grant them with generations, and record their outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.core.clock import Clock
from headrace.core.errors import UsageError
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.runners.coordination.fan_out import fan_out
from headrace.runners.startpoints import StartpointService
from headrace.systems.startpoint import Order, Outcome

_log = logger(__name__)


class StartpointDesk:
    """The startpoints of a coordinator's app. The caller ensures that only one thread at a time uses it."""

    def __init__(self, service: StartpointService | None, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._partitions = {} if service is None else service.inputs.partitions

    @property
    def service(self) -> StartpointService:
        """The part that answers users' requests."""
        if self._service is None:
            raise UsageError("this coordinator has no startpoints")
        return self._service

    def fan_out(self) -> list[TaskName]:
        """Turn written startpoints into orders; return the tasks with new orders."""
        if self._service is None:
            return []
        found = self._service.book.fan_out(lambda present: fan_out(present, self._partitions, self._clock.now_ms()))
        app = self._service.inputs.app
        for state in (*found.kept, *found.ordered):
            where = f"{state.stream}[{state.partition}]"
            if state.state == "failed":
                _log.warning("a startpoint can't be applied", app=app, where=where, reason=state.reason or "")
            else:
                _log.info("a task gets a startpoint", app=app, task=state.task or "", where=where)
        for state in found.done:
            _log.info("a startpoint was replaced", app=app, where=f"{state.stream}[{state.partition}]")
        states = self._service.book.states()
        return sorted(
            {
                TaskName.parse(state.task)
                for state in states
                if state.task is not None and state.state == "ordered" and state.generation is None
            }
        )

    def grant(self, tasks: Mapping[TaskName, int]) -> dict[TaskName, tuple[Order, ...]]:
        """Return the orders that these generations of tasks have to apply."""
        if self._service is None or not tasks:
            return {}
        found = self._service.book.grant({str(task): generation for task, generation in tasks.items()})
        return {TaskName.parse(task): orders for task, orders in found.items()}

    def note(self, task: str, outcomes: Sequence[Outcome]) -> None:
        """Record the outcome of a task's orders."""
        book = self.service.book
        for outcome in outcomes:
            order = outcome.order
            where = f"{order.stream}[{order.partition}]"
            if book.note(task, outcome, self._clock.now_ms()) is None:
                _log.info("ignoring a report about a finished startpoint", task=task, where=where, state=outcome.state)
            elif outcome.state == "failed":
                _log.warning("a startpoint can't be applied", task=task, where=where, reason=outcome.reason or "")
            else:
                facts = {"offset": outcome.offset, "version": outcome.version}
                known = {name: value for name, value in facts.items() if value is not None}
                _log.info(f"a startpoint was {outcome.state}", task=task, where=where, **known)

"""The coordinator's knowledge of each task: its latest report, its rate, and whether it has ended. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from headrace.core.ids import TaskName
from headrace.runners.coordination.messages import Series, StageStatus, TaskStatus
from headrace.runners.coordination.series import summed
from headrace.runners.coordination.stages import Rate, stage_status

_UNDER_WAY = {"running", "blocked", "finished"}


class TaskBook:
    """The tasks of a run by stage. A task that has ended stays ended, whatever arrives late."""

    def __init__(self, stages: Mapping[str, Sequence[TaskName]]) -> None:
        self._stages = {name: tuple(tasks) for name, tasks in stages.items()}
        self._reports: dict[TaskName, TaskStatus] = {}
        self._before: dict[TaskName, list[Series]] = {}
        """The totals of former processes."""
        self._rates: dict[TaskName, Rate] = {}
        self._ended: set[TaskName] = set()
        self._under_way: set[TaskName] = set()
        self.start(task for tasks in self._stages.values() for task in tasks)

    def start(self, tasks: Iterable[TaskName]) -> None:
        """Note that these tasks start, or start again, in a new process."""
        for task in tasks:
            if task in self._reports:
                self._before[task] = self._reports[task].series
            self._reports[task] = TaskStatus(name=str(task), state="starting", series=self._before.get(task, []))
            self._rates[task] = Rate()

    def grant(self, generations: Mapping[TaskName, int]) -> None:
        """Note the generations that tasks have been given."""
        for task, generation in generations.items():
            self._reports[task] = msgspec.structs.replace(self._reports[task], generation=generation)

    def report(self, task: TaskName, status: TaskStatus, sent_ms: float) -> None:
        """Record a task's report; ``sent_ms`` is by the task's own clock."""
        self._rates[task].add(sent_ms, status.rows_in)
        if self._reports[task] is status:
            return  # an unchanged report of a task in this process
        before = self._before.get(task)
        self._reports[task] = (
            msgspec.structs.replace(status, series=summed(before, status.series)) if before else status
        )
        if status.state in _UNDER_WAY:
            self._under_way.add(task)

    def end(self, tasks: Collection[TaskName]) -> None:
        """Note that tasks have ended."""
        self._ended.update(tasks)
        self._under_way.update(tasks)

    def left(self, tasks: Iterable[TaskName]) -> tuple[TaskName, ...]:
        """Return the tasks that haven't ended."""
        return tuple(task for task in tasks if task not in self._ended)

    def ended(self, tasks: Iterable[TaskName]) -> tuple[TaskName, ...]:
        """Return the tasks that have ended."""
        return tuple(task for task in tasks if task in self._ended)

    @property
    def all_ended(self) -> bool:
        """Whether all tasks have ended."""
        return len(self._ended) == len(self._reports)

    @property
    def all_under_way(self) -> bool:
        """Whether every task has begun to work or has ended."""
        return len(self._under_way) == len(self._reports)

    @property
    def reports(self) -> Mapping[TaskName, TaskStatus]:
        """The latest report of each task."""
        return self._reports

    @property
    def statuses(self) -> dict[TaskName, TaskStatus]:
        """The latest report of each task; one that has ended is shown as finished.

        A heartbeat may arrive after a later message that says that the task has ended.
        """
        return {
            task: msgspec.structs.replace(report, state="finished") if task in self._ended else report
            for task, report in self._reports.items()
        }

    def stage_statuses(self, absent: Collection[TaskName]) -> list[StageStatus]:
        """The status of each stage. Tasks that are absent, because their container isn't running, have no rate."""
        statuses = self.statuses
        rates = {task: 0.0 if task in absent else rate.per_second for task, rate in self._rates.items()}
        return [
            stage_status(name, [(statuses[task], rates[task]) for task in tasks])
            for name, tasks in self._stages.items()
        ]

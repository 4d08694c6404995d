"""Find out from all tasks' reports when a run has read what existed at its start, and may stop. Pure.

Each task reports ``caught_up``, the version of a commit at which it had read everything that existed when the run
began.

With exactly-once, a version travels through the graph, and a commit of it includes exactly the effects of that version
upstream. Let V be the highest version that any task reports. When all tasks have committed V or a later version, the
commits include the effects of everything that existed. A task whose commit leaves out a late upstream task reports no
version, and then that of its next whole commit.

With at-least-once, versions say nothing about other tasks. A task reports the version of its last commit if no frame
waited for it at that moment. So the stages are followed downstream: a stage has caught up when each of its tasks has
made such a commit after the stage before it had caught up. A commit is later if the third report since then lacks it:
the first may have been in flight, the second is sent after the first has arrived, and the third is of a later moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import override

from headrace.core.ids import TaskName
from headrace.runners.coordination.messages import TaskStatus

_REPORTS = 3


class Watch(Protocol):
    """Checks the newest reports, repeatedly."""

    def caught_up(self, tasks: Mapping[TaskName, TaskStatus]) -> bool:
        """Return whether the run has read everything that existed, and its results include it."""
        ...


def watch(stages: Sequence[Sequence[TaskName]], guarantee: str) -> Watch:
    """Return the watch for these stages, upstream first."""
    return ExactlyOnce() if guarantee == "exactly_once" else AtLeastOnce(stages)


class ExactlyOnce(Watch):
    """Compares versions, and keeps no state."""

    @override
    def caught_up(self, tasks: Mapping[TaskName, TaskStatus]) -> bool:
        """Return whether every task has committed and published the highest reported version."""
        open_ = [task for task in tasks.values() if task.state != "finished"]
        versions = [task.caught_up for task in open_ if task.caught_up is not None]
        if len(versions) < len(open_):
            return False
        enough = max(versions, default=-1)
        return all(_version(task) >= enough for task in open_) and _published(open_)


@dataclass(slots=True)
class _Wave:
    """The reports of a task since the stage before it had caught up."""

    reports: int = 0
    uptime_ms: int = -1
    version: int = -1


@dataclass(slots=True)
class _Stage:
    tasks: Sequence[TaskName]
    waves: dict[TaskName, _Wave] = field(default_factory=dict)
    generations: list[int] = field(default_factory=list)


class AtLeastOnce(Watch):
    """Follows the stages downstream. A restarted task resets the stages after its own."""

    def __init__(self, stages: Sequence[Sequence[TaskName]]) -> None:
        self._stages = [_Stage(tasks) for tasks in stages]

    @override
    def caught_up(self, tasks: Mapping[TaskName, TaskStatus]) -> bool:
        """Return whether every stage has caught up after the one before it."""
        for number, stage in enumerate(self._stages):
            statuses = [tasks[name] for name in stage.tasks]
            generations = [status.generation for status in statuses]
            quiet = [self._quiet(stage, task, number > 0) for task in zip(stage.tasks, statuses, strict=True)]
            if not all(quiet) or generations != stage.generations:
                stage.generations = generations
                for later in self._stages[number + 1 :]:
                    later.waves.clear()
                return False
        return _published(tasks.values())

    def _quiet(self, stage: _Stage, task: tuple[TaskName, TaskStatus], follows: bool) -> bool:
        name, status = task
        if status.state == "finished":
            return True
        if not follows:
            return status.caught_up is not None
        wave = stage.waves.setdefault(name, _Wave())
        if wave.reports < _REPORTS and status.uptime_ms != wave.uptime_ms:
            wave.reports, wave.uptime_ms, wave.version = wave.reports + 1, status.uptime_ms, _version(status)
        return wave.reports == _REPORTS and status.caught_up is not None and status.caught_up > wave.version


def _version(task: TaskStatus) -> int:
    return -1 if task.checkpoint is None else task.checkpoint.version


def _published(tasks: Iterable[TaskStatus]) -> bool:
    return not any(output.waiting for task in tasks for output in task.outputs.values())

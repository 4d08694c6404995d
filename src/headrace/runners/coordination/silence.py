"""Decide when an app that silently repeats its work writes again.

Restored with ``--outputs silent``, an app reads its inputs up to its former positions, and writes nothing. All its
tasks pause there. Once every task has committed all of that, nothing is in flight between tasks. The metadata store
then records permanently that the timeline *speaks*, and the tasks start over in place, downstream stages first, so that
no speaking task sends to a silent one.

``Silence`` is pure. ``SilenceThread`` asks the coordinator now and then whether the silence can end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from headrace.core.errors import HeadraceError
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.runners.coordination.caught_up import watch
from headrace.runners.coordination.messages import TaskStatus
from headrace.runners.coordination.repeated import RepeatedStep

LOOK_S = 0.1
_AT_WORK = {"running", "blocked"}
_log = logger(__name__)


class Silence:
    """The silence of one run; its stages come upstream first. ``silent``: tasks that start now write nothing."""

    def __init__(self, stages: Sequence[Sequence[TaskName]], guarantee: str) -> None:
        self.silent = True
        self._stages = stages
        self._watch = watch(stages, guarantee)
        self._generations: dict[TaskName, int] = {}

    def caught_up(self, tasks: Mapping[TaskName, TaskStatus]) -> bool:
        """Return whether the app has committed everything up to its former positions."""
        return self._watch.caught_up(tasks)

    def end(self, tasks: Mapping[TaskName, TaskStatus]) -> None:
        """Note that the timeline speaks from now on."""
        self.silent = False
        self._generations = {task: status.generation for task, status in tasks.items()}

    def to_restart(self, tasks: Mapping[TaskName, TaskStatus]) -> list[TaskName] | None:
        """Return the tasks to start over now: those of a stage follow the stages after it. None: all speak."""
        for stage in reversed(self._stages):
            open_ = [task for task in stage if tasks[task].state != "finished"]
            mute = [task for task in open_ if tasks[task].generation <= self._generations[task]]
            if mute or any(tasks[task].state not in _AT_WORK for task in open_):
                return mute
        return None


class SilenceThread(RepeatedStep):
    """Asks whether the app can speak, until it does or the run ends."""

    def __init__(self, advance: Callable[[], bool], fail: Callable[[BaseException], None]) -> None:
        """``advance`` takes the next step, and returns False when there is none left."""
        super().__init__("silence", LOOK_S)
        self._advance = advance
        self._fail = fail

    @override
    def step(self) -> bool:
        try:
            return self._advance()
        except HeadraceError as error:
            if not error.retry:
                self._fail(error)
                return False
            _log.warning("can't end the silence yet", error=error.message)
            return True

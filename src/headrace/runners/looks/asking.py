"""Ask tasks for a look, repeatedly until it is complete, and combine the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from headrace.core.errors import UsageError
from headrace.core.ids import stage_of
from headrace.runners.coordination.messages import AppStatus, TaskStatus
from headrace.runners.coordination.query_messages import Answers, Ask, Look
from headrace.runners.looks.results import PEEKED, PROFILED, SECONDS_MAX, TASKS_MAX, Profiled

LIMIT_MS = 3000
_STEPS = "headrace_step_messages_total"

Asking = Callable[[Ask], Answers]
_T = TypeVar("_T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class PeekFound:
    """Rows of some tasks, each with its task. ``over``: no task will give more."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    over: bool


def peek(ask: Asking, status: AppStatus, step: str, id_: str, stage: str | None = None) -> PeekFound:
    """Ask the first tasks that have a step for the rows that it takes.

    Raises ``UsageError`` if no task has it, and what keeps tasks from answering if none answers.
    """
    tasks = [task.name for task in status.tasks if _has(task, step, stage)][:TASKS_MAX]
    if not tasks:
        steps = sorted({one.labels["step"] for task in status.tasks for one in task.series if one.name == _STEPS})
        raise UsageError(
            f"no running task has a step {step!r}", hint=f"the steps are {', '.join(steps)}" if steps else None
        )
    found = _asked(ask, tasks, Look(id=id_, kind="peek", step=step), PEEKED)
    columns = next((one.columns for one in found.values() if one.columns), [])
    rows = [(task, row) for task, one in found.items() for row in one.rows]
    return PeekFound(columns, rows, all(one.over for one in found.values()))


def profile(ask: Asking, status: AppStatus, container: int, seconds: float, id_: str) -> Profiled:
    """Ask a container for its threads' activity. Raises ``UsageError`` if it doesn't exist, or its own error."""
    if not 0 < seconds <= SECONDS_MAX:
        raise UsageError(f"a profile of {seconds:g} seconds", hint=f"ask for up to {SECONDS_MAX:g}")
    known = next((one for one in status.containers if one.id == container and one.tasks), None)
    if known is None:
        raise UsageError(f"the app has no container {container} with tasks")
    task = known.tasks[0]
    return _asked(ask, [task], Look(id=id_, kind="profile", seconds=seconds), PROFILED)[task]


def as_collapsed(profiled: Profiled) -> str:
    """The stacks of a profile as lines that flame graphs are drawn from."""
    return "".join(f"{stack} {times}\n" for stack, times in profiled.stacks.items())


def _has(task: TaskStatus, step: str, stage: str | None) -> bool:
    if task.state == "finished" or (stage is not None and stage_of(task.name) != stage):
        return False
    return any(one.name == _STEPS and one.labels.get("step") == step for one in task.series)


def _asked(ask: Asking, tasks: list[str], look: Look, decoder: msgspec.json.Decoder[_T]) -> Mapping[str, _T]:
    """The answers of those tasks that answer."""
    answers = ask(Ask(table="", tasks=tasks, look=look, limit_ms=LIMIT_MS)).answers
    found = {one.task: decoder.decode(one.rows) for one in answers if one.error is None}
    if not found:
        raise next(one.error.as_error() for one in answers if one.error is not None)
    return found

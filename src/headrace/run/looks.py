"""Looks into running containers, on demand: rows that a step takes, and what threads do.

A question to a container begins a look, or asks how far it is; none waits. For a profile, a thread counts the stacks of
all threads again and again, which holds them up for some tens of microseconds. Stacks are text in the collapsed format
of flame graphs: the thread, then frames from the outermost to the innermost, with semicolons between.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import FrameType
from typing import TypeVar

import msgspec
import polars as pl
from typing_extensions import override

from headrace.coordinator.messages import Answers, AppStatus, Ask, ContainerLook, TaskStatus
from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError, UsageError
from headrace.core.ids import stage_of
from headrace.core.log import thread_stacks
from headrace.core.worker import WorkerThread
from headrace.task.host.task_host import TaskHost
from headrace.task.operators.base import Tap

ROWS_MAX = 10
"""How many rows a task is asked for."""
VALUE_CHARS_MAX = 200
COLUMNS_MAX = 50
TASKS_MAX = 8
"""So many tasks are peeked at."""
KEPT = 8
"""How many peeks of a task are remembered; older ones are over."""
PEEK_MS = 10_000.0
"""How long a peek waits for rows."""
SECONDS_MAX = 30.0
EVERY_S = 0.01
FRAMES_MAX = 100
NAME_CHARS_MAX = 120
STACKS_MAX = 2000
TEXT_CHARS_MAX = 1 << 20
"""Further stacks are counted together, because so many different ones don't show where time goes."""
OTHERS = "(other stacks)"
LIMIT_MS = 3000
_STEPS = "headrace_step_messages_total"
Asking = Callable[[Ask], Answers]
_T = TypeVar("_T", bound=msgspec.Struct)


class Peeked(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Rows that a step took in one task: the values of each as text. ``over``: there won't be more."""

    columns: list[str] = msgspec.field(default_factory=list)
    rows: list[list[str]] = msgspec.field(default_factory=list)
    over: bool = False


class Profiled(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many times each stack was seen, and how often it was looked. ``left_ms`` is how long it still takes."""

    stacks: dict[str, int] = msgspec.field(default_factory=dict)
    samples: int = 0
    left_ms: int = 0


# Made here, not when the first answer comes: threads that each make the first decoder of a kind end the process.
PEEKED = msgspec.json.Decoder(Peeked)
PROFILED = msgspec.json.Decoder(Profiled)


class ProfileThread(WorkerThread):
    """One profile of this process, from its construction on, for at most ``SECONDS_MAX``."""

    def __init__(self, seconds: float) -> None:
        super().__init__("headrace-profile")
        self._seconds = min(max(seconds, EVERY_S), SECONDS_MAX)
        self._until = time.monotonic() + self._seconds
        self._stacks: Counter[str] = Counter()
        self._samples = 0
        self.start()

    def result(self) -> Profiled:
        """Return what was found; while it runs, only for how long it still does."""
        if self.alive:
            return Profiled(left_ms=max(1, round(1000 * (self._until - time.monotonic()))))
        found: Counter[str] = Counter()
        size = 0
        for stack, times in self._stacks.most_common():
            size += len(stack)
            found[stack if size <= TEXT_CHARS_MAX else OTHERS] += times
        return Profiled(stacks=dict(found), samples=self._samples)

    @override
    def work(self) -> None:
        own = threading.get_ident()
        while time.monotonic() < self._until and not self.closing.wait(EVERY_S):
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, frame in thread_stacks().items():
                if ident != own:
                    stack = f"{names.get(ident, 'a thread')};{collapsed(frame)}"
                    if stack not in self._stacks and len(self._stacks) >= STACKS_MAX:
                        stack = OTHERS
                    self._stacks[stack] += 1
            self._samples += 1


def collapsed(frame: FrameType | None) -> str:
    """Return the stack that ends in a frame, the outermost first."""
    frames: list[str] = []
    while frame is not None and len(frames) < FRAMES_MAX:
        code = frame.f_code
        name = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}"[:NAME_CHARS_MAX]
        where = f" ({PurePath(code.co_filename).name}:{code.co_firstlineno})"
        frames.append((name + where).replace(";", ","))
        frame = frame.f_back
    return ";".join(reversed(frames))


class Looks:
    """The looks at some tasks, and at the process that they are in. Called by one thread."""

    def __init__(self, hosts: Sequence[TaskHost], clock: Clock) -> None:
        self._hosts = {str(host.name): host for host in hosts}
        self._clock = clock
        self._taps: dict[tuple[str, str], tuple[Tap, float]] = {}
        """By task and look, with the time until which it waits."""
        self._profile: tuple[str, ProfileThread] | None = None

    def answer(self, look: ContainerLook, task: str) -> bytes:
        return msgspec.json.encode(self._peek(look, task) if look.kind == "peek" else self._profiled(look))

    def close(self) -> None:
        if self._profile is not None:
            self._profile[1].close()

    def _peek(self, look: ContainerLook, task: str) -> Peeked:
        host = self._hosts[task]
        if not host.scope.settings.peek:
            raise UsageError(
                "this app doesn't allow its messages to be shown",
                hint="declare it with hr.App(..., peek=True); everyone who can open its live page can then see them",
            )
        taking = host.task.chain.taking(look.step)
        if not taking:
            raise UsageError(f"task {task} has no step {look.step!r}")
        now_ms = self._clock.monotonic_ms()
        key = task, look.id
        if key not in self._taps:
            mine = [one for one in self._taps if one[0] == task]
            for old in mine[: max(0, len(mine) - KEPT + 1)]:
                del self._taps[old]
            self._taps[key] = Tap(ROWS_MAX, now_ms + PEEK_MS, self._clock.monotonic_ms), now_ms + PEEK_MS
        tap, until_ms = self._taps[key]
        over = tap.missing <= 0 or now_ms >= until_ms
        for operator in taking:  # each time: after a rollback the operators are others
            if not over:
                operator.tap = tap
            elif operator.tap is tap:
                operator.tap = None
        return as_peeked(tap.taken, over=over)

    def _profiled(self, look: ContainerLook) -> object:
        known = self._profile
        if known is None or known[0] != look.id:
            if known is not None and known[1].alive:
                raise UnavailableError(
                    "this container is being profiled already", hint="wait some seconds, and try again"
                )
            known = self._profile = look.id, ProfileThread(look.seconds)
        return known[1].result()


def as_peeked(taken: Iterable[pl.DataFrame], *, over: bool) -> Peeked:
    columns: list[str] = []
    rows: list[list[str]] = []
    for batch in taken:
        columns = [name for name in batch.columns if not name.startswith("__")][:COLUMNS_MAX]
        rows += [[_text(value) for value in row] for row in batch.select(columns).rows()]
    return Peeked(columns=columns, rows=rows, over=over)


def _text(value: object) -> str:
    """A value on one line: what a terminal would obey is escaped."""
    text = "null" if value is None else str(value)
    if len(text) > VALUE_CHARS_MAX:
        text = f"{text[:VALUE_CHARS_MAX]}…"
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


@dataclass(frozen=True, slots=True)
class PeekFound:
    """Rows of some tasks, each with its task. ``over``: no task will give more."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    over: bool


def peek(ask: Asking, status: AppStatus, step: str, id_: str, stage: str | None = None) -> PeekFound:
    """Ask the first tasks that have a step for the rows that it takes. Raises their error if none of them answers."""
    tasks = [task.name for task in status.tasks if _has(task, step, stage)][:TASKS_MAX]
    if not tasks:
        steps = sorted({one.labels["step"] for task in status.tasks for one in task.series if one.name == _STEPS})
        raise UsageError(
            f"no running task has a step {step!r}", hint=f"the steps are {', '.join(steps)}" if steps else None
        )
    found = _asked(ask, tasks, ContainerLook(id=id_, kind="peek", step=step), PEEKED)
    columns = next((one.columns for one in found.values() if one.columns), [])
    rows = [(task, row) for task, one in found.items() for row in one.rows]
    return PeekFound(columns, rows, all(one.over for one in found.values()))


def profile(ask: Asking, status: AppStatus, container: int, seconds: float, id_: str) -> Profiled:
    if not 0 < seconds <= SECONDS_MAX:
        raise UsageError(f"a profile of {seconds:g} seconds", hint=f"ask for up to {SECONDS_MAX:g}")
    known = next((one for one in status.containers if one.id == container and one.tasks), None)
    if known is None:
        raise UsageError(f"the app has no container {container} with tasks")
    task = known.tasks[0]
    return _asked(ask, [task], ContainerLook(id=id_, kind="profile", seconds=seconds), PROFILED)[task]


def as_collapsed(profiled: Profiled) -> str:
    return "".join(f"{stack} {times}\n" for stack, times in profiled.stacks.items())


def _has(task: TaskStatus, step: str, stage: str | None) -> bool:
    if task.state == "finished" or (stage is not None and stage_of(task.name) != stage):
        return False
    return any(one.name == _STEPS and one.labels.get("step") == step for one in task.series)


def _asked(ask: Asking, tasks: list[str], look: ContainerLook, decoder: msgspec.json.Decoder[_T]) -> Mapping[str, _T]:
    answers = ask(Ask(table="", tasks=tasks, look=look, limit_ms=LIMIT_MS)).answers
    found = {one.task: decoder.decode(one.rows) for one in answers if one.error is None}
    if not found:
        raise next(one.error.as_error() for one in answers if one.error is not None)
    return found

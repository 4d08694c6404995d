"""How far a run is, by the reports of its tasks: caught up, held up, stuck in calls. Pure.

When has a run read what existed at its start? Each task reports ``caught_up``, the version of a commit at which it
had. With exactly-once, let V be the highest version that any task reports. When all tasks have committed V or a later
version, the commits include the effects of everything that existed. A task whose commit leaves out a late upstream
task reports no version, and then that of its next whole commit.

With at-least-once, versions say nothing about other tasks. A task reports the version of its last commit if no
frame waited for it at that moment. A stage has caught up when each of its tasks has made such a commit after the stage
before it had caught up. A commit is later if the third report since then lacks it: the first may have been in flight,
the second is sent after the first has arrived, and the third is of a later moment.

A container in a long call of the app's own code isn't lost, because another thread sends its heartbeats. But it does
nothing else, so there are limits on the duration of a drain, and of a call or a run loop's turn.

The totals of former processes are added to those of the present one, so no counter decreases while the driver lives.

A late task may itself wait for another one, so following the waits to their end finds the task to name.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from headrace.api.specs import DRAIN_TIMEOUT_MS, HUNG_AFTER_MS
from headrace.coordinator import messages
from headrace.core.clock import format_ms
from headrace.core.errors import UserFunctionError
from headrace.core.ids import TaskName

_REPORTS = 3


class ExactlyOnce:
    """Compares versions, and keeps no state."""

    def caught_up(self, tasks: Mapping[TaskName, messages.TaskStatus]) -> bool:
        open_ = [task for task in tasks.values() if task.state != "finished"]
        versions = [task.caught_up for task in open_ if task.caught_up is not None]
        if len(versions) < len(open_):
            return False
        enough = max(versions, default=-1)
        return all(_version(task) >= enough for task in open_) and _published(open_)


@dataclass(slots=True)
class _Wave:
    reports: int = 0
    uptime_ms: int = -1
    version: int = -1


@dataclass(slots=True)
class _Stage:
    tasks: Sequence[TaskName]
    waves: dict[TaskName, _Wave] = field(default_factory=dict)
    generations: list[int] = field(default_factory=list)


class AtLeastOnce:
    """Follows the stages downstream. A restarted task resets the stages after its own."""

    def __init__(self, stages: Sequence[Sequence[TaskName]]) -> None:
        self._stages = [_Stage(tasks) for tasks in stages]

    def caught_up(self, tasks: Mapping[TaskName, messages.TaskStatus]) -> bool:
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

    def _quiet(self, stage: _Stage, task: tuple[TaskName, messages.TaskStatus], follows: bool) -> bool:
        name, status = task
        if status.state == "finished":
            return True
        if not follows:
            return status.caught_up is not None
        wave = stage.waves.setdefault(name, _Wave())
        if wave.reports < _REPORTS and status.uptime_ms != wave.uptime_ms:
            wave.reports, wave.uptime_ms, wave.version = wave.reports + 1, status.uptime_ms, _version(status)
        return wave.reports == _REPORTS and status.caught_up is not None and status.caught_up > wave.version


def watch(stages: Sequence[Sequence[TaskName]], guarantee: str) -> ExactlyOnce | AtLeastOnce:
    """What says of the newest reports, repeatedly, whether the run has ``caught_up``."""
    return ExactlyOnce() if guarantee == "exactly_once" else AtLeastOnce(stages)


def _version(task: messages.TaskStatus) -> int:
    return -1 if task.checkpoint is None else task.checkpoint.version


def _published(tasks: Iterable[messages.TaskStatus]) -> bool:
    return not any(output.waiting for task in tasks for output in task.outputs.values())


_NAMED_MAX = 5
_SAME_MS = 100
"""Each heartbeat computes when a call began. For one call, the results differ by less than this."""


def long_call(message: messages.Heartbeat, before: messages.Holdup | None) -> messages.Holdup | None:
    call = next((one for status in message.tasks for one in status.holdups if one.words.whole), None)
    if call is not None and before is not None and abs(call.since_ms - before.since_ms) < _SAME_MS:
        return msgspec.structs.replace(call, since_ms=before.since_ms)
    return call


def doing_still(
    container: int, state: messages.ContainerState, call: messages.Holdup | None, tasks: Iterable[messages.TaskStatus]
) -> str:
    if state == "running" and call is not None:
        return f"container {container} is still in {call.where}"
    counts = Counter(task.state for task in tasks if task.state != "finished")
    return f"container {container} is {state} ({', '.join(f'tasks {one}: {count}' for one, count in counts.items())})"


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits on a drain and on one call; None: no limit. ``replaced``: a hanging container can be restarted."""

    drain_timeout_ms: int = DRAIN_TIMEOUT_MS
    hung_after_ms: int | None = HUNG_AFTER_MS
    replaced: bool = True

    def hangs(self, call: messages.Holdup) -> bool:
        return self.hung_after_ms is not None and call.still_ms >= self.hung_after_ms

    def gave_up_drain(self, waits: Sequence[str]) -> messages.ErrorReport:
        more = [f"{len(waits) - _NAMED_MAX} more containers"] if len(waits) > _NAMED_MAX else []
        named = "; ".join([*waits[:_NAMED_MAX], *more])
        error = UserFunctionError(
            f"the drain didn't end within {format_ms(self.drain_timeout_ms)}: {named}",
            hint="the next run repeats what isn't committed; make functions faster, or raise drain_timeout",
        )
        return messages.ErrorReport.of(error, with_traceback=False)

    def hung(self, container: int, host: str, call: messages.Holdup) -> messages.ErrorReport:
        done = "it was killed and starts again" if self.replaced else "the app ends"
        ours = call.what == "run loop"
        what = "turn" if ours else "call"
        help_ = "add a timeout to the call that the function waits for"
        if ours:
            help_ = "check the load of the machine and its disks"
        return messages.ErrorReport(
            type="InfrastructureError" if ours else "UserFunctionError",
            message=f"container {container} on {host} has been in one {what} for more than "
            f"{format_ms(self.hung_after_ms or 0)}, so {done}\n  in {call.where}",
            hint=f"{help_}; if a {what} may take this long, raise hung_after",
            fault="environment" if ours else "user",
            retry=self.replaced,
        )


_WINDOW_MS = 5000.0


class Rate:
    """Rows per second over the last seconds, from the sender's clock and counter."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, sent_ms: float, rows: int) -> None:
        """Add a report. One sample from before the window is kept, so that rare reports also give a rate."""
        self._samples.append((sent_ms, rows))
        while len(self._samples) > 2 and self._samples[1][0] <= sent_ms - _WINDOW_MS:
            self._samples.popleft()

    @property
    def per_second(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (first_ms, first_rows), (last_ms, last_rows) = self._samples[0], self._samples[-1]
        return (last_rows - first_rows) * 1000 / (last_ms - first_ms)


def stage_status(name: str, tasks: Sequence[tuple[messages.TaskStatus, float]]) -> messages.StageStatus:
    living = [status for status, _ in tasks if status.state != "finished"]
    # Finished tasks hold nothing back. If all have finished, the lowest of their watermarks counts.
    awake = [status for status in living if not status.idle]
    times = [status.watermark for status in awake or living or [status for status, _ in tasks]]
    lags = [status.lag for status in living]
    known = [time for time in times if time is not None]
    if living and not awake:
        watermark = max(known, default=None)  # readers of an idle stage also take the highest watermark
    else:
        watermark = min(known) if known and len(known) == len(times) else None
    return messages.StageStatus(
        name=name,
        tasks=len(tasks),
        finished=len(tasks) - len(living),
        watermark=watermark,
        idle=len(living) - len(awake),
        rows_per_second=sum(rate for _, rate in tasks),
        lag=None if None in lags else sum(lag for lag in lags if lag is not None),
    )


_Key = tuple[str, tuple[tuple[str, str], ...]]


def summed(before: Iterable[messages.Series], now: Iterable[messages.Series]) -> list[messages.Series]:
    found: dict[_Key, messages.Series] = {_key(one): one for one in before if one.kind != "gauge"}
    for one in now:
        former = found.get(key := _key(one))
        if former is None:
            found[key] = one
            continue
        buckets = one.buckets
        if len(former.buckets) == len(buckets):
            buckets = [n + more for n, more in zip(former.buckets, buckets, strict=True)]
        found[key] = msgspec.structs.replace(one, value=former.value + one.value, buckets=buckets)
    return list(found.values())


def _key(one: messages.Series) -> _Key:
    return one.name, tuple(sorted(one.labels.items()))


def held_up(
    tasks: Iterable[messages.TaskStatus], containers: Iterable[messages.ContainerStatus]
) -> list[messages.HeldUp]:
    """Return each task that others wait for but that waits for none itself, the longest wait first."""
    hosts = {task: container for container in containers for task in container.tasks}
    known = {task.name: _as_of_now(task, hosts.get(task.name)) for task in tasks}
    late: defaultdict[str, list[messages.TaskStatus]] = defaultdict(list)
    for task in known.values():
        for culprit in sorted(_culprits(task, known)):
            late[culprit].append(task)
    found = [
        messages.HeldUp(
            by=culprit,
            reason=_reason(known.get(culprit), hosts.get(culprit)),
            for_ms=max(task.overdue_ms for task in waiting),
            tasks=sorted(task.name for task in waiting),
        )
        for culprit, waiting in late.items()
    ]
    return sorted(found, key=lambda one: (-one.for_ms, one.by))


def _as_of_now(task: messages.TaskStatus, container: messages.ContainerStatus | None) -> messages.TaskStatus:
    absent = container is not None and container.state != "running"
    return msgspec.structs.replace(task, waits_for={}) if absent or task.state == "finished" else task


def _culprits(task: messages.TaskStatus, known: Mapping[str, messages.TaskStatus]) -> set[str]:
    found: set[str] = set()
    seen: set[str] = set()
    ahead = list(chain(*task.waits_for.values()))
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        upstream = known.get(name)
        further = [] if upstream is None else list(chain(*upstream.waits_for.values()))
        ahead += further
        if not further:
            found.add(name)
    return found


def _reason(task: messages.TaskStatus | None, container: messages.ContainerStatus | None) -> str:
    if task is None:
        return "it isn't part of this deployment"
    if container is not None and container.state != "running":
        return f"its container {container.id} is {container.state}"
    if call := next((holdup for holdup in task.holdups if holdup.words.whole), None):
        return f"its run loop is in {call.where}"
    if task.state == "blocked" and task.blocked_by is not None:
        return f"it is blocked: {task.blocked_by}"
    if task.state in ("starting", "restoring"):
        return f"it is {task.state}"
    return "it is running, but hasn't committed it"


def holders(tasks: Iterable[messages.TaskStatus]) -> Mapping[tuple[str, str], int]:
    """Return how many tasks have their watermark from each input partition, by task and partition.

    Each counts once on each step upstream: at its own partition that holds it, at that of the upstream task that holds
    that one, and so on.
    """
    found: dict[tuple[str, str], int] = {}
    holding: dict[str, tuple[str, str]] = {}
    for task in tasks:
        for partition, input_ in task.inputs.items():
            found[task.name, partition] = 0
            if input_.holds:
                holding[task.name] = partition, input_.held_by
    for name in holding:
        seen: set[str] = set()
        at = name
        while at in holding and at not in seen:
            seen.add(at)
            partition, upstream = holding[at]
            found[at, partition] += 1
            at = upstream
    return found

"""What the live page shows: numbers of a moment, of the last hour, and changes. Pure.

The page draws the plan once, and then only applies changes of one document of plain data: a merge patch (RFC 7396),
which ``live.js`` applies. Documents are nested dicts with text keys; they hold no None, because in a patch it means
that a member is gone. Lists are replaced as a whole. Numbers are rounded, so that what hardly changes isn't sent. Times
are ms since the epoch; what is unknown is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import floor, log10
from typing import Any

from headrace.coordinator.messages import AppStatus, ContainerStatus, ErrorReport, Series, StageStatus, TaskStatus
from headrace.core.ids import stage_of
from headrace.core.log import RecentWarning
from headrace.core.metrics import SECONDS
from headrace.operate.diagnosis import held_back, reasons
from headrace.plan.render import RenderedPlan

_PARTS_BY_LABEL = {
    "headrace_input_messages_total": ("inputs", "input"),
    "headrace_output_messages_total": ("outputs", "output"),
    "headrace_step_messages_total": ("steps", "step"),
    "headrace_function_seconds_total": ("functions", "step"),
    "headrace_task_time_seconds_total": ("time", "state"),
    "headrace_state_keys": ("keys", "step"),
}
_COUNTS = {
    "headrace_late_messages_total": "late",
    "headrace_rollbacks_total": "rollbacks",
    "headrace_failed_messages_total": "failed",
    "headrace_skipped_messages_total": "skipped",
    "headrace_dead_lettered_messages_total": "dead_lettered",
}


Amounts = defaultdict[str, float]
_none = partial(defaultdict[str, float], float)


@dataclass(slots=True)
class Totals:
    """What one task has counted since the run began; ``state_bytes`` and ``keys`` are now's. Several threads read them:
    nothing is added to totals once they are made. ``inputs`` are by ``system.name``, ``outputs`` by id, ``latency`` by
    until when it is measured."""

    inputs: Amounts = field(default_factory=_none)
    outputs: Amounts = field(default_factory=_none)
    steps: Amounts = field(default_factory=_none)
    functions: Amounts = field(default_factory=_none)
    time: Amounts = field(default_factory=_none)
    keys: Amounts = field(default_factory=_none)
    commit_seconds: Amounts = field(default_factory=_none)
    commits: Amounts = field(default_factory=_none)
    counts: Counter[str] = field(default_factory=Counter)
    latency: dict[str, list[int]] = field(default_factory=dict)
    state_bytes: float = 0.0
    series: Sequence[Series] = ()

    @classmethod
    def of(cls, series: Sequence[Series]) -> Totals:
        found = cls(series=series)
        for one in series:
            if (known := _PARTS_BY_LABEL.get(one.name)) is not None:
                part, label = known
                getattr(found, part)[one.labels.get(label, "")] += one.value
            elif (count := _COUNTS.get(one.name)) is not None:
                found.counts[count] += int(one.value)
            elif one.name == "headrace_checkpoint_duration_seconds":
                found.commit_seconds[one.labels.get("part", "")] += one.value
                found.commits[one.labels.get("part", "")] += sum(one.buckets)
            elif one.name == "headrace_latency_seconds":
                found.latency[one.labels.get("until", "")] = one.buckets
            elif one.name == "headrace_state_bytes":
                found.state_bytes += one.value
        return found


_NOTHING = Totals()


@dataclass(frozen=True, slots=True)
class Sample:
    """All totals at one moment: ``at_ms`` is monotonic. ``restarts`` are those of all containers."""

    at_ms: float
    tasks: Mapping[str, Totals]
    restarts: int

    @classmethod
    def of(cls, status: AppStatus, at_ms: float, before: Sample | None = None) -> Sample:
        """Return the totals in a status. A task that has reported nothing since the sample ``before`` has the same."""
        totals: dict[str, Totals] = {}
        for task in status.tasks:
            old = _NOTHING if before is None else before.tasks.get(task.name, _NOTHING)
            totals[task.name] = old if old.series is task.series else Totals.of(task.series)
        return cls(at_ms, totals, sum(container.restarts for container in status.containers))


@dataclass(frozen=True, slots=True)
class Between:
    """The changes from one sample to a later one."""

    before: Sample
    after: Sample

    @property
    def seconds(self) -> float:
        return max((self.after.at_ms - self.before.at_ms) / 1000, 1e-3)

    def task(self, name: str) -> TaskPace:
        return TaskPace(self.before.tasks.get(name, _NOTHING), self.after.tasks.get(name, _NOTHING), self.seconds)

    def _changed(self) -> Iterator[tuple[Totals, Totals]]:
        for name, totals in self.after.tasks.items():
            old = self.before.tasks.get(name, _NOTHING)
            if old is not totals:
                yield old, totals

    def latency(self, until: str, share: float) -> float | None:
        """Return the latency in seconds that this share of all messages didn't exceed; None if there were none."""
        counts = [0] * (len(SECONDS) + 1)
        for before, totals in self._changed():
            old = before.latency.get(until, [])
            for number, count in enumerate(totals.latency.get(until, ())):
                counts[number] += count - (old[number] if number < len(old) else 0)
        return quantile(counts, share)

    def commit_ms(self) -> dict[str, float]:
        seconds, commits = _none(), _none()
        for old, totals in self._changed():
            for part, spent in totals.commit_seconds.items():
                seconds[part] += spent - old.commit_seconds.get(part, 0.0)
                commits[part] += totals.commits.get(part, 0.0) - old.commits.get(part, 0.0)
        return {part: 1000 * seconds[part] / number for part, number in commits.items() if number > 0}

    def count(self, name: str) -> int:
        return sum(totals.counts[name] - old.counts[name] for old, totals in self._changed())


@dataclass(frozen=True, slots=True)
class TaskPace:
    """What happened in a task between two samples, per second."""

    before: Totals
    after: Totals
    seconds: float

    def per_second(self, part: str, which: str) -> float:
        grown = getattr(self.after, part).get(which, 0.0) - getattr(self.before, part).get(which, 0.0)
        return max(0.0, float(grown) / self.seconds)

    def rates(self, part: str) -> dict[str, float]:
        return {which: self.per_second(part, which) for which in getattr(self.after, part)}

    def share(self, state: str) -> float:
        """The part of its time, from 0 to 1, that the task spent in this state."""
        spent = {one: self.per_second("time", one) for one in ("busy", "waiting", "idle")}
        total = sum(spent.values())
        return spent[state] / total if total > 0 else 0.0


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the seconds below which this share of the counts lies, as if they were spread evenly in each bucket."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below = share * total, 0
    for number, count in enumerate(counts):
        if count > 0 and below + count >= wanted:
            low = SECONDS[number - 1] if number else 0.0
            high = SECONDS[min(number, len(SECONDS) - 1)]
            return low + (high - low) * (wanted - below) / count
        below += count
    return SECONDS[-1]


Document = dict[str, Any]


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Document:
    """Return the patch that makes ``after`` of ``before``; empty if they are equal."""
    patch: Document = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := difference(old, value):
                patch[name] = inner
        elif value != old:
            patch[name] = value
    return patch


_BUSY_FROM, _TRACE_LINES = 0.01, 40
_ERRORS_MAX, _REASONS_MAX, _WAITING_MAX = 40, 20, 50


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """Ids of streams by place, who reads a partition, and which streams come from outside and leave the app."""

    streams: Mapping[str, str]
    readers: Mapping[str, tuple[str, ...]]
    outside: frozenset[str]
    results: frozenset[str]

    @classmethod
    def of(cls, plan: RenderedPlan) -> PlanFacts:
        readers: dict[str, list[str]] = {}
        for task in (task for stage in plan.stages for task in stage.tasks):
            for ssp in task.inputs:
                readers.setdefault(str(ssp), []).append(str(task.name))
        return cls(
            streams={str(stream.spec.stream): id_ for id_, stream in plan.streams.items()},
            readers={ssp: tuple(tasks) for ssp, tasks in readers.items()},
            outside=frozenset(id_ for id_, stream in plan.streams.items() if not stream.writers),
            results=frozenset(id_ for id_, stream in plan.streams.items() if stream.role == "sink"),
        )


def view_of(facts: PlanFacts, status: AppStatus, happened: Between, now_ms: int) -> Document:
    """Return the whole document. ``happened`` has the tasks' activity of the last few seconds."""
    paces = {task.name: happened.task(task.name) for task in status.tasks}
    hosts = {name: container for container in status.containers for name in container.tasks}
    of_stage: dict[str, list[TaskStatus]] = {}
    for task in status.tasks:
        of_stage.setdefault(stage_of(task.name), []).append(task)
    found = reasons(status, facts.readers, lambda name: paces[name].share("busy") if name in paces else 0.0, now_ms)
    return {
        "app": _known(
            name=status.app, state=status.state, started=status.started_at, ended=status.ended_at,
            guarantee=status.guarantee,
        ),
        "stages": {
            stage.name: _stage(stage, of_stage.get(stage.name, []), paces, hosts, facts) for stage in status.stages
        },
        "steps": _steps(status.tasks, paces),
        "tasks": {task.name: _task(task, paces[task.name], hosts.get(task.name), now_ms) for task in status.tasks},
        "reasons": [
            {
                "kind": one.kind, "text": one.text, "remedy": one.remedy, "since": _rounded_time(one.since_ms),
                "tasks": list(one.tasks[:_WAITING_MAX]),
            }
            for one in found[:_REASONS_MAX]
        ],
        "containers": {str(container.id): _container(container) for container in status.containers},
        "outputs": _outputs(status.tasks),
        "errors": sorted(_errors(status), key=lambda one: -int(one["at"]))[:_ERRORS_MAX],
    }  # fmt: skip


def point_of(facts: PlanFacts, status: AppStatus, recent: Between, last: Between, now_ms: int) -> dict[str, Any]:
    """Return what the charts show now. ``recent`` are some seconds, ``last`` is the time since the last point."""
    rows_in, rows_out = 0.0, 0.0
    for task in status.tasks:
        pace = recent.task(task.name)
        rows_in += sum(rate for name, rate in pace.rates("inputs").items() if facts.streams.get(name) in facts.outside)
        rows_out += sum(rate for name, rate in pace.rates("outputs").items() if name in facts.results)
    point = {
        "t": now_ms, "in": _rounded(rows_in), "out": _rounded(rows_out),
        "p50": _ms(recent.latency("sent", 0.5)), "p99": _ms(recent.latency("sent", 0.99)),
        "committed": _ms(recent.latency("committed", 0.99)),
        "parts": {part: _rounded(ms) for part, ms in recent.commit_ms().items()} or None,
        "state": sum(totals.state_bytes for totals in recent.after.tasks.values()),
        "early": sum(task.early_bytes for task in status.tasks) or None,
        "restarts": last.after.restarts - last.before.restarts or None,
        "rollbacks": last.count("rollbacks") or None,
    }  # fmt: skip
    return _known(**point)


def _stage(
    stage: StageStatus,
    tasks: Iterable[TaskStatus],
    paces: Mapping[str, TaskPace],
    hosts: Mapping[str, ContainerStatus],
    facts: PlanFacts,
) -> Document:
    reads, writes, counts, held = _none(), _none(), Counter[str](), Counter[str]()
    shares: list[float] = []
    states: list[str] = []
    for task in tasks:
        pace = paces[task.name]
        for name, rate in pace.rates("inputs").items():
            reads[facts.streams.get(name, name)] += rate
        for name, rate in pace.rates("outputs").items():
            writes[name] += rate
        for name, number in pace.after.counts.items():
            if number and name != "rollbacks":
                counts[name] += number
        shares.append(pace.share("busy"))
        states.append(_state(task, pace, hosts.get(task.name)))
        held.update([task.holdups[0].what] if states[-1] == "held" and task.holdups else [])
    return _known(
        state=min(states, key=_ORDER.index, default="idle"), held=held.most_common(1)[0][0] if held else None,
        tasks=stage.tasks, finished=stage.finished or None, idle=stage.idle or None,
        busy=round(100 * sum(shares) / len(shares)) if shares else 0, busiest=round(100 * max(shares, default=0.0)),
        rate=_rounded(stage.rows_per_second), reads={name: _rounded(rate) for name, rate in reads.items()},
        writes={name: _rounded(rate) for name, rate in writes.items()}, watermark=stage.watermark, lag=stage.lag,
        counts=counts or None,
    )  # fmt: skip


def _steps(tasks: Iterable[TaskStatus], paces: Mapping[str, TaskPace]) -> Document:
    """Each step by its name and stage: two stages may share the work of a window. ``busy`` is the busiest task's share
    of time in the step's function; a step without a function of the app has none."""
    rates, shares, keys = _none(), _none(), _none()
    held: set[str] = set()
    for task in tasks:
        pace, stage = paces[task.name], stage_of(task.name)
        for id_, rate in pace.rates("steps").items():
            rates[f"{stage}/{id_}"] += rate
        for id_, share in pace.rates("functions").items():
            shares[f"{stage}/{id_}"] = max(shares[f"{stage}/{id_}"], share)
        for id_, number in pace.after.keys.items():
            keys[f"{stage}/{id_}"] += number
        for holdup in task.holdups:
            if holdup.what in ("user code", "calls"):
                held.update(f"{stage}/{id_}" for id_ in pace.after.steps if _names(holdup.where, id_))
    return {
        step: _known(
            rate=_rounded(rates[step]),
            busy=round(100 * min(shares[step], 1.0)) if step in shares else None,
            keys=int(keys[step]) if step in keys else None,
            held=True if step in held else None,
        )
        for step in sorted(rates.keys() | shares.keys() | keys.keys())
    }


def _names(where: str, step: str) -> bool:
    return f"step {step!r}" in where or f"step {step}:" in f"{where}:"


def _task(task: TaskStatus, pace: TaskPace, container: ContainerStatus | None, now_ms: int) -> Document:
    checkpoint, holdup = task.checkpoint, next(iter(task.holdups), None)
    return _known(
        state=_state(task, pace, container), busy=round(100 * pace.share("busy")),
        waiting=round(100 * pace.share("waiting")) or None, rate=_rounded(sum(pace.rates("inputs").values())),
        lag=task.lag, watermark=task.watermark, idle=True if task.idle else None,
        committed=None if checkpoint is None else _rounded_time(now_ms - checkpoint.age_ms),
        took=None if checkpoint is None else _rounded(checkpoint.duration_ms),
        container=None if container is None else container.id, size=int(pace.after.state_bytes) or None,
        late=pace.after.counts["late"] or None, early=task.early_bytes or None,
        held=None if holdup is None else f"{holdup.what}: {holdup.where}",
    )  # fmt: skip


_ORDER = ("lost", "held", "starting", "busy", "idle", "done")


def _state(task: TaskStatus, pace: TaskPace, container: ContainerStatus | None) -> str:
    if task.state == "finished":
        return "done"
    if container is not None and container.away:
        return "lost"
    if task.state in ("starting", "restoring") or task.side_inputs_percent is not None:
        return "starting"
    if held_back(task):
        return "held"
    return "busy" if pace.share("busy") >= _BUSY_FROM else "idle"


def _container(container: ContainerStatus) -> Document:
    return _known(
        state=container.state, host=container.host, pid=container.pid, attempt=container.attempt,
        memory=container.rss_bytes or None, cpu=container.cpu_ms // 1000 or None, tasks=len(container.tasks),
        restarts=container.restarts or None,
        silent=container.last_seen_ms if container.last_seen_ms and container.last_seen_ms > 3000 else None,
    )  # fmt: skip


def _outputs(tasks: Iterable[TaskStatus]) -> Document:
    found: dict[str, Document] = {}
    for task in tasks:
        for id_, output in task.outputs.items():
            one = found.setdefault(id_, {"delivery": output.delivery, "waiting": 0, "bytes": 0, "failures": 0})
            one["waiting"] += output.waiting
            one["bytes"] += output.waiting_bytes
            one["failures"] += output.failures
            if output.error is not None:
                one["error"] = output.error
    return found


def _errors(status: AppStatus) -> Iterator[Document]:
    if status.error is not None:
        yield _error("the app", status.error, status.ended_at or status.started_at, fatal=True)
    for container in status.containers:
        who = f"container {container.id}"
        if container.error is not None:
            latest = max((one.at_ms for one in container.warnings), default=status.started_at)
            yield _error(who, container.error, latest)
        yield from (_warning(who, one) for one in container.warnings)
    for task in status.tasks:
        yield from (_warning(task.name, one) for one in task.warnings)


def _error(who: str, error: ErrorReport, at_ms: int, *, fatal: bool = False) -> Document:
    trace = "\n".join(error.traceback.splitlines()[-_TRACE_LINES:])
    return _known(
        who=who, text=error.message, hint=error.hint, at=at_ms, trace=trace or None, fatal=True if fatal else None
    )


def _warning(who: str, warning: RecentWarning) -> Document:
    return _known(who=who, text=warning.message, at=warning.at_ms, times=warning.times if warning.times > 1 else None)


def _rounded(number: float) -> float:
    if number < 0.001:
        return 0
    digits = 2 - floor(log10(number))
    return int(round(number, digits)) if digits <= 0 else round(number, digits)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else _rounded(1000 * seconds)


def _rounded_time(ms: int) -> int:
    """Ages are measured at other moments than the present one is: don't show the jitter."""
    return ms // 500 * 500


def _known(**values: Any) -> Document:
    return {name: value for name, value in values.items() if value is not None}


Point = Mapping[str, Any]  # ``t`` is in ms since the epoch, ``parts`` are in ms; what wasn't measured is missing
FINE, SPAN_MS, COARSE_MS = 300, 3_600_000, 10_000
_SUMMED = frozenset({"restarts", "rollbacks", "errors"})
_WORST = frozenset({"p50", "p99", "committed", "state", "early", "lag"})


class History:
    """At most ``FINE`` fine points, and coarse ones for ``SPAN_MS``; older points are forgotten."""

    def __init__(self) -> None:
        self._coarse: deque[Point] = deque(maxlen=SPAN_MS // COARSE_MS)
        self._fine: deque[Point] = deque()
        self._filling: list[Point] = []

    def add(self, point: Point) -> None:
        """Append a point. Points normally arrive in order of time; one that doesn't is appended anyway."""
        self._fine.append(point)
        while len(self._fine) > FINE:
            old = self._fine.popleft()
            full = len(self._filling) >= COARSE_MS // 1000
            if self._filling and (full or old["t"] // COARSE_MS != self._filling[0]["t"] // COARSE_MS):
                self._coarse.append(merged(self._filling))
                self._filling = []
            self._filling.append(old)

    def points(self) -> list[Point]:
        filling = [merged(self._filling)] if self._filling else []
        return [*self._coarse, *filling, *self._fine]


def merged(points: Sequence[Point]) -> Point:
    """Return one point for several: averages of rates, the largest latencies and sizes, and the sums of events."""
    made: dict[str, Any] = {"t": points[0]["t"]}
    for name in dict.fromkeys(name for point in points for name in point):
        values = [point[name] for point in points if name in point]
        if name == "parts":
            parts = dict.fromkeys(part for value in values for part in value)
            made[name] = {part: _mean([value[part] for value in values if part in value]) for part in parts}
        elif name in _SUMMED:
            made[name] = sum(values)
        elif name in _WORST:
            made[name] = max(values)
        elif name != "t":
            made[name] = _mean(values)
    return made


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)

"""The tasks' totals at one moment, and the changes between two moments: rates, shares and durations. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.core.metric_table import SECONDS
from headrace.runners.coordination.messages import AppStatus, Series

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


def _none() -> Amounts:
    return defaultdict(float)


@dataclass(slots=True)
class Totals:
    """What one task has counted since the run began, by what each count is of; ``state_bytes`` and ``keys`` are now's.

    Several threads read totals: nothing is added to them once they are made. They were made of ``series``.
    ``inputs`` are by stream (``system.name``), ``outputs`` by id, ``latency`` by until when it is measured.
    """

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
        """The totals in the series of a task."""
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
        """The time between the samples; never 0."""
        return max((self.after.at_ms - self.before.at_ms) / 1000, 1e-3)

    def task(self, name: str) -> Pace:
        """Return the changes of a task."""
        return Pace(self.before.tasks.get(name, _NOTHING), self.after.tasks.get(name, _NOTHING), self.seconds)

    def _changed(self) -> Iterator[tuple[Totals, Totals]]:
        """The totals before and after, of tasks in which anything has happened."""
        for name, totals in self.after.tasks.items():
            old = self.before.tasks.get(name, _NOTHING)
            if old is not totals:
                yield old, totals

    def latency(self, until: str, share: float) -> float | None:
        """The latency in seconds that this share of all messages didn't exceed; None if there were none."""
        counts = [0] * (len(SECONDS) + 1)
        for before, totals in self._changed():
            old = before.latency.get(until, [])
            for number, count in enumerate(totals.latency.get(until, ())):
                counts[number] += count - (old[number] if number < len(old) else 0)
        return quantile(counts, share)

    def commit_ms(self) -> dict[str, float]:
        """How long a commit took on average, by part."""
        seconds, commits = _none(), _none()
        for old, totals in self._changed():
            for part, spent in totals.commit_seconds.items():
                seconds[part] += spent - old.commit_seconds.get(part, 0.0)
                commits[part] += totals.commits.get(part, 0.0) - old.commits.get(part, 0.0)
        return {part: 1000 * seconds[part] / number for part, number in commits.items() if number > 0}

    def count(self, name: str) -> int:
        """How much a count of all tasks together has grown."""
        return sum(totals.counts[name] - old.counts[name] for old, totals in self._changed())


@dataclass(frozen=True, slots=True)
class Pace:
    """What happened in a task between two samples, per second."""

    before: Totals
    after: Totals
    seconds: float

    def per_second(self, part: str, which: str) -> float:
        """The growth of one count."""
        grown = getattr(self.after, part).get(which, 0.0) - getattr(self.before, part).get(which, 0.0)
        return max(0.0, float(grown) / self.seconds)

    def rates(self, part: str) -> dict[str, float]:
        """The growth of all counts of a part."""
        return {which: self.per_second(part, which) for which in getattr(self.after, part)}

    def share(self, state: str) -> float:
        """The part of its time, from 0 to 1, that the task spent in this state."""
        spent = {one: self.per_second("time", one) for one in ("busy", "waiting", "idle")}
        total = sum(spent.values())
        return spent[state] / total if total > 0 else 0.0


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The value in seconds below which this share of the counts lies, as if they were spread evenly in each bucket."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below = share * total, 0
    for number, count in enumerate(counts):
        if count > 0 and below + count >= wanted:
            low = SECONDS[number - 1] if number else 0.0
            high = SECONDS[number] if number < len(SECONDS) else SECONDS[-1]
            return low + (high - low) * (wanted - below) / count
        below += count
    return SECONDS[-1]

"""Contestants take turns on the same data, medians count, and every result is checked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp

from bench.budget import Deadline
from bench.measure import CutShortError, Taken, come_to_rest, doubt, median, spread, timed
from bench.report import Report
from headrace.core.errors import InfrastructureError

Say = Callable[[str], None]

WARM_UPS = 2
"""The JVM compiles code that runs often: the first run of a query takes five times as long as the third."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """``work`` is timed, in a new folder each time; ``check`` raises if its results are wrong.

    If ``work`` returns times, these count. ``messages`` is for contestants that get fewer messages than others.
    """

    name: str
    work: Callable[[Path], object]
    check: Callable[[Path], object]
    messages: int | None = None


@dataclass(frozen=True, slots=True)
class Throughput:
    """Medians of one contestant, all its runs, the load meanwhile, and why the figures can't be trusted, if so."""

    messages: int
    messages_per_s: float
    wall_s: float
    cpu_s: float
    runs_wall_s: list[float]
    runs_cpu_s: list[float]
    loads: list[float]
    others: list[float]
    spread: float
    doubt: str

    @classmethod
    def of(cls, runs: Sequence[Taken], messages: int) -> Throughput:
        """Sum up some runs over so many messages."""
        walls, cpus = [run.wall_s for run in runs], [run.cpu_s for run in runs]
        loads, others = [run.load for run in runs], [run.others for run in runs]
        wall, doubts = median(walls), doubt(walls, others)
        return cls(messages, messages / wall, wall, median(cpus), walls, cpus, loads, others, spread(walls), doubts)

    @property
    def cpu_us(self) -> float:
        """Processor time of a message."""
        return self.cpu_s / self.messages * 1e6


@dataclass(slots=True)
class Turns:
    """How contestants take turns: where they work, how often, until when, and which of them can't be had, and why."""

    base: Path
    say: Say
    repeats: int
    deadline: Deadline = field(default_factory=Deadline)
    missing: dict[str, str] = field(default_factory=dict)

    def alternate(
        self, contestants: Sequence[Contestant], messages: int, warm_ups: int = WARM_UPS
    ) -> dict[str, Throughput]:
        """Run each contestant to warm up, then all of them in turn. One that fails with a reason is left out."""
        taken: dict[str, list[Taken]] = {contestant.name: [] for contestant in contestants}
        try:
            for number in self.deadline.each(range(warm_ups), lambda number: f"warm-up {number + 1}", reserve=1):
                self._turn(contestants, f"warm-up {number + 1}")
            for number in self.deadline.each(range(self.repeats), lambda number: f"turn {number + 1}"):
                for name, one in self._turn(contestants, f"turn {number + 1}"):
                    taken[name].append(one)
        except CutShortError as error:
            if not any(taken.values()):
                raise
            self.deadline.cut.append(str(error))
        sizes = {one.name: one.messages or messages for one in contestants}
        return {name: Throughput.of(runs, sizes[name]) for name, runs in taken.items() if runs}

    def _turn(self, contestants: Sequence[Contestant], about: str) -> list[tuple[str, Taken]]:
        found = []
        for contestant in contestants:
            if contestant.name in self.missing:
                continue
            try:
                one = self._run(contestant)
            except InfrastructureError as error:
                self.missing[contestant.name] = error.message
                self.say(f"{contestant.name}: {error.message}")
                continue
            seconds = f"{one.wall_s:.2f} s, processor {one.cpu_s:.2f} s"
            self.say(f"{about}, {contestant.name}: {seconds} (load {one.load:.1f}, others {one.others:.1f} cores)")
            found.append((contestant.name, one))
        return found

    def _run(self, contestant: Contestant) -> Taken:
        with folder(self.base) as out:
            own: list[object] = []
            come_to_rest()
            one = timed(lambda: own.append(contestant.work(out)))
            contestant.check(out)
        (found,) = own
        return replace(one, wall_s=found.wall_s, cpu_s=found.cpu_s) if isinstance(found, Taken) else one


@contextmanager
def folder(base: Path) -> Iterator[Path]:
    """Create a folder, and delete it afterwards."""
    path = Path(mkdtemp(dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def compare(report: Report, title: str, found: Mapping[str, Throughput], missing: Mapping[str, str]) -> None:
    """Show contestants as multiples of the first of them; those that can't be had get a dash, and say why."""
    first = next(iter(found.values()))
    rows: list[list[object]] = [
        [
            name,
            one.messages_per_s,
            one.cpu_us,
            one.messages_per_s / first.messages_per_s,
            first.cpu_us / one.cpu_us if one.cpu_us else None,
            f"{one.spread:.0%} of {len(one.runs_wall_s)}" if len(one.runs_wall_s) > 1 else None,
            median(one.loads),
            median(one.others),
            one.messages,
            one.doubt,
        ]
        for name, one in found.items()
    ]
    rows += [[name, *[None] * 8, why] for name, why in missing.items() if name not in found]
    columns = ["messages/s", "processor µs/message", "ratio", "ratio by processor"]
    report.table(title, ["", *columns, "spread", "load", "others, cores", "messages", "doubt"], rows)

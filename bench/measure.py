"""Wall time and processor time of one piece of work, and the errors of a benchmark that went wrong."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class WrongResultError(AssertionError):
    """A contestant's results are not those that the data gives: its time means nothing."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run took. Processor time is that of this process and all its descendants (the JVM, the containers)."""

    wall_s: float
    cpu_s: float


def timed(work: Callable[[], object]) -> Taken:
    """Run it once."""
    cpu, start = tree_cpu_s(), time.perf_counter()
    work()
    return Taken(time.perf_counter() - start, tree_cpu_s() - cpu)


def tree_cpu_s() -> float:
    """Processor time so far of this process and its descendants; 0 where there is no /proc.

    On a machine with other guests the wall time of a run says what the neighbours did, too; this says less of it.
    """
    spent: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended meanwhile; its parent's figures hold its own
            continue
        pid = int(entry.parent.name)
        spent[pid] = sum(map(int, fields[11:15])) / _TICKS
        children.setdefault(int(fields[1]), []).append(pid)
    total, todo = 0.0, [os.getpid()]
    while todo:
        pid = todo.pop()
        total += spent.get(pid, 0.0)
        todo += children.get(pid, [])
    return total


def median(values: Sequence[float]) -> float:
    """The median; benchmarks on a shared machine have outliers on one side."""
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values is below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

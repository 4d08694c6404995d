"""Measures wall time and processor time of a piece of work; and the error for wrong results."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class WrongResultError(AssertionError):
    """A contestant's results are wrong, so its time means nothing."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The times of a run. Processor time is that of this process and its descendants: the JVM, the containers."""

    wall_s: float
    cpu_s: float


def timed(work: Callable[[], object]) -> Taken:
    """Run the work once, and return its times."""
    cpu, start = tree_cpu_s(), time.perf_counter()
    work()
    return Taken(time.perf_counter() - start, tree_cpu_s() - cpu)


def tree_cpu_s() -> float:
    """Return the processor time so far of this process and its descendants; 0 if there is no /proc.

    On a machine with other load, processor time depends less on that load than wall time does.
    """
    spent: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended meanwhile, and its parent's figures include its own
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
    """Return the median, because times on a shared machine have outliers to one side."""
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

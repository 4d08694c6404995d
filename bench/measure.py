"""Measures wall time and processor time of a piece of work, and what other programs took meanwhile."""

from __future__ import annotations

import atexit
import ctypes
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CORES = len(os.sched_getaffinity(0))
_TICKS = os.sysconf("SC_CLK_TCK")
_CGROUPS = Path("/sys/fs/cgroup")
_PR_SET_CHILD_SUBREAPER = 36
_REST_S_MAX, _LOOK_S, _RESTING = 5.0, 0.25, 0.1


class WrongResultError(AssertionError):
    """A contestant's results are wrong, so its time means nothing."""


class CutShortError(BaseException):
    """A part has had its time. Like ``KeyboardInterrupt``, it passes through what handles errors, such as Py4J."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The times of a run. Processor time is that of this process and its descendants: the JVM, the containers.

    ``load`` is the load average when it began. ``others`` is how many cores all other programs took in the meantime.
    """

    wall_s: float
    cpu_s: float
    load: float = 0.0
    others: float = 0.0


def timed(work: Callable[[], object]) -> Taken:
    """Run the work once, and return its times."""
    clock, load = processor_clock(), os.getloadavg()[0]
    cpu, busy, start = clock(), busy_s(), time.perf_counter()
    work()
    wall_s, cpu_s = time.perf_counter() - start, clock() - cpu
    return Taken(wall_s, cpu_s, load, max(0.0, busy_s() - busy - cpu_s) / wall_s)


def come_to_rest() -> None:
    """Wait until this process and what it has started do next to nothing, for some seconds at most.

    After a query the JVM goes on compiling and collecting garbage, and whoever comes next would pay for it.
    """
    clock, end = processor_clock(), time.monotonic() + _REST_S_MAX
    resting = False
    while not resting and time.monotonic() < end:
        before, began = clock(), time.monotonic()
        time.sleep(_LOOK_S)  # processor time sends no events
        resting = clock() - before < _RESTING * (time.monotonic() - began)


def busy_s() -> float:
    """Return the processor time that all programs of this machine have used, and what its host took from it."""
    user, nice, system, _idle, _wait, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / _TICKS


@cache
def processor_clock() -> Callable[[], float]:
    """Return a clock of the processor time of this process and all descendants, also those that have ended.

    The kernel counts a cgroup's time exactly. This process moves into one of its own, and all processes that it starts
    from then on belong to it. Where none may be made, the clock adds up ``/proc``. There, orphans become children of
    this process, so their time isn't lost with them.
    """
    for clock in (*_cgroup_clocks(), tree_clock()):
        with suppress(OSError):
            clock()
            return clock
    raise AssertionError("there is no /proc")


def _cgroup_clocks() -> list[Callable[[], float]]:
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpuacct" in controllers.split(","):
            found.append(_cgroup_clock(_CGROUPS / controllers, path, "cpuacct.usage", _nanoseconds))
        elif not controllers:
            mount = _CGROUPS / "unified" if (_CGROUPS / "unified").is_dir() else _CGROUPS
            found.append(_cgroup_clock(mount, path, "cpu.stat", _usage))
    return found


def _cgroup_clock(mount: Path, path: str, name: str, seconds: Callable[[str], float]) -> Callable[[], float]:
    parent = mount / path.strip("/")
    own = parent / f"headrace-bench-{os.getpid()}"

    @cache
    def enter() -> None:
        for left in parent.glob("headrace-bench-*"):
            with suppress(OSError):  # a run that hasn't ended
                left.rmdir()
        own.mkdir()
        try:
            (own / name).read_text()
            (own / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            own.rmdir()
            raise
        atexit.register(leave)

    def leave() -> None:
        with suppress(OSError):  # descendants that haven't ended are still in it
            (parent / "cgroup.procs").write_text(str(os.getpid()))
            own.rmdir()

    def clock() -> float:
        enter()
        return seconds((own / name).read_text())

    return clock


def _nanoseconds(text: str) -> float:
    return int(text) / 1e9


def _usage(text: str) -> float:
    return int(dict(line.split() for line in text.splitlines())["usage_usec"]) / 1e6


def tree_clock() -> Callable[[], float]:
    """Return a clock that adds up the times of the processes in ``/proc``, and never goes back."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    latest = 0.0

    def clock() -> float:
        nonlocal latest
        # A process that ends between two reads is missing or counted twice, so the middle one of three sums counts.
        latest = max(latest, statistics.median(_tree_s() for _ in range(3)))
        return latest

    return clock


def _tree_s() -> float:
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


# -- statistics


SPREAD_MAX = 0.3
OTHERS_MAX = 0.15
"""The share of all cores that other programs may take."""


def median(values: Sequence[float]) -> float:
    """Return the median, because times on a shared machine have outliers to one side."""
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def spread(values: Sequence[float]) -> float:
    """Return the range of the values as a share of their median."""
    return (max(values) - min(values)) / median(values)


def doubt(values: Sequence[float], others: Sequence[float], cores: int = CORES) -> str:
    """Say why a figure that was measured several times can't be trusted; empty if it can."""
    reasons = []
    if len(values) < 2:
        reasons.append("measured once")
    elif spread(values) > SPREAD_MAX:
        reasons.append(f"spread {spread(values):.0%}")
    if others and median(others) > OTHERS_MAX * cores:
        reasons.append(f"others took {median(others):.1f} of {cores} cores")
    return ", ".join(reasons)

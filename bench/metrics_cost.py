"""What metrics cost: local runs with them, and with the counting taken out, in turn: ``python -m bench.metrics_cost``.

Taken out are latency, shares, durations of commits, time in functions and named counters, what is reported of them with
each heartbeat, and the thread that looks for the live page. What is left is some sums for each batch. Processor time of
this process is compared, pair by pair, as wall time says little on a machine that others use, too.

On such a machine processor time differs by more than metrics cost, so there is a second figure: the share of processor
time that was spent in what is taken out, as the clocks of the threads say, without what asking them takes.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import headrace as hr
from bench import pipelines
from bench.data import fill_log, kept_views, page_views, windowed_counts
from bench.measure import median
from headrace.runners.dashboard.live import LivePage
from headrace.runners.metering import series_of
from headrace.runtime.metrics import CommitTimes, Histogram, Latency, Shares, TaskMetrics

KEYS = 10_000
PARTITIONS = 2
_COUNTING = (
    (Latency, ("took", "flushed", "commit", "forget")),
    (Shares, ("work", "turned")),
    (Histogram, ("observe",)),
    (CommitTimes, ("took", "committed")),
    (TaskMetrics, ("spent", "count")),
    (LivePage, ("look",)),
)


@contextmanager
def without_metrics() -> Iterator[None]:
    """Nothing is counted, reported or looked at, until the block ends."""
    with ExitStack() as stack:
        for owner, names in _COUNTING:
            for name in names:
                stack.enter_context(patch.object(owner, name, lambda *_, **__: None))
        stack.enter_context(patch("headrace.runners.reporting.series_of", lambda host: []))
        yield


class Spent:
    """The processor time of all threads in what ``without_metrics`` takes out; nested calls count once."""

    def __init__(self) -> None:
        self.ns = 0
        self.calls = 0
        self._inside = threading.local()
        self._lock = threading.Lock()

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure it, until the block ends."""
        with ExitStack() as stack:
            for owner, names in _COUNTING:
                for name in names:
                    stack.enter_context(patch.object(owner, name, self._wrapped(getattr(owner, name))))
            reporting = "headrace.runners.reporting.series_of"
            stack.enter_context(patch(reporting, self._wrapped(series_of)))
            yield

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "now", False):
                return function(*args, **kwargs)
            self._inside.now = True
            began = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.thread_time_ns() - began
                self._inside.now = False
                with self._lock:
                    self.ns += spent
                    self.calls += 1

        return call

    def seconds(self) -> float:
        """What was spent, without what the measuring of each call takes by itself."""
        empty = Spent()
        nothing = empty._wrapped(lambda: None)
        for _ in range(100_000):
            nothing()
        return (self.ns - self.calls * empty.ns / empty.calls) / 1e9


def share_of(work: Callable[[Path], None], runs: int) -> list[float]:
    """The share of processor time, in percent, that metrics took in each run."""
    found = []
    for _ in range(runs):
        spent = Spent()
        with TemporaryDirectory() as home, spent.measured():
            began = time.process_time()
            work(Path(home))
            taken = time.process_time() - began
        found.append(100 * spent.seconds() / taken)
        print(f"  {found[-1]:.2f} % of {taken:.2f} s in {spent.calls} calls", flush=True)
    return found


def measure(work: Callable[[Path], None], check: Callable[[Path], None], pairs: int) -> list[tuple[float, float]]:
    """Processor time of the work with metrics and without, pair by pair; each begins every other pair."""
    found = []
    for pair in range(-1, pairs):
        taken = {}
        for counts in (True, False) if pair % 2 else (False, True):
            with TemporaryDirectory() as home, ExitStack() as stack:
                if not counts:
                    stack.enter_context(without_metrics())
                began = time.process_time()
                work(Path(home))
                taken[counts] = time.process_time() - began
                check(Path(home))
        print(f"  with {taken[True]:.2f} s, without {taken[False]:.2f} s" + " (warm-up)" * (pair < 0), flush=True)
        if pair >= 0:
            found.append((taken[True], taken[False]))
    return found


def summary(found: list[tuple[float, float]], messages: int) -> dict[str, float]:
    """Ratios of the pairs, in percent more; and messages for each second of processor time, with metrics."""
    ratios = [100 * (on / off - 1) for on, off in found]
    return {
        "percent_more": round(median(ratios), 2),
        "lowest": round(min(ratios), 2),
        "highest": round(max(ratios), 2),
        "percent_more_in_all": round(100 * (sum(on for on, _ in found) / sum(off for _, off in found) - 1), 2),
        "messages_per_cpu_s": round(messages / median([on for on, _ in found])),
    }


def main() -> None:
    """Measure both apps, and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=4_000_000)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    with TemporaryDirectory() as base:
        views = page_views(Path(base) / "views", options.messages, KEYS, PARTITIONS)
        logged = Path(base) / "logged"
        fill_log(views, "page-views", logged)
        source = hr.io.log(logged / "streams", "bench-source")
        kept, counts = kept_views(views), windowed_counts(views)

        def run(declare: Callable[..., hr.App], home: Path) -> None:
            declare(home, source, physical="page-views").run(local=True, progress=False)

        found = {}
        for name, declare, check in (
            ("filter and select", pipelines.filter_and_project, lambda home: pipelines.check_kept(home, kept)),
            ("windowed count", pipelines.windowed_count, lambda home: pipelines.check_counts(home, counts)),
        ):
            print(name, flush=True)
            found[name] = summary(measure(partial(run, declare), check, options.pairs), options.messages)
            shares = share_of(partial(run, declare), 3)
            found[name] |= {"share_percent": round(median(shares), 2), "share_highest": round(max(shares), 2)}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

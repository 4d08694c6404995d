"""What metrics cost, in percent of processor time: ``python -m bench.metrics_cost``, about two and a half minutes.

Local runs, in slices of some ten thousand messages or more. In rounds of six, two of them count nothing, two count
as always, and two count ``AGAIN`` times more, on copies that nobody reads. Their order is drawn for each round, as the
work has rhythms of its own. Each slice takes its processor time, all threads together, and what others do to the
machine slows neighbours down alike. There are four figures, each with the interval in which it is with a probability
of 95 %:

- *batches*: the share of the processor time that is inside of what is counted for each batch and commit, as the clocks
  of the threads say: the median.
- *reports*: the processor time of heartbeats and looks of the live page, which come so many a second, whatever the app
  does: in percent of one processor.
- *slope*: what counting and reporting more takes, divided by ``AGAIN``. It includes what that does to the work after
  it, but most of these calls are warm.
- *contrast*: slices that count as always, against those of the same round that don't: the median. It needs a quiet
  machine.

Counted are latency, shares, durations of commits, time in functions and named counters, what is reported of them with
each heartbeat, and the looks of the live page. Some sums for each batch are always there.
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

import numpy as np

import headrace as hr
from bench import pipelines
from bench.data import fill_log, kept_views, page_views, windowed_counts
from bench.measure import median
from headrace.operate.page.live import LivePage
from headrace.run.container import series_of
from headrace.task.container import Container
from headrace.task.metrics import CommitTimes, Histogram, Latency, Shares, TaskMetrics

KEYS = 10_000
PARTITIONS = 2
AGAIN = 100
SLICE = 20_000
"""The messages of a slice, at least. A turn of the run loop takes up to a hundred thousand."""

ROUND = (0, 0, 1, 1, 1 + AGAIN, 1 + AGAIN)
_COUNTING = (
    (Latency, ("took", "flushed", "commit", "forget")),
    (Shares, ("work", "turned")),
    (Histogram, ("observe",)),
    (CommitTimes, ("took", "committed")),
    (TaskMetrics, ("spent", "count")),
)


class Doses:
    """How often everything is counted: ``now`` is changed after each slice. ``taken`` are the slices of whole rounds.

    A round is in the order of its doses. Of each slice it has the processor time of a message, and how much of that was
    inside of what counts.
    """

    def __init__(self) -> None:
        self.now = 1
        self.taken: list[list[tuple[float, float]]] = []
        self._random = np.random.default_rng(3)
        self._copies: dict[int, list[Any]] = {}
        self._inside = threading.local()
        self._spent_ns = 0.0
        self._clock_ns = _clock_ns()
        self.reports_ns: list[float] = []
        self.reported_s = 0.0
        """What reports took that were made once, and the time during which they were."""
        self._begin()

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the runs of this block."""
        with ExitStack() as stack:
            for owner, names in _COUNTING:
                for name in names:
                    stack.enter_context(patch.object(owner, name, self._counting(owner, getattr(owner, name))))
            stack.enter_context(patch.object(LivePage, "look", self._again(LivePage.look, None)))
            stack.enter_context(patch("headrace.run.container.series_of", self._again(series_of, [])))
            stack.enter_context(patch.object(Container, "turn", self._turning(Container.turn)))
            yield

    def _begin(self) -> None:
        """Another run begins. What it takes until its first slice is over isn't measured."""
        self._copies.clear()
        self._order: list[int] = []
        self._round: dict[int, list[tuple[float, float]]] = {}
        self._rows, self._cpu_s, self._wall_s = 0, 0.0, 0.0

    def _turning(self, turn: Callable[[Container], float]) -> Callable[[Container], float]:
        def turned(container: Container) -> float:
            pause = turn(container)
            self._after_turn(sum(host.metrics.rows_in for host in container.hosts))
            return pause

        return turned

    def _after_turn(self, rows: int) -> None:
        if rows < self._rows:
            self._begin()
        if (number := rows - self._rows) < SLICE:
            return
        if self._rows:
            slice_ = (time.process_time() - self._cpu_s) / number, self._spent_ns / 1e9 / number
            self._round.setdefault(self.now, []).append(slice_)
            self.reported_s += (time.perf_counter() - self._wall_s) if self.now == 1 else 0.0
        if not self._order:
            if self._round:
                self.taken.append([slice_ for dose in sorted(self._round) for slice_ in self._round[dose]])
            self._round = {}
            self._order = self._random.permutation(ROUND).tolist()
        self.now = self._order.pop()
        self._rows, self._spent_ns = rows, 0.0
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def _counting(self, owner: Callable[[], Any], method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, which is also called on copies that have counted the same."""

        def call(own: Any, *args: Any, **kwargs: Any) -> None:
            if getattr(self._inside, "now", False):  # one of these calls another one
                method(own, *args, **kwargs)
                return
            if not (dose := self.now):
                return
            self._inside.now = True
            began_ns = time.thread_time_ns()
            method(own, *args, **kwargs)
            self._spent_ns += max(0.0, time.thread_time_ns() - began_ns - self._clock_ns)
            if dose > 1:
                copies = self._copies.get(id(own)) or self._copies.setdefault(id(own), [owner() for _ in range(AGAIN)])
                for copy in copies:
                    method(copy, *args, **kwargs)
            self._inside.now = False

        return call

    def _again(self, function: Callable[..., Any], nothing: Any) -> Callable[..., Any]:
        """The function, which is called as often as the dose says."""

        def call(*args: Any) -> Any:
            found = nothing
            dose, once = self.now, self._rows > 0
            for _ in range(dose):
                began_ns = time.thread_time_ns()
                found = function(*args)
                if dose == 1 and once:
                    self.reports_ns.append(time.thread_time_ns() - began_ns)
            return found

        return call


def _clock_ns() -> float:
    """What a clock shows of a call that does nothing."""
    return median([-time.thread_time_ns() + time.thread_time_ns() for _ in range(10_000)])


def percent(doses: Doses) -> dict[str, Any]:
    """The four figures. The intervals are by bootstrap, over rounds and over reports."""
    rounds, reports = np.array(doses.taken), np.array(doses.reports_ns) / 1e9
    by_dose = {dose: rounds[:, [i for i, one in enumerate(ROUND) if one == dose]].mean(axis=1) for dose in {*ROUND}}
    none, once, often = by_dose[0][:, 0], by_dose[1][:, 0], by_dose[1 + AGAIN][:, 0]
    inside = by_dose[1][:, 1]
    figures: dict[str, tuple[int, Callable[[Any], float]]] = {
        "batches": (len(rounds), lambda chosen: np.median(inside[chosen] / once[chosen])),
        "reports": (len(reports), lambda chosen: reports[chosen].sum() / doses.reported_s),
        "slope": (len(rounds), lambda chosen: (often[chosen].sum() / once[chosen].sum() - 1) / AGAIN),
        "contrast": (len(rounds), lambda chosen: np.median(once[chosen] / none[chosen]) - 1),
    }
    random = np.random.default_rng(7)
    found: dict[str, Any] = {"rounds": len(rounds), "messages_per_cpu_s": round(1 / float(np.median(once)))}
    for name, (number, figure) in figures.items():
        drawn = [figure(random.integers(0, number, number)) for _ in range(2000)]
        low, high = np.percentile(drawn, [2.5, 97.5])
        shown = [round(100 * float(one), 2) for one in (figure(np.arange(number)), low, high)]
        found[f"{name}_percent"] = dict(zip(("is", "from", "to"), shown, strict=True))
    return found


def main() -> None:
    """Measure both apps, and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=50, help="for each app")
    options = parser.parse_args()
    with TemporaryDirectory() as base:
        views = page_views(Path(base) / "views", options.messages, KEYS, PARTITIONS)
        logged = Path(base) / "logged"
        fill_log(views, "page-views", logged)
        source = hr.io.log(logged / "streams", "bench-source")
        kept, counts = kept_views(views), windowed_counts(views)
        found = {}
        for name, declare, check in (
            ("filter and select", pipelines.filter_and_project, partial(pipelines.check_kept, expected=kept)),
            ("windowed count", pipelines.windowed_count, partial(pipelines.check_counts, expected=counts)),
        ):
            doses, until = Doses(), time.monotonic() + options.seconds
            with doses.measured():
                while time.monotonic() < until:
                    with TemporaryDirectory() as home:
                        declare(Path(home), source, physical="page-views").run(local=True, progress=False)
                        check(Path(home))
            found[name] = percent(doses)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

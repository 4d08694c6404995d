"""(a), (b) and the two guarantees: contestants take turns on the same data, medians count, every result is checked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

import headrace as hr
from bench import pipelines, structured
from bench.data import fill_log, kept_views, windowed_counts
from bench.measure import Taken, median, timed

Say = Callable[[str], None]

WARM_UPS = 2
"""The JVM compiles code that runs often: the first run of a query takes five times as long as the third."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """``work`` is timed, in a new folder each time; ``check`` raises if its results are wrong."""

    name: str
    work: Callable[[Path], object]
    check: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Medians of one contestant, and all its runs."""

    messages_per_s: float
    wall_s: float
    cpu_s: float
    runs_wall_s: list[float]
    runs_cpu_s: list[float]


def alternate(
    contestants: list[Contestant], messages: int, repeats: int, base: Path, say: Say
) -> dict[str, Throughput]:
    """Run each contestant ``WARM_UPS`` times to warm up, then all of them ``repeats`` times in turn."""
    taken: dict[str, list[Taken]] = {contestant.name: [] for contestant in contestants}
    for turn in range(-WARM_UPS, repeats):
        for contestant in contestants:
            with folder(base) as out:
                one = timed(partial(contestant.work, out))
                contestant.check(out)
            say(f"{contestant.name}: {one.wall_s:.2f} s, processor {one.cpu_s:.2f} s" + (" (warm-up)" * (turn < 0)))
            if turn >= 0:
                taken[contestant.name].append(one)
    return {name: _summary(runs, messages) for name, runs in taken.items()}


def _summary(runs: list[Taken], messages: int) -> Throughput:
    wall = median([run.wall_s for run in runs])
    return Throughput(
        messages_per_s=messages / wall,
        wall_s=wall,
        cpu_s=median([run.cpu_s for run in runs]),
        runs_wall_s=[run.wall_s for run in runs],
        runs_cpu_s=[run.cpu_s for run in runs],
    )


@contextmanager
def folder(base: Path) -> Iterator[Path]:
    """Create a folder, and delete it afterwards."""
    path = Path(mkdtemp(dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def filter_and_project(
    session: SparkSession, views: Path, messages: int, repeats: int, base: Path, say: Say
) -> dict[str, Throughput]:
    """Measure (a). Headrace writes its results to a stream of its log, Structured Streaming to Parquet files."""
    expected = kept_views(views)
    return alternate(
        [
            Contestant(
                "structured-streaming",
                lambda out: structured.filter_and_project(session, views, out),
                lambda out: structured.check_kept(out, expected),
            ),
            Contestant(
                "headrace",
                lambda home: pipelines.run(pipelines.filter_and_project(home, files_of(views))),
                lambda home: pipelines.check_kept(home, expected),
            ),
        ],
        messages,
        repeats,
        base,
        say,
    )


def windowed_count(
    session: SparkSession, views: Path, messages: int, repeats: int, base: Path, say: Say
) -> dict[str, Throughput]:
    """Measure (b), also with Headrace's own log as the source instead of files."""
    expected = windowed_counts(views)
    contestants = [
        Contestant(
            "structured-streaming",
            lambda out: structured.windowed_count(session, views, out),
            lambda out: structured.check_counts(out, expected, views),
        ),
        Contestant("headrace", *counting(expected, files_of(views))),
    ]
    with folder(base) as logged:
        fill_log(views, "page-views", logged)
        source = hr.io.log(logged / "streams", "bench-source")
        contestants.append(Contestant("headrace from its log", *counting(expected, source, physical="page-views")))
        return alternate(contestants, messages, repeats, base, say)


def guarantees(views: Path, messages: int, repeats: int, base: Path, say: Say) -> dict[str, Throughput]:
    """Measure (b) with exactly-once and with at-least-once, and what surviving a power cut costs, at two intervals."""
    expected = windowed_counts(views)
    promises = {
        "exactly_once": {},
        "at_least_once": {"guarantee": "at_least_once"},
        "exactly_once, process": {"durability": "process"},
        "exactly_once, 100ms": {"checkpoint_interval": "100ms"},
        "exactly_once, process, 100ms": {"checkpoint_interval": "100ms", "durability": "process"},
    }
    return alternate(
        [Contestant(name, *counting(expected, files_of(views), **settings)) for name, settings in promises.items()],
        messages,
        repeats,
        base,
        say,
    )


def files_of(views: Path) -> object:
    """Return the files as a source."""
    return hr.io.files(views / "*.parquet")


def counting(
    expected: pl.DataFrame, source: object, **settings: Any
) -> tuple[Callable[[Path], object], Callable[[Path], None]]:
    """Return the work and the check of Headrace's contestant for (b)."""

    def work(home: Path) -> None:
        pipelines.run(pipelines.windowed_count(home, source, **settings))

    return work, lambda home: pipelines.check_counts(home, expected)

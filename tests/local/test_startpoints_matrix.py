"""Where an app begins to read: a startpoint, else the commit, else the input's default, in each system alike.

One input of one partition holds the numbers 0 to 3. What an app reads of it from a beginning on, and then a number that
is written once the app is there, says exactly where the beginning was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from in_thread import Running, running

import headrace as hr
from chaos.deployment import until
from headrace.connectors.kinesis.memory import KinesisStream

SYSTEMS = ("log", "kafka", "kinesis", "files")
ROWS = {"n": pl.Int64, "ts": pl.Int64}


@dataclass(frozen=True)
class Since(hr.startpoints.CustomStartpoint):
    """A kind of the app's own, by time."""

    kind = "since"
    time_ms: int

    def offset(self, partition: hr.startpoints.PartitionView) -> int:
        return partition.offset_at(self.time_ms)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Place:
    """An input in one of the systems, and the apps that read it."""

    def __init__(self, kind: str, home: Path, request: pytest.FixtureRequest, stack: ExitStack) -> None:
        self.home = home
        self.times: dict[int, int] = {}
        self._put, self._declared = getattr(self, f"_{kind}")(request, stack)
        for _ in range(4):
            self.write()

    def write(self) -> int:
        """Write the next number; return it. Each arrives later than the one before."""
        n = len(self.times)
        self.times[n] = now_ms()
        self._put({"n": n, "ts": self.times[n]})
        done = now_ms()
        until(lambda: now_ms() > done, "the clock has moved", 5)
        return n

    def app(self, name: str, start: str = "oldest") -> hr.App:
        app = hr.App(name, home=self.home, checkpoint_interval="50ms", startpoints=[Since])
        self._declared(app, start).send_to(app.output(f"{name}-copies", partitions=1))
        return app

    def _log(self, request: pytest.FixtureRequest, stack: ExitStack) -> Any:
        hr.streams.create_stream("rows", 1, ROWS, home=self.home)

        def put(row: dict[str, int]) -> None:
            with hr.streams.StreamWriter("rows", home=self.home) as writer:
                writer.write([row])

        return put, lambda app, start: app.input("rows", ROWS, start=start)

    def _kafka(self, request: pytest.FixtureRequest, stack: ExitStack) -> Any:
        pytest.importorskip("confluent_kafka")
        from servers.kafka_topics import Topic

        topic = Topic(request.getfixturevalue("kfake"), 1)

        def declared(app: hr.App, start: str) -> Any:
            return app.input("rows", ROWS, system=hr.io.kafka(topic.name, brokers=topic.brokers, start=start))

        return lambda row: topic.put([json.dumps(row).encode()]), declared

    def _kinesis(self, request: pytest.FixtureRequest, stack: ExitStack) -> Any:
        stream = stack.enter_context(KinesisStream("rows"))

        def declared(app: hr.App, start: str) -> Any:
            return app.input("rows", ROWS, system=hr.io.kinesis("rows", endpoint_url="memory://", start=start))

        return partial(stream.put, "key"), declared

    def _files(self, request: pytest.FixtureRequest, stack: ExitStack) -> Any:
        folder = self.home / "in"
        folder.mkdir()

        def put(row: dict[str, int]) -> None:
            made = self.home / "row.making"
            made.write_text(json.dumps(row) + "\n")
            made.rename(folder / f"{row['n']:03}.jsonl")

        def declared(app: hr.App, start: str) -> Any:
            files = hr.io.files(folder / "*.jsonl", new_files="follow", look_every="20ms")
            return app.input("rows", ROWS, event_time="ts", start=start, system=files)

        return put, declared


class Reader:
    """What an app has read, since the last time that somebody asked."""

    def __init__(self, place: Place, run: Running, name: str, before: int = 0) -> None:
        self.points = hr.startpoints.open_startpoints(place.app(name))
        self._place, self._run, self._name, self._known = place, run, name, before

    def _numbers(self) -> list[int]:
        found = self._run.committed(f"{self._name}-copies")
        return [] if found is None else found["n"].to_list()

    def reads(self) -> list[int]:
        """What it reads, once it is there, up to and without a number that is written then."""
        self._run.until(self._is_there)
        last = self._place.write()
        self._run.until(lambda: self._numbers()[-1:] == [last])
        found = self._numbers()
        new, self._known = found[self._known : -1], len(found)
        return new

    def _is_there(self) -> bool:
        status = self._run.status()
        if status is None or status.state != "running" or self.points.list():
            return False
        return all(one.committed is not None for one in self.points.offsets())


@pytest.fixture(params=SYSTEMS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(request.param, tmp_path, request, stack)


Make = Callable[[Place, int], hr.startpoints.Startpoint | hr.startpoints.CustomStartpoint]

KINDS: dict[str, tuple[Make, Callable[[int], list[int]]]] = {
    "oldest": (lambda place, count: hr.startpoints.oldest(), lambda count: list(range(count))),
    "upcoming": (lambda place, count: hr.startpoints.upcoming(), lambda count: []),
    "timestamp": (lambda place, count: hr.startpoints.at(place.times[2]), lambda count: list(range(2, count))),
    "custom": (lambda place, count: Since(place.times[1]), lambda count: list(range(1, count))),
}
"""Each kind that every system has: how it is made, and what is read then of so many numbers."""


def test_a_startpoint_counts_before_the_commit_and_that_before_the_default(place: Place) -> None:
    app = place.app("first")
    with running(app, place.home) as run:
        reader = Reader(place, run, "first")
        assert reader.reads() == [0, 1, 2, 3]  # the default
        for kind, (make, wanted) in KINDS.items():
            count = len(place.times)
            reader.points.set("rows", make(place, count), apply=True)
            assert (kind, reader.reads()) == (kind, wanted(count))
        before, count = len(reader._numbers()), len(place.times)
    place_of_next = end(reader.points)
    place.write()
    with running(place.app("first"), place.home) as run:
        assert Reader(place, run, "first", before).reads() == [count]  # the commit
        before, points = len(reader._numbers()), reader.points
    if place_of_next is None:  # Kinesis counts the rows of a slot, which is no place to begin at
        with pytest.raises(hr.errors.UsageError, match="counts the rows of a slot"):
            points.set("rows", hr.startpoints.offset(7))
        points.set("rows", hr.startpoints.at(place.times[count]))
    else:
        points.set("rows", hr.startpoints.offset(place_of_next))
    wanted = list(range(count, len(place.times)))
    with running(place.app("first"), place.home) as run:
        assert Reader(place, run, "first", before).reads() == wanted


def test_a_range_is_read_again_and_then_what_is_new(place: Place) -> None:
    with running(place.app("again"), place.home) as run:
        reader = Reader(place, run, "again")
        assert reader.reads() == [0, 1, 2, 3]
        point = hr.startpoints.at(place.times[1], until=hr.startpoints.at(place.times[3]))
        if end(reader.points) is None:
            with pytest.raises(hr.errors.UsageError, match="its partitions are slots"):
                reader.points.set("rows", point)
            return
        reader.points.set("rows", point, apply=True)
        assert reader.reads() == [1, 2]
    place.write()
    reader.points.set("rows", hr.startpoints.oldest(until=hr.startpoints.at(place.times[2])))
    before = len(reader._numbers())
    with running(place.app("again"), place.home) as run:
        assert Reader(place, run, "again", before).reads() == [0, 1, 6]


def end(points: hr.startpoints.Startpoints) -> int | None:
    """The offset that the next message gets; None if nobody knows."""
    (one,) = points.offsets()
    return one.newest


def test_before_the_first_start_a_startpoint_counts_before_either_default(place: Place) -> None:
    with running(place.app("late", "upcoming"), place.home) as run:
        assert Reader(place, run, "late").reads() == []
    hr.startpoints.open_startpoints(place.app("early", "upcoming")).set("rows", hr.startpoints.at(place.times[3]))
    with running(place.app("early", "upcoming"), place.home) as run:
        assert Reader(place, run, "early").reads() == [3, 4]
    hr.startpoints.open_startpoints(place.app("skip")).set("rows", hr.startpoints.upcoming())
    with running(place.app("skip"), place.home) as run:
        assert Reader(place, run, "skip").reads() == []


def test_a_file_is_a_kind_of_the_files_own(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with ExitStack() as stack:
        place = Place("files", tmp_path, request, stack)
        points = hr.startpoints.open_startpoints(place.app("by-file"))
        points.set("rows", hr.startpoints.custom("file", {"path": "002.jsonl"}))
        with running(place.app("by-file"), place.home) as run:
            assert Reader(place, run, "by-file").reads() == [2, 3]

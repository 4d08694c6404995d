"""The apps that are simulated: small graphs of the kinds that are hard.

A stage with ``sources`` reads that many bounded source partitions; ``reads`` and ``writes`` name streams. Partition p
of what a stage reads belongs to its task p modulo ``tasks``. Streams that no stage reads are outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.core.ids import SSP, StreamId, TaskName


@dataclass(frozen=True)
class Stage:
    """A stage: what it does (a name in ``processors``) and what it is connected to."""

    name: str
    does: str
    tasks: int
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    sources: int = 0
    shared: bool = False
    """All its tasks read all its sources."""

    @property
    def takes(self) -> frozenset[str]:
        """The streams whose messages it consumes, its sources among them."""
        return frozenset((*self.reads, f"source.{self.name}"))


@dataclass(frozen=True)
class Shape:
    """An app: streams with their partition counts, and stages in topological order."""

    streams: Mapping[str, int]
    stages: tuple[Stage, ...]
    moved: bool = field(default=False, kw_only=True)
    """Users move its positions in sources while it runs."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The streams that leave the app."""
        read = {stream for stage in self.stages for stream in stage.reads}
        return tuple(stream for stream in self.streams if stream not in read)

    def id_of(self, stream: str) -> StreamId:
        """The id of a stream."""
        return stream_id(stream)

    def tasks(self) -> list[TaskShape]:
        """All tasks."""
        return tasks_of(self)


@dataclass(frozen=True)
class TaskShape:
    """One task of a stage, with its connections worked out."""

    name: TaskName
    stage: Stage
    producer: int
    inputs: Mapping[SSP, tuple[int, ...]]
    writers: Mapping[SSP, Mapping[str, int]]
    outputs: Mapping[StreamId, int]
    sources: tuple[SSP, ...] = field(default=())


def stream_id(name: str) -> StreamId:
    """The stream of a shape's name."""
    return StreamId("sim", name)


def tasks_of(shape: Shape) -> list[TaskShape]:
    """All tasks; producer ids count from 1."""
    producers: dict[str, list[int]] = {}
    count = 0
    for stage in shape.stages:
        producers[stage.name] = list(range(count + 1, count + 1 + stage.tasks))
        count += stage.tasks
    tasks = []
    for stage in shape.stages:
        for number in range(stage.tasks):
            inputs, writers = {}, {}
            for stream in stage.reads:
                writing = [other for other in shape.stages if stream in other.writes]
                for partition in range(number, shape.streams[stream], stage.tasks):
                    ssp = SSP(stream_id(stream), partition)
                    inputs[ssp] = tuple(p for other in writing for p in producers[other.name])
                    writers[ssp] = {other.name: other.tasks for other in writing}
            sources = range(stage.sources) if stage.shared else range(number, stage.sources, stage.tasks)
            tasks.append(
                TaskShape(
                    name=TaskName(stage.name, number),
                    stage=stage,
                    producer=producers[stage.name][number],
                    inputs=inputs,
                    writers=writers,
                    outputs={stream_id(stream): shape.streams[stream] for stream in stage.writes},
                    sources=tuple(SSP(StreamId("source", stage.name), p) for p in sources),
                )
            )
    return tasks


SHAPES: Mapping[str, Shape] = {
    "shuffle": Shape(
        {"a": 2, "b": 2, "out": 1},
        (
            Stage("s", "route", 2, ("a",), sources=3),
            Stage("w", "window", 2, ("b",), ("a",)),
            Stage("c", "count", 2, ("out",), ("b",)),
        ),
    ),
    "wide": Shape(
        {"a": 3, "b": 3},
        (Stage("s", "route", 3, ("a",), sources=3), Stage("c", "count", 3, ("b",), ("a",))),
    ),
    "diamond": Shape(
        {"a": 2, "b": 2, "out": 1},
        (
            Stage("s", "route", 1, ("a",), sources=2),
            Stage("l", "route", 2, ("b",), ("a",)),
            Stage("r", "count", 1, ("b",), ("a",)),
            Stage("m", "window", 2, ("out",), ("b",)),
        ),
    ),
    "join": Shape(
        {"left": 2, "right": 2, "out": 2},
        (
            Stage("l", "route", 1, ("left",), sources=1),
            Stage("r", "route", 2, ("right",), sources=2),
            Stage("j", "join", 2, ("out",), ("left", "right")),
        ),
    ),
    "mixed": Shape(
        {"a": 2, "b": 1, "out": 1},
        (
            Stage("s", "route", 1, ("a",), sources=1),
            Stage("m", "count", 2, ("b",), ("a",), sources=2),
            Stage("t", "count", 1, ("out",), ("b",)),
        ),
    ),
    "deep": Shape(
        {"a": 1, "b": 2, "c": 1, "d": 1, "out": 1},
        (
            Stage("s1", "route", 1, ("a",), sources=1),
            Stage("s2", "route", 1, ("b",), ("a",)),
            Stage("s3", "count", 2, ("c",), ("b",)),
            Stage("s4", "window", 1, ("d",), ("c",)),
            Stage("s5", "count", 1, ("out",), ("d",)),
        ),
    ),
    "fanout": Shape(
        {"a": 2, "x": 1, "y": 1},
        (
            Stage("s", "route", 2, ("a",), sources=2),
            Stage("x", "count", 2, ("x",), ("a",)),
            Stage("y", "window", 1, ("y",), ("a",)),
        ),
    ),
    "merge": Shape(
        {"a": 2, "out": 1},
        (
            Stage("s", "route", 2, ("a",), sources=2),
            Stage("t", "count", 1, ("a",), sources=1),
            Stage("m", "count", 2, ("out",), ("a",)),
        ),
    ),
    "direct": Shape({"out": 2}, (Stage("s", "window", 2, ("out",), sources=2),)),
}

MOVED: Mapping[str, Shape] = {
    **{f"moved-{name}": replace(SHAPES[name], moved=True) for name in ("direct", "wide", "mixed", "merge")},
    "moved-shared": Shape(
        {"a": 2, "out": 1},
        (Stage("s", "count", 2, ("a",), sources=2, shared=True), Stage("c", "count", 2, ("out",), ("a",))),
        moved=True,
    ),
}
"""Shapes in which users move positions in sources."""

"""An app whose output goes to a target in memory that can fail, doubt and be watched; everything else is real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

import headrace as hr
from headrace.api.specs import Graph, LostResults, Role
from headrace.core.clock import ManualClock
from headrace.core.errors import FencedError, UnavailableError
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import StreamId, TaskName
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.rows.ipc import encode_rows
from headrace.run.planning import prepare_streams
from headrace.systems.base import Admin, Consumer, StreamInfo, Target
from headrace.systems.memory import MemorySystem
from headrace.systems.registry import SystemSpec
from headrace.systems.startpoints import Grant
from headrace.task.connections import Connections
from headrace.task.container import Container
from headrace.task.host.task_host import TaskHost

KIND = "shelf"


class Crash(BaseException):
    """The process is gone: nobody catches this."""


class Shelf(Target):
    """A place for rows with a transaction: a row system of one target. ``trouble`` is asked before and after each."""

    shelves: dict[str, Shelf] = {}  # noqa: RUF012 - by name, as the memory system has it

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.rows: list[int] = []
        self.versions: list[int] = []
        self.trouble: Callable[[str], None] = lambda moment: None
        self.calls = 0

    def position(self, writer: str) -> int:
        self.calls += 1
        self.trouble("position")
        return self.positions.get(writer, -1)

    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        self.calls += 1
        self.trouble("before")
        if self.positions.get(writer, -1) < version:
            self.positions[writer] = version
            self.versions.append(version)
            self.rows += pl.concat(rows)["n"].to_list()
        self.trouble("after")

    def close(self) -> None:
        pass

    def target(self, stream: str) -> Shelf:
        return self

    def admin(self) -> Admin:
        return _ShelfAdmin()  # type: ignore[return-value]

    def consumer(self) -> Consumer:
        raise NotImplementedError


class _ShelfAdmin:
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        return StreamInfo(stream, partitions, columns)

    def close(self) -> None:
        pass


def open_shelf(name: str, options: dict[str, Any]) -> Shelf:
    """The factory behind the kind."""
    return Shelf.shelves[name]


class ShelfPoint:
    """The entry point that makes the kind known."""

    name, value = KIND, "publishing_scene:open_shelf"


def entry_points(group: str) -> list[type[ShelfPoint]]:
    """Instead of what is installed."""
    return [ShelfPoint] if group == "headrace.row_systems" else []


def away(moment: str) -> None:
    """The target can't be reached."""
    raise UnavailableError("connection refused")


class Scene:
    """One app of two stages (or one), in memory, restarted at will."""

    def __init__(
        self,
        name: str,
        *,
        stages: int = 1,
        home: str | None = None,
        ahead_bytes_max: int = 64 << 20,
        shelf: Shelf | None = None,
        may_repeat: str = "",
        lost_results: LostResults = "refuse",
    ) -> None:
        self.shelf = Shelf.shelves[f"{name}-shelf"] = shelf or Shelf()
        self.memory = SystemSpec(name, "memory", {"name": name})
        self.clock = ManualClock()
        self.clock.advance(5_000_000)
        app = hr.App("app", home=home or "unused", ahead_bytes_max=ahead_bytes_max, lost_results=lost_results)
        numbers = app.input("numbers", {"n": pl.Int64}, system=self.memory)
        flow = numbers if stages == 1 else numbers.partition_by("n", id="by-n", partitions=2)
        flow.send_to(app.output("out", system=SystemSpec(f"{name}-shelf", KIND, may_repeat=may_repeat)))
        self._connections = Connections()
        self._connections.admin(self.memory).create("numbers", 1)
        self.plan = self._planned(app.graph(), on_disk=home is not None)
        self.generations: dict[TaskName, int] = {}
        self._life = 0
        self.fed: list[int] = []
        self.container = self.start()

    def _planned(self, graph: Graph, *, on_disk: bool) -> Plan:
        settings = replace(graph.settings, internal=self.memory, state_on_disk=on_disk)
        streams = {
            id_: replace(spec, system=self.memory, stream=StreamId(self.memory.name, id_))
            if spec.role is Role.INTERMEDIATE
            else spec
            for id_, spec in graph.streams.items()
        }
        graph = replace(graph, settings=settings, streams=streams)
        facts = {"numbers": StreamInfo("numbers", 1)}
        planned = plan(graph, facts)
        prepare_streams(planned)
        return planned

    def start(self) -> Container:
        """A new incarnation of everything; the one before goes on existing until it is stopped."""
        tasks = {task.name for stage in self.plan.stages for task in stage.tasks}
        self._life = life = self._life + 1
        self.container = Container(self.plan, tasks, lambda task: self._next_generation(task, life), self.clock)
        for host in self.container.hosts:
            host.start()
        return self.container

    def stop(self, container: Container | None = None) -> None:
        """End an incarnation as a kill would, apart from what the process gives back."""
        container = container or self.container
        for host in container.hosts:
            host.close()
        container.wakeup.close()

    def restart(self) -> Container:
        """Kill and start again."""
        self.stop()
        return self.start()

    def feed(self, count: int) -> None:
        """Append the next numbers to the input."""
        first = len(self.fed)
        rows = list(range(first, first + count))
        self.fed += rows
        producer = self._connections.record_producer(self.memory)
        producer.send("numbers", 0, encode(Header(Kind.USER), encode_rows(pl.DataFrame({"n": rows}))))
        producer.flush()

    def seal(self) -> None:
        """The input ends."""
        self._connections.admin(self.memory).seal("numbers")

    def turns(self, count: int = 20, ms: int = 0, container: Container | None = None) -> None:
        """Let it run, with time passing before each turn."""
        for _ in range(count):
            self.clock.advance(ms)
            (container or self.container).turn()

    def commit(self) -> None:
        """Let more than a checkpoint interval pass, and what follows from it happen."""
        self.turns(30, 100)

    @property
    def host(self) -> TaskHost:
        """The task that writes the output."""
        return self.container.hosts[-1]

    @property
    def finished(self) -> bool:
        """All tasks have."""
        return all(host.finished for host in self.container.hosts)

    def close(self) -> None:
        """Give everything back."""
        self.stop()
        self._connections.close()
        MemorySystem.forget(self.memory.name)
        del Shelf.shelves[f"{self.memory.name}-shelf"]

    def _next_generation(self, task: TaskName, life: int) -> Grant:
        """As the coordinator does it: only for the incarnation that it holds current."""
        if life != self._life:
            raise FencedError(f"{task}: a stale copy asks for a generation")
        self.generations[task] = self.generations.get(task, 0) + 1
        return Grant(generation=self.generations[task])

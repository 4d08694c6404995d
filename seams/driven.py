"""An app driven turn by turn: real hosts, log, RocksDB and metadata, on a clock that only the caller moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

import polars as pl
from typing_extensions import override

import headrace as hr
from headrace.core.clock import ManualClock
from headrace.core.ids import TaskName
from headrace.life.metadata import Generations, SqliteMetadata
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.run.planning import gather_facts, prepare_streams
from headrace.systems.startpoints import Grant, Order, Outcome
from headrace.task.container import Container
from headrace.task.host.task_host import TaskHost
from headrace.task.scope import run

STEP_MS = 20
INTERVAL_MS = 200
START_MS = 1_700_000_000_000
_TURNS_MAX = 20_000


class JumpingClock(ManualClock):
    """Its wall clock may jump either way; its monotonic one doesn't."""

    def __init__(self, now_ms: int = START_MS) -> None:
        super().__init__(now_ms)
        self.jumped = 0

    @override
    def now_ms(self) -> int:
        return super().now_ms() + self.jumped

    def jump(self, ms: int) -> None:
        """Set the wall clock, forward or back."""
        self.jumped += ms


class DrivenApp:
    """Containers of one app, each driven by hand."""

    def __init__(self, app: hr.App, clock: JumpingClock | None = None) -> None:
        graph = app.graph()
        self.home = Path(graph.settings.home)
        self.home.mkdir(parents=True, exist_ok=True)
        self.clock = clock or JumpingClock()
        self.plan: Plan = plan(graph, gather_facts(graph))
        prepare_streams(self.plan)
        self._metadata = SqliteMetadata(self.home / "metadata.db")
        self._generations = Generations(self._metadata, graph.app)
        self.living: list[Container] = []
        self.orders: dict[TaskName, list[Order]] = {}
        """The startpoints that each task gets with its next generation."""
        self.outcomes: list[Outcome] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for container in list(self.living):
            self.kill(container)
        self._metadata.close()

    # -- containers

    def start(self, *stages: str) -> Container:
        """A container that runs these stages, or all."""
        tasks = [task.name for stage in self.plan.stages if not stages or stage.name in stages for task in stage.tasks]
        return self.start_tasks(tasks)

    def start_tasks(self, tasks: Iterable[TaskName]) -> Container:
        """A container that runs these tasks."""
        container = Container(self.plan, list(tasks), self.next_generation, self.clock, report=self.report)
        self.living.append(container)
        for host in container.hosts:
            host.start()
        return container

    def next_generation(self, task: TaskName) -> Grant:
        """What a coordinator gives a task that starts."""
        return Grant(generation=self._generations.issue([task])[task], orders=tuple(self.orders.get(task, ())))

    def report(self, task: TaskName, outcomes: Sequence[Outcome]) -> None:
        """What a coordinator does with the outcomes of orders."""
        self.outcomes += outcomes
        for outcome in outcomes:
            if outcome.state == "released":
                for orders in self.orders.values():
                    orders[:] = [order for order in orders if order != outcome.order]

    def kill(self, container: Container) -> None:
        """End it as kill -9 would: what it hadn't written by now never will be."""
        self.living.remove(container)
        for producer in container.connections.__dict__["_producers"].values():
            for appender in getattr(producer, "_appenders", {}).values():
                appender.discard()
        for host in container.hosts:
            host.close()
        container.close()

    def drain(self, container: Container) -> None:
        """End it as Ctrl-C does; the clock goes on meanwhile."""
        for host in container.hosts:
            if not host.finished:
                host.ask_for_commit()
                run(host.performing())
        self.run(4 * INTERVAL_MS)
        self.kill(container)

    # -- time

    def turn(self, *containers: Container) -> None:
        """One turn of these containers, or of all that live."""
        for container in containers or list(self.living):
            container.turn()
        self.clock.advance(STEP_MS)

    def run(self, ms: int, *containers: Container) -> None:
        """Turns for so long, by the clock that they move."""
        for _ in range(ms // STEP_MS):
            self.turn(*containers)

    def until(self, done: Callable[[], bool], *containers: Container) -> None:
        """Turns until something holds."""
        for _ in range(_TURNS_MAX):
            if done():
                return
            self.turn(*containers)
        raise AssertionError("it didn't come to that")

    def finish(self) -> None:
        """Run until every task of every living container is over."""
        self.until(lambda: all(host.finished for container in self.living for host in container.hosts))

    # -- what to look at

    @property
    def hosts(self) -> list[TaskHost]:
        """The hosts of all tasks that live."""
        return [host for container in self.living for host in container.hosts]

    def host(self, name: str) -> TaskHost:
        """The host of a task."""
        (found,) = (host for host in self.hosts if str(host.name) == name)
        return found

    def rows(self, output: str, *, committed: bool = True) -> pl.DataFrame:
        """What an output has."""
        return hr.streams.read_stream(output, committed=committed, home=self.home)

"""A real app driven turn by turn: real hosts, log, RocksDB and metadata, on a clock that only the test moves.

Orders are dealt by member and summed up per member and second, dealt anew by region and summed up per region and
five seconds: three stages, two of them with state. ``seen`` names every order as the second stage met it. What must
come of it all Polars computes from the same orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import polars as pl
from polars.testing import assert_frame_equal

import headrace as hr
from headrace.core.clock import ManualClock
from headrace.core.ids import TaskName
from headrace.metadata.generations import Generations
from headrace.metadata.sqlite import SqliteMetadata
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.runners.facts import gather_facts
from headrace.runners.prepare import prepare_streams
from headrace.runtime.container import Container
from headrace.runtime.host.task_host import TaskHost
from headrace.runtime.pauses import run
from headrace.systems.startpoint import Grant, Order, Outcome

STEP_MS = 20
INTERVAL_MS = 200
START_MS = 1_700_000_000_000
PARTITIONS = 2
COLUMNS = {"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64, "ts": pl.Int64}
OUTPUTS = ("seen", "member-seconds", "region-totals")
_TURNS_MAX = 20_000


class JumpingClock(ManualClock):
    """Its wall clock may jump either way; its monotonic one doesn't."""

    def __init__(self, now_ms: int = START_MS) -> None:
        super().__init__(now_ms)
        self.jumped = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.jumped

    def jump(self, ms: int) -> None:
        self.jumped += ms


def orders_app(home: Path, on_error: Literal["fail", "skip"] = "fail", **settings: Any) -> hr.App:
    settings = {"intermediate_partitions": PARTITIONS, "checkpoint_interval": f"{INTERVAL_MS}ms"} | settings
    app = hr.App("orders", home=str(home), **settings)
    orders = app.input("orders", COLUMNS, event_time="ts", lateness="500ms", on_error=on_error)
    by_member = orders.filter(pl.col("amount") > 0).partition_by("member", id="by-member")
    by_member.select("order", "member", "amount").send_to(app.output("seen", partitions=PARTITIONS))
    per_second = by_member.window(hr.tumbling("1s"), key="member", id="per-second").agg(
        orders=hr.count(), amount=hr.sum("amount")
    )
    per_second.send_to(app.output("member-seconds", partitions=PARTITIONS))
    regions = per_second.with_columns(region=pl.col("member") % 3).partition_by("region", id="by-region")
    regions.window(hr.tumbling("5s"), key="region", id="per-region").agg(
        orders=hr.sum("orders"), amount=hr.sum("amount")
    ).send_to(app.output("region-totals", partitions=PARTITIONS))
    return app


def expected(orders: pl.DataFrame) -> dict[str, pl.DataFrame]:
    kept = orders.filter(pl.col("amount") > 0)
    seconds = (
        kept.group_by("member", window_start=pl.col("ts") // 1000 * 1000)
        .agg(orders=pl.len().cast(pl.Int64), amount=pl.col("amount").sum())
        .with_columns(window_end=pl.col("window_start") + 1000)
    )
    regions = (
        seconds.group_by(region=pl.col("member") % 3, window_start=(pl.col("window_end") - 1) // 5000 * 5000)
        .agg(orders=pl.col("orders").sum(), amount=pl.col("amount").sum())
        .with_columns(window_end=pl.col("window_start") + 5000)
    )
    return {"seen": kept.select("order", "member", "amount"), "member-seconds": seconds, "region-totals": regions}


class Orders:
    """The input: orders from a seed, a little shuffled in time, never later than allowed."""

    def __init__(self, home: Path, seed: int = 0) -> None:
        hr.streams.create_stream("orders", PARTITIONS, COLUMNS, home=home)
        self._writer = hr.streams.StreamWriter("orders", home=home)
        self._random = np.random.default_rng(seed)
        self.written: list[pl.DataFrame] = []
        self.members = 50
        self._time = START_MS

    def write(self, rows: int = 40, span_ms: int = 1000) -> None:
        """The next ones, over so much event time."""
        first = sum(batch.height for batch in self.written)
        began, self._time = self._time, self._time + span_ms
        batch = pl.DataFrame(
            {
                "order": np.arange(first, first + rows),
                "member": self._random.integers(0, self.members, rows),
                "amount": self._random.integers(-2, 100, rows),
                "ts": began + np.arange(rows) * span_ms // rows - self._random.integers(0, 400, rows),
            }
        )
        self.written.append(batch)
        for part in batch.iter_slices(max(1, rows // (2 * PARTITIONS))):
            self._writer.write(part)

    def end(self) -> None:
        self._writer.seal()

    def close(self) -> None:
        self._writer.close()


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
        container = Container(self.plan, list(tasks), self.next_generation, self.clock, report=self.report)
        self.living.append(container)
        for host in container.hosts:
            host.start()
        return container

    def next_generation(self, task: TaskName) -> Grant:
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
        for container in containers or list(self.living):
            container.turn()
        self.clock.advance(STEP_MS)

    def run(self, ms: int, *containers: Container) -> None:
        for _ in range(ms // STEP_MS):
            self.turn(*containers)

    def until(self, done: Callable[[], bool], *containers: Container) -> None:
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
        return [host for container in self.living for host in container.hosts]

    def host(self, name: str) -> TaskHost:
        (found,) = (host for host in self.hosts if str(host.name) == name)
        return found

    def rows(self, output: str, *, committed: bool = True) -> pl.DataFrame:
        return hr.streams.read_stream(output, committed=committed, home=self.home)


def stateful(hosts: Sequence[TaskHost]) -> list[TaskHost]:
    return [host for host in hosts if host.task.chain.stores()]


def check(app: DrivenApp, orders: Orders, outputs: Sequence[str] = OUTPUTS) -> None:
    """What the app has committed is what Polars makes of the same orders, row by row."""
    wanted = expected(pl.concat(orders.written))
    for output in outputs:
        found = app.rows(output).select(wanted[output].columns)
        assert_frame_equal(found, wanted[output], check_row_order=False, check_dtypes=False)

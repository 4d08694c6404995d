"""Idleness passes through stages only together with the watermark under it, and never past what a step keeps.

Tasks are joined by hand here: what one says is on its way until the test lets another one hear it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import polars as pl
import pytest

import headrace as hr
from headrace.api.specs import Role
from headrace.core.frame import ControlMessage, Restore
from headrace.core.ids import SSP
from headrace.plan.planner import plan
from headrace.rows.hashing import partition_of, split
from headrace.stores.database import Database, KeySpace
from headrace.systems.base import StreamInfo
from headrace.task.calls import Calls
from headrace.task.event_time import Progress
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.base import Arrival
from headrace.task.outputs.outlet import Announcer, Outlet
from headrace.task.scope import TaskScope
from headrace.task.task import Task, task_factory

ROW = {"k": pl.Int64, "ts": pl.Int64}
EACH = range(8)
"""Keys of which each task of a stage has some."""
LATER_MS = 10_000


class Joined:
    """A task, and the streams that it writes: what is in them for each partition, in order."""

    def __init__(self, task: Task, out: list[dict[str, Any]]) -> None:
        self.task, self.out = task, out
        self.written: set[str] = set()
        self.before_rows: dict[str, ControlMessage] = {}
        self.sent: defaultdict[SSP, deque[pl.DataFrame | ControlMessage]] = defaultdict(deque)
        self._now = 0.0
        self._announcer = Announcer(task.scope, cast("Outlet", self), self._now)

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        target = self.task.scope.outputs[stream]
        if not keys:
            self.out += rows.to_dicts()
            return
        if stream in self.before_rows:
            self.control(stream, self.before_rows.pop(stream))
        self.written.add(stream)
        for partition, part in split(rows, partition_of(rows, keys, target.partitions), target.partitions):
            self.sent[SSP(target.spec.stream, partition)].append(part)

    def control(self, stream: str, message: ControlMessage) -> None:
        target = self.task.scope.outputs[stream]
        for partition in range(target.partitions):
            self.sent[SSP(target.spec.stream, partition)].append(message)

    def hear(self, ssp: SSP, what: pl.DataFrame | ControlMessage) -> None:
        if isinstance(what, pl.DataFrame):
            self.task.rows(Arrival(ssp, 0, what.height, what.height), what)
        else:
            self.task.control(ssp, what)

    def resume(self) -> None:
        self._announcer.resume((), self.task.outputs)

    def turn(self) -> None:
        self.task.advance()
        self._now += LATER_MS
        self._announcer.announce(self.task.outputs, self._now)


class Net:
    """All tasks of an app."""

    def __init__(self, app: hr.App, folder: Path, partitions: int = 1) -> None:
        graph = app.graph()
        self.sources = [id_ for id_, spec in graph.streams.items() if spec.role is Role.SOURCE]
        planned = plan(graph, {id_: StreamInfo(id_, partitions) for id_ in self.sources})
        self.out: list[dict[str, Any]] = []
        self.tasks: dict[str, Joined] = {}
        self.metrics: list[TaskMetrics] = []
        database = Database(folder / "state")
        for stage in planned.stages:
            for number, of in enumerate(stage.tasks):
                holder: list[Joined] = []
                metrics = TaskMetrics()
                port = _Port(holder)
                task = task_factory(planned, stage, TaskScope.of(planned, stage, of))(port, metrics, Calls(_nothing))
                for id_, store in task.stores().items():
                    store.attach(KeySpace(database, f"{stage.name}-{number}-{id_}"))
                task.chain.tell_time(1000)
                task.begin()
                holder.append(Joined(task, self.out))
                self.tasks[str(of.name)] = holder[0]
                self.metrics.append(metrics)
        self.database = database

    def feed(self, source: str, ts: int, partition: int = 0, *, silent: bool = False) -> None:
        """Messages of this time come in a source partition, one of each key. It may be silent again by then."""
        for joined, ssp in self._reading(source, partition):
            columns = joined.task.specs[ssp].schema.columns
            values = {"ts": ts, "window_end": ts, "n": 1, "g": 0}
            one = [pl.lit(values[name], dtype).alias(name) for name, dtype in columns.items() if name != "k"]
            joined.hear(ssp, pl.DataFrame({"k": EACH}, {"k": pl.Int64}).with_columns(one).select(list(columns)))
            if silent:
                joined.task.idle(ssp)
            joined.turn()

    def silence(self, source: str, partition: int = 0) -> None:
        """No messages have come in a source partition for longer than its idle timeout."""
        for joined, ssp in self._reading(source, partition):
            joined.task.idle(ssp)
            joined.turn()

    def end(self, source: str, partition: int = 0) -> None:
        """A source partition has ended."""
        for joined, ssp in self._reading(source, partition):
            joined.task.end(ssp)
            joined.turn()

    def _reading(self, source: str, partition: int) -> Iterator[tuple[Joined, SSP]]:
        for joined in self.tasks.values():
            for ssp, spec in joined.task.specs.items():
                if (spec.id, ssp.partition) == (source, partition):
                    yield joined, ssp

    def hear(self, *tasks: str) -> None:
        """These tasks, in order, hear all that is on its way to them."""
        for task in tasks:
            reader = self.tasks[task]
            for ssp, what in self._on_its_way(reader):
                reader.hear(ssp, what)
            reader.turn()

    def take_over(self, before: Net) -> None:
        """These tasks are those of ``before`` after a restart, and all have said so. What was open is gone."""
        for name, joined in self.tasks.items():
            joined.task.load(before.tasks[name].task.save())
            joined.resume()
        for reader in self.tasks.values():
            for ssp, stages in reader.task.scope.writers.items():
                for name, writer in self.tasks.items():
                    of = writer.task.scope
                    if of.name.stage in stages:
                        restore = Restore(task_name=name, task_count=of.task_count, seq=0, next_version=0)
                        reader.task.control(ssp, restore)

    def settle(self) -> None:
        """All tasks hear everything."""
        for _ in self.tasks:
            self.hear(*self.tasks)

    def idle(self, task: str) -> bool:
        """Whether a task's only stream is idle to its readers."""
        (progress,) = self.tasks[task].task.outputs.values()
        return progress.idle

    @property
    def late(self) -> int:
        return sum(metrics.counters["late"] for metrics in self.metrics)

    def _on_its_way(self, reader: Joined) -> Iterator[tuple[SSP, pl.DataFrame | ControlMessage]]:
        for ssp in reader.task.scope.writers:
            for writer in self.tasks.values():
                while writer.sent[ssp]:
                    yield ssp, writer.sent[ssp].popleft()


class _Port:
    """A task is made with its port; what carries on what it writes is made with the task."""

    def __init__(self, joined: list[Joined]) -> None:
        self._joined = joined

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        self._joined[0].write(stream, rows, keys)


def _nothing() -> None:
    pass


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Callable[..., Net]]:
    nets: list[Net] = []

    def join(app: hr.App, partitions: int = 1) -> Net:
        nets.append(Net(app, tmp_path / str(len(nets)), partitions))
        return nets[-1]

    yield join
    for net in nets:
        net.database.close()


def views(app: hr.App, name: str = "views", schema: Any = ROW, time: str = "ts") -> hr.Stream:
    return app.input(name, schema, event_time=time, idle_timeout="1s")


def windows(stream: hr.Stream, id_: str) -> hr.Stream:
    counted = stream.window(hr.tumbling("10ms"), key="k", id=id_).agg(n=pl.len())
    return counted.select("n", "window_end", g=pl.lit(0))


def last(app: hr.App, stream: hr.Stream, time: str | None = None) -> None:
    """The windows behind the others, in one task."""
    groups = stream.partition_by("g", id="by-g", partitions=1)
    groups.window(hr.tumbling("10ms"), key="g", id="last", time=time).agg(n=pl.col("n").sum()).send_to(
        app.output("out")
    )


def totals(net: Net) -> dict[int, int]:
    return {row["window_start"]: row["n"] for row in net.out}


# -- who hears first


def again() -> hr.App:
    app = hr.App("again")
    last(app, windows(views(app).partition_by("k", id="by-k", partitions=2), "firsts"))
    return app


def test_the_first_task_to_hear_that_a_source_has_woken_does_not_run_ahead(joined) -> None:
    net = joined(again())
    net.feed("views", 1)
    net.silence("views")
    net.settle()
    net.feed("views", 25)
    net.hear("by-k/0", "by-g/0")
    assert totals(net) == {}
    net.settle()
    assert (totals(net), net.late) == ({0: len(EACH)}, 0)


def passed_on() -> hr.App:
    """A window behind a stage that keeps nothing."""
    app = hr.App("passed-on")
    kept = views(app).partition_by("k", id="by-k", partitions=2).filter(pl.col("k") >= 0)
    last(app, kept.select("ts", n=pl.lit(1), g=pl.lit(0)))
    return app


@pytest.mark.parametrize("then", ["goes on", "falls silent", "ends"])
def test_a_task_that_keeps_nothing_is_waited_for_until_it_has_heard_the_same(joined, then: str) -> None:
    net = joined(passed_on())
    net.feed("views", 1)
    net.silence("views")
    net.settle()
    assert net.idle("by-k/0")
    net.feed("views", 15)
    net.feed("views", 25)
    if then == "falls silent":
        net.silence("views")
    elif then == "ends":
        net.end("views")
    net.hear("by-k/0", "by-g/0")
    net.settle()
    assert net.late == 0
    assert {start: n for start, n in totals(net).items() if start < 20} == {0: len(EACH), 10: len(EACH)}


def test_messages_that_take_a_longer_way_are_waited_for(joined) -> None:
    app = hr.App("two-ways")
    once = views(app)
    shorter = once.partition_by("k", id="by-k", partitions=1)
    longer = once.partition_by("ts", id="by-ts", partitions=1).partition_by("k", id="again-by-k", partitions=1)
    last(app, shorter.merge(longer).select("ts", n=pl.lit(1), g=pl.lit(0)))
    net = joined(app)
    net.feed("views", 1)
    net.silence("views")
    net.settle()
    net.feed("views", 15)
    net.feed("views", 25)
    net.hear("again-by-k/0", "by-g/0")
    net.settle()
    assert (totals(net), net.late) == ({0: 2 * len(EACH), 10: 2 * len(EACH)}, 0)


# -- beside a source that goes on


@pytest.mark.parametrize("ended", [False, True])
def test_an_idle_source_holds_nothing_back_where_nothing_is_kept(joined, ended: bool) -> None:
    app = passed_on()
    net = joined(app, 2)
    net.feed("views", 1)
    net.silence("views", partition=1)  # it never has a message
    net.settle()
    net.feed("views", 25)
    if ended:
        net.end("views", partition=1)
    net.settle()
    assert totals(net) == {0: len(EACH)}


def beside(*, keeps: bool) -> hr.App:
    """A window behind two sources, of which one has a window before that, if it ``keeps``."""
    app = hr.App("beside")
    result = {"n": pl.Int64, "window_end": pl.Int64, "g": pl.Int32}
    if keeps:
        firsts = windows(views(app).partition_by("k", id="by-k", partitions=2), "firsts")
    else:
        firsts = views(app, schema=result, time="window_end")
    last(app, firsts.merge(views(app, "orders", schema=result, time="window_end")), "window_end")
    return app


def test_an_idle_source_with_nothing_kept_behind_it_does_not_hold_another_back(joined) -> None:
    net = joined(beside(keeps=False))
    net.feed("views", 1)
    net.silence("views")
    net.feed("orders", 2)
    net.feed("orders", 25)
    net.settle()
    assert totals(net) == {0: 2 * len(EACH)}


def test_what_is_kept_behind_an_idle_source_is_waited_for(joined) -> None:
    net = joined(beside(keeps=True))
    net.feed("views", 1)
    net.silence("views")
    net.feed("orders", 2)
    net.feed("orders", 25)
    net.settle()
    assert totals(net) == {}
    net.feed("views", 25)
    net.settle()
    assert (totals(net), net.late) == ({0: len(EACH), 10: len(EACH)}, 0)
    net.silence("views")
    net.settle()
    assert not net.idle("by-k/0")


# -- what a step keeps


class Late(hr.tasks.Task):
    """Says of each message that it came, when event time or the clock has reached a time."""

    def __init__(self, axis: Literal["event", "processing"] | None) -> None:
        self._axis = axis

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        if self._axis is not None:
            out.set_timer(message["k"], message["ts"] + 10, axis=self._axis)

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        out.send("said", {"k": timer.key, "ts": timer.time})


def rated(app: hr.App, flow: hr.Stream) -> hr.Stream:
    table = app.table("rates", key="k", schema=ROW, versions="1h")
    app.input("changes", ROW, event_time="ts", idle_timeout="1s").partition_by("k", id="r", partitions=2).send_to(table)
    return flow.join(table, how="left", id="rated")


def paired(how: Any, within: Any) -> Callable[[hr.App, hr.Stream], hr.Stream]:
    def declare(app: hr.App, flow: hr.Stream) -> hr.Stream:
        others = views(app, "others").partition_by("k", id="others-by-k", partitions=2)
        return flow.join(others, on="k", how=how, within=within, id="paired")

    return declare


def counted(shape: Any, **options: Any) -> Callable[[hr.App, hr.Stream], hr.Stream]:
    return lambda app, flow: flow.window(shape, key="k", id="counted", **options).agg(n=pl.len())


def waiting(axis: Literal["event", "processing"] | None) -> Callable[[hr.App, hr.Stream], hr.Stream]:
    return lambda app, flow: flow.process(Late(axis), {"said": ROW}, id="late")["said"]


KEEPING: dict[str, tuple[Callable[[hr.App, hr.Stream], hr.Stream], bool]] = {
    "tumbling": (counted(hr.tumbling("10ms")), True),
    "hopping": (counted(hr.hopping("10ms", every="4ms")), True),
    "sliding": (counted(hr.windows.sliding("10ms")), True),
    "session": (counted(hr.session("5ms")), True),
    "panes": (counted(hr.tumbling("10ms"), early=hr.triggers.every(1)), True),
    "allowed lateness": (counted(hr.tumbling("10ms"), allowed_lateness="10ms"), True),
    "by the clock": (counted(hr.tumbling("10ms"), time="processing"), False),
    "by count": (counted(hr.windows.count(100)), False),
    "versions": (rated, True),
    "left join": (paired("left", ("-0ms", "+0ms")), True),
    "inner join": (paired("inner", ("-0ms", "+5ms")), True),
    "inner join with what came before": (paired("inner", ("-5ms", "+0ms")), False),
    "timer": (waiting("event"), True),
    "timer of the clock": (waiting("processing"), False),
    "low-level task": (waiting(None), False),
    "filter": (lambda app, flow: flow.filter(pl.col("k") >= 0), False),
    "deduplicate": (lambda app, flow: flow.deduplicate("k", within="10ms", id="once"), False),
}


@pytest.mark.parametrize("name", KEEPING)
def test_a_step_is_idle_unless_it_keeps_what_will_be_older_than_what_comes(joined, name: str) -> None:
    declare, keeps = KEEPING[name]
    app = hr.App("keeping")
    declare(app, views(app).partition_by("k", id="by-k", partitions=2)).partition_by(
        "k", id="on", partitions=1
    ).send_to(app.output("out"))
    net = joined(app)
    (task,) = [joined for joined in net.tasks.values() if any(id_ == "on" for id_ in joined.task.outputs)][:1]
    for source in net.sources:
        if source != "views":
            net.silence(source)
    net.silence("views")
    net.settle()
    assert task.task.outputs["on"].idle
    net.feed("views", 1)
    net.silence("views")
    net.settle()
    assert task.task.outputs["on"].idle is not keeps
    net.feed("views", 1000)
    net.feed("views", 2000)
    net.settle()
    task.task.chain.advance({id_: Progress(10_000, idle=True) for id_ in ("by-k", "others-by-k", "r")})
    assert task.task.outputs["on"].idle


def test_a_message_between_two_silences_shows_although_the_inputs_are_as_before(joined) -> None:
    app = hr.App("direct")
    last(app, windows(views(app).filter(pl.col("ts") < 5), "firsts"))
    net = joined(app)
    net.feed("views", 7)
    net.silence("views")
    assert net.idle("views/0")
    net.feed("views", 4, silent=True)
    assert not net.idle("views/0")


def test_a_step_that_gives_up_what_it_keeps_by_the_clock_is_idle_again(joined) -> None:
    app = hr.App("given-up")
    flow = views(app).process(GivesUp(), {"said": ROW}, id="gives-up")["said"]
    flow.partition_by("k", id="on", partitions=1).send_to(app.output("out"))
    net = joined(app)
    net.feed("views", 1)
    net.silence("views")
    assert not net.idle("views/0")
    net.tasks["views/0"].task.chain.on_time(5000)
    assert net.idle("views/0")


class GivesUp(hr.tasks.Task):
    def process(self, message: Any, out: hr.tasks.Out) -> None:
        out.set_timer(message["k"], 1000)
        out.set_timer(message["k"], 2000, axis="processing")

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        out.delete_timer(timer.key)


def test_after_a_restart_what_has_come_meanwhile_is_not_late(joined) -> None:
    """All sources were silent. Messages have come since then, and one source task reads them before the other."""
    before = joined(passed_on(), 2)
    for partition in (0, 1):
        before.feed("views", 1, partition)
        before.silence("views", partition)
    before.settle()
    net = joined(passed_on(), 2)
    net.take_over(before)
    for ts in (15, 25):
        net.feed("views", ts, partition=1)
    net.hear("by-k/0", "by-k/1", "by-g/0")  # the other source task hasn't said a word yet
    net.settle()
    for ts in (15, 25):
        net.feed("views", ts, partition=0)
    net.settle()
    assert (net.late, totals(net)[10]) == (0, 2 * len(EACH))

"""One app, run live over messages in order of event time, and in batch over the same messages in any order."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

import headrace as hr
from headrace.api.specs import Graph, Role
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import SSP, Offset
from headrace.kit.harness import TestApp
from headrace.life.folder import Shelf
from headrace.plan.inventory import Inventory
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.rows.ipc import encode_rows
from headrace.run.planning import gather_facts
from headrace.run.savepoints.writing import FromBatch, save
from headrace.systems.memory import MemorySystem
from headrace.systems.registry import SystemSpec
from headrace.task.batch import Seam
from headrace.task.connections import Connections
from seams.in_process_batch import InProcess, in_memory, rows_of

COLUMNS = {"id": pl.Int64, "k": pl.Int64, "g": pl.String, "v": pl.Int64, "ts": pl.Int64}
"""``k`` is a key, ``g`` one with nulls, ``v`` a value with nulls."""

MESSAGES = 20
NO_KEY = -1
Row = dict[str, object]
Outputs = dict[str, pl.DataFrame]


@dataclass(frozen=True)
class Case:
    """An operator. ``declare`` gets the lateness of the inputs: none live, much in batch.

    ``inputs`` are those with event time, by name their partitions in batch. ``sides`` are read first, in their order.
    ``ties``: several messages have one time. ``ticks``: before each message all inputs have one without a key, so that
    live, too, timers fire before a message that is later than they. ``settled`` gives what docs promise of an output,
    if that isn't each row of it.
    """

    name: str
    declare: Callable[[hr.App, str], None]
    inputs: Mapping[str, int] = field(default_factory=lambda: {"views": 3})
    sides: tuple[str, ...] = ()
    ties: bool = False
    ticks: bool = False
    settled: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows


def messages(case: Case, chance: random.Random) -> list[tuple[str, Row]]:
    """Messages of all inputs in order of event time, each a few milliseconds later; sometimes none come for long."""
    found, now = [], 1_000
    for n in range(MESSAGES):
        now += 2 * chance.randrange(0 if case.ties else 1, 12) + (300 if chance.random() < 0.08 else 0)
        name = chance.choice([*case.inputs])
        if case.ticks:
            found += [(each, row(-n, now - 1, chance) | {"k": NO_KEY}) for each in case.inputs]
        found.append((name, row(n, now, chance)))
    return found


def row(n: int, ts: int, chance: random.Random) -> Row:
    group, value = chance.choice(["a", "b", None]), chance.choice([None, *range(30)])
    return {"id": n, "k": chance.randrange(4), "g": group, "v": value, "ts": ts}


def side_rows(chance: random.Random) -> list[Row]:
    """What a side input has: some keys, some of them twice."""
    return [row(1000 + n, 900 + 70 * n, chance) for n in range(6)]


class Scene:
    """The messages of a case, and both ways to run it."""

    def __init__(self, case: Case, seed: int, home: Path) -> None:
        self.case = case
        self._chance = random.Random(seed)
        self._home = home
        self.messages = messages(case, self._chance)
        self.sides = {name: side_rows(self._chance) for name in case.sides}

    def live(self) -> Outputs:
        """Feed one message after the other, in order of event time."""
        with self._app("0s").test() as t:
            for name, rows in self.sides.items():
                t.feed(name, rows)
            for name, message in self.messages:
                t.feed(name, [message], settle=False)
                t.advance("1ms")
            t.end()
            assert t.ended
            return {id_: t.read(id_) for id_ in _sinks(t.plan)}

    def batch(self) -> Outputs:
        """Run the app over messages in a random order, in random partitions."""
        memory = SystemSpec(f"batch-{uuid.uuid4().hex[:12]}", "memory")
        connections = Connections()
        try:
            graph = in_memory(self._app("1h").graph(), memory)
            self._fill(graph, memory, connections)
            planned = plan(graph, gather_facts(graph))
            pieces = InProcess(planned, {}, self._home / "state", 1_000_000).run()
            return {id_: rows_of(pieces[id_], _empty(planned, id_)) for id_ in _sinks(planned)}
        finally:
            connections.close()
            MemorySystem.forget(memory.name)

    def handed_over(self) -> Outputs:
        """Run a batch over the first messages, up to a random one, and feed the others live."""
        cut = self._chance.randrange(len(self.messages) + 1)
        with self._app("0s").test() as t:
            for name, rows in self.sides.items():
                t.feed(name, rows, settle=False)
            for name, message in self.messages[:cut]:
                t.feed(name, [message], settle=False)
            published = hand_over(t, self._home)
            for name, message in self.messages[cut:]:
                t.feed(name, [message], settle=False)
                t.advance("1ms")
            t.end()
            assert t.ended
            return {id_: as_columns(published[id_], t.read(id_)) for id_ in _sinks(t.plan)}

    def _app(self, lateness: str) -> hr.App:
        app = hr.App("equal", home=self._home)
        self.case.declare(app, lateness)
        return app

    def _fill(self, graph: Graph, memory: SystemSpec, connections: Connections) -> None:
        admin, producer = connections.admin(memory), connections.record_producer(memory)
        written: list[tuple[str, int, list[Row]]] = [(name, 0, rows) for name, rows in self.sides.items()]
        for name, partitions in {**dict.fromkeys(self.sides, 1), **self.case.inputs}.items():
            admin.create(name, partitions)
        rest = self._chance.sample(self.messages, len(self.messages))
        while rest:
            some = [rest.pop() for _ in range(min(len(rest), self._chance.randrange(1, 6)))]
            for name, partitions in self.case.inputs.items():
                mine = [message for input_, message in some if input_ == name]
                if mine:
                    written.append((name, self._chance.randrange(partitions), mine))
        for name, partition, rows in written:
            producer.send(name, partition, encode(Header(Kind.USER)) + encode_rows(pl.DataFrame(rows, COLUMNS)))
        producer.flush()
        for name in (*self.sides, *self.case.inputs):
            admin.seal(name)


def _sinks(planned: Plan) -> list[str]:
    sinks = (stream.spec for stream in planned.streams.values() if stream.spec.role is Role.SINK)
    return sorted(spec.id for spec in sinks if spec.id not in planned.graph.tables)


def _empty(planned: Plan, id_: str) -> pl.DataFrame:
    schema = planned.graph.streams[id_].schema
    assert schema is not None
    return schema.empty()


def as_multiset(rows: pl.DataFrame) -> list[str]:
    """Rows in an order that depends on nothing but themselves; nulls, lists and floats, too."""
    return sorted(repr(tuple(row[name] for name in sorted(row))) for row in rows.to_dicts())


def hand_over(t: TestApp, home: Path) -> dict[str, pl.DataFrame]:
    """Have a batch process what has been fed, and the app go on from there; return what the batch publishes."""
    version = 10_000
    job = InProcess(t.plan, _ends_of(t), home / "state", 1_000_000, Seam(version, str(home / "left")))
    pieces = job.run()
    what = FromBatch(plan=t.plan, before=Inventory(), timeline=1, version=version, left=job.left)
    save(Shelf(home, t.plan.graph.app), "history", what)
    t.restore("history")
    return {id_: rows_of(pieces[id_], pl.DataFrame()) for id_ in _sinks(t.plan)}


def _ends_of(t: TestApp) -> dict[SSP, Offset]:
    """Where the sources end now."""
    sources = [stream for stream in t.plan.streams.values() if stream.spec.role in (Role.SOURCE, Role.SIDE_INPUT)]
    return {
        ssp: extent.upcoming
        for stream in sources
        for ssp, extent in zip(
            stream.ssps(), t._connections.admin(stream.spec.system).extents(stream.spec.stream.name), strict=True
        )
    }


def as_columns(first: pl.DataFrame, then: pl.DataFrame) -> pl.DataFrame:
    """Both tables as one, with the columns of the second."""
    return then if not first.height else pl.concat([first.select(then.columns), then])

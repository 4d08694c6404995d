"""Builds graphs directly from specs. Each declaration gets its own line of "pipeline.py"."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from headrace.api.aggregates import Aggregate
from headrace.api.checks import Location
from headrace.api.operators.join import IntervalJoin, SendToTable, TableJoin
from headrace.api.operators.spec import EventTime, OperatorSpec
from headrace.api.operators.steps import Broadcast, Filter, Input, Merge, PartitionBy, SendTo
from headrace.api.operators.window import Window
from headrace.api.specs import Graph, Node, Role, Settings, StreamSpec, TableSpec, Tumbling
from headrace.core.ids import StreamId
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.rows.schema import Schema
from headrace.systems.base import StreamInfo
from headrace.systems.registry import SystemSpec

LOG = SystemSpec("log", "log", {})
SCHEMA = Schema.of({"k": pl.String, "ts": pl.Int64})


class AppBuilder:
    """Methods add a node and return its id; ``facts`` collects the partition counts. Inputs have the key ``k``."""

    def __init__(self, **settings: object) -> None:
        self.settings = Settings(**({"guarantee": "at_least_once"} | settings))
        self.nodes: dict[str, Node] = {}
        self.streams: dict[str, StreamSpec] = {}
        self.tables: dict[str, TableSpec] = {}
        self.facts: dict[str, StreamInfo | None] = {}
        self._lines = itertools.count(1)

    def here(self, text: str) -> Location:
        return Location("/app/pipeline.py", next(self._lines), text)

    def stream(self, id_: str, role: Role, text: str, **fields: object) -> StreamSpec:
        physical = fields.pop("physical", id_)
        spec = StreamSpec(
            id=id_,
            role=role,
            stream=StreamId("log", physical),
            system=LOG,
            location=self.here(text),
            **fields,
        )
        self.streams[id_] = spec
        return spec

    def node(self, id_: str, operator: OperatorSpec, *inputs: str, text: str = "") -> str:
        assert id_ not in self.nodes
        self.nodes[id_] = Node(id=id_, operator=operator, inputs=inputs, location=self.here(text or id_), schema=SCHEMA)
        return id_

    # -- streams and tables ----------------------------------------------------------------------

    def input(self, id_: str, existing: int | None, **fields: object) -> str:
        self.stream(
            id_, Role.SOURCE, f'app.input("{id_}")', **({"event_time": EventTime("ts"), "key": ("k",)} | fields)
        )
        self.facts[id_] = None if existing is None else StreamInfo(id_, existing)
        return self.node(f"in-{id_}", Input(id_))

    def side_input(self, id_: str, existing: int, **fields: object) -> str:
        self.stream(id_, Role.SIDE_INPUT, f'app.input("{id_}")', **({"key": ("k",)} | fields))
        self.facts[id_] = StreamInfo(id_, existing)
        return id_

    def output(self, id_: str, before: str, **fields: object) -> str:
        if id_ not in self.streams:
            self.stream(id_, Role.SINK, f'app.output("{id_}")', **fields)
        return self.node(f"{before}-to-{id_}", SendTo(id_), before)

    def table(self, id_: str, *side_inputs: str, kind: str = "local") -> str:
        self.tables[id_] = TableSpec(
            id=id_, key=("k",), location=self.here(f'app.table("{id_}")'), side_inputs=side_inputs, kind=kind
        )
        return id_

    # -- operators -------------------------------------------------------------------------------

    def partition_by(self, id_: str, before: str, **fields: object) -> str:
        self.stream(id_, Role.INTERMEDIATE, f'{before}.partition_by("k", id="{id_}")', **fields)
        self.node(f"write-{id_}", PartitionBy(id_, ("k",)), before)
        return self.node(f"in-{id_}", Input(id_))

    def broadcast(self, id_: str, before: str, **fields: object) -> str:
        self.stream(id_, Role.INTERMEDIATE, f'{before}.broadcast(id="{id_}")', **({"broadcast": True} | fields))
        self.node(f"write-{id_}", Broadcast(id_), before)
        return self.node(f"in-{id_}", Input(id_))

    def filter(self, id_: str, before: str) -> str:
        return self.node(id_, Filter(pl.col("k") != ""), before)

    def merge(self, id_: str, *before: str) -> str:
        return self.node(id_, Merge(), *before)

    def window(self, id_: str, before: str, keys: tuple[str, ...] = ("k",)) -> str:
        shape, count = Tumbling(10_000), (("n", Aggregate("count")),)
        return self.node(id_, Window(shape, keys, count, EventTime("ts"), SCHEMA), before)

    def join(self, id_: str, left: str, right: str) -> str:
        operator = IntervalJoin(("k",), "inner", 0, 1000, EventTime("ts"), EventTime("ts"))
        return self.node(id_, operator, left, right, text=f"{left}.join({right})")

    def table_join(self, id_: str, before: str, table: str) -> str:
        return self.node(id_, TableJoin(table, ("k",), "inner"), before, text=f"{before}.join({table})")

    def fill(self, table: str, before: str) -> str:
        return self.node(f"{before}-fills-{table}", SendToTable(table), before)

    # -- results ---------------------------------------------------------------------------------

    def graph(self) -> Graph:
        return Graph(
            app="test-app",
            nodes=self.nodes,
            streams=self.streams,
            tables=self.tables,
            settings=self.settings,
            location=Location("/app/pipeline.py", 1, "app = hr.App()"),
        )

    def plan(self, containers: int = 1) -> Plan:
        return plan(self.graph(), self.facts, containers)

    def counts(self) -> dict[str, int]:
        return {id_: stream.partitions for id_, stream in self.plan().streams.items()}


def shuffled(graph: Graph, seed: int) -> Graph:
    """The same app, with everything declared in another order."""
    order = random.Random(seed)

    def shuffle(things: Mapping[str, object]) -> dict:
        items = list(things.items())
        order.shuffle(items)
        return dict(items)

    return replace(graph, nodes=shuffle(graph.nodes), streams=shuffle(graph.streams), tables=shuffle(graph.tables))

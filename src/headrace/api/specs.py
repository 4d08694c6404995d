"""A declared app: an immutable graph of frozen nodes.

A ``partition_by`` or ``broadcast`` ends a piece of the graph with an intermediate stream, and the next piece starts
with an ``Input`` of that stream. So edges stay inside stages, and the stages are the connected pieces of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import polars as pl

from headrace.api.location import Location
from headrace.api.operators.spec import EventTime, OnError, OperatorSpec
from headrace.api.remote import Remote
from headrace.api.settings import Settings
from headrace.api.system_descriptor import Start
from headrace.core.ids import StreamId
from headrace.serdes.schema import Schema
from headrace.systems.registry import SystemSpec

TableKind = Literal["local", "global", "remote"]
TableStorage = Literal["disk", "memory"]

DEAD_LETTER_COLUMNS: Mapping[str, pl.DataType] = {
    "stream": pl.String(),
    "partition": pl.Int64(),
    "offset": pl.Int64(),
    "reason": pl.String(),
    "raw": pl.Binary(),
}
"""The columns of an input's dead-letter stream: the message's position, the reason of the refusal, and its bytes."""


class Role(Enum):
    """The role of a stream in the app."""

    SOURCE = "source"
    INTERMEDIATE = "intermediate"
    SINK = "sink"
    SIDE_INPUT = "side-input"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A declared stream. ``partitions`` is None if the planner or the system decides.

    ``slots``: its partitions are slots, and keys move between them. ``key``: the app says of an input that its writers
    partition it by these columns.
    """

    id: str
    role: Role
    stream: StreamId
    system: SystemSpec
    location: Location
    schema: Schema | None = None
    partitions: int | None = None
    event_time: EventTime | None = None
    lateness_ms: int = 0
    idle_timeout_ms: int | None = None
    on_error: OnError = "fail"
    dead_letter: str | None = None
    start: Start = "oldest"
    broadcast: bool = False
    slots: bool = False
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table: filled by ``send_to(table)`` of some flow, filled by side inputs, or remote.

    A row expires ``ttl_ms`` of the wall clock after its last write; with None, never. ``deleted`` marks the incoming
    rows that are deletions: an expression, or the name of a column that the table itself doesn't have. With
    ``versions_ms``, the table keeps past versions of its rows until they are that far behind the watermark. Messages to
    a remote table go to an output with the table's id; ``system`` is the row system that holds the table, if one does.
    """

    id: str
    key: tuple[str, ...]
    location: Location
    schema: Schema | None = None
    side_inputs: tuple[str, ...] = ()
    kind: TableKind = "local"
    ttl_ms: int | None = None
    storage: TableStorage = "disk"
    versions_ms: int | None = None
    deleted: str | pl.Expr | None = field(default=None, compare=False)
    remote: Remote | None = None
    system: SystemSpec | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def feed(self) -> Schema | None:
        """The columns of the rows that fill it: its own, and the column that marks deletions."""
        if self.schema is None or not isinstance(self.deleted, str):
            return self.schema
        return Schema.of({**self.schema.columns, self.deleted: pl.Boolean()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An operator in the graph. ``schema`` and ``event_time`` describe its results; None if it has none."""

    id: str
    operator: OperatorSpec
    inputs: tuple[str, ...]
    location: Location
    schema: Schema | None = None
    event_time: EventTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A whole app: its nodes, streams and tables.

    The nodes are in the order of declaration. Only one thing may depend on it: in which order a message takes branches.
    """

    app: str
    nodes: Mapping[str, Node]
    streams: Mapping[str, StreamSpec]
    tables: Mapping[str, TableSpec]
    settings: Settings
    location: Location

    def successors(self) -> dict[str, tuple[str, ...]]:
        """Return for each node the nodes that take its output, in order of declaration."""
        after: dict[str, list[str]] = {id_: [] for id_ in self.nodes}
        for node in self.nodes.values():
            for before in node.inputs:
                after[before].append(node.id)
        return {id_: tuple(ids) for id_, ids in after.items()}

    def joins_of(self, table: str) -> list[Node]:
        """Return the nodes that join a table, sorted by id."""
        return sorted((n for n in self.nodes.values() if n.operator.table_joined == table), key=lambda n: n.id)

    def writers_of(self, table: str) -> list[Node]:
        """Return the nodes that write a local or global table, sorted by id."""
        return sorted((n for n in self.nodes.values() if n.operator.table_written == table), key=lambda n: n.id)

"""What an app is once it has been declared: an immutable graph of frozen nodes.

Nothing here runs, prints or plans. A ``partition_by`` or ``broadcast`` ends one piece of the graph
by writing an intermediate stream; the piece that goes on starts with an ``Input`` of that stream.
So the graph's edges stay inside stages, and cutting it into stages is finding connected pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import polars as pl

from headrace.api.location import Location
from headrace.api.remote import Remote
from headrace.api.settings import Settings
from headrace.api.steps import EventTime, OnError, Operator
from headrace.core.ids import StreamId
from headrace.serdes.schema import Schema
from headrace.systems.registry import SystemSpec

Start = Literal["oldest", "upcoming"]
TableKind = Literal["local", "global", "remote"]
TableStorage = Literal["disk", "memory"]

DEAD_LETTER_COLUMNS: Mapping[str, pl.DataType] = {
    "stream": pl.String(),
    "partition": pl.Int64(),
    "offset": pl.Int64(),
    "reason": pl.String(),
    "raw": pl.Binary(),
}
"""What a dead-letter stream carries: where the unreadable message stood, why it was refused, its bytes."""


class Role(Enum):
    """What a stream is to the app."""

    SOURCE = "source"
    INTERMEDIATE = "intermediate"
    SINK = "sink"
    SIDE_INPUT = "side-input"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A stream as the app declares it. ``partitions`` is None where the planner or the system decides."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table: filled by ``send_to(table)`` of some flow, or kept up to date by side inputs, or remote.

    A row is forgotten ``ttl_ms`` of the wall clock after it was last put; None: never. ``deleted`` tells which rows of
    those that fill it are deletions: an expression, or the name of a column that the table itself hasn't. With
    ``versions_ms`` it keeps its rows as they were at each time, for so long behind the watermark. What is sent to a
    remote one goes to an output of the table's id; ``system`` is where a row system has it.
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
        """The columns of what fills it: its own, and the one that tells which rows are deletions."""
        if self.schema is None or not isinstance(self.deleted, str):
            return self.schema
        return Schema.of({**self.schema.columns, self.deleted: pl.Boolean()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An operator in its place. ``schema`` and ``event_time`` describe what it hands on (None: nothing)."""

    id: str
    operator: Operator
    inputs: tuple[str, ...]
    location: Location
    schema: Schema | None = None
    event_time: EventTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A whole app: its nodes, in the order of declaration (which nothing may depend on), and its nouns."""

    app: str
    nodes: Mapping[str, Node]
    streams: Mapping[str, StreamSpec]
    tables: Mapping[str, TableSpec]
    settings: Settings
    location: Location

    def successors(self) -> dict[str, tuple[str, ...]]:
        """For each node the nodes that take its output, in order of declaration."""
        after: dict[str, list[str]] = {id_: [] for id_ in self.nodes}
        for node in self.nodes.values():
            for before in node.inputs:
                after[before].append(node.id)
        return {id_: tuple(ids) for id_, ids in after.items()}

"""A declared app: an immutable graph of frozen nodes, its windows as data, and its settings.

A ``partition_by`` or ``broadcast`` ends a piece of the graph with an intermediate stream, and the next piece starts
with an ``Input`` of that stream. So edges stay inside stages, and the stages are the connected pieces of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import polars as pl
from typing_extensions import override

from headrace.api.checks import Location
from headrace.api.descriptors import Start
from headrace.api.operators.spec import EventTime, OnError, OperatorSpec, StateMeaning, offset
from headrace.api.remote import Remote
from headrace.core.clock import format_ms
from headrace.core.deployment import DEFAULT_HOME
from headrace.core.ids import StreamId
from headrace.core.secrets import SecretUrl
from headrace.rows.schema import Schema
from headrace.stores.snapshots import ObjectPlace
from headrace.systems.positions import Customs
from headrace.systems.registry import SystemSpec, home_log

Durability = Literal["commit", "process"]
Guarantee = Literal["exactly_once", "at_least_once"]
LostResults = Literal["refuse", "accept"]
Grouping = Literal["partition", "container"]
RESTARTS_MAX = 5
INTERVAL_MS = 1000
DRAIN_TIMEOUT_MS = 60_000
STANDBY_MAX = 3
HUNG_AFTER_MS = 600_000
"""How long one call of the app's own code may take, or one turn of a run loop outside of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a whole app, and the only place with their defaults. ``App`` describes them.

    ``timeline`` isn't a user's setting: it comes from the metadata store, and is the one in which the app is running.
    ``snapshot_after_bytes`` is how far a changelog grows between two snapshots, for tools that need many snapshots.
    """

    home: str = DEFAULT_HOME
    metadata: SecretUrl | None = None
    intermediate_partitions: int | None = None
    guarantee: Guarantee = "exactly_once"
    checkpoint_interval_ms: int = INTERVAL_MS
    ahead_bytes_max: int = 64 << 20
    restarts_max: int = RESTARTS_MAX
    durability: Durability = "commit"
    lost_results: LostResults = "refuse"
    drain_timeout_ms: int = DRAIN_TIMEOUT_MS
    hung_after_ms: int | None = HUNG_AFTER_MS
    grouping: Grouping = "partition"
    internal: SystemSpec | None = None
    state_on_disk: bool = True
    combine: bool = True
    timeline: int = 1
    snapshots: ObjectPlace | None = None
    standby: int = 0
    snapshot_after_bytes: int | None = None
    peek: bool = False
    startpoints: Customs = ()

    def internal_system(self) -> SystemSpec:
        """Where to keep intermediate streams and changelogs; by default in the embedded log under ``home``."""
        return self.internal or home_log(self.home)


# -- shapes ------------------------------------------------------------------------------------------
Since = Literal["first", "last", "tick"]
Panes = Literal["accumulating", "discarding"]
TimeAxis = Literal["event", "processing"]


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, one after the other, aligned to the epoch (plus ``offset_ms``)."""

    size_ms: int
    offset_ms: int = 0

    @override
    def __str__(self) -> str:
        return f"tumbling {format_ms(self.size_ms)}{offset(self.offset_ms)}"


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one size that begin every ``every_ms``: a message is in several of them."""

    size_ms: int
    every_ms: int
    offset_ms: int = 0

    @override
    def __str__(self) -> str:
        return f"hopping {format_ms(self.size_ms)} every {format_ms(self.every_ms)}{offset(self.offset_ms)}"


@dataclass(frozen=True, slots=True)
class Sliding:
    """A window of ``size_ms`` for each message of a key, which ends with the message."""

    size_ms: int

    @override
    def __str__(self) -> str:
        return f"sliding {format_ms(self.size_ms)}"


@dataclass(frozen=True, slots=True)
class Session:
    """A window that lasts while the messages of a key are less than ``gap_ms`` apart."""

    gap_ms: int

    @override
    def __str__(self) -> str:
        return f"session with a gap of {format_ms(self.gap_ms)}"


@dataclass(frozen=True, slots=True)
class CountWindow:
    """The last ``size`` messages of a key, each time ``every`` more have arrived."""

    size: int
    every: int

    @override
    def __str__(self) -> str:
        return f"{self.size} messages" + (f" every {self.every}" if self.every != self.size else "")


@dataclass(frozen=True, slots=True)
class GlobalWindow:
    """One window for all time."""

    @override
    def __str__(self) -> str:
        return "all of time"


WindowShape = Tumbling | Hopping | Sliding | Session | CountWindow | GlobalWindow


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time: ``ms`` after the first or last message since the last pane, or the next multiple of ``ms``."""

    since: Since
    ms: int
    processing: bool = False


@dataclass(frozen=True, slots=True)
class Alternative:
    """Fires when ``count`` messages and all deadlines have passed since the last pane; ``repeats``: not only once."""

    repeats: bool
    count: int = 0
    deadlines: tuple[Deadline, ...] = ()

    @property
    def processing(self) -> bool:
        """Its deadlines are in processing time."""
        return any(deadline.processing for deadline in self.deadlines)


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a window emits results before or after its end: when any alternative fires; without any, never."""

    text: str
    alternatives: tuple[Alternative, ...] = ()

    @override
    def __str__(self) -> str:
        return self.text


# -- specs -------------------------------------------------------------------------------------------
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
    partition it by these columns. ``create``: if an input isn't there, the start creates it with so many partitions.
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
    create: int | None = None


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

    @override
    def __str__(self) -> str:
        return f"{self.operator.kind} {self.id!r} ({self.location.quoted})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A whole app: its nodes in the order of declaration, which says only in which order a message takes branches."""

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

    def kept_state(self, id_: str) -> Mapping[str, StateMeaning]:
        """What a node keeps from one start to the next, by the ids of its stores."""
        node = self.nodes[id_]
        inputs = [schema for before in node.inputs if (schema := self.nodes[before].schema) is not None]
        return node.operator.kept_state(id_, inputs)

    def joins_of(self, table: str) -> list[Node]:
        """The nodes that join a table, sorted by id."""
        return sorted((n for n in self.nodes.values() if n.operator.table_joined == table), key=lambda n: n.id)

    def writers_of(self, table: str) -> list[Node]:
        """The nodes that write a local or global table, sorted by id."""
        return sorted((n for n in self.nodes.values() if n.operator.table_written == table), key=lambda n: n.id)

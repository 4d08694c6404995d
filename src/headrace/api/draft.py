"""The graph during its declaration: the handles (``Stream``, ``Output``, ``Table``) add to it.

It keeps ids unique and nodes in the order of declaration, but knows no rules of operators. ``freeze`` turns it into
a ``Graph``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from headrace.api.location import Location
from headrace.api.operators.spec import EventTime, OperatorSpec
from headrace.api.operators.streams import Input
from headrace.api.settings import Settings
from headrace.api.specs import Node, Role, StreamSpec, TableSpec
from headrace.api.system_descriptor import SystemDescriptor
from headrace.core.errors import DeclarationError
from headrace.core.ids import StreamId, check_id
from headrace.serdes.given_rows import Rows
from headrace.serdes.schema import Schema
from headrace.systems.registry import SystemSpec


@dataclass(frozen=True, slots=True)
class _Claim:
    what: str
    location: Location


class Preview(Protocol):
    """Runs a part of an app over a sample: see ``Stream.head``."""

    def __call__(self, draft: Draft, node: str, rows: int, sample: int | Mapping[str, Rows]) -> pl.DataFrame:
        """Return the first results of a step."""
        ...


class Draft:
    """A graph under construction; each app has one."""

    def __init__(self, app: str, settings: Settings, location: Location) -> None:
        self.app = app
        self.settings = settings
        self.location = location
        self.nodes: dict[str, Node] = {}
        self.streams: dict[str, StreamSpec] = {}
        self.tables: dict[str, TableSpec] = {}
        self.windows_without_aggregates: dict[str, Location] = {}
        self.preview: Preview | None = None
        """The layer that can run apps sets it."""
        self.default_system = settings.internal_system()
        self._systems: dict[str, SystemSpec] = {self.default_system.name: self.default_system}
        self._claims: dict[str, _Claim] = {}
        self._numbers: Counter[str] = Counter()

    # -- ids -----------------------------------------------------------------------------------------

    def claim(self, what: str, id_: str | None, location: Location, example: str = "") -> str:
        """Claim a durable id, which must be unique in the app."""
        if id_ is None:
            raise DeclarationError(
                f"{what} keeps durable data, so it needs an id",
                hint=f"give it a name that doesn't change with the code around it: {example}",
            )
        self.check_unclaimed(id_)
        self._claims[id_] = _Claim(what, location)
        return id_

    def check_unclaimed(self, id_: str) -> None:
        """Raise unless ``id_`` is well formed and free."""
        check_id("id", id_)
        taken = self._claims.get(id_)
        if taken is None and id_ in self.nodes:
            taken = _Claim("another step", self.nodes[id_].location)
        if taken is not None:
            raise DeclarationError(
                f"{taken.what} at {taken.location} already has the id {id_!r}",
                hint="ids of streams, tables and steps are unique in an app; choose another",
            )

    def check_free(self, stream: StreamId) -> None:
        """Raise if this stream of this system is already declared."""
        for spec in self.streams.values():
            if spec.stream == stream:
                raise DeclarationError(
                    f"the stream {stream} is already declared as {spec.id!r} at {spec.location}",
                    hint="use that handle again, or name another stream with physical=",
                )

    def system(self, descriptor: SystemDescriptor | SystemSpec | None, stream_id: str) -> SystemSpec:
        """Return the system that a descriptor means for a stream. In an app, a name always means the same system."""
        if descriptor is None:
            return self.default_system
        if not isinstance(descriptor, SystemSpec) and not callable(getattr(descriptor, "system", None)):
            raise DeclarationError(
                f"system= takes a system, not {type(descriptor).__name__}",
                hint='write system=hr.io.files("data/*.parquet"), hr.io.log("/data/shared") or hr.io.memory()',
            )
        spec = descriptor if isinstance(descriptor, SystemSpec) else descriptor.system(stream_id)
        known = self._systems.setdefault(spec.name, spec)
        if known != spec:
            raise DeclarationError(
                f"two systems are named {spec.name!r}: {known.kind} {dict(known.options)} "
                f"and {spec.kind} {dict(spec.options)}",
                hint="give one of them another name: name=",
            )
        return known

    def written_table(self, table: TableSpec) -> str:
        """Return the output for messages to a remote table; it has the table's id."""
        if table.id not in self.streams:
            system = table.system or SystemSpec(f"remote-{table.id}".replace(".", "-"), "remote")
            self.streams[table.id] = StreamSpec(
                id=table.id,
                role=Role.SINK,
                stream=StreamId(system.name, table.id),
                system=system,
                location=table.location,
                schema=table.schema,
            )
        return table.id

    # -- nodes ---------------------------------------------------------------------------------------

    def add(
        self,
        kind: str,
        operator: OperatorSpec,
        inputs: tuple[str, ...],
        location: Location,
        *,
        id_: str | None = None,
        schema: Schema | None = None,
        event_time: EventTime | None = None,
    ) -> Node:
        """Append a node. Without ``id_``, its kind and a number become its name."""
        for input_ in inputs:
            self._check_not_side_input(input_)
        node = Node(
            id=id_ or self._next_id(kind),
            operator=operator,
            inputs=inputs,
            location=location,
            schema=schema,
            event_time=event_time,
        )
        self.nodes[node.id] = node
        return node

    def read(self, spec: StreamSpec, location: Location) -> Node:
        """Add a stream that the app reads, and the ``Input`` that reads it."""
        self.streams[spec.id] = spec
        return self.add(
            "input",
            Input(spec.id),
            (),
            location,
            id_=self._next_id(f"input-{spec.id}", first=""),
            schema=spec.schema,
            event_time=spec.event_time,
        )

    def source_of(self, node_id: str) -> StreamSpec | None:
        """Return the source stream that this node reads; None if it doesn't read a source."""
        stream = self.nodes[node_id].operator.stream_read
        spec = None if stream is None else self.streams[stream]
        return None if spec is None or spec.role is Role.INTERMEDIATE else spec

    def followed(self) -> set[str]:
        """Return the nodes whose results another node takes."""
        return {input_ for node in self.nodes.values() for input_ in node.inputs}

    def _next_id(self, kind: str, first: str = "-1") -> str:
        while True:
            self._numbers[kind] += 1
            number = self._numbers[kind]
            id_ = f"{kind}{first}" if number == 1 else f"{kind}-{number}"
            if id_ not in self.nodes and id_ not in self._claims:
                return id_

    def _check_not_side_input(self, node_id: str) -> None:
        source = self.source_of(node_id)
        if source is not None and source.role is Role.SIDE_INPUT:
            raise DeclarationError(
                f"the input {source.id!r} (at {source.location}) is the side input of a table only",
                hint="join the table instead",
            )

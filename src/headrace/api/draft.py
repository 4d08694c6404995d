"""The graph during its declaration, the ends of flows, and how a draft becomes a graph.

A draft knows no rules of operators. An input, output or table that no flow uses does no harm and is left out. A step
whose results go nowhere is an error, because it would lose messages silently.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, final

import polars as pl
from typing_extensions import override

from headrace.api.checks import (
    Location,
    as_expression,
    at,
    check_predicate,
    describe,
    key_columns,
    schema_difference,
    unknown_column,
)
from headrace.api.descriptors import OutputDescriptor, Sql, SystemDescriptor, SystemLike, in_format, named_system
from headrace.api.operators.spec import EventTime, Key, OperatorSpec
from headrace.api.operators.steps import (
    FAILED,
    FAILED_COLUMNS,
    BatchFunction,
    Input,
    MapAsync,
    PartitionBy,
    RowFunction,
    SendTo,
    SideOutput,
)
from headrace.api.other_names import OUTPUT, TABLE, missing
from headrace.api.remote import Remote
from headrace.api.specs import DEAD_LETTER_COLUMNS, Graph, Node, Role, Settings, StreamSpec, TableSpec
from headrace.core.errors import DeclarationError
from headrace.core.ids import StreamId, check_id
from headrace.rows.changes import CHANGE, KIND
from headrace.rows.given import Rows
from headrace.rows.schema import Schema
from headrace.systems.registry import SystemSpec, keeps_rows

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.-]+")
Sample = int | Mapping[str, Rows]
Preview = Callable[[str, int, Sample], pl.DataFrame]


class Draft:
    """A graph under construction; each app has one."""

    def __init__(
        self,
        app: str,
        settings: Settings,
        outside: SystemDescriptor | SystemSpec | None,
        location: Location,
        preview: Preview,
    ) -> None:
        self.app, self.settings, self.location, self.preview = app, settings, location, preview
        self.nodes: dict[str, Node] = {}
        self.streams: dict[str, StreamSpec] = {}
        self.tables: dict[str, TableSpec] = {}
        self.windows_without_aggregates: dict[str, Location] = {}
        self.default_system = settings.internal_system()
        self._outside = outside or self.default_system
        self._systems: dict[str, SystemSpec] = {self.default_system.name: self.default_system}
        self._claims: dict[str, tuple[str, Location]] = {}
        self._numbers: Counter[str] = Counter()
        self._keys: dict[str, tuple[str, ...] | None] = {}
        self.catalogue: object | None = None  # what the app's SQL has declared; see ``sql/program.py``
        self.change_keys: dict[str, Key] = {}
        """For each node that tells changes of a key, the key."""

    def claim(self, what: str, id_: str | None, location: Location, default: str) -> str:
        """Claim a durable id, which must be unique in the app. Without one it is ``default``, which never counts.

        With a number, state would get another owner when steps are added before it.
        """
        name = _NOT_IN_IDS.sub("-", default) if id_ is None else check_id("id", id_)
        taken = self._claims.get(name)
        if taken is None and name in self.nodes:
            taken = ("another step", self.nodes[name].location)
        if taken is not None and id_ is None:
            raise DeclarationError(
                f"this would be named {name!r}, as {taken[0]} at {taken[1]} is",
                hint='give one of them a name that says what it is for: id="..."; its state is kept under this name',
            )
        if taken is not None:
            raise DeclarationError(
                f"{taken[0]} at {taken[1]} already has the id {name!r}",
                hint=f"ids of streams, tables and steps are unique in an app; {_another(name, what, taken[0])}",
            )
        self._claims[name] = (what, location)
        return name

    def key_at(self, node: str) -> tuple[str, ...] | None:
        """Return the key by which a node's messages are partitioned; None: unknown, (): all are in one partition.

        This serves defaults. The planner checks keys, with what it knows of streams that exist. A node keeps its key:
        without that, flows that part and meet again would be followed twice at each meeting.
        """
        if node not in self._keys:
            self._keys[node] = self._key_of(self.nodes[node])
        return self._keys[node]

    def _key_of(self, at: Node) -> tuple[str, ...] | None:
        stream = at.operator.stream_read
        if stream is not None:
            writers = (one.operator for one in self.nodes.values() if one.operator.stream_written == stream)
            return next((one.keys for one in writers if isinstance(one, PartitionBy)), self.streams[stream].key or None)
        found = {self._carried(before, at) for before in at.inputs}
        return found.pop() if len(found) == 1 else None

    def _carried(self, before: str, at: Node) -> tuple[str, ...] | None:
        """Return the names under which the key of one node leaves the next."""
        keys, schema = self.key_at(before), self.nodes[before].schema
        if not keys or schema is None:
            return keys
        if isinstance(at.operator, RowFunction | BatchFunction | MapAsync) and at.schema is not None:
            # The planner trusts functions to leave a key unchanged, and tasks check that they do.
            same = {name: dtype for name, dtype in at.schema.columns.items() if schema.columns.get(name) == dtype}
            return keys if same.keys() >= set(keys) else None
        carried = at.operator.carried(schema)
        names = [carried.get(key, ()) for key in keys]
        if not all(names):
            return None
        return tuple(key if key in some else some[0] for key, some in zip(keys, names, strict=True))

    def check_free(self, stream: StreamId) -> None:
        """Raise if this stream of this system is already declared."""
        for spec in self.streams.values():
            if spec.stream == stream:
                raise DeclarationError(
                    f"the stream {stream} is already declared as {spec.id!r} at {spec.location}",
                    hint="use that handle again, or name another stream with physical=",
                )

    def described(self, system: SystemLike | None, format: object) -> SystemDescriptor | SystemSpec:
        """What an input or output says of its system; without one, it is in the app's."""
        return in_format(self._outside if system is None else named_system(system), format)

    def stream(
        self, name: str, role: Role, system: SystemDescriptor | SystemSpec, physical: str | None, here: Location
    ) -> StreamSpec:
        """Claim the name of an input or output."""
        check_id("id", name)
        place = name if physical is None else check_id("physical", physical)
        home = self.system(system, name)
        stream = StreamId(home.name, place)
        self.check_free(stream)
        self.claim("an input" if role is Role.SOURCE else "an output", name, here, name)
        return StreamSpec(id=name, role=role, stream=stream, system=home, location=here)

    def output(
        self,
        name: str,
        here: Location,
        system: SystemLike | None = None,
        format: object = None,
        physical: str | None = None,
    ) -> Output:
        """Declare an output."""
        described = self.described(system, format)
        if isinstance(described, OutputDescriptor):
            described = described.output_system(name)
        self.streams[name] = self.stream(name, Role.SINK, described, physical, here)
        return Output(self, name)

    def output_called(self, name: str, here: Location) -> Output:
        """The output of this name; declared here if there is none yet."""
        if name not in self._claims:
            return self.output(name, here)
        what, location = self._claims[name]
        if what != "an output":
            hint = f"pass the table itself: send_to({name})" if what == "a table" else "give the output another name"
            raise DeclarationError(f"{name!r} is the name of {what} (at {location}), not of an output", hint=hint)
        return Output(self, name)

    def system(self, descriptor: SystemDescriptor | SystemSpec, stream_id: str) -> SystemSpec:
        """The system that a descriptor means for a stream. In an app, a name always means the same system."""
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
        """The output for messages to a remote table; it has the table's id."""
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
            if not operator.takes_changes and self.changes_at(input_):
                raise DeclarationError(
                    f"{operator.kind} can't take {input_!r}, whose rows may be changed or deleted later",
                    hint="put as_rows() before it, to get each change as a row of its own with the column 'change'; "
                    "or compute with group_by(...).agg(...), top(...) or join(...), which follow changes",
                )
        if schema is not None and schema.columns.get(CHANGE, KIND) != KIND:
            raise DeclarationError(
                f"the column {CHANGE!r} is {schema.columns[CHANGE]}, but in a column of this name Headrace keeps "
                "whether a row was inserted, updated or deleted",
                hint="give it another name; as_changes(name) reads rows as changes whose kind is in a String column",
            )
        node = Node(
            id=id_ or self._next_id(kind),
            operator=operator,
            inputs=inputs,
            location=location,
            schema=schema,
            event_time=event_time,
        )
        self.nodes[node.id] = node
        if inputs and schema is not None and CHANGE in schema.columns:
            schemas = [self.nodes[input_].schema or schema for input_ in inputs]
            key = operator.change_key([self.change_keys.get(input_) for input_ in inputs], schemas)
            self.change_keys[node.id] = key
        return node

    def changes_at(self, node: str) -> bool:
        """Return whether a node's rows are changes."""
        schema = self.nodes[node].schema
        return schema is not None and CHANGE in schema.columns

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
        """The source stream that this node reads; None if it doesn't read a source."""
        stream = self.nodes[node_id].operator.stream_read
        spec = None if stream is None else self.streams[stream]
        return None if spec is None or spec.role is Role.INTERMEDIATE else spec

    def followed(self) -> set[str]:
        """The nodes whose results another node takes."""
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


def _another(id_: str, what: str, owner: str) -> str:
    """What to write in place of an id that is taken. State is dropped and renamed by id, so an id has one meaning."""
    match what.removeprefix("an ").removeprefix("a "):
        case ("input" | "output") as kind if owner not in ("an input", "an output"):
            return f'write app.{kind}("{id_}-{kind}", physical="{id_}"), which keeps the name of the stream'
        case ("input" | "output" | "table") as kind:
            return f'write app.{kind}("{id_}-{kind}"), or use what was declared there'
        case kind if " " not in kind:
            return f'write id="{id_}-{kind.replace("_", "-")}"'
    return "choose another"


# -- table checks ------------------------------------------------------------------------------------
def declared_table(spec: TableSpec, sides: Sequence[StreamSpec]) -> TableSpec:
    """The table as these side inputs fill it, if there are any. ``spec.schema`` is the declared schema."""
    if not spec.key:
        raise DeclarationError("a table needs a key", hint='name its column: key="member"')
    if spec.ttl_ms is not None and spec.versions_ms is not None:
        raise DeclarationError(
            "a table takes ttl= or versions=, not both",
            hint="versions= limits how long old rows are kept; the newest one of a key stays until deleted= removes it",
        )
    if spec.deleted is not None:
        as_expression(spec.deleted, "deleted")
    fed = spec.schema
    if fed is not None and isinstance(spec.deleted, str) and spec.deleted not in fed.columns:
        fed = Schema.of({**fed.columns, spec.deleted: pl.Boolean()})
    for side in sides:
        if side.schema is None:
            continue
        fed = fed or side.schema
        difference = schema_difference(side.schema, fed)
        if difference:
            raise DeclarationError(
                f"the side input {side.id!r} (at {side.location}) doesn't fit the table: {difference}",
                hint=f"the table has: {describe(fed)}",
            )
        if spec.versions_ms is not None and side.event_time is None:
            raise DeclarationError(
                f"the table has versions, but the side input {side.id!r} (at {side.location}) has no event time",
                hint=f'say when a row becomes valid: app.input("{side.id}", ..., event_time="ts")',
            )
    spec = replace(spec, side_inputs=tuple(side.id for side in sides))
    return spec if fed is None else _fed_table(spec, fed)


def _fed_table(spec: TableSpec, fed: Schema) -> TableSpec:
    columns = dict(fed.columns)
    if isinstance(spec.deleted, str):
        if spec.deleted not in columns:
            raise unknown_column(spec.deleted, columns, f" that marks deletions from the table {spec.id!r}")
        if spec.deleted in spec.key:
            raise DeclarationError(f"the key column {spec.deleted!r} can't also mark deletions")
    if spec.deleted is not None:
        check_predicate(fed, as_expression(spec.deleted, "deleted"))
    if isinstance(spec.deleted, str):
        del columns[spec.deleted]
    own = next((name for name in columns if spec.versions_ms is not None and name.startswith("__")), None)
    if own is not None:
        raise DeclarationError(
            f"the column {own!r} can't be in a table of versions: names that begin with '__' are reserved",
            hint="rename it first",
        )
    schema = fed if len(columns) == len(fed.columns) else Schema.of(columns)
    key_columns(spec.key, schema, "a table")
    return replace(spec, schema=schema)


def check_filled_by_flows(spec: TableSpec) -> None:
    """Raise for a table that side inputs fill."""
    if spec.side_inputs:
        raise DeclarationError(
            f"the table {spec.id!r} (at {spec.location}) is filled by side inputs, so no flow can write it",
            hint="drop its side_inputs=, or write to another table",
        )


def nulls_to_delete(table: TableSpec) -> list[pl.Expr]:
    """Null values for all columns but the key: a row with them deletes from a remote table."""
    if table.remote is None or table.remote.delete is None:
        raise DeclarationError(
            f"there is no function to delete rows of the remote table {table.id!r} (at {table.location})",
            hint="give it a function: hr.tables.remote(write=store, delete=remove); a SQL table can't be deleted from",
        )
    columns = {} if table.schema is None else table.schema.columns
    return [pl.lit(None, dtype).alias(name) for name, dtype in columns.items() if name not in table.key]


def remote_table(table: TableSpec, remote: object, system: Callable[[Sql, str], SystemSpec]) -> TableSpec:
    """``table`` as a remote one; ``system`` finds the system that a descriptor means for a stream."""
    if not isinstance(remote, Remote):
        raise DeclarationError(
            f"remote= takes a remote table, not {type(remote).__name__} {remote!s:.80}",
            hint="write remote=hr.tables.remote(read=fetch) or "
            'remote=hr.tables.sql_table("sqlite:///members.db", "members")',
        )
    if table.side_inputs:
        raise DeclarationError(
            f"the table {table.id!r} can't be both remote and filled by side inputs",
            hint="leave out side_inputs= or remote=",
        )
    if table.kind != "local":
        raise DeclarationError(f'kind="{table.kind}" is not for a remote table', hint="leave it out")
    if table.ttl_ms is not None:
        raise DeclarationError(
            "ttl= doesn't apply to a remote table", hint='cached rows have one: hr.tables.cached(..., ttl="1m")'
        )
    given = {"versions": table.versions_ms, "deleted": table.deleted, "storage": {"disk": None}.get(table.storage, 1)}
    for name, value in given.items():
        if value is not None:
            raise DeclarationError(f"{name}= doesn't apply to a remote table", hint="leave it out")
    if table.schema is None:
        raise DeclarationError(f"the remote table {table.id!r} needs a schema=", hint="name its columns")
    if remote.delete is not None and not set(table.schema.columns) - set(table.key):
        raise DeclarationError(
            f"the remote table {table.id!r} has only key columns, so no row can mark a deletion",
            hint="give it a column beside the key, or leave out delete=",
        )
    place = None if remote.sql is None else system(replace(remote.sql, key=table.key), table.id)
    return replace(table, kind="remote", remote=remote, system=place)


# -- handles -----------------------------------------------------------------------------------------
@final
class Output:
    """A stream that the app writes, from ``app.output``. Several flows may write to it.

    Examples
    --------
    >>> out = app.output("slow-views")
    >>> views.filter(pl.col("ms") > 100).send_to(out)
    >>> out.schema.columns["ms"]
    Int64
    """

    def __init__(self, draft: Draft, id_: str) -> None:
        self.draft, self.id = draft, id_

    @property
    def spec(self) -> StreamSpec:
        """The stream as declared so far."""
        return self.draft.streams[self.id]

    @property
    def schema(self) -> Schema | None:
        """Its columns; None until they are declared or a flow is sent here."""
        return self.spec.schema

    @override
    def __repr__(self) -> str:
        return f"Output({self.id!r}, {describe(self.schema)})"

    if not TYPE_CHECKING:  # type checkers must go on to report names that don't exist

        def __getattr__(self, name: str) -> NoReturn:
            raise missing("an output", name, OUTPUT, dir(type(self)))


@final
class Table:
    """Rows by key, from ``app.table``. ``send_to(table)`` or side inputs fill it, ``join(table)`` looks rows up.

    Examples
    --------
    >>> profiles = app.table("profiles", key="member", schema={"member": pl.String, "country": pl.String})
    >>> profiles
    Table('profiles', key=member, member String, country String)
    """

    def __init__(self, draft: Draft, id_: str) -> None:
        self.draft, self.id = draft, id_

    @property
    def spec(self) -> TableSpec:
        """The table as declared so far."""
        return self.draft.tables[self.id]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which a row is found."""
        return self.spec.key

    @property
    def schema(self) -> Schema | None:
        """Its columns; None until they are declared or a flow is sent here."""
        return self.spec.schema

    @override
    def __repr__(self) -> str:
        return f"Table({self.id!r}, key={', '.join(self.key)}, {describe(self.schema)})"

    if not TYPE_CHECKING:  # type checkers must go on to report names that don't exist

        def __getattr__(self, name: str) -> NoReturn:
            raise missing("a table", name, TABLE, dir(type(self)))


def check_target(target: object) -> None:
    """Raise unless a flow can end in ``target``."""
    if not isinstance(target, Output | Table):
        raise DeclarationError(
            f"a flow can't be sent to {type(target).__name__} {target!s:.80}",
            hint='results go to an output, send_to("per-minute"), or to a table of app.table("...", key=...)',
        )


def check_takes_changes(spec: StreamSpec) -> None:
    """Raise unless an output can be written with changes."""
    if keeps_rows(spec.system):
        raise DeclarationError(
            f"the output {spec.id!r} ({spec.system.kind}) only takes new rows, and rows of this flow may be changed or "
            "deleted later",
            hint="put upserts() before it, to write the new row of each key and mark deletions with the column "
            "'deleted'; or as_rows(), to write each change with the column 'change'",
        )


def target_keys(target: Output | Table, key: str | Sequence[str] | None, schema: Schema) -> tuple[str, ...]:
    """The columns that choose the partition of an output, or the row of a table."""
    if isinstance(target, Output):
        if target.spec.system.kind in _KEYED:
            _key_records(target, key, schema)
            return ()
        return () if key is None else key_columns(key, schema, "send_to")
    if key is not None:
        raise DeclarationError(
            "key= is for outputs; a table has its own", hint=f"this one's is {', '.join(target.key)}"
        )
    check_filled_by_flows(target.spec)
    if target.spec.remote is not None and not target.spec.remote.writable:
        raise DeclarationError(
            f"the remote table {target.id!r} (at {target.spec.location}) can only be read",
            hint="give it a function that writes: hr.tables.remote(read=fetch, write=store)",
        )
    return key_columns(target.key, schema, "a table")


_KEYED = {"kinesis": "Kinesis stream", "kafka": "topic"}
"""Brokers whose records have keys, with their word for a stream."""


def _key_records(target: Output, key: str | Sequence[str] | None, schema: Schema) -> None:
    """Let ``key`` be the key of the output's records; the broker's hash of it chooses the partition."""
    kind, options = target.spec.system.kind, dict(target.spec.system.options)
    stream = options.get("stream") or options.get("topic")
    place = dict(options["output"]) if "output" in options else options
    named = place.get("key")
    if key is not None:
        given = key_columns(key, schema, "send_to")
        if len(given) > 1 or named not in (None, given[0]):
            raise DeclarationError(
                f"key={list(given)}: a record of the {_KEYED[kind]} {stream!r} has one column as its key"
                + (f", which is {named!r}" if named else ""),
                hint="name one column, the same for all flows that go there",
            )
        named = place["key"] = given[0]
        keyed = options if place is options else options | {"output": place}
        system = replace(target.spec.system, options=keyed)
        target.draft.streams[target.id] = replace(target.spec, system=system)
    if named is not None and named not in schema.columns:
        raise DeclarationError(
            f"the key {named!r} of the {_KEYED[kind]} {stream!r} isn't a column of this flow",
            hint=f"it has: {describe(schema)}",
        )


def adopt_schema(target: Output | Table, schema: Schema) -> tuple[str, ...]:
    """Give ``target`` the schema of a flow sent to it, or check that it fits. Returns the target's column order."""
    if target.schema is None:
        if isinstance(target, Table):
            target.draft.tables[target.id] = _fed_table(target.spec, schema)
        else:
            target.draft.streams[target.id] = replace(target.spec, schema=schema)
        return tuple(schema.columns)
    wanted = (target.spec.feed if isinstance(target, Table) else None) or target.schema
    difference = schema_difference(schema, wanted)
    if difference:
        raise DeclarationError(
            f"this flow doesn't match {target.id!r} (at {target.spec.location}): {difference}",
            hint=f"its columns are {describe(wanted)}; select or cast before send_to",
        )
    return tuple(wanted.columns)


def freeze(draft: Draft) -> Graph:
    """The graph of an app; later declarations don't change it."""
    for id_, location in draft.windows_without_aggregates.items():
        raise DeclarationError(
            f"the window {id_!r} has no aggregates\n  {at(location)}", hint="call agg on it: .agg(views=pl.len())"
        )
    followed = draft.followed()
    nodes = {id_: node for id_, node in draft.nodes.items() if id_ in followed or not draft.source_of(id_)}
    if not nodes:
        raise DeclarationError(
            f"the app {draft.app!r} has no flow\n  {at(draft.location)}",
            hint='begin with app.input("...") and end with send_to("...") or sink(function)',
        )
    for node in nodes.values():
        if node.schema is not None and node.id not in followed:
            raise DeclarationError(
                f"nothing uses the results of the step {node.id!r}\n  {at(node.location)}",
                hint="end the flow with send_to(output), send_to(table) or sink(function), or remove the step",
            )
    tables = _used_tables(draft, nodes)
    return Graph(
        app=draft.app,
        nodes=nodes,
        streams=_used_streams(draft, nodes, tables),
        tables=tables,
        settings=draft.settings,
        location=draft.location,
    )


def _used_tables(draft: Draft, nodes: Mapping[str, Node]) -> dict[str, TableSpec]:
    operators = [node.operator for node in nodes.values()]
    filled = {spec.table_filled for spec in operators}
    joins = {table: node for node in nodes.values() if (table := node.operator.table_joined) is not None}
    for id_, node in joins.items():
        if id_ not in filled and not draft.tables[id_].side_inputs and draft.tables[id_].remote is None:
            raise DeclarationError(
                f"the table {id_!r} is joined, but nothing fills it\n  {at(node.location)}",
                hint="end a flow with send_to(table), or give the table side_inputs=",
            )
    # Messages to a remote table are written to an output that has the table's id.
    used = {id_ for spec in operators for id_ in (spec.table_used, spec.stream_written)}
    return {id_: spec for id_, spec in draft.tables.items() if id_ in used}


def _used_streams(draft: Draft, nodes: Mapping[str, Node], tables: Mapping[str, TableSpec]) -> dict[str, StreamSpec]:
    written, letters = _sent_to(nodes)
    used = {node.operator.stream_read for node in nodes.values()} | written.keys()
    used |= {side for table in tables.values() for side in table.side_inputs}
    streams = {id_: spec for id_, spec in draft.streams.items() if id_ in used}
    for reader in list(streams.values()):
        if reader.dead_letter is not None:
            who = f"input {reader.id!r}"
            others = written | letters
            target = _dead_letters(draft, who, reader.location, reader.dead_letter, others, DEAD_LETTER_COLUMNS)
            streams[reader.dead_letter] = target
    for id_, node in letters.items():
        who = f"step {nodes[node.inputs[0]].inputs[0]!r}"
        streams[id_] = _dead_letters(draft, who, node.location, id_, written, FAILED_COLUMNS)
    return streams


def _sent_to(nodes: Mapping[str, Node]) -> tuple[dict[str, Node], dict[str, Node]]:
    written: dict[str, Node] = {}
    letters: dict[str, Node] = {}
    for node in nodes.values():
        if isinstance(node.operator, SendTo):
            before = nodes[node.inputs[0]].operator
            kind = letters if isinstance(before, SideOutput) and before.name == FAILED else written
            kind[node.operator.stream] = node
    return written, letters


def _dead_letters(
    draft: Draft,
    who: str,
    location: Location,
    id_: str,
    written: Mapping[str, Node],
    columns: Mapping[str, pl.DataType],
) -> StreamSpec:
    spec = draft.streams[id_]
    schema = Schema.of(dict(columns))
    problem = None
    if id_ in written:
        problem = f"is also written by the flow at {written[id_].location}"
    elif spec.schema is not None and spec.schema != schema:
        problem = f"has a schema of its own (at {spec.location})"
    if problem is not None:
        raise DeclarationError(
            f"{who}: its dead_letter {id_!r} {problem}\n  {at(location)}",
            hint=f"dead letters need an output of their own; its columns: {', '.join(columns)}",
        )
    return replace(spec, schema=schema)


def cut_behind(draft: Draft, node: str, output: str) -> Graph:
    """A graph of the steps that ``node`` needs, with an ``output`` for its results. The draft doesn't change."""
    last, location = draft.nodes[node], draft.nodes[node].location
    kept = _needed(draft, node)
    system = draft.default_system
    part = copy.copy(draft)
    part.nodes = {id_: one for id_, one in draft.nodes.items() if id_ in kept}
    part.nodes[output] = Node(id=output, operator=SendTo(output), inputs=(node,), location=location)
    sink = StreamSpec(
        id=output,
        role=Role.SINK,
        stream=StreamId(system.name, output),
        system=system,
        location=location,
        schema=last.schema,
    )
    part.streams = {**draft.streams, output: sink}
    part.windows_without_aggregates = {}
    graph = freeze(part)
    return replace(graph, settings=replace(graph.settings, metadata=None, snapshots=None))


def _needed(draft: Draft, node: str) -> set[str]:
    found: set[str] = set()
    open_ = [node]
    while open_:
        id_ = open_.pop()
        if id_ in found:
            continue
        found.add(id_)
        one = draft.nodes[id_]
        read, joined = one.operator.stream_read, one.operator.table_joined
        open_ += one.inputs
        for writer in draft.nodes.values():
            spec = writer.operator
            if (read is not None and spec.stream_written == read) or (
                joined is not None and spec.table_written == joined
            ):
                open_.append(writer.id)
    return found

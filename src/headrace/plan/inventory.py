"""The inventory of an app's durable parts: stages, positions in streams, and state, each with its meaning.

The inventory is recorded when the app starts, with one record per stage, because stages can be deployed separately. The
next start compares it with the app's new inventory (``changes``), and takes names from it (``heritage``). Pure data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from headrace.api.operators.spec import StateMeaning, expiry
from headrace.api.operators.streams import Broadcast, PartitionBy
from headrace.api.operators.window import Window
from headrace.api.specs import Graph, Role, StreamSpec, TableSpec
from headrace.core.records import decode_record
from headrace.plan.keys import partitionings
from headrace.plan.model import Plan, StagePlan
from headrace.plan.shares import Dealing, Partitionings, step_dealing, table_dealing
from headrace.plan.traverse import reachable
from headrace.systems.registry import grows, keeps_rows

FORMAT = 2

PartKind = Literal["input", "side input", "stream", "output", "target", "table", "step"]
"""A *stream* is an intermediate one; a *target* is an output whose committed rows wait in an outbox."""

IDENTITY = "identity"
"""The key in ``Part.fixed`` of an input for the identity of its stream."""
_PARTIAL = " of its partial results"


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A durable part of a stage. ``fixed`` and ``columns`` give its meaning, as in ``StateMeaning``.

    ``kept_as`` is the name under which its state, position or messages are stored. It never changes, even if the part
    is renamed, unless the part starts over empty. ``owner`` is the step of a store, and otherwise the part itself.
    ``writers`` are the stages that write an intermediate stream of this stage, each with its number of tasks.
    ``dealing`` says how to divide state among another number of tasks.
    """

    kind: PartKind
    id: str
    owner: str
    kept_as: str
    fixed: dict[str, str] = {}
    columns: dict[str, str] = {}
    sheds: bool = False
    reads: bool = False
    writers: dict[str, int] = {}
    dealing: Dealing = Dealing()

    @property
    def partial(self) -> bool:
        """Whether it is a stream with partial results of a window."""
        return any(name.endswith(_PARTIAL) for name in self.fixed)


class StageRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stage as of its last start. ``parts`` are by id.

    The first ``active`` tasks read something; the others have ended permanently. ``former`` are the intermediate
    streams that it no longer writes, and in which it has ended. ``dropped`` are the names of unneeded state that its
    changelog may still hold.
    """

    format: int = FORMAT
    stage: str
    producers: tuple[int, ...]
    active: int
    parts: dict[str, Part]
    former: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def tasks(self) -> int:
        """Its number of tasks."""
        return len(self.producers)

    @property
    def states(self) -> set[str]:
        """The names of its tables, of the stores of its steps and of its outboxes."""
        return {part.kept_as for part in self.parts.values() if part.kind in ("table", "step", "target")}

    def streams(self, *, reads: bool) -> dict[str, Part]:
        """Return the intermediate streams that it reads, or those that it writes, by their stored names."""
        parts = self.parts.values()
        return {part.kept_as: part for part in parts if part.kind == "stream" and part.reads is reads}

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> StageRecord:
        """Read what ``encode`` wrote. Raises ``DataError``."""
        return decode_record(
            _DECODER, data, "the record of a stage", FORMAT, lambda record: f"the record of stage {record.stage!r}"
        )


_DECODER = msgspec.json.Decoder(StageRecord)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The records of an app's stages, by name. Empty for an app that was never started.

    ``gone`` are the names of former stages and streams of the app. Their data may still exist, so no new one gets such
    a name.
    """

    stages: Mapping[str, StageRecord] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.stages)

    def parts(self) -> Iterator[tuple[StageRecord, Part]]:
        """Yield all parts with their stages, in the order of names."""
        for name in sorted(self.stages):
            for id_ in sorted(self.stages[name].parts):
                yield self.stages[name], self.stages[name].parts[id_]

    def ids(self) -> set[str]:
        """Return all ids by which the user can name a part."""
        return {name for _, part in self.parts() for name in (part.id, part.owner)}

    def after(self, before: Inventory) -> Inventory:
        """Return this inventory with all former names, including those that ``before`` has and this one hasn't."""
        lost = (before.stages.keys() - self.stages.keys()) | (before.streams() - self.streams())
        return Inventory(self.stages, before.gone | lost)

    def streams(self) -> set[str]:
        """Return the names of all intermediate streams."""
        return {part.kept_as for _, part in self.parts() if part.kind == "stream"}

    def stream(self, id_: str) -> Part | None:
        """Return the intermediate stream with this id; None if there is none."""
        return next((part for _, part in self.parts() if part.id == id_ and part.kind == "stream"), None)


NOTHING = Inventory()


def inventory_of(plan: Plan) -> Inventory:
    """Return the inventory of the app with this plan."""
    known = partitionings(plan.graph)
    return Inventory({stage.name: _record(plan, stage, known) for stage in plan.stages})


def _record(plan: Plan, stage: StagePlan, known: Partitionings) -> StageRecord:
    parts = [*_streams(plan, stage), *_tables(plan, stage, known), *_steps(plan, stage, known)]
    return StageRecord(
        stage=stage.name,
        producers=tuple(task.producer for task in stage.tasks),
        active=sum(bool(task.inputs) for task in stage.tasks),
        parts={part.id: part for part in parts},
        former=stage.former,
        dropped=stage.dropped,
    )


def _streams(plan: Plan, stage: StagePlan) -> Iterator[Part]:
    graph = plan.graph
    former = {plan.graph.streams[id_].stream.name for id_ in stage.outputs} & set(stage.former)
    for id_ in (*stage.inputs, *stage.side_inputs, *stage.outputs):
        spec = graph.streams[id_]
        if spec.role is Role.INTERMEDIATE:
            if spec.stream.name in former and id_ not in stage.inputs:
                continue
            yield _intermediate(plan, stage, spec)
        elif id_ in stage.outputs:
            yield Part(
                kind="target" if keeps_rows(spec.system) else "output",
                id=id_,
                owner=id_,
                kept_as=stage.kept_as.get(id_, id_) if keeps_rows(spec.system) else str(spec.stream),
            )
        else:
            tables = [table for table in stage.tables if id_ in graph.tables[table].side_inputs]
            fixed = {"stream": str(spec.stream)}
            if plan.streams[id_].identity:
                fixed[IDENTITY] = plan.streams[id_].identity
            if tables:
                fixed["tables"] = ", ".join(tables)
            yield Part(
                kind="input" if id_ in stage.inputs else "side input",
                id=id_,
                owner=id_,
                kept_as=stage.kept_as.get(id_, str(spec.stream)),
                fixed=fixed,
                reads=True,
            )


def _intermediate(plan: Plan, stage: StagePlan, spec: StreamSpec) -> Part:
    reads = spec.id in stage.inputs
    writers = {name: len(plan.stage(name).tasks) for name in plan.streams[spec.id].writers} if reads else {}
    meaning = stream_meaning(plan.graph, spec, plan.streams[spec.id].partitions, plan.combined.get(spec.id))
    return Part(
        kind="stream",
        id=spec.id,
        owner=spec.id,
        kept_as=spec.stream.name,
        fixed=dict(meaning.fixed),
        columns=dict(meaning.columns),
        sheds=meaning.sheds,
        reads=reads,
        writers=writers,
    )


def stream_meaning(graph: Graph, spec: StreamSpec, partitions: int, window: str | None) -> StateMeaning:
    """Return the meaning of an intermediate stream's messages, for those still in it when the app changes."""
    fixed = {"partitions": str(partitions)}
    if key := _key(graph, spec.id):
        fixed["key"] = key
    step = None if window is None else graph.nodes[window].operator
    if isinstance(step, Window) and window is not None:
        meaning = step.kept_state(window, [step.input])[window]
        return StateMeaning(
            fixed=fixed | {name + _PARTIAL: value for name, value in meaning.fixed.items()},
            columns=meaning.columns,
            sheds=True,
        )
    columns = {} if spec.schema is None else {name: str(dtype) for name, dtype in spec.schema.columns.items()}
    return StateMeaning(fixed=fixed, columns=columns, sheds=True)


def _key(graph: Graph, stream: str) -> str | None:
    """Return the partitioning of an intermediate stream."""
    for node in graph.nodes.values():
        if node.operator.stream_written == stream:
            if isinstance(node.operator, PartitionBy):
                return node.operator.detail
            if isinstance(node.operator, Broadcast):
                return "to all"
    return None


def _tables(plan: Plan, stage: StagePlan, known: Partitionings) -> Iterator[Part]:
    for id_ in stage.tables:
        table = plan.graph.tables[id_]
        if table.remote is None:
            fillers = (node.id for node in plan.graph.writers_of(id_))
            part = _part("table", id_, id_, stage, table_meaning(table), _spread(plan, stage, fillers))
            yield msgspec.structs.replace(part, dealing=table_dealing(plan.graph, stage, known, table))


def table_meaning(table: TableSpec) -> StateMeaning:
    """Return the meaning of a table's rows."""
    columns = {} if table.schema is None else table.schema.columns
    key = ", ".join(f"{name}: {columns.get(name, '?')}" for name in table.key)
    versions = "kept" if table.versions_ms is not None else "not kept"
    fixed = {
        "kind": f"{table.kind} table",
        "key": key,
        "storage": table.storage,
        "past versions": versions,
        "expiry": expiry(table.ttl_ms),
    }
    return StateMeaning(fixed=fixed, columns={n: str(dtype) for n, dtype in columns.items() if n not in table.key})


def _steps(plan: Plan, stage: StagePlan, known: Partitionings) -> Iterator[Part]:
    nodes = plan.graph.nodes
    for id_ in stage.nodes:
        node = nodes[id_]
        inputs = [schema for before in node.inputs if (schema := nodes[before].schema) is not None]
        for store, meaning in node.operator.kept_state(id_, inputs).items():
            part = _part("step", store, id_, stage, meaning, _spread(plan, stage, [id_]))
            yield msgspec.structs.replace(part, dealing=step_dealing(plan.graph, stage, known, id_, meaning.key))


def _spread(plan: Plan, stage: StagePlan, nodes: Iterable[str]) -> dict[str, str]:
    """Return how a shuffle spreads these nodes' messages, and so their state, over the tasks. Any change loses state.

    The same holds for an input to which others may add partitions.
    """
    graph = plan.graph
    ways: set[str] = set()
    for node in nodes:
        for before in reachable(node, lambda id_: [b for b in graph.nodes[id_].inputs if b in stage.nodes]):
            stream = graph.nodes[before].operator.stream_read
            if stream is None:
                continue
            if graph.streams[stream].role is Role.INTERMEDIATE:
                ways.add(f"{_key(graph, stream) or 'unknown'} over {plan.streams[stream].partitions} partitions")
            elif grows(graph.streams[stream].system):
                ways.add(f"as input {stream!r} is, over {plan.streams[stream].partitions} partitions")
    return {"partitioning": "; ".join(sorted(ways))} if ways else {}


def _part(
    kind: PartKind, id_: str, owner: str, stage: StagePlan, meaning: StateMeaning, spread: Mapping[str, str]
) -> Part:
    return Part(
        kind=kind,
        id=id_,
        owner=owner,
        kept_as=stage.kept_as.get(id_, id_),
        fixed={**meaning.fixed, **spread},
        columns=dict(meaning.columns),
        sheds=meaning.sheds,
    )

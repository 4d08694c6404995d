"""The inventory of an app's durable parts, and what a changed app takes over from the version before. Pure.

It is recorded when the app starts, with one record per stage, because stages can be deployed separately. The next start
compares it with the app's new inventory (``changes``), and takes names from it (``Heritage``).

The planner's names depend on the whole app, so any addition could change them. So recorded names win: a stage keeps its
first name as long as it shares an input or kept state with its former self, and state and positions keep the names
under which they are stored. A part that starts over empty gets a name that was never used, so that old changes in a
changelog and old messages in a stream have no owner.

A stage that stops writing a stream must announce its end there, because readers would otherwise wait for it. So a stage
never loses a task, or an intermediate stream that is still read, and a removed stage stays as one that only ends.

A *dealing* divides the state of a stage among another number of tasks, as a shuffle divides messages by the hash of a
key: if that key reaches the step unchanged (``keys.partitionings``), and is part of the key of the step's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import msgspec

from headrace.api.operators.spec import StateMeaning, expiry
from headrace.api.operators.steps import Broadcast, PartitionBy
from headrace.api.operators.window import Window
from headrace.api.specs import Graph, Role, StreamSpec, TableSpec
from headrace.core.errors import UsageError
from headrace.core.files import decode_record
from headrace.core.ids import StreamId
from headrace.plan.keys import Partitioning, flow_of, names_of, partitionings
from headrace.plan.model import Plan, StagePlan, reachable
from headrace.systems.registry import keeps_rows

Partitionings = Mapping[str, Partitioning | None]


class Dealing(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The columns that divide the rows of a store, in the order of hashing; without any, one task gets all of it.

    ``copied``: each task keeps all rows. ``why_not`` says why the rows can't be divided.
    """

    by: tuple[str, ...] = ()
    copied: bool = False
    why_not: str = ""


def table_dealing(graph: Graph, stage: StagePlan, known: Partitionings, table: TableSpec) -> Dealing:
    if table.kind == "global":
        return Dealing(copied=True)
    if table.side_inputs:
        return Dealing(why_not=f"its rows come from {names_of(table.side_inputs)}, as that is partitioned")
    return _dealing(graph, stage, known, [flow_of(graph, node) for node in graph.writers_of(table.id)], table.key)


def _dealing(graph: Graph, stage: StagePlan, known: Partitionings, flows: Sequence[str], key: Sequence[str]) -> Dealing:
    found: set[tuple[str, ...]] = set()
    for flow in flows:
        partitioning = known.get(flow)
        if partitioning is None:
            return Dealing(why_not=_unknown(graph, stage, flow))
        present = partitioning.within(key)
        if present is None:
            by = names_of(min(names) for names in partitioning.keys)
            return Dealing(
                why_not=f"it keeps rows by {names_of(key)}, and its messages are partitioned by {by} "
                f"({partitioning.stream})"
            )
        found.add(present)
    if len(found) != 1:
        ways = " or by ".join(sorted(names_of(columns) for columns in found)) or "nothing"
        return Dealing(why_not=f"its flows are partitioned in different ways: by {ways}")
    return Dealing(by=found.pop())


def _unknown(graph: Graph, stage: StagePlan, flow: str) -> str:
    before = reachable(flow, lambda id_: [b for b in graph.nodes[id_].inputs if b in stage.nodes])
    read = [stream for id_ in sorted({flow, *before}) if (stream := graph.nodes[id_].operator.stream_read) is not None]
    sources = [stream for stream in read if graph.streams[stream].role is not Role.INTERMEDIATE]
    if sources:
        return f"its messages come from {names_of(sources)}, as that is partitioned"
    return f"the key of {names_of(read)} can't be followed to it: a step between them computes other columns"


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
        return any(name.endswith(_PARTIAL) for name in self.fixed)


class StageRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stage as of its last start. ``parts`` are by id.

    The first ``active`` tasks read something; the others have ended permanently. ``former`` intermediate streams it no
    longer writes, and has ended in. ``dropped`` names of unneeded state may still be in its changelog.
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
        return len(self.producers)

    @property
    def states(self) -> set[str]:
        """The names of its tables, of the stores of its steps and of its outboxes."""
        return {part.kept_as for part in self.parts.values() if part.kind in ("table", "step", "target")}

    def streams(self, *, reads: bool) -> dict[str, Part]:
        return {part.kept_as: part for part in self.parts.values() if part.kind == "stream" and part.reads is reads}

    def encode(self) -> bytes:
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

    ``gone`` are the names of former stages and streams, whose data may still exist, so no new one gets such a name.
    """

    stages: Mapping[str, StageRecord] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.stages)

    def parts(self) -> Iterator[tuple[StageRecord, Part]]:
        for name in sorted(self.stages):
            for id_ in sorted(self.stages[name].parts):
                yield self.stages[name], self.stages[name].parts[id_]

    def ids(self) -> set[str]:
        """All ids by which the user can name a part."""
        return {name for _, part in self.parts() for name in (part.id, part.owner)}

    def after(self, before: Inventory) -> Inventory:
        """This inventory with all former names, including those that ``before`` has and this one hasn't."""
        lost = (before.stages.keys() - self.stages.keys()) | (before.streams() - self.streams())
        return Inventory(self.stages, before.gone | lost)

    def streams(self) -> set[str]:
        return {part.kept_as for _, part in self.parts() if part.kind == "stream"}

    def stream(self, id_: str) -> Part | None:
        return next((part for _, part in self.parts() if part.id == id_ and part.kind == "stream"), None)


NOTHING = Inventory()


def inventory_of(plan: Plan) -> Inventory:
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
    meaning = _stream_meaning(plan.graph, spec, plan.streams[spec.id].partitions, plan.combined.get(spec.id))
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


def _stream_meaning(graph: Graph, spec: StreamSpec, partitions: int, window: str | None) -> StateMeaning:
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
            dealing = table_dealing(plan.graph, stage, known, table)
            yield _part("table", id_, id_, stage, _table_meaning(table), _spread(plan, stage, fillers), dealing)


def _table_meaning(table: TableSpec) -> StateMeaning:
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
    for id_ in stage.nodes:
        for store, meaning in plan.graph.kept_state(id_).items():
            dealing = Dealing(why_not="it has no key, so each task keeps one result for all of its messages")
            if meaning.key:
                flows = plan.graph.nodes[id_].inputs
                flows = flows if meaning.input is None else flows[meaning.input :][:1]
                dealing = _dealing(plan.graph, stage, known, flows, meaning.key)
            yield _part("step", store, id_, stage, meaning, _spread(plan, stage, [id_]), dealing)


def _spread(plan: Plan, stage: StagePlan, nodes: Iterable[str]) -> dict[str, str]:
    """How a shuffle, or an input that may gain partitions, spreads messages, and so state. Any change loses it."""
    graph = plan.graph
    ways: set[str] = set()
    for node in nodes:
        for before in reachable(node, lambda id_: [b for b in graph.nodes[id_].inputs if b in stage.nodes]):
            stream = graph.nodes[before].operator.stream_read
            if stream is None:
                continue
            if graph.streams[stream].role is Role.INTERMEDIATE:
                ways.add(f"{_key(graph, stream) or 'unknown'} over {plan.streams[stream].partitions} partitions")
            elif graph.streams[stream].system.growing:
                ways.add(f"as input {stream!r} is, over {plan.streams[stream].partitions} partitions")
    return {"partitioning": "; ".join(sorted(ways))} if ways else {}


def _part(
    kind: PartKind,
    id_: str,
    owner: str,
    stage: StagePlan,
    meaning: StateMeaning,
    spread: Mapping[str, str],
    dealing: Dealing,
) -> Part:
    return Part(
        kind=kind,
        id=id_,
        owner=owner,
        kept_as=stage.kept_as.get(id_, id_),
        fixed={**meaning.fixed, **spread},
        columns=dict(meaning.columns),
        sheds=meaning.sheds,
        dealing=dealing,
    )


# -- heritage ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Consent:
    """The user's options: ids whose state may be dropped, and renamed ids with their former ones."""

    drop: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)

    def drops(self, id_: str, owner: str) -> bool:
        return id_ in self.drop or owner in self.drop

    def before(self, id_: str, owner: str) -> str:
        if id_ in self.renamed:
            return self.renamed[id_]
        return self.renamed.get(owner, owner) + id_.removeprefix(owner)


NO_CONSENT = Consent()


def consent_of(drop: Sequence[str], renamed: Mapping[str, str]) -> Consent:
    """The user's options, checked as far as possible without the app."""
    if isinstance(drop, str):
        raise UsageError(f"drop_state={drop!r} isn't a list of ids", hint=f"write drop_state=[{drop!r}]")
    twice = [old for old in renamed.values() if list(renamed.values()).count(old) > 1]
    if twice:
        raise UsageError(f"{twice[0]!r} can't be renamed to two ids", hint="a state has only one owner")
    both = sorted(set(drop) & set(renamed))
    if both:
        raise UsageError(f"{both[0]!r} can't be both renamed and dropped", hint="leave out the rename")
    return Consent(frozenset(drop), dict(renamed))


@dataclass(frozen=True, slots=True)
class Heritage:
    """The inventory of the version that ran before, and the user's options."""

    inventory: Inventory = NOTHING
    consent: Consent = NO_CONSENT

    def adopt(self, graph: Graph) -> Graph:
        """The graph with the stored names of its intermediate streams."""
        streams = dict(graph.streams)
        taken = {part.kept_as for _, part in self.inventory.parts() if part.kind == "stream"} | self.inventory.gone
        for id_ in sorted(streams):
            spec = streams[id_]
            if spec.role is not Role.INTERMEDIATE:
                continue
            before = self.inventory.stream(self.consent.before(id_, id_))
            if before is not None and not self.consent.drops(id_, id_):
                name = before.kept_as
            else:
                name = _unused(spec.stream.name, taken, "-")
                taken.add(name)
            streams[id_] = replace(spec, stream=StreamId(spec.stream.system, name))
        return replace(graph, streams=streams)

    def carries_partials(self, stream: str) -> bool | None:
        """Whether an intermediate stream has carried partial results; None if it is new."""
        part = next((part for _, part in self.inventory.parts() if part.kept_as == stream), None)
        return None if part is None else part.partial

    def inherit(self, graph: Graph, stages: Sequence[StagePlan], tasks: Callable[[StagePlan], int]) -> list[StagePlan]:
        """The stages with their kept state, and the empty stages of removed ones. Names may have changed.

        Some tasks may have ended. A stage that needs more ``tasks`` than are active begins under a new name.
        """
        if not self.inventory and not self.inventory.gone:
            return [replace(stage, kept_as=_first_names(graph, stage)) for stage in stages]
        names = self._names(graph, stages, tasks)
        heirs = [self._heir(graph, stage, names[stage.name]) for stage in stages]
        used = {stage.name for stage in heirs}
        gone = (self._ended(graph, record) for name, record in self.inventory.stages.items() if name not in used)
        return [*heirs, *(stage for stage in gone if stage.outputs)]

    def _names(self, graph: Graph, stages: Sequence[StagePlan], tasks: Callable[[StagePlan], int]) -> dict[str, str]:
        """The durable name of each stage: that of the recorded stage with which it has most in common."""
        pairs = [
            (-common, old.stage, stage.name)
            for stage in stages
            for old in self.inventory.stages.values()
            if (tasks(stage) <= old.active or old.active == old.tasks)
            and (common := self._in_common(graph, stage, old))
        ]
        names: dict[str, str] = {}
        for _, old, new in sorted(pairs):
            if new not in names and old not in names.values():
                names[new] = old
        taken = {*self.inventory.stages, *self.inventory.gone}
        for stage in stages:
            if stage.name not in names:
                names[stage.name] = _unused(stage.name, taken, "-")
                taken.add(names[stage.name])
        return names

    def _in_common(self, graph: Graph, stage: StagePlan, old: StageRecord) -> int:
        ours = {graph.streams[id_].stream.name for id_ in stage.inputs}
        read = len(ours & old.streams(reads=True).keys())
        befores = {self.consent.before(part.id, part.owner) for part in _parts(graph, stage)}
        kept = len(befores & {id_ for id_, part in old.parts.items() if part.kind != "stream"})
        return 1000 * read + kept

    def _heir(self, graph: Graph, stage: StagePlan, name: str) -> StagePlan:
        record = self.inventory.stages.get(name)
        if record is None:
            return replace(stage, name=name, kept_as=_first_names(graph, stage))
        kept_as: dict[str, str] = {}
        taken = {*record.dropped, *(part.kept_as for part in record.parts.values())}
        renewed = self._renewed(graph, stage, record)
        for id_, owner, default in _parts(graph, stage):
            before = record.parts.get(self.consent.before(id_, owner))
            if before is not None and id_ not in renewed:
                kept_as[id_] = before.kept_as
            else:
                kept_as[id_] = _unused(default, taken, "~")
                taken.add(kept_as[id_])
        written = {graph.streams[id_].stream.name for id_ in stage.outputs}
        former = self._former(graph, record, written)
        return replace(
            stage,
            name=name,
            kept_as=kept_as,
            outputs=tuple(sorted({*stage.outputs, *_ids(graph, former)})),
            former=former,
            dropped=tuple(sorted({*record.dropped, *record.states} - set(kept_as.values()))),
        )

    def _renewed(self, graph: Graph, stage: StagePlan, record: StageRecord) -> set[str]:
        """The parts that start over. A side input is read from its start if one of its tables must be filled."""
        renewed = {part.id for part in _parts(graph, stage) if self.consent.drops(part.id, part.owner)}
        empty = {id_ for id_ in stage.tables if self.consent.before(id_, id_) not in record.parts} | renewed
        filled = {side for id_ in empty if id_ in graph.tables for side in graph.tables[id_].side_inputs}
        return renewed | filled.intersection(stage.side_inputs)

    def _former(self, graph: Graph, record: StageRecord, written: Collection[str]) -> tuple[str, ...]:
        existing = {spec.stream.name for spec in graph.streams.values() if spec.role is Role.INTERMEDIATE}
        before = {*record.streams(reads=False), *record.former}
        return tuple(sorted((before & existing) - set(written)))

    def _ended(self, graph: Graph, record: StageRecord) -> StagePlan:
        """The empty stage in place of a removed one; without outputs if no reader must learn of its end."""
        former = self._former(graph, record, ())
        return StagePlan(
            name=record.stage,
            nodes=(),
            inputs=(),
            side_inputs=(),
            outputs=tuple(sorted(_ids(graph, former))),
            tables=(),
            former=former,
            dropped=tuple(sorted({*record.dropped, *record.states})),
        )


NO_HERITAGE = Heritage()


class _Kept(NamedTuple):
    """A kept part of a stage: ``owner`` is the step of a store, and ``name`` its first name."""

    id: str
    owner: str
    name: str


def _parts(graph: Graph, stage: StagePlan) -> Iterator[_Kept]:
    for id_ in (*stage.inputs, *stage.side_inputs):
        if graph.streams[id_].role is not Role.INTERMEDIATE:
            yield _Kept(id_, id_, str(graph.streams[id_].stream))
    for id_ in stage.outputs:
        if id_ in graph.streams and keeps_rows(graph.streams[id_].system):
            yield _Kept(id_, id_, id_)
    for id_ in stage.tables:
        if graph.tables[id_].remote is None:
            yield _Kept(id_, id_, id_)
    for id_ in stage.nodes:
        yield from (_Kept(store, id_, store) for store in graph.kept_state(id_))


def keeps_state(graph: Graph, stage: StagePlan) -> bool:
    inputs = {*stage.inputs, *stage.side_inputs}
    return any(part.id not in inputs for part in _parts(graph, stage))


def _first_names(graph: Graph, stage: StagePlan) -> dict[str, str]:
    return {part.id: part.name for part in _parts(graph, stage)}


def _ids(graph: Graph, names: Collection[str]) -> set[str]:
    return {id_ for id_, spec in graph.streams.items() if spec.role is Role.INTERMEDIATE and spec.stream.name in names}


def _unused(name: str, taken: Collection[str], mark: str) -> str:
    """The name, with the lowest number that makes it new if it was used before."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}{mark}{number}"
    return found

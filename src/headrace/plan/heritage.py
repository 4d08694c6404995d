"""The names that a changed app takes over from the version before: of stages and streams, and of their kept state.

The planner's names depend on the whole app, so any addition could change them. Here recorded names win: a stage keeps
its first name as long as it shares an input or kept state with its former self. State and positions keep the names
under which they are stored, even if the user renames their owner. A part that starts over empty gets a name that was
never used, so that old changes in a changelog and old messages in a stream have no owner.

A stage that stops writing a stream must announce its end there, because readers would otherwise wait for it. So a stage
never loses a task, or an intermediate stream that is still read, and a removed stage stays as an empty one that only
ends.

``changes`` decides whether a changed app may run. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.api.specs import Graph, Role
from headrace.core.errors import UsageError
from headrace.core.ids import StreamId
from headrace.plan.inventory import NOTHING, Inventory, StageRecord
from headrace.plan.model import StagePlan
from headrace.systems.registry import keeps_rows


@dataclass(frozen=True, slots=True)
class Consent:
    """The user's options: ids whose state may be dropped, and renamed ids with their former ones."""

    drop: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)

    def drops(self, id_: str, owner: str) -> bool:
        """Return whether the user accepts the loss of this part's state."""
        return id_ in self.drop or owner in self.drop

    def before(self, id_: str, owner: str) -> str:
        """Return the former id of a part."""
        if id_ in self.renamed:
            return self.renamed[id_]
        return self.renamed.get(owner, owner) + id_.removeprefix(owner)


NO_CONSENT = Consent()


def consent_of(drop: Sequence[str], renamed: Mapping[str, str]) -> Consent:
    """Return the user's options, checked as far as possible without the app."""
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

    # -- streams

    def adopt(self, graph: Graph) -> Graph:
        """Return the graph with the stored names of its intermediate streams."""
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
        """Return whether an intermediate stream has carried partial results; None if it is new."""
        part = next((part for _, part in self.inventory.parts() if part.kept_as == stream), None)
        return None if part is None else part.partial

    # -- stages

    def inherit(self, graph: Graph, stages: Sequence[StagePlan], tasks: Callable[[StagePlan], int]) -> list[StagePlan]:
        """Return the stages with their kept state, and the empty stages of removed ones. Names may have changed.

        Some tasks of a stage may have ended, because it needed fewer. If it needs more ``tasks`` than are active, it
        begins under a new name.
        """
        if not self.inventory and not self.inventory.gone:
            return [replace(stage, kept_as=_first_names(graph, stage)) for stage in stages]
        names = self._names(graph, stages, tasks)
        heirs = [self._heir(graph, stage, names[stage.name]) for stage in stages]
        used = {stage.name for stage in heirs}
        gone = (self._ended(graph, record) for name, record in self.inventory.stages.items() if name not in used)
        return [*heirs, *(stage for stage in gone if stage.outputs)]

    def record(self, stage: str) -> StageRecord | None:
        """Return the record of a stage."""
        return self.inventory.stages.get(stage)

    def _names(self, graph: Graph, stages: Sequence[StagePlan], tasks: Callable[[StagePlan], int]) -> dict[str, str]:
        """Return the durable name of each stage: that of the recorded stage with which it has most in common."""
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
        """Return a number that rises with the stages' common parts. Only one stage reads an intermediate stream."""
        ours = {graph.streams[id_].stream.name for id_ in stage.inputs}
        read = len(ours & old.streams(reads=True).keys())
        befores = {self.consent.before(part.id, part.owner) for part in _parts(graph, stage)}
        kept = len(befores & {id_ for id_, part in old.parts.items() if part.kind != "stream"})
        return 1000 * read + kept

    def _heir(self, graph: Graph, stage: StagePlan, name: str) -> StagePlan:
        record = self.record(name)
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
        """Return the parts that start over. A side input is read from its start if one of its tables must be filled."""
        renewed = {part.id for part in _parts(graph, stage) if self.consent.drops(part.id, part.owner)}
        empty = {id_ for id_ in stage.tables if self.consent.before(id_, id_) not in record.parts} | renewed
        return renewed | {side for side in stage.side_inputs for id_ in empty if _fills(graph, side, id_)}

    def _former(self, graph: Graph, record: StageRecord, written: Collection[str]) -> tuple[str, ...]:
        """Return the existing intermediate streams that a recorded stage no longer writes."""
        existing = {spec.stream.name for spec in graph.streams.values() if spec.role is Role.INTERMEDIATE}
        before = {*record.streams(reads=False), *record.former}
        return tuple(sorted((before & existing) - set(written)))

    def _ended(self, graph: Graph, record: StageRecord) -> StagePlan:
        """Return the empty stage in place of a removed one; without outputs if no reader must learn of its end."""
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
        node = graph.nodes[id_]
        inputs = [schema for before in node.inputs if (schema := graph.nodes[before].schema) is not None]
        yield from (_Kept(store, id_, store) for store in node.operator.kept_state(id_, inputs))


def keeps_state(graph: Graph, stage: StagePlan) -> bool:
    """Whether tasks of this stage keep anything but positions."""
    inputs = {*stage.inputs, *stage.side_inputs}
    return any(part.id not in inputs for part in _parts(graph, stage))


def _first_names(graph: Graph, stage: StagePlan) -> dict[str, str]:
    return {part.id: part.name for part in _parts(graph, stage)}


def _fills(graph: Graph, side_input: str, table: str) -> bool:
    return table in graph.tables and side_input in graph.tables[table].side_inputs


def _ids(graph: Graph, names: Collection[str]) -> set[str]:
    """Return the ids of the intermediate streams with these names."""
    return {id_ for id_, spec in graph.streams.items() if spec.role is Role.INTERMEDIATE and spec.stream.name in names}


def _unused(name: str, taken: Collection[str], mark: str) -> str:
    """Return the name, with the lowest number that makes it new if it was used before."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}{mark}{number}"
    return found

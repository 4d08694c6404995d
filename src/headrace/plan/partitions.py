"""Determine the partition count of each stream: known counts spread to the streams that are joined with them.

The counts of the app's inputs are known, and so are those that the user has fixed. Then:

1. An intermediate stream that is joined with a stream of known count gets that count, and can pass it on in turn. This
   is repeated in rounds until nothing changes.
2. The other intermediate streams get the app's ``intermediate_partitions``.
3. Without that setting, a stream that exists keeps its count. A new one gets the largest count among the app's inputs
   and outputs, at most 256.

An output without a declared count that doesn't exist gets the largest count among the inputs, without a cap.

Each round uses only results of earlier rounds, so neither the order of declaration nor the order of the joins affects
the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.api.specs import Graph, Role, StreamSpec
from headrace.core.errors import PlanError
from headrace.core.ids import MAX_PARTITIONS
from headrace.plan.joins import JoinGroup
from headrace.systems.base import StreamInfo

INTERMEDIATE_PARTITIONS_MAX = 256
"""The cap of rule 3. A setting or a join may ask for more."""

Facts = Mapping[str, StreamInfo | None]


def partition_counts(graph: Graph, facts: Facts, groups: Sequence[JoinGroup]) -> dict[str, int]:
    """Return the count of every stream by its id; raises ``PlanError`` if the streams of a join can't agree."""
    inputs = _input_counts(graph, facts)
    outputs = _output_counts(graph, facts)
    largest = min(max([*inputs.values(), *outputs.values()]), INTERMEDIATE_PARTITIONS_MAX)

    counts = inputs | _fixed_intermediate_counts(graph)
    _spread(graph, counts, groups)
    setting = graph.settings.intermediate_partitions
    if setting is None:
        counts = _existing_intermediate_counts(graph, facts) | counts
        _spread(graph, counts, groups)
    for spec in _intermediates(graph):
        counts.setdefault(spec.id, setting or largest)
    _verify_existing(graph, facts, counts)

    for spec in graph.streams.values():
        if spec.role is Role.SINK:
            counts[spec.id] = outputs.get(spec.id, max(inputs.values()))
    _check_limit(graph, counts)
    return counts


def _check_limit(graph: Graph, counts: Mapping[str, int]) -> None:
    """Raise for the first stream with more partitions than Headrace can handle."""
    for id_, count in counts.items():
        if count > MAX_PARTITIONS:
            spec = graph.streams[id_]
            raise PlanError(
                f"{spec.role.value} {id_!r} ({spec.location}: {spec.location.text}) would have {count:,} partitions, "
                f"and a stream may have at most {MAX_PARTITIONS:,}",
                hint="write partitions= at an output or partition_by; for an input, use a stream with fewer",
            )


# -- given counts -------------------------------------------------------------------------------------


def _input_counts(graph: Graph, facts: Facts) -> dict[str, int]:
    counts: dict[str, int] = {}
    for spec in graph.streams.values():
        info = facts.get(spec.id)
        if spec.role in (Role.SOURCE, Role.SIDE_INPUT) and info is not None:
            counts[spec.id] = info.partitions
    return counts


def _output_counts(graph: Graph, facts: Facts) -> dict[str, int]:
    """Return the counts of outputs that declare one or exist; other outputs follow the inputs."""
    counts: dict[str, int] = {}
    for spec in graph.streams.values():
        info = facts.get(spec.id)
        if spec.role is not Role.SINK:
            continue
        if spec.partitions is not None:
            counts[spec.id] = spec.partitions
        elif info is not None:
            counts[spec.id] = info.partitions
    return counts


def _intermediates(graph: Graph) -> list[StreamSpec]:
    return [spec for spec in graph.streams.values() if spec.role is Role.INTERMEDIATE]


def _fixed_intermediate_counts(graph: Graph) -> dict[str, int]:
    return {spec.id: spec.partitions for spec in _intermediates(graph) if spec.partitions is not None}


def _existing_intermediate_counts(graph: Graph, facts: Facts) -> dict[str, int]:
    """Return the streams that keep their counts, so that new outputs don't conflict with existing streams and state."""
    found = {spec.id: facts.get(spec.id) for spec in _intermediates(graph)}
    return {id_: info.partitions for id_, info in found.items() if info is not None}


# -- spreading ----------------------------------------------------------------------------------------


def _spread(graph: Graph, counts: dict[str, int], groups: Sequence[JoinGroup]) -> None:
    """Give every stream that is joined with one of known count, directly or through other joins, that count."""
    given = dict(counts)
    while True:
        wanted: dict[str, set[int]] = {}
        for group in groups:
            known = {counts[stream] for stream in group.streams if stream in counts}
            for stream in group.streams:
                wanted.setdefault(stream, set()).update(known)
        if any(len(choices) > 1 for choices in wanted.values()):
            raise _disagreement(graph, given, groups)
        found = {s: choices.pop() for s, choices in wanted.items() if choices and s not in counts}
        if not found:
            return
        counts.update(found)


def _verify_existing(graph: Graph, facts: Facts, counts: Mapping[str, int]) -> None:
    for id_, existing in sorted(_existing_intermediate_counts(graph, facts).items()):
        spec = graph.streams[id_]
        if counts[id_] != existing:
            # The app's own setting may differ, or a restored savepoint may have changed this count.
            raise PlanError(
                f"stream {str(spec.stream)!r} exists with {existing} partitions, "
                f"and this app needs {counts[id_]} ({spec.location}: {spec.location.text})",
                hint=f"write partitions={existing} at the step, or accept the loss of what is in the stream: "
                f"--drop-state {id_}",
            )


# -- the error ----------------------------------------------------------------------------------------


def _disagreement(graph: Graph, given: Mapping[str, int], groups: Sequence[JoinGroup]) -> PlanError:
    """Return the error, which shows the shortest chain of joins between two different given counts."""
    streams, joins = _shortest_conflict(given, groups)
    steps = [
        f"  {_meeting(graph, join)} brings together {left!r} and {right!r}"
        for left, join, right in zip(streams, joins, streams[1:], strict=False)
    ]
    first, last = (f"  {_stream(graph, stream, given)}" for stream in (streams[0], streams[-1]))
    names = " and ".join(repr(at) if at in graph.nodes else f"table {at!r}" for at in joins)
    return PlanError(
        f"streams that meet in {names} need equal partition counts, but can't have them:\n"
        + "\n".join([first, *steps, last]),
        hint=_remedy(graph, streams[0], streams[-1]),
    )


def _shortest_conflict(
    given: Mapping[str, int], groups: Sequence[JoinGroup]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Streams s0..sn and the joins between them; only s0 and sn have given counts, and these differ."""
    found: list[tuple[int, tuple[str, ...], tuple[str, ...]]] = []
    joined = sorted({stream for group in groups for stream in group.streams})
    for start in (stream for stream in joined if stream in given):
        frontier: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((start,), ())]
        seen = {start}
        while frontier:
            longer: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
            for streams, joins in frontier:
                for group in groups:
                    if streams[-1] not in group.streams:
                        continue
                    for stream in group.streams:
                        way = ((*streams, stream), (*joins, group.at))
                        if stream in given and given[stream] != given[start]:
                            found.append((len(way[1]), *way))
                        elif stream not in seen and stream not in given:
                            seen.add(stream)
                            longer.append(way)
            frontier = longer
    _, streams, joins = min(found)
    return streams, joins


def _meeting(graph: Graph, at: str) -> str:
    if at not in graph.nodes:
        spec = graph.tables[at]
        return f"table {at!r} ({spec.location}: {spec.location.text})"
    node = graph.nodes[at]
    table = node.operator.table_joined
    name = f"{node.operator.kind} {at!r}" + ("" if table is None else f" with table {table!r}")
    return f"{name} ({node.location}: {node.location.text})"


def _stream(graph: Graph, id_: str, given: Mapping[str, int]) -> str:
    spec = graph.streams[id_]
    how = "is declared with" if spec.role is Role.INTERMEDIATE and spec.partitions is not None else "has"
    return f"{spec.role.value} {id_!r} {how} {given[id_]} partitions ({spec.location}: {spec.location.text})"


def _remedy(graph: Graph, left: str, right: str) -> str:
    for id_ in (left, right):
        spec = graph.streams[id_]
        if spec.role is Role.INTERMEDIATE and spec.partitions is not None:
            return f"leave out partitions= of {id_!r}: the planner gives it the count that it needs"
        if spec.role is Role.INTERMEDIATE:
            return f"give {id_!r} another id: a stream of that name exists with another partition count"
    movable = [id_ for id_ in (left, right) if graph.streams[id_].role is Role.SOURCE]
    if not movable:
        return "fill the table by send_to instead of side_inputs=, with a partition_by before it"
    return (
        f"put a partition_by after {' or after '.join(map(repr, movable))}: "
        "an intermediate stream takes the partition count of the streams it meets"
    )

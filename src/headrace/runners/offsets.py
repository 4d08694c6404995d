"""Where the tasks of an app are in their inputs, and what the inputs hold: for ``headrace offsets``."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from headrace.core.errors import HeadraceError
from headrace.core.ids import Offset
from headrace.metadata.startpoints import StartpointKey, Startpoints, StartpointState
from headrace.runners.app_inputs import AppInput, AppInputs
from headrace.runners.committed import Committed, found_in
from headrace.runners.coordination.fan_out import next_orders
from headrace.runners.distances import lag
from headrace.runtime.connections import Connections
from headrace.systems.base import Extent
from headrace.systems.moments import is_moment
from headrace.systems.positions import newest_time

SLOTS = (
    "committed offsets count rows, because its partitions are slots, which share shards. headrace checkpoint show has "
    "the position in each shard, and headrace status of a running app says how far behind it is"
)


class InputOffsets(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A partition of an input in one task: where the last commit is, and what the partition holds.

    ``committed`` is None before the first commit. ``lag`` is in messages, ``lag_bytes`` in bytes; None: unknown.
    ``newest`` is the offset after the newest message. The times say when the messages at these offsets arrived.
    ``problem`` says why nothing is known about the partition. ``startpoint`` is the task's next one, until committed.
    While one with an end is under way, ``until`` is that end, and ``back`` where the task then goes on.
    """

    input: str
    stream: str
    partition: int
    task: str
    committed: Offset | None = None
    lag: int | None = None
    lag_bytes: int | None = None
    oldest: Offset | None = None
    newest: Offset | None = None
    committed_ms: int | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None
    sealed: bool = False
    problem: str | None = None
    startpoint: StartpointState | None = None
    until: Offset | UnsetType = UNSET
    back: Offset | UnsetType = UNSET


def read_offsets(inputs: AppInputs, committed: Committed, present: Startpoints, now_ms: int) -> list[InputOffsets]:
    """Return the offsets of all inputs, by input, partition and task; ``present`` are the startpoints of the app."""
    waiting = next_orders(present, inputs.partitions)
    connections = Connections()
    found: list[InputOffsets] = []
    try:
        for one in sorted(inputs.inputs, key=lambda one: (one.id, one.stage)):
            extents, problem = _extents(connections, inputs, one)
            for partition in range(one.partitions):
                for task in one.readers(partition):
                    position = found_in(committed(task), one, partition)
                    known = InputOffsets(
                        input=one.id,
                        stream=one.stream,
                        partition=partition,
                        task=task,
                        committed=None if position is None else position.offset,
                        until=UNSET if position is None else position.until,
                        back=UNSET if position is None else position.back,
                        problem=problem,
                        startpoint=waiting.get(StartpointKey(one.kept_as, partition, task)),
                    )
                    if partition < len(extents):
                        known = _measured(connections, inputs, one, known, extents[partition], now_ms)
                    found.append(known)
    finally:
        connections.close()
    return found


def _extents(connections: Connections, inputs: AppInputs, one: AppInput) -> tuple[list[Extent], str | None]:
    spec = inputs.system(one)
    if spec is None:
        return [], "only the app's program knows this system: give the app's file in place of its name"
    try:
        return connections.admin(spec).extents(one.ssp(0).stream.name), None
    except HeadraceError as error:
        return [], error.message


def _measured(
    connections: Connections, inputs: AppInputs, one: AppInput, known: InputOffsets, extent: Extent, now_ms: int
) -> InputOffsets:
    if is_moment(extent.upcoming):
        return msgspec.structs.replace(known, problem=SLOTS)
    spec = inputs.system(one)
    assert spec is not None  # else there would be no extents
    admin, ssp = connections.admin(spec), one.ssp(known.partition)
    known = msgspec.structs.replace(
        known,
        oldest=extent.oldest,
        newest=extent.upcoming,
        oldest_ms=admin.time_of(ssp, extent.oldest),
        newest_ms=newest_time(ssp, admin, now_ms),
        sealed=extent.sealed,
    )
    if known.committed is None:
        return known
    behind = lag(connections, spec, ssp, max(known.committed, extent.oldest), extent.upcoming)
    return msgspec.structs.replace(
        known, lag=behind.messages, lag_bytes=behind.size, committed_ms=admin.time_of(ssp, known.committed)
    )

"""The streams of an app under test: all in memory, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import polars as pl

from headrace.api.specs import Graph, StreamSpec
from headrace.checkpoint.read_committed import ReadCommitted
from headrace.core.frame import Kind, body_of, decode_control, decode_header
from headrace.core.ids import SSP, StreamId
from headrace.plan.model import StreamPlan
from headrace.runtime.connections import Connections
from headrace.serdes.hashing import partition_of, split
from headrace.systems.base import Edge, Records
from headrace.systems.registry import SystemSpec


def in_memory(graph: Graph, memory: SystemSpec) -> Graph:
    """The same app with every stream in a memory system."""
    streams = {
        id_: spec
        if id_ in graph.tables  # a remote table: its rows are in the user's service or database
        else replace(spec, system=memory, stream=StreamId(memory.name, spec.id), partitions=spec.partitions)
        for id_, spec in graph.streams.items()
    }
    return replace(graph, streams=streams, settings=replace(graph.settings, internal=memory, state_on_disk=False))


def placed(stream: StreamPlan, rows: pl.DataFrame, partition: int | None) -> list[tuple[int, pl.DataFrame]]:
    """The rows for each partition: this one; by default those of their keys, or the first if the input has no key."""
    if partition is not None or not stream.key:
        return [(partition or 0, rows)]
    return split(rows, partition_of(rows, stream.key, stream.partitions), stream.partitions)


def user_frames(connections: Connections, spec: StreamSpec, *, committed: bool) -> Iterator[bytes]:
    """The messages of a stream, as whole frames. ``committed``: only those that readers of committed ones get."""
    readers: dict[SSP, ReadCommitted[bytes]] = {}
    for some in records(connections, spec):
        reader = readers.setdefault(some.ssp, ReadCommitted(whole=True))
        following = [*some.offsets[1:], some.next]
        for offset, after, payload in zip(some.offsets, following, some.payloads, strict=True):
            header = decode_header(payload)
            if not committed:
                if header.kind is Kind.USER:
                    yield payload
                continue
            control = None if header.kind is Kind.USER else decode_control(header.kind, body_of(payload))
            released = reader.receive(offset, after, header, control, payload)
            yield from (held.frame for held in released if held.header.kind is Kind.USER)


def records(connections: Connections, spec: StreamSpec) -> Iterator[Records]:
    """What a stream holds, partition by partition."""
    admin = connections.admin(spec.system)
    with closing(connections.consumer(spec.system)) as consumer:
        for partition, extent in enumerate(admin.extents(spec.stream.name)):
            ssp = SSP(spec.stream, partition)
            consumer.register(ssp, Edge.OLDEST)
            while consumer.position(ssp) < extent.upcoming:
                yield from (polled for polled in consumer.poll([ssp], 1 << 30) if isinstance(polled, Records))

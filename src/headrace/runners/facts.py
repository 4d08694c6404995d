"""What is known of an app's streams before it is planned, from each system's admin."""

from __future__ import annotations

from headrace.api.specs import Graph, Role
from headrace.core.errors import HeadraceError
from headrace.runtime.connections import Connections
from headrace.systems.base import StreamInfo
from headrace.systems.registry import keeps_rows


def gather_facts(graph: Graph) -> dict[str, StreamInfo | None]:
    """Return the facts about each stream from its system, by the stream's id; None where the stream doesn't exist.

    Changes nothing. The error of a system names the stream and the line that declares it. An output into a row system
    has no partitions, so nothing is asked; whether it can be written is checked when the app runs.
    """
    connections = Connections()
    facts: dict[str, StreamInfo | None] = {}
    try:
        for id_, spec in graph.streams.items():
            if spec.role is Role.SINK and keeps_rows(spec.system):
                facts[id_] = None
                continue
            try:
                facts[id_] = connections.admin(spec.system).describe(spec.stream.name)
            except HeadraceError as error:
                error.message = f"{spec.role.value} stream {id_!r} ({spec.location}): {error.message}"
                raise
    finally:
        connections.close()
    return facts

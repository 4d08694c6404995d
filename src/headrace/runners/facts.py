"""What is known of an app's streams before it is planned, from each system's admin."""

from __future__ import annotations

import difflib

from headrace.api.specs import Graph, Role, StreamSpec
from headrace.core.errors import HeadraceError
from headrace.plan.validate import missing
from headrace.runtime.connections import Connections
from headrace.systems.base import Admin, StreamInfo
from headrace.systems.registry import keeps_rows


def gather_facts(graph: Graph) -> dict[str, StreamInfo | None]:
    """Return the facts about each stream from its system, by the stream's id; None where the stream doesn't exist.

    Changes nothing. The error of a system names the stream and the line that declares it. An output into a row system
    has no partitions, so nothing is asked; whether it can be written is checked when the app runs. Raises ``PlanError``
    if the app reads a stream that isn't there, but one of nearly the same name is.
    """
    connections = Connections()
    facts: dict[str, StreamInfo | None] = {}
    try:
        for id_, spec in graph.streams.items():
            if spec.role is Role.SINK and keeps_rows(spec.system):
                facts[id_] = None
                continue
            try:
                admin = connections.admin(spec.system)
                facts[id_] = admin.describe(spec.stream.name)
                near = _near(spec, admin) if facts[id_] is None else None
            except HeadraceError as error:
                error.message = f"{spec.role.value} stream {id_!r} ({spec.location}): {error.message}"
                raise
            if near is not None:
                raise missing(spec, near)
    finally:
        connections.close()
    return facts


def _near(spec: StreamSpec, admin: Admin) -> str | None:
    """The stream of the log that may have been meant by the name of one that the app reads."""
    if spec.role not in (Role.SOURCE, Role.SIDE_INPUT) or spec.system.kind != "log":
        return None
    return next(iter(difflib.get_close_matches(spec.stream.name, admin.list(), n=1)), None)

"""Determine how often each result of a stage arrives outside: the app's guarantee at its edges.

A framed output is exactly-once for readers of committed frames; a target is if it stores the position with the data.
The effects of a sink function can't be undone, so it is at-least-once whatever the app guarantees.
"""

from __future__ import annotations

from typing import Literal

from headrace.api.specs import Graph, Role
from headrace.plan.model import StagePlan

Delivery = Literal["exactly-once", "at-least-once"]


def delivery_of(graph: Graph, output: str) -> Delivery:
    """Return how often a result arrives at an output or target; a remote table's functions may see rows again."""
    table = graph.tables.get(output)
    if table is not None and table.remote is not None and table.remote.write is not None:
        return "at-least-once"
    if graph.streams[output].system.may_repeat:
        return "at-least-once"
    return "exactly-once" if graph.settings.guarantee == "exactly_once" else "at-least-once"


def deliveries(graph: Graph, stage: StagePlan) -> dict[str, Delivery]:
    """Return by id the delivery of each output of a stage, and of each step that acts outside."""
    found: dict[str, Delivery] = {
        id_: delivery_of(graph, id_) for id_ in stage.outputs if graph.streams[id_].role is Role.SINK
    }
    outside = (id_ for id_ in stage.nodes if graph.nodes[id_].operator.acts_outside)
    return found | dict.fromkeys(outside, "at-least-once")

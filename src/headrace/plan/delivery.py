"""How often each result of a stage arrives outside: what the app's guarantee is worth at its edges.

A framed output is exactly-once for readers of what is committed, a target because it keeps the position with the data.
What a sink function does outside can't be taken back, so it is at-least-once whatever the app says.
"""

from __future__ import annotations

from typing import Literal

from headrace.api.specs import Graph, Role
from headrace.api.steps import Sink
from headrace.plan.model import StagePlan

Delivery = Literal["exactly-once", "at-least-once"]


def delivery_of(graph: Graph, output: str) -> Delivery:
    """Of an output stream or target; a remote table's functions may see a row again."""
    table = graph.tables.get(output)
    if table is not None and table.remote is not None and table.remote.write is not None:
        return "at-least-once"
    return "exactly-once" if graph.settings.guarantee == "exactly_once" else "at-least-once"


def deliveries(graph: Graph, stage: StagePlan) -> dict[str, Delivery]:
    """For each output of a stage, and each sink function in it, by its id."""
    found: dict[str, Delivery] = {
        id_: delivery_of(graph, id_) for id_ in stage.outputs if graph.streams[id_].role is Role.SINK
    }
    sinks = (id_ for id_ in stage.nodes if isinstance(graph.nodes[id_].operator, Sink))
    return found | dict.fromkeys(sinks, "at-least-once")

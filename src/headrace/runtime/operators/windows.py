"""Which operator runs which window."""

from __future__ import annotations

from headrace.api.shapes import Hopping, Sliding, Tumbling
from headrace.api.specs import Node, Window
from headrace.core.errors import PlanError
from headrace.runtime.operators.base import Counters
from headrace.runtime.operators.window import WindowOperator
from headrace.runtime.operators.window_aligned import AlignedWindow
from headrace.runtime.operators.window_sliding import SlidingWindow


def window_operator(node: Node, spec: Window, counters: Counters) -> WindowOperator:
    """The operator for a window step."""
    match spec.shape:
        case Tumbling() | Hopping() as shape if not spec.marked:
            return AlignedWindow(node, spec, shape, counters)
        case Sliding() as shape:
            return SlidingWindow(node, spec, shape, counters)
        case _:
            raise PlanError(f"step {node.id!r}: there is no runtime for {spec.shape!r} yet")

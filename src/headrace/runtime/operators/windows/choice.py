"""Picks the operator that runs a window."""

from __future__ import annotations

from dataclasses import replace

from headrace.api import shapes
from headrace.api.operators.window import Window
from headrace.api.specs import Node
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.windows.aligned import AlignedWindow
from headrace.runtime.operators.windows.assigned import AssignedWindow, WholeWindow
from headrace.runtime.operators.windows.base import WindowOperator
from headrace.runtime.operators.windows.count import CountedWindow
from headrace.runtime.operators.windows.session import SessionWindow
from headrace.runtime.operators.windows.sliding import SlidingWindow

MergeableWindow = AlignedWindow | SessionWindow
"""These windows can ``combine`` messages into partial results, and take partial results as input."""


def build_window(node: Node, spec: Window, context: BuildContext) -> WindowOperator:
    """The operator for a window step."""
    return _window(node, spec, context.counters, combined=context.takes_partials)


def _window(node: Node, spec: Window, counters: Counters, *, combined: bool = False) -> WindowOperator:
    """``combined``: its input is partial results, made before the shuffle."""
    by_function = any(aggregate.function is not None for _, aggregate in spec.aggregates)
    match spec.shape:
        case shapes.Tumbling() | shapes.Hopping() as shape if not spec.marked and not by_function:
            return AlignedWindow(node, spec, shape, counters, combined=combined)
        case shapes.Tumbling() | shapes.Hopping() as shape:
            return AssignedWindow(node, spec, shape, counters)
        case shapes.Sliding() as shape:
            return SlidingWindow(node, spec, shape, counters)
        case shapes.Session() as shape:
            return SessionWindow(node, spec, shape, counters, combined=combined)
        case shapes.GlobalWindow():
            return WholeWindow(node, spec, counters)
        case shapes.CountWindow(size=size, every=every) if size == every:
            full = shapes.Trigger(f"every {size}", (shapes.Alternative(True, size),))
            return WholeWindow(node, replace(spec, early=full, panes="discarding"), counters)
        case shapes.CountWindow() as shape:
            return CountedWindow(node, spec, shape, counters)


def mergeable_window(node: Node, spec: Window, counters: Counters) -> MergeableWindow:
    """The operator that makes partial results of a window that ``plan.combining`` chose."""
    window = _window(node, spec, counters)
    if not isinstance(window, MergeableWindow):
        raise TypeError(f"{spec.shape!r} has no partial results")
    return window

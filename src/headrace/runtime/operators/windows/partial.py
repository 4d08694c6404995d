"""Partial results of a window, made before the shuffle: where ``plan.combining`` found that less says the same."""

from __future__ import annotations

import polars as pl
from typing_extensions import override

from headrace.api.specs import Node
from headrace.api.steps import Window
from headrace.runtime.operators.base import Counters, Operator
from headrace.runtime.operators.windows.choice import mergeable_window


class CombineOperator(Operator):
    """Stands before the ``partition_by`` of a window, and turns messages into partial results of it."""

    def __init__(self, node: Node, spec: Window, counters: Counters) -> None:
        """``node`` is the window's: errors name it."""
        super().__init__(node)
        self._window = mergeable_window(node, spec, counters)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        self.emit(self._window.combine(rows))

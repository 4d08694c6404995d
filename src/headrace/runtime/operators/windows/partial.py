"""Partial results of a window, made before the shuffle where ``plan.combining`` found that these give the same."""

from __future__ import annotations

import polars as pl
from typing_extensions import override

from headrace.api.operators.window import Window
from headrace.api.specs import Node
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.windows.choice import mergeable_window


class CombineOperator(Operator):
    """Turns messages into partial results of a window, before the ``partition_by`` that writes them."""

    def __init__(self, window: Node, counters: Counters) -> None:
        """Errors name the window's node."""
        super().__init__(window)
        if not isinstance(window.operator, Window):
            raise TypeError(f"step {window.id!r} is no window")
        self._window = mergeable_window(window, window.operator, counters)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        self.emit(self._window.combine(rows))

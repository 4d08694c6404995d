"""What operators have in common that wait for answers: a line of results to come, and a lane of calls.

Order: results leave as ``ReorderQueue`` says, never past a watermark. On the run loop's thread, and nothing here
blocks. The operator is full while twice as many results stand in line as it may call at once, so what it holds is
bounded by that and one batch.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Generic, TypeVar

from typing_extensions import override

from headrace.api.specs import Node
from headrace.runtime.calls.lanes import Lane, Tally
from headrace.runtime.calls.reorder_queue import ReorderQueue
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.operators.base import Counters, Operator

Result = TypeVar("Result")
_COUNTED = {"calls": "calls", "ms": "call_ms", "retries": "call_retries", "timeouts": "call_timeouts",
            "failures": "call_failures"}  # fmt: skip


class LaneCounts:
    """Adds what a lane does to the task's counters: ``calls``, ``call_ms``, ``calls_in_flight``, ..."""

    def __init__(self, lane: Lane[Any], counters: Counters) -> None:
        self._lane = lane
        self._counters = counters
        self._told = Tally()
        self._in_flight = 0

    def tell(self) -> None:
        """Count what happened since the last time."""
        for field in fields(Tally):
            now = int(getattr(self._lane.tally, field.name))
            self._counters.count(_COUNTED[field.name], now - int(getattr(self._told, field.name)))
            setattr(self._told, field.name, now)
        self._counters.count("calls_in_flight", self._lane.unfinished - self._in_flight)
        self._in_flight = self._lane.unfinished


class WaitingOperator(Operator, Generic[Result]):
    """Subclasses stand in line in ``on_batch``, put results there in ``settle``, and emit them in ``release``."""

    def __init__(self, node: Node, *, ordered: bool, most: int) -> None:
        """``most``: so many results may stand in line before it is full."""
        super().__init__(node)
        self._line: ReorderQueue[Result] = ReorderQueue(ordered=ordered)
        self._most = most
        self._passed = NEVER

    def settle(self) -> None:
        """Put into the line what has come."""
        raise NotImplementedError

    def release(self, results: list[Result]) -> None:
        """Emit results whose turn has come."""
        raise NotImplementedError

    # -- see ``Operator``

    @override
    def on_watermark(self, watermark: int) -> None:
        if self.holding:
            self._line.mark(watermark)
        else:
            self._passed = watermark

    @override
    def watermark_behind(self, watermark: int) -> int:
        return self._passed

    @override
    def resume(self, watermark: int) -> None:
        self._passed = watermark

    @property
    @override
    def holding(self) -> bool:
        """See ``Operator``. A watermark stands in line only as long as results do before it."""
        return len(self._line) > 0

    @property
    @override
    def full(self) -> bool:
        return len(self._line) >= self._most

    @override
    def collect(self) -> bool:
        self.settle()
        results, watermark = self._line.leave()
        if results:
            self.release(results)
        if watermark is not None:
            self._passed = watermark
        return bool(results) or watermark is not None

"""The base of operators that wait for calls: a reorder queue of results, and a lane of calls.

Results leave in the order of the ``ReorderQueue``, and never pass a watermark. All of this runs on the run loop's
thread, and nothing blocks. The operator is full while the queue holds twice as many results as it may call at once, so
what it holds is bounded by that and one batch.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Generic, TypeVar

from typing_extensions import override

from headrace.api.specs import Node
from headrace.runtime.calls.lanes import Lane, Tally
from headrace.runtime.calls.reorder_queue import ReorderQueue
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.base import Operator

Result = TypeVar("Result")
_COUNTED = {"calls": "calls", "ms": "call_ms", "retries": "call_retries", "timeouts": "call_timeouts",
            "failures": "call_failures"}  # fmt: skip


class LaneCounts:
    """Adds the activity of a lane to the task's counters: ``calls``, ``call_ms``, ``calls_in_flight``, ..."""

    def __init__(self, lane: Lane[Any], counters: Counters) -> None:
        self._lane = lane
        self._counters = counters
        self._counted = Tally()
        self._in_flight = 0

    def update(self) -> None:
        """Count what happened since the last call."""
        for field in fields(Tally):
            now = int(getattr(self._lane.tally, field.name))
            self._counters.count(_COUNTED[field.name], now - int(getattr(self._counted, field.name)))
            setattr(self._counted, field.name, now)
        self._counters.count("calls_in_flight", self._lane.unfinished - self._in_flight)
        self._in_flight = self._lane.unfinished


class WaitingOperator(Operator, Generic[Result]):
    """Subclasses take places in the queue in ``on_batch``, fill them in ``settle``, and emit results in ``release``."""

    def __init__(self, node: Node, *, ordered: bool, most: int) -> None:
        """``most``: the number of results in the queue from which on it is full."""
        super().__init__(node)
        self._queue: ReorderQueue[Result] = ReorderQueue(ordered=ordered)
        self._most = most
        self._passed = NEVER

    def settle(self) -> None:
        """Put the results that have arrived into the queue."""
        raise NotImplementedError

    def release(self, results: list[Result]) -> None:
        """Emit results that are in turn."""
        raise NotImplementedError

    # -- the operator's hooks

    @override
    def on_watermark(self, watermark: int) -> None:
        if self.holding:
            self._queue.mark(watermark)
        else:
            self._passed = watermark

    @override
    def watermark_after(self, watermark: int) -> int:
        return self._passed

    @override
    def resume(self, watermark: int) -> None:
        self._passed = watermark

    @property
    @override
    def holding(self) -> bool:
        # A watermark is queued only as long as results are queued before it.
        return len(self._queue) > 0

    @property
    @override
    def full(self) -> bool:
        return len(self._queue) >= self._most

    @override
    def collect(self) -> bool:
        self.settle()
        results, watermark = self._queue.leave()
        if results:
            self.release(results)
        if watermark is not None:
            self._passed = watermark
        return bool(results) or watermark is not None

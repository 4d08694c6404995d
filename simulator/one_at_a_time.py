"""A task's operators, one message at a time: what the results of batches are measured against.

A chain *hears* rows, event time and the clock. What it has heard for its commits is heard again by new operators
without meetings, each row alone, and each result alone: they must write the same rows in the same order, and keep the
same tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.api.operators.functions import MapAsync
from headrace.core.ids import TaskName
from headrace.plan.chain_plan import ChainPlan
from headrace.plan.order import Order
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.chain import Chain
from headrace.runtime.event_time.watermark import Progress
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.provenance import Arrival, Origin

Heard = tuple[str, tuple[Any, ...]]
"""A method of a chain that was called, and with what."""
Rows = dict[str, list[tuple[Any, ...]]]


@dataclass
class Written:
    """A port that keeps all rows by stream, with the columns of each in one order."""

    rows: Rows = field(default_factory=dict)

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        """See ``Port``."""
        self.rows.setdefault(stream, []).extend(rows.select(sorted(rows.columns)).rows())


def without_meetings(plan: ChainPlan) -> ChainPlan:
    """The same operators, connected as if flows never met again."""
    return replace(plan, order=Order(branches=plan.order.branches, inputs=plan.order.inputs))


def hand_on_each_row(chain: Chain) -> None:
    """Make all operators of a chain hand on each row alone, all the way, before the next one."""
    for operator in chain.connected:
        _hand_on_each_row(operator)


def _hand_on_each_row(operator: Operator) -> None:
    def emit(rows: pl.DataFrame) -> None:
        for row in rows.iter_slices(1):
            for after in operator.after:
                after.receive(row)

    def emit_aside(output: str, rows: pl.DataFrame) -> None:
        for row in rows.iter_slices(1):
            for after in operator.aside.get(output, ()):
                after.receive(row)

    operator.emit = emit  # type: ignore[method-assign]
    operator.emit_aside = emit_aside  # type: ignore[method-assign]


class _OfOneRow(Arrival):
    """The arrival of a single row of others."""

    def __init__(self, arrival: Arrival, number: int) -> None:
        super().__init__(arrival.ssp, arrival.first, arrival.after, 1, shard=arrival.shard)
        self._origin = arrival.place(number)

    @override
    def place(self, row: int | None) -> Origin:
        return self._origin


def waits_for_answers(plan: ChainPlan) -> bool:
    """Some results leave when answers arrive, so their order isn't known from what is heard."""
    remote = {table.id for table in plan.tables.tables if table.remote is not None}
    operators = [node.operator for node in plan.nodes.values()]
    return any(isinstance(operator, MapAsync) or operator.table_joined in remote for operator in operators)


def heard_again(plan: ChainPlan, task: TaskName, events: Iterable[Heard]) -> Rows:
    """What the operators write that hear this, one row at a time."""
    written = Written()
    chain = Chain(without_meetings(plan), written, TaskMetrics(), Calls(lambda: None))
    hand_on_each_row(chain)
    chain.tell_time(0)
    chain.begin(task)
    for method, given in events:
        if method == "process":
            stream, rows, arrival = given
            for number, row in enumerate(rows.iter_slices(1)):
                chain.process(stream, row, None if arrival is None else _OfOneRow(arrival, number))
        else:
            getattr(chain, method)(*given)
    return written.rows


class Record:
    """What one incarnation of a chain has heard and written since its last commit."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.written: list[tuple[str, pl.DataFrame]] = []

    def take(self) -> tuple[tuple[Heard, ...], tuple[tuple[str, pl.DataFrame], ...]]:
        """All of it, which is forgotten here."""
        taken = tuple(self.heard), tuple(self.written)
        self.heard.clear()
        self.written.clear()
        return taken

    def process(self, stream: str, rows: pl.DataFrame, arrival: Arrival | None) -> None:
        """Rows are processed."""
        self.heard.append(("process", (stream, rows, arrival)))

    def update(self, stream: str, rows: pl.DataFrame) -> None:
        """Rows of a side input come."""
        self.heard.append(("update", (stream, rows)))

    def advance(self, inputs: Mapping[str, Progress]) -> None:
        """Event time advances."""
        self.heard.append(("advance", (dict(inputs),)))

    def on_time(self, now_ms: int) -> None:
        """The clock shows a time, and what is due happens."""
        self.heard.append(("on_time", (now_ms,)))

    def tell_time(self, now_ms: int) -> None:
        """The clock shows a time, and nothing happens yet."""
        self.heard.append(("tell_time", (now_ms,)))


def together(written: Iterable[tuple[str, pl.DataFrame]]) -> Rows:
    """What was written, by stream."""
    port = Written()
    for stream, rows in written:
        port.write(stream, rows)
    return port.rows

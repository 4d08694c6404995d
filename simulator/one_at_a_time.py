"""A task's operators, one message at a time: what the results of batches are measured against.

A chain *hears* rows, event time and the clock. What it has heard for its commits is heard again by new operators
without meetings, each row alone, and each result alone: they must write the same rows in the same order.

Where the chain was built again from a commit, the operators are, too, from their state: some things aren't kept, such
as the latest that a clock has shown, and the next clock may be behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.api.operators.steps import MapAsync
from headrace.core.ids import TaskName
from headrace.plan.chain_plan import ChainPlan
from headrace.plan.order import Order
from headrace.task.calls import Calls
from headrace.task.event_time import Progress, TimesCheckpoint
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.base import Arrival, Operator, Origin
from headrace.task.scope import TaskScope
from headrace.task.task import Chain

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


def heard_again(plan: ChainPlan, events: Iterable[Heard]) -> Rows:
    """What the operators write that hear this, one row at a time."""
    lives = _Lives(plan)
    chain = lives.next()
    for method, given in events:
        if method == "load":
            chain = lives.next()
            chain.load(*given)
        elif method == "process":
            stream, rows, arrival = given
            for number, row in enumerate(rows.iter_slices(1)):
                chain.process(stream, row, None if arrival is None else _OfOneRow(arrival, number))
        else:
            getattr(chain, method)(*given)
    return lives.written.rows


class _Lives:
    """The operators, built again whenever the task restarted, with the state that they had."""

    def __init__(self, plan: ChainPlan) -> None:
        self.written = Written()
        self._plan = without_meetings(plan)
        self._chain: Chain | None = None
        self._changes: dict[str, list[bytes]] = defaultdict(list)
        self._version = 0

    def next(self) -> Chain:
        """New operators; their state is that of those before."""
        if self._chain is not None:
            self._version += 1
            for id_, store in self._chain.stores().items():
                self._changes[id_] += store.take_changes(self._version)
            self._chain.close()
        self._chain = Chain(self._plan, self.written, TaskMetrics(), Calls(lambda: None))
        hand_on_each_row(self._chain)
        for id_, store in self._chain.stores().items():
            for change in self._changes[id_]:
                store.apply(change)
        return self._chain


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

    def load(self, times: TimesCheckpoint, inputs: Mapping[str, Progress], scope: TaskScope) -> None:
        """A new chain continues from a commit."""
        self.heard.append(("load", (times, dict(inputs), scope)))

    def begin(self, task: TaskName) -> None:
        """The state of a new chain has been restored."""
        self.heard.append(("begin", (task,)))

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

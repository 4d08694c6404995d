"""The startpoints that one task has to apply: which are due, and which a commit covers. Pure.

A startpoint is applied exactly once, because the commit record names the last one applied to each source partition. An
order that the record names is *covered*: it is never applied again, only released, and the coordinator deletes it. An
order that no record names is *due*: each start and each rollback applies it again, until a commit counts. So it doesn't
matter when a task dies, or whether the coordinator learns that an order was released.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.checkpoint.record import CommitRecord, SourceEntry
from headrace.systems.startpoint import Order


class TaskOrders:
    """The orders of one task, from one start or rollback to the next.

    ``due`` are to be applied at the start. ``covered`` are those that a commit which counts includes.
    """

    def __init__(self) -> None:
        self.due: tuple[Order, ...] = ()
        self.covered: tuple[Order, ...] = ()
        self._applied: dict[tuple[str, int], str] = {}

    def begin(self, orders: Iterable[Order]) -> None:
        """Take the orders that were granted with a generation."""
        self.due, self.covered = tuple(orders), ()

    def adopt(self, record: CommitRecord | None) -> None:
        """Set aside the orders that the last commit covers."""
        sources = record.sources if record is not None else ()
        self._applied = {(entry.stream, entry.partition): entry.startpoint for entry in sources if entry.startpoint}
        granted = self.due
        self.covered = tuple(order for order in granted if self._covers(order))
        self.due = tuple(order for order in granted if not self._covers(order))
        self._applied |= {(order.stream, order.partition): order.startpoint.id for order in self.due}

    def stamp(self, sources: Iterable[SourceEntry]) -> tuple[SourceEntry, ...]:
        """Return the positions for a commit record, each with the startpoint that was last applied to it."""
        applied = ((entry, self._applied.get((entry.stream, entry.partition), "")) for entry in sources)
        return tuple(msgspec.structs.replace(entry, startpoint=id_) if id_ else entry for entry, id_ in applied)

    def committed(self) -> None:
        """Note that a commit counts, which covers the applied orders."""
        self.covered, self.due = (*self.covered, *self.due), ()

    def released(self) -> None:
        """Note that the coordinator knows which orders are covered."""
        self.covered = ()

    def _covers(self, order: Order) -> bool:
        return self._applied.get((order.stream, order.partition)) == order.startpoint.id

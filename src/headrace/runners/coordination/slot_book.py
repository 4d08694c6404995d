"""The slots of a run: the tasks' reports about them, and the dealers' orders. Pure.

Reports arrive in heartbeats, and the answers carry orders. Orders belong to the generation whose reports they follow
from; a task with another generation ignores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.core.ids import SSP, TaskName
from headrace.runners.coordination.messages import SlotDirections, TaskStatus
from headrace.systems.slot_reports import SlotOrders, SlotReport


@dataclass(frozen=True, slots=True)
class SlottedInput:
    """An input of a stage whose partitions are slots: the slots in order, each with the task that reads it."""

    stage: str
    stream: str
    slots: tuple[tuple[TaskName, SSP], ...]


class SlotBook:
    """The slots of one deployment."""

    def __init__(self, inputs: Iterable[SlottedInput] = ()) -> None:
        self.inputs = tuple(inputs)
        self._orders: dict[TaskName, dict[SSP, tuple[int, SlotOrders]]] = {}
        self._numbers: dict[TaskName, int] = {}
        self._number = 0

    def reports(self, of: SlottedInput, tasks: Mapping[TaskName, TaskStatus]) -> list[SlotReport | None]:
        """Return the present reports about each slot of an input; None: nothing yet in this life of its task."""
        return [tasks[task].slots.get(str(ssp)) for task, ssp in of.slots]

    def order(
        self, of: SlottedInput, reports: Sequence[SlotReport | None], orders: Sequence[SlotOrders | None]
    ) -> None:
        """Record the orders that follow from these reports."""
        self._number += 1
        for (task, ssp), report, one in zip(of.slots, reports, orders, strict=True):
            if report is not None and one is not None:
                self._numbers[task] = self._number
                self._orders.setdefault(task, {})[ssp] = (report.generation, one)

    def directions(self, tasks: Iterable[TaskName]) -> dict[str, SlotDirections]:
        """Return the orders for these tasks, each for the newest generation with orders."""
        return {
            str(task): _directions(self._numbers[task], self._orders[task]) for task in tasks if task in self._orders
        }


def _directions(number: int, orders: Mapping[SSP, tuple[int, SlotOrders]]) -> SlotDirections:
    newest = max(generation for generation, _ in orders.values())
    slots = {str(ssp): dict(one) for ssp, (generation, one) in orders.items() if generation == newest}
    return SlotDirections(generation=newest, number=number, slots=slots)

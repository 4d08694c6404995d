"""A task's reports about its slots, and the dealer's orders for them.

Runs on the run-loop thread; nothing blocks. Reports contain only committed positions, never merely read ones, because
the dealer moves shards to other slots based on them. Orders apply only to the generation that they were given to.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.ids import SSP
from headrace.runtime.event_time.watermark import FOREVER, NEVER
from headrace.runtime.inputs.consumers import InputConsumers
from headrace.runtime.task import Task
from headrace.systems.slot_reports import Shards, SlotOrders, SlotReport


class Slots:
    """The slots of one task. A generation reports nothing before it has resumed."""

    def __init__(self, inputs: InputConsumers) -> None:
        self._inputs = inputs
        self._names = inputs.slots()
        self._generation = 0
        self._committed: Mapping[SSP, Shards] | None = None
        self._sealed: Mapping[SSP, Shards] = {}
        self._version = -1
        self._number = 0
        """The number of the last orders; 0 before the first."""

    def taken_over(self, generation: int) -> None:
        """Begin another generation."""
        self._generation, self._committed, self._number = generation, None, 0

    def resumed(self, shards: Mapping[SSP, Shards], version: int) -> None:
        """Continue from a commit with these shards; the version is -1 if there was no commit."""
        self._version = version
        self._committed = {ssp: shards.get(ssp, {}) for ssp in self._names}

    def sealed(self, shards: Mapping[SSP, Shards]) -> None:
        """Note that a commit with these shards is being written."""
        self._sealed = {ssp: shards.get(ssp, {}) for ssp in self._names}

    def committed(self, version: int) -> None:
        """Note that the commit counts."""
        self._committed, self._version = self._sealed, version

    def unsettled(self, task: Task) -> bool:
        """Whether the task waits for the dealer's orders, or the dealer may wait for its report."""
        return bool(self._names) and (not self._number or any(task.times[ssp].holds for ssp in self._names))

    def reports(self, task: Task) -> dict[SSP, SlotReport]:
        """Return the present report about each slot; none before the generation has resumed."""
        return {ssp: self._report(task, ssp, shards) for ssp, shards in (self._committed or {}).items()}

    def _report(self, task: Task, ssp: SSP, shards: Shards) -> SlotReport:
        # While the slot was idle, the task's event time may have advanced; older messages are late for it.
        watermark = max(task.times[ssp].progress.watermark, task.progress.watermark)
        known = None if watermark in (NEVER, FOREVER) else watermark
        return SlotReport(self._generation, dict(shards), known, dict(self._inputs.behind_ms(ssp)), self._version)

    def direct(self, generation: int, number: int, orders: Mapping[str, SlotOrders]) -> None:
        """Follow the dealer's orders, by slot as text, if they are for this generation and the latest so far.

        Several threads pass orders on, so one may arrive after a later one. Following it could read a shard again that
        has been finished and dropped since then.
        """
        if generation == self._generation and number >= self._number and self._committed is not None:
            self._number = number
            self._inputs.direct({ssp: orders[str(ssp)] for ssp in self._names if str(ssp) in orders})

"""Deals shards to slots while an app runs: a thread in the driver, with a dealer for each slotted input of a stage.

The thread may block on calls to the input's system; reports and orders wait for it in the coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import Protocol

from headrace.core.errors import HeadraceError
from headrace.core.log import Throttle, logger
from headrace.plan.model import Plan, StagePlan
from headrace.runners.coordination.slot_book import SlottedInput
from headrace.systems.registry import open_row_system
from headrace.systems.slot_reports import SlotOrders, SlotReport
from headrace.systems.slotted import Dealer, SlottedSystem

LOOK_S = 0.5
"""How often the dealers are asked when no report comes: shards come and go without the app."""

_log = logger(__name__)


class SlotDesk(Protocol):
    """What the thread asks of the coordinator."""

    def slot_reports(self, of: SlottedInput) -> list[SlotReport | None]:
        """Return what tasks say about the slots of an input."""
        ...

    def order_slots(
        self, of: SlottedInput, reports: list[SlotReport | None], orders: Iterable[SlotOrders | None]
    ) -> None:
        """Send tasks the orders that follow from these reports."""
        ...

    def wait_for_slots(self, timeout_s: float) -> None:
        """Wait for another report, or for the timeout."""
        ...


def slotted_inputs(plan: Plan, stages: Collection[str] = ()) -> list[SlottedInput]:
    """The inputs of these stages (default: all) whose partitions are slots."""
    return [
        _slotted(plan, stage, id_)
        for stage in plan.stages
        if not stages or stage.name in stages
        for id_ in stage.inputs
        if plan.streams[id_].spec.slots
    ]


def _slotted(plan: Plan, stage: StagePlan, id_: str) -> SlottedInput:
    readers = {ssp: task.name for task in stage.tasks for ssp in task.inputs}
    return SlottedInput(stage.name, id_, tuple((readers[ssp], ssp) for ssp in plan.streams[id_].ssps()))


class SlotDealing:
    """The dealers of a run, and their thread. ``fail`` ends the app."""

    def __init__(
        self,
        plan: Plan,
        inputs: Iterable[SlottedInput],
        desk: SlotDesk,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._inputs = list(inputs)
        self._plan = plan
        self._desk = desk
        self._fail = fail
        self._closing = threading.Event()
        self._throttle = Throttle(_log)
        self._thread = threading.Thread(target=self._run, name="headrace-slots", daemon=True)

    def start(self) -> None:
        """Start the thread, if there is anything to deal."""
        if self._inputs:
            self._thread.start()

    def close(self) -> None:
        """End the thread, and wait for it: the dealers say last what tasks have committed."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                dealers = {}
                for one in self._inputs:
                    dealers[one] = self._dealer(one)
                    stack.callback(dealers[one].close)
                while not self._closing.is_set():
                    self._deal(dealers)
                    self._desk.wait_for_slots(LOOK_S)
                self._deal(dealers)
        except Exception as error:  # noqa: BLE001 - without a dealer, shards would be left unread
            self._fail(error)

    def _dealer(self, of: SlottedInput) -> Dealer:
        spec = self._plan.streams[of.stream].spec
        system = open_row_system(spec.system)
        assert isinstance(system, SlottedSystem)
        return system.dealer(spec.stream.name, f"{self._plan.graph.app}/{of.stage}")

    def _deal(self, dealers: Mapping[SlottedInput, Dealer]) -> None:
        for one, dealer in dealers.items():
            reports = self._desk.slot_reports(one)
            try:
                orders = dealer.deal(reports)
            except HeadraceError as error:
                if not error.retry:
                    raise
                self._throttle.warning("can't deal shards now; trying again", input=one.stream, error=error.message)
                continue
            self._desk.order_slots(one, reports, orders)

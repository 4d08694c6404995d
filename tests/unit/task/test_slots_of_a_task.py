"""A task reports what its commits say about slots, and follows the latest orders for its own generation only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from headrace.core.ids import SSP, StreamId
from headrace.systems.slot_reports import SlotOrders, SlotReport
from headrace.task.event_time import NEVER, PartitionTime, Progress
from headrace.task.host.orders import Slots
from headrace.task.inputs.consumers import InputConsumers
from headrace.task.task import Task

SLOT = SSP(StreamId("kinesis-orders", "orders"), 0)


class Inputs:
    """One slot, and the orders that came to it."""

    def __init__(self) -> None:
        self.followed: list[SlotOrders] = []

    def slots(self) -> list[SSP]:
        return [SLOT]

    def behind_ms(self, ssp: SSP) -> Mapping[str, int]:
        return {"a": 7}

    def direct(self, orders: Mapping[SSP, SlotOrders]) -> None:
        self.followed.append(orders[SLOT])


class OneSlot:
    """A task with the event time of one slot, and its own."""

    def __init__(self, watermark: int = NEVER) -> None:
        self.times = {SLOT: PartitionTime(SLOT)}
        self.progress = Progress(watermark)


def resumed(generation: int = 3) -> tuple[Slots, Inputs]:
    inputs = Inputs()
    slots = Slots(cast("InputConsumers", inputs))
    slots.taken_over(generation)
    slots.resumed({SLOT: {"a": "5"}}, 6)
    return slots, inputs


TASK = cast("Task", OneSlot())


def test_nothing_is_reported_before_the_task_has_resumed():
    slots, _ = resumed()
    assert slots.reports(TASK) == {SLOT: SlotReport(3, {"a": "5"}, None, {"a": 7}, 6)}
    slots.taken_over(4)
    assert slots.reports(TASK) == {}


def test_a_slot_has_come_as_far_as_its_task():
    slots, _ = resumed()
    assert slots.reports(cast("Task", OneSlot(70)))[SLOT].watermark == 70


def test_a_commit_is_reported_when_it_counts():
    slots, _ = resumed()
    slots.sealed({SLOT: {"a": "9"}})
    assert slots.reports(TASK)[SLOT].shards == {"a": "5"}
    slots.committed(7)
    assert slots.reports(TASK)[SLOT].shards == {"a": "9"}


def test_orders_of_another_generation_are_ignored():
    slots, inputs = resumed()
    slots.direct(2, 9, {str(SLOT): {"b": "READ TRIM_HORIZON"}})
    slots.taken_over(4)
    slots.direct(3, 9, {str(SLOT): {"b": "READ TRIM_HORIZON"}})
    slots.direct(4, 9, {str(SLOT): {"b": "READ TRIM_HORIZON"}})  # before it has resumed
    assert inputs.followed == []


def test_earlier_orders_that_come_later_are_ignored():
    slots, inputs = resumed()
    assert slots.unsettled(TASK)
    slots.direct(3, 8, {str(SLOT): {"a": "FORGET"}})
    slots.direct(3, 7, {str(SLOT): {"a": "READ TRIM_HORIZON"}})
    slots.direct(3, 8, {str(SLOT): {"a": "FORGET"}})
    assert inputs.followed == [{"a": "FORGET"}, {"a": "FORGET"}]
    assert not slots.unsettled(TASK)

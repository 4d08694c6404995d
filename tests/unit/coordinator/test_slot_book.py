"""Orders for slots go to the generation whose reports they follow from."""

from __future__ import annotations

from headrace.coordinator.books import SlotBook, SlottedInput
from headrace.coordinator.messages import SlotDirections, TaskStatus
from headrace.core.ids import SSP, StreamId, TaskName
from headrace.systems.slot_reports import SlotReport

FIRST, SECOND = TaskName("orders", 0), TaskName("orders", 1)
STREAM = StreamId("kinesis-orders", "orders")
SLOTS = tuple((task, SSP(STREAM, n)) for n, task in enumerate([FIRST, SECOND, FIRST]))
INPUT = SlottedInput("orders", "orders", SLOTS)


def said(generation: int, **slots: dict[str, str]) -> TaskStatus:
    """A task's status; slots are named ``s0``, ``s1``..."""
    return TaskStatus(
        name="any",
        state="running",
        slots={str(SSP(STREAM, int(n[1:]))): SlotReport(generation=generation, shards=one) for n, one in slots.items()},
    )


def test_reports_are_in_the_order_of_slots_and_none_is_made_up():
    book = SlotBook([INPUT])
    silent = TaskStatus(name="any", state="starting", generation=7)
    tasks = {FIRST: said(3, s0={"a": "5"}, s2={}), SECOND: silent}
    assert book.reports(INPUT, tasks) == [SlotReport(3, {"a": "5"}), None, SlotReport(3, {})]


def test_orders_name_the_generation_that_they_are_for():
    book = SlotBook([INPUT])
    reports = [SlotReport(3, {}), SlotReport(4, {}), SlotReport(3, {})]
    book.order(INPUT, reports, [{"a": "READ TRIM_HORIZON"}, {}, {"b": "FORGET"}])
    names = [str(ssp) for _, ssp in SLOTS]
    directions = book.directions([FIRST, SECOND])
    assert directions[str(FIRST)] == SlotDirections(
        generation=3, number=1, slots={names[0]: {"a": "READ TRIM_HORIZON"}, names[2]: {"b": "FORGET"}}
    )
    assert directions[str(SECOND)] == SlotDirections(generation=4, number=1, slots={names[1]: {}})


def test_a_new_generation_gets_none_of_the_orders_of_the_one_before():
    book = SlotBook([INPUT])
    book.order(INPUT, [SlotReport(3, {}), None, SlotReport(3, {})], [{"a": "EXPECT"}, None, {}])
    book.order(INPUT, [SlotReport(5, {}), None, SlotReport(3, {})], [{}, None, {}])
    assert book.directions([FIRST])[str(FIRST)] == SlotDirections(generation=5, number=2, slots={str(SLOTS[0][1]): {}})
    assert book.directions([SECOND]) == {}

"""The event time of a slot is that of its shards: it waits for those that it has, and for those that will come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import SSP, StreamId
from headrace.task.event_time import NEVER, PartitionTime, Progress

SLOT = SSP(StreamId("kinesis-orders", "orders"), 0)


def slot_with(*shards: str, holding: tuple[str, ...] = ()) -> PartitionTime:
    """A slot that has been told its shards."""
    slot = PartitionTime(SLOT)
    slot.has_shards(shards, holding)
    return slot


def test_a_slot_is_waited_for_until_it_has_been_told_its_shards():
    assert PartitionTime(SLOT).progress == Progress()
    assert slot_with().progress == Progress(idle=True)


def test_the_slowest_shard_counts():
    slot = slot_with("a", "b")
    slot.advance(50, "a")
    assert slot.progress == Progress()
    slot.advance(20, "b")
    assert slot.progress == Progress(20)
    slot.advance(40, "b")
    assert slot.progress == Progress(40)


def test_a_shard_that_comes_begins_at_the_time_of_the_slot():
    slot = slot_with("a")
    slot.advance(50, "a")
    slot.has_shards(("a", "b"), holding=("b",))
    slot.advance(90, "a")
    assert slot.progress == Progress(50), "b has been promised nothing later than 50"
    slot.has_shards(("a", "b"))
    slot.advance(70, "b")
    assert slot.progress == Progress(70)


def test_a_shard_that_has_ended_holds_the_slot_until_it_is_dropped():
    slot = slot_with("parent", "other")
    slot.advance(10, "parent")
    slot.has_shards(("parent", "other"), holding=("parent",))
    slot.advance(90, "other")
    assert slot.progress == Progress(10)
    assert slot.holds
    slot.has_shards(("other", "child"))
    slot.advance(30, "child")
    assert slot.progress == Progress(30)
    assert not slot.holds


def test_a_quiet_shard_falls_idle_and_one_that_is_held_does_not():
    slot = slot_with("a", "b", "gone", holding=("gone",))
    for shard in ("a", "b", "gone"):
        slot.advance(10, shard)
    slot.advance(50, "a")
    assert slot.sending == ["a", "b"]
    slot.fall_idle("b")
    assert slot.progress == Progress(10), "it waits for the one that is held"
    slot.has_shards(("a", "b"))
    assert slot.progress == Progress(50)
    slot.wake("b")
    assert slot.progress == Progress(50), "a watermark never falls"


def test_a_shard_that_was_idle_is_waited_for_when_it_is_held():
    slot = slot_with("a", "b")
    slot.advance(10, "a")
    slot.advance(20, "b")
    slot.fall_idle("a")
    assert slot.progress == Progress(20)
    slot.has_shards(("a", "b"), holding=("a",))
    slot.advance(30, "b")
    assert slot.progress == Progress(20)


def test_a_slot_without_shards_is_idle_at_the_time_it_had():
    slot = slot_with("a")
    slot.advance(50, "a")
    slot.has_shards(())
    assert slot.progress == Progress(50, idle=True)
    slot.has_shards(("b",))
    assert slot.progress == Progress(50)


def test_a_restart_forgets_no_shards_time():
    slot = slot_with("quiet", "busy")
    slot.advance(100, "quiet")
    slot.advance(50, "busy")
    again = PartitionTime(SLOT)
    again.load(slot.save("orders"))
    assert again.save("orders") == slot.save("orders"), "nothing is lost if it ends before it knows its shards"
    again.has_shards(("quiet", "busy", "new"))
    again.advance(200, "busy")
    assert again.progress == Progress(50)
    again.has_shards(("quiet", "busy"))
    assert again.progress == Progress(100)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100), st.sampled_from(["time", "idle", "drop", "add"])))
)
def test_time_never_falls_and_never_passes_a_shard_that_is_awake(steps):
    slot, shards, promised = slot_with("a"), {"a"}, {"a": NEVER}
    for shard, time, what in steps:
        before = slot.progress.watermark
        if what == "add" and shard not in shards:
            shards.add(shard)
            promised[shard] = before
            slot.has_shards(sorted(shards))
        elif what == "drop" and shard in shards:
            shards.remove(shard)
            slot.has_shards(sorted(shards))
        elif shard in shards and what == "idle":
            slot.fall_idle(shard)
        elif shard in shards and what == "time":
            promised[shard] = max(promised[shard], time)
            slot.advance(time, shard)
        assert slot.progress.watermark >= before
        awake = [promised[one] for one in slot.sending]
        if awake:
            assert slot.progress.watermark == max(before, min(awake))
        assert slot.progress.idle == (not awake)

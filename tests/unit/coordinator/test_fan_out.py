"""Which task gets which startpoint: the table of seed 002, with precedence, merging, broadcast inputs and misfits."""

from __future__ import annotations

import msgspec
import pytest

from headrace.life.startpoints import StartpointState, UnfinishedStartpoints, fan_out, next_orders
from headrace.systems.startpoints import StartpointOldest

PARTITIONS = {
    ("views", 0): ("count/0",),
    ("views", 1): ("count/1",),
    ("rates", 0): ("count/0", "count/1"),  # broadcast
    ("both", 0): ("count/0", "bill/0"),  # two stages read it
}


def written(id_, stream="views", partition=0, task=None, **changes):
    point = StartpointOldest(id=id_, created_ms=0)
    state = StartpointState(
        stream=stream,
        partition=partition,
        task=task,
        startpoint=point,
        state="pending",
        at_ms=1,
        named=task is not None,
    )
    return msgspec.structs.replace(state, **changes)


def order(id_, stream="views", partition=0, task="count/0", state="ordered", **changes):
    return written(id_, stream, partition, task, **({"state": state, "named": False} | changes))


def run(writes=(), orders=()):
    """The orders by task and partition, what is left of those written, and what is done with, after a fan-out."""
    present = UnfinishedStartpoints({s.key: s for s in writes}, {s.key: s for s in orders})
    found = fan_out(present, PARTITIONS, 99)
    after = dict(present.ordered) | {s.key: s for s in found.ordered}
    left = {k: s for k, s in present.written.items() if k not in found.removed} | {s.key: s for s in found.kept}
    return (
        {(s.task, f"{s.stream}[{s.partition}]"): s.startpoint.id for s in after.values()},
        {s.startpoint.id: s.state for s in left.values()},
        {(s.startpoint.id, s.task): s.state for s in found.done},
    )


TABLE = {
    "nothing": ((), (), {}, {}),
    "one task reads it": ([written("a")], (), {("count/0", "views[0]"): "a"}, {}),
    "each partition has its task": (
        [written("a"), written("b", partition=1)],
        (),
        {("count/0", "views[0]"): "a", ("count/1", "views[1]"): "b"},
        {},
    ),
    "a broadcast input reaches every task that reads it": (
        [written("a", "rates")],
        (),
        {("count/0", "rates[0]"): "a", ("count/1", "rates[0]"): "a"},
        {},
    ),
    "two stages read it": (
        [written("a", "both")],
        (),
        {("count/0", "both[0]"): "a", ("bill/0", "both[0]"): "a"},
        {},
    ),
    "with a task, it goes to that task alone": (
        [written("a", "rates", task="count/1")],
        (),
        {("count/1", "rates[0]"): "a"},
        {},
    ),
    "one without a task never overwrites one with, written together": (
        [written("all", "rates"), written("mine", "rates", task="count/1")],
        (),
        {("count/0", "rates[0]"): "all", ("count/1", "rates[0]"): "mine"},
        {("all", "count/1"): "replaced"},
    ),
    "nor one that was fanned out before": (
        [written("all", "rates")],
        [order("mine", "rates", task="count/1", named=True)],
        {("count/0", "rates[0]"): "all", ("count/1", "rates[0]"): "mine"},
        {("all", "count/1"): "replaced"},
    ),
    "nor one that failed": (
        [written("all")],
        [order("mine", named=True, state="failed", reason="gone")],
        {("count/0", "views[0]"): "mine"},
        {("all", "count/0"): "replaced"},
    ),
    "one that the task has applied is over with, so it doesn't": (
        [written("all")],
        [order("mine", named=True, state="applied", offset=4)],
        {("count/0", "views[0]"): "all"},
        {("mine", "count/0"): "replaced"},
    ),
    "nor if that task died before a commit": (
        [written("all")],
        [order("mine", named=True, state="ordered", offset=4, generation=2)],
        {("count/0", "views[0]"): "all"},
        {("mine", "count/0"): "replaced"},
    ),
    "a newer one with a task replaces an older one with": (
        [written("new", task="count/0")],
        [order("old", named=True)],
        {("count/0", "views[0]"): "new"},
        {("old", "count/0"): "replaced"},
    ),
    "and an older one without": (
        [written("new", task="count/0")],
        [order("old")],
        {("count/0", "views[0]"): "new"},
        {("old", "count/0"): "replaced"},
    ),
    "a newer one without a task replaces an older one without": (
        [written("new", "rates")],
        [order("old", "rates", task="count/0"), order("old", "rates", task="count/1", state="applied", offset=3)],
        {("count/0", "rates[0]"): "new", ("count/1", "rates[0]"): "new"},
        {("old", "count/0"): "replaced", ("old", "count/1"): "replaced"},
    ),
    "a later fan-out keeps what isn't consumed yet": (
        [written("b", partition=1)],
        [order("a"), order("r", "rates", task="count/1")],
        {("count/0", "views[0]"): "a", ("count/1", "rates[0]"): "r", ("count/1", "views[1]"): "b"},
        {},
    ),
    "nothing written changes nothing": ((), [order("a")], {("count/0", "views[0]"): "a"}, {}),
}


@pytest.mark.parametrize(("writes", "orders", "after", "done"), TABLE.values(), ids=TABLE)
def test_the_table(writes, orders, after, done):
    assert run(writes, orders) == (after, {}, done)


@pytest.mark.parametrize(
    ("misfit", "reason"),
    [
        (written("a", "clicks"), "the app reads no input 'clicks'"),
        (written("a", "views", 2), "views has no partition 2, only 0 to 1"),
        (written("a", "views", 0, "count/1"), "task count/1 doesn't read views[0]; what reads it: count/0"),
        (written("a", "rates", 0, "count/7"), "task count/7 doesn't read rates[0]; what reads it: count/0, count/1"),
    ],
)
def test_what_fits_nothing_is_kept_with_a_reason_that_is_written_once(misfit, reason):
    present = UnfinishedStartpoints({misfit.key: misfit}, {})
    found = fan_out(present, PARTITIONS, 99)
    ((kept,), others) = found.kept, (*found.ordered, *found.removed, *found.done)
    assert others == ()
    assert (kept.startpoint, kept.state) == (misfit.startpoint, "failed")
    assert kept.reason is not None
    assert kept.reason.startswith(reason)
    assert "delete the startpoint" in kept.reason
    assert not fan_out(UnfinishedStartpoints({kept.key: kept}, {}), PARTITIONS, 100)


def test_what_fits_nothing_doesnt_keep_others_from_their_tasks():
    after, left, _ = run([written("a", "views", 9), written("b")])
    assert (after, left) == ({("count/0", "views[0]"): "b"}, {"a": "failed"})


def test_what_fits_again_is_fanned_out():
    after, left, _ = run([written("a", state="failed", reason="the app read no such input")])
    assert (after, left) == ({("count/0", "views[0]"): "a"}, {})


def test_an_order_of_a_task_that_a_changed_app_doesnt_have_is_kept_and_says_so():
    old = order("a", "clicks", task="gone/0")
    found = fan_out(UnfinishedStartpoints({}, {old.key: old}), PARTITIONS, 99)
    (stranded,) = found.ordered
    assert (stranded.state, stranded.startpoint) == ("failed", old.startpoint)
    assert not fan_out(UnfinishedStartpoints({}, {stranded.key: stranded}), PARTITIONS, 100)


@pytest.mark.parametrize("case", TABLE)
def test_what_is_shown_as_next_is_what_the_fan_out_gives(case):
    writes, orders, given, _ = TABLE[case]
    shown = next_orders(UnfinishedStartpoints({s.key: s for s in writes}, {s.key: s for s in orders}), PARTITIONS)
    assert {(key.task, f"{key.stream}[{key.partition}]"): s.startpoint.id for key, s in shown.items()} == given
    assert all(s.state == "pending" for s in shown.values() if s.startpoint.id in {w.startpoint.id for w in writes})

"""The queue of timers against a dict, across restarts; its durable format."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.tasks import TimerAxis
from headrace.core.errors import UsageError
from headrace.rows.hashing import partition_of
from headrace.stores.base import Share
from headrace.stores.keyvalue import KeyValueStore
from headrace.task.state.timers import TIME_MAX, Timers, identity_of, named

AXES: list[TimerAxis] = ["event", "processing"]

Action = tuple[str, TimerAxis, int, int]

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "set", "set", "delete", "pop", "pop", "earliest", "restart"]),
        st.sampled_from(AXES),
        st.integers(0, 12),
        st.integers(0, 40),
    ),
    max_size=80,
)


def replayed(store: KeyValueStore, changes: list[bytes], head_max: int) -> Timers:
    """A queue that holds what the changelog says."""
    changes += store.take_changes(1)
    timers = Timers("t", head_max)
    for change in changes:
        timers.store.apply(change)
    return timers


@settings(deadline=None)
@given(ACTIONS, st.integers(1, 4))
def test_timers_come_up_in_the_order_of_times(actions: list[Action], head_max: int) -> None:
    timers, changes = Timers("t", head_max), list[bytes]()
    oracle: dict[tuple[TimerAxis, bytes], int] = {}
    for what, axis, key, time in actions:
        identity = identity_of(key, "")
        due = sorted((at, id_) for (ax, id_), at in oracle.items() if ax == axis)
        match what:
            case "set":
                timers[axis].set(identity, time)
                oracle[axis, identity] = time
            case "delete":
                timers[axis].delete(identity)
                oracle.pop((axis, identity), None)
            case "pop":
                expected = due[0] if due and due[0][0] <= time else None
                assert timers[axis].pop(time) == expected
                if expected is not None:
                    del oracle[axis, expected[1]]
            case "earliest":
                assert timers[axis].earliest() == (due[0][0] if due else None)
                assert timers[axis].time_of(identity) == oracle.get((axis, identity))
            case _:
                timers = replayed(timers.store, changes, head_max)
    for axis in AXES:
        rest = sorted((at, id_) for (ax, id_), at in oracle.items() if ax == axis)
        assert [timers[axis].pop(TIME_MAX) for _ in range(len(rest) + 1)] == [*rest, None]
    assert timers.store.entries() == 0


def test_the_head_in_memory_is_bounded() -> None:
    timers = Timers("t", head_max=10)
    for n in range(1000, 0, -1):
        timers["event"].set(identity_of(n, ""), n)
        assert timers["event"].earliest() == n
    assert len(timers._axes["event"]._head) <= 21
    assert [timers["event"].pop(3) for _ in range(4)] == [(n, identity_of(n, "")) for n in (1, 2, 3)] + [None]


def test_the_durable_form() -> None:
    timers = Timers("t")
    timers["event"].set(identity_of("ann", "x"), 258)
    timers["processing"].set(identity_of(("ann", 1), ""), 1)
    assert sorted(timers.store.range()) == [
        (b"E\x00\x00\x00\x00\x00\x00\x01\x02\x92\xa1x\xa3ann", b""),
        (b"P\x00\x00\x00\x00\x00\x00\x00\x01\x92\xa0\x92\xa3ann\x01", b""),
        (b"e\x92\xa1x\xa3ann", b"\x00\x00\x00\x00\x00\x00\x01\x02"),
        (b"p\x92\xa0\x92\xa3ann\x01", b"\x00\x00\x00\x00\x00\x00\x00\x01"),
    ]


@pytest.mark.parametrize("key", ["ann", "", 1, -(1 << 63), b"\x00", 1.5, True, None, ("ann", 1), (("a",), None), ()])
def test_keys_come_back_as_they_were(key: Any) -> None:
    name, back = named(identity_of(key, "x"))
    assert (name, back, type(back)) == ("x", key, type(key))


@pytest.mark.parametrize("key", [["ann"], {"a": 1}, {1}, (["ann"],), 1 << 70])
def test_other_keys_are_refused(key: Any) -> None:
    with pytest.raises(TypeError):
        identity_of(key, "")


COLUMNS: dict[str, pl.DataType] = {"member": pl.String(), "n": pl.Int8(), "day": pl.Date()}


def set_for(*keys: Any) -> Timers:
    timers = Timers("t", columns=COLUMNS)
    for at, key in enumerate(keys):
        timers["event"].set(identity_of(key, "late"), at)
        timers["processing"].set(identity_of(key, ""), at)
    timers.store.take_changes(1)
    return timers


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        (("member",), ["ann", "bob", "cleo", "", None]),
        (("n",), [1, 2, 3, 1000]),
        (("n", "member"), [(1, "ann"), (1, "bob"), (2, "ann")]),
    ],
)
def test_timers_are_dealt_as_the_messages_of_their_keys(columns: tuple[str, ...], keys: list[Any]) -> None:
    timers, found = set_for(*keys), list[tuple[int, Any]]()
    for partition in range(3):
        task = Timers("t", columns=COLUMNS)
        for change in timers.store.whole(Share(partition, 3, columns)):
            task.store.apply(change)
        while (first := task["event"].pop(TIME_MAX)) is not None:
            name, key = named(first[1])
            assert name == "late"
            assert keys[first[0]] == key
            assert task["processing"].pop(first[0]) == (first[0], identity_of(key, ""))
            found.append((partition, key))
        assert list(task.store.range()) == []
    rows = [key if isinstance(key, tuple) else (key,) for _, key in found]
    as_messages = pl.DataFrame(
        rows, {name: pl.Int64 if name == "n" else COLUMNS[name] for name in columns}, orient="row"
    )
    assert [partition for partition, _ in found] == partition_of(as_messages, columns, 3).tolist()
    assert sorted((key for _, key in found), key=repr) == sorted(keys, key=repr)


@pytest.mark.parametrize(
    ("columns", "key"),
    [(("member",), 5), (("member",), ("ann", 1)), (("n", "member"), "ann"), (("n",), True), (("day",), "2024-01-01")],
)
def test_timers_of_other_keys_can_not_be_dealt(columns: tuple[str, ...], key: Any) -> None:
    with pytest.raises(
        UsageError, match=r"store 't' can't be divided among 2 tasks: a timer was set for .*, and messages"
    ):
        list(set_for(key).store.whole(Share(0, 2, columns)))
    assert len(list(set_for(key).store.whole())) == 1


def test_people_see_when_timers_are_due() -> None:
    (shown,) = set_for("ann", 5).store.frames()
    assert shown.drop("time").sort("axis", "name", "key").rows() == [
        ("event", "late", "5"),
        ("event", "late", "ann"),
        ("processing", "", "5"),
        ("processing", "", "ann"),
    ]
    assert shown.schema["time"] == pl.Datetime("ms")

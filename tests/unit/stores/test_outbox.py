"""The outbox against a model: what was committed and not published survives any restart, complete, in order, once."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from drawn import examples
from headrace.core.errors import CorruptLogError
from headrace.stores import base
from headrace.stores import outbox as outbox_module
from headrace.stores.base import Share
from headrace.stores.outbox import Outbox, timeline_begun

Rows = list[int]


class Disk:
    """A database of one store."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        found = sorted((k, v) for k, v in self.values.items() if start <= k and (stop is None or k < stop))
        return iter(found[::-1] if reverse else found)

    def put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        del self.values[key]


def table(rows: Rows) -> pl.DataFrame:
    return pl.DataFrame({"n": rows}, schema={"n": pl.Int64})


def drained(outbox: Outbox) -> list[tuple[int, Rows]]:
    """Take everything out of it, in the order of publication."""
    found = []
    while (entry := outbox.oldest()) is not None:
        version, pieces = entry
        found.append((version, pl.concat(pieces)["n"].to_list()))
        outbox.published(version)
    return found


def commit(outbox: Outbox, version: int) -> list[bytes]:
    changes = outbox.take_changes(version)
    outbox.commit()
    return changes


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, and memory for a few pieces."""
    monkeypatch.setattr(base, "PORTION_BYTES", 40)
    monkeypatch.setattr(outbox_module, "_MEMORY_BYTES_MAX", 1500)


def test_rows_wait_for_the_commit_that_counts() -> None:
    outbox = Outbox("out")
    outbox.add(table([1, 2]))
    outbox.add(table([]))
    outbox.add(table([3]))
    assert outbox.oldest() is None
    assert outbox.take_changes(7)
    assert outbox.oldest() is None  # appended, but it isn't known yet whether it counts
    assert (outbox.entries(), outbox.pending_bytes) == (0, 0)
    outbox.commit()
    assert outbox.entries() == 1
    assert outbox.pending_bytes > 0
    assert drained(outbox) == [(7, [1, 2, 3])]
    assert (outbox.entries(), outbox.pending_bytes) == (0, 0)


def test_a_version_without_rows_has_no_entry_and_says_nothing() -> None:
    outbox = Outbox("out")
    assert commit(outbox, 1) == []
    assert outbox.oldest() is None


def test_a_removal_is_logged_once_by_the_next_commit() -> None:
    outbox, copy = Outbox("out"), Outbox("out")
    outbox.add(table([1]))
    for change in commit(outbox, 1):
        copy.apply(change)
    outbox.published(1)
    (removal,) = commit(outbox, 2)
    assert commit(outbox, 3) == []
    assert copy.entries() == 1
    copy.apply(removal)
    assert copy.entries() == 0
    assert commit(copy, 4) == []


def test_large_versions_are_logged_in_pieces() -> None:
    outbox = Outbox("out")
    outbox.add(table(list(range(100))))
    changes = commit(outbox, 1)
    assert len(changes) == 20
    assert drained(outbox) == [(1, list(range(100)))]


def test_with_a_database_memory_is_bounded() -> None:
    disk, outbox = Disk(), Outbox("out")
    outbox.attach(disk)
    for version in range(50):
        outbox.add(table([version] * 3))
        commit(outbox, version)
        outbox.persist(disk)

    def held(box: Outbox) -> int:
        return sum(len(piece) for entry in box._pending for piece in entry.pieces if piece is not None)

    again = Outbox("out")
    again.attach(disk)
    for box in (outbox, again):
        assert 0 < held(box) <= 1500 < box.pending_bytes
    assert drained(outbox) == drained(again) == [(version, [version] * 3) for version in range(50)]
    outbox.persist(disk)
    assert disk.values == {}


def test_an_entry_is_of_the_timeline_that_began_before_it() -> None:
    disk, first = Disk(), Outbox("out")
    first.attach(disk)
    first.add(table([1]))
    commit(first, 5)
    assert first.timeline_of(5) is None
    second = Outbox("out")
    second.attach(disk)
    for change in [*first.whole(), timeline_begun(9)]:
        second.apply(change)
    second.add(table([2]))
    log = [*first.whole(), timeline_begun(9), *commit(second, 10)]
    second.persist(disk)
    replayed, stored, moved, dealt = Outbox("out"), Outbox("out"), Outbox("out"), Outbox("out")
    stored.attach(disk)
    for outbox, changes in ((replayed, log), (moved, second.whole()), (dealt, second.whole(Share(1, 2)))):
        for change in changes:
            outbox.apply(change)
    for outbox in (second, replayed, stored, moved):
        assert outbox.timelines == (9,)
        assert [outbox.timeline_of(version) for version in (5, 9, 10, 11)] == [None, None, 9, 9]
        assert drained(outbox) == [(5, [1]), (10, [2])]
    assert dealt.timelines == ()
    third = Outbox("out")
    third.attach(disk)
    third.apply(timeline_begun(20))
    third.apply(timeline_begun(20))
    assert (third.timelines, third.timeline_of(20), third.timeline_of(21)) == ((9, 20), 9, 20)
    third.clear()
    assert third.timelines == ()


def test_what_cannot_be_read_is_an_error() -> None:
    with pytest.raises(CorruptLogError, match="unknown change format"):
        Outbox("out").apply(b"\x09" + bytes(8))
    disk, outbox = Disk(), Outbox("out")
    outbox.attach(disk)
    for version in range(50):
        outbox.add(table([version] * 3))
        commit(outbox, version)
    outbox.persist(disk)
    disk.values.popitem()
    with pytest.raises(CorruptLogError, match="piece 0 of version 49 is missing"):
        drained(outbox)


class OutboxMachine(RuleBasedStateMachine):
    """One outbox, its changelog and its database; restarts from either."""

    @initialize()
    def begin(self) -> None:
        self.disk, self.log = Disk(), list[bytes]()
        self.outbox = Outbox("out")
        self.outbox.attach(self.disk)
        self.fresh: Rows = []
        self.version = 0
        self.pending: dict[int, Rows] = {}
        self.published: dict[int, Rows] = {}
        self.logged = -1

    @rule(rows=st.lists(st.integers(0, 99), max_size=30))
    def add(self, rows: Rows) -> None:
        self.outbox.add(table(rows))
        self.fresh += rows

    @rule(step=st.integers(1, 5), persisted=st.booleans())
    def commit(self, step: int, persisted: bool) -> None:
        self.version += step
        self.log += commit(self.outbox, self.version)
        if self.fresh:
            self.pending[self.version] = self.fresh
        self.logged = max([self.logged, *self.published])
        self.fresh, self.published = [], {}  # its removal is logged now
        if persisted:
            self.outbox.persist(self.disk)
            self.on_disk = len(self.log)

    @rule()
    def publish(self) -> None:
        entry = self.outbox.oldest()
        if entry is not None:
            version, pieces = entry
            assert (version, pl.concat(pieces)["n"].to_list()) == next(iter(self.pending.items()))
            self.published[version] = self.pending.pop(version)
            self.outbox.published(version)

    @rule(from_disk=st.booleans())
    def restart(self, from_disk: bool) -> None:
        """Nothing uncommitted survives. Published versions may be in it again until a commit records their removal."""
        self.outbox = Outbox("out")
        replay = self.log
        if from_disk:
            self.outbox.attach(self.disk)
            replay = self.log[getattr(self, "on_disk", 0) :]
        else:
            self.disk = Disk()
            self.outbox.attach(self.disk)
            self.on_disk = 0
        for change in replay:
            self.outbox.apply(change)
        self.fresh = []
        self.outbox.published(max(self.published, default=-1))

    @invariant()
    def bytes_add_up(self) -> None:
        if hasattr(self, "outbox"):
            assert self.outbox.entries() == len(self.pending)
            assert (self.outbox.pending_bytes > 0) == bool(self.pending)
            assert self.outbox.logged_to == self.logged


OutboxMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestOutbox = OutboxMachine.TestCase

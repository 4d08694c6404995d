"""Entries expire by the given time, and all ways of reading and replaying agree on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drawn import examples
from headrace.core.errors import DeclarationError, UsageError
from headrace.kit.contracts import StoreLife
from headrace.stores.database import Batch, Database, KeySpace, PartOfBatch
from headrace.stores.keyvalue import CommittedKeyValues, KeyValueStore, Stamps

TTL = 10


def expiring() -> KeyValueStore:
    return KeyValueStore("store", ttl_ms=TTL)


def filled(count: int, now: int = 0) -> KeyValueStore:
    store = expiring()
    store.advance(now)
    store.put_many([b"%03d" % number for number in range(count)], [b"v"] * count)
    return store


def test_an_entry_lives_for_its_time() -> None:
    store = filled(1)
    store.advance(TTL - 1)
    assert store.get(b"000") == b"v"
    store.advance(TTL)
    assert store.get(b"000") is None
    assert list(store.range()) == []


def test_writing_again_begins_a_new_life() -> None:
    store = filled(2)
    store.advance(5)
    store.put(b"000", b"w")
    store.advance(TTL + 1)
    assert list(store.range()) == [(b"000", b"w")]


def test_what_a_read_finds_expired_is_deleted_for_every_replay() -> None:
    store = filled(2)
    told = store.take_changes(1)
    store.advance(TTL)
    assert store.get(b"001") is None
    told += store.take_changes(2)
    copy = expiring()
    for change in told:
        copy.apply(change)
    assert [key for key, _ in copy.range()] == [b"000"]  # the copy was given no time, so nothing else is old


def test_a_sweep_continues_where_it_stopped() -> None:
    store = filled(10)
    assert [store.sweep(TTL, 4) for _ in range(4)] == [4, 4, 2, 0]
    assert store.entries() == 0
    assert len(store.take_changes(1)) == 1


def test_a_sweep_looks_at_what_may_be_old_alone() -> None:
    store = filled(10)
    assert store.sweep(1, 100) == 0  # one walk, which learns that nothing is due before TTL
    looked = []

    def counted(*args: object, **options: object) -> object:
        looked.append(args)
        return iter(())

    store._stored_range = counted  # type: ignore[method-assign, assignment]
    assert store.sweep(TTL - 1, 100) == 0
    assert not looked
    store.sweep(TTL, 100)
    assert looked


def test_time_that_goes_back_is_passed_over() -> None:
    store = filled(1, now=100)
    store.advance(100 + TTL)
    store.advance(0)
    assert store.get(b"000") is None


def test_before_the_time_is_said_all_is_read_and_nothing_written() -> None:
    copy = expiring()
    for change in filled(1).take_changes(1):
        copy.apply(change)
    assert copy.get(b"000") == b"v"
    with pytest.raises(UsageError, match="its clock was never set"):
        copy.put(b"a", b"1")


@pytest.mark.parametrize("ttl_ms", [0, -1])
def test_a_time_to_live_is_positive(ttl_ms: int) -> None:
    with pytest.raises(DeclarationError, match="time to live"):
        KeyValueStore("store", ttl_ms=ttl_ms)


def test_a_ttl_can_be_neither_added_nor_taken_away(tmp_path: Path) -> None:
    [change] = filled(1).take_changes(1)
    with pytest.raises(DeclarationError, match="was stored with a time to live, but is now declared without one"):
        KeyValueStore("store").apply(change)

    database = Database(tmp_path / "db")
    plain = KeyValueStore("store")
    plain.attach(KeySpace(database, "store"))
    plain.put(b"a", b"1")
    plain.take_changes(1)
    batch = Batch()
    plain.persist(PartOfBatch(batch, "store"))
    database.write(batch)
    with pytest.raises(DeclarationError, match="was stored without a time to live, but is now declared with one"):
        expiring().attach(KeySpace(database, "store"))
    with pytest.raises(DeclarationError, match="without a time to live"):
        CommittedKeyValues("store", KeySpace(database, "store"), ttl_ms=TTL)
    database.close()


def test_a_committed_view_passes_over_what_is_old(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    store = expiring()
    store.attach(KeySpace(database, "store"))
    store.advance(0)
    store.put(b"a", b"1")
    store.take_changes(1)
    batch = Batch()
    store.persist(PartOfBatch(batch, "store"))
    database.write(batch)
    view = CommittedKeyValues("store", KeySpace(database, "store"), ttl_ms=TTL)
    assert (view.get(b"a"), list(view.range())) == (b"1", [(b"a", b"1")])
    view.advance(TTL)
    assert (view.get(b"a"), list(view.range())) == (None, [])
    database.close()


KEYS = st.binary(min_size=1, max_size=1).map(lambda key: bytes([key[0] % 16]))


class ExpiringMachine(RuleBasedStateMachine):
    """A store, a dict of values and times, and what a task does with them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.life = StoreLife(self.made, None)
        self.model: dict[bytes, tuple[int, bytes]] = {}
        self.committed: dict[bytes, tuple[int, bytes]] = {}

    def made(self) -> KeyValueStore:
        store = expiring()
        store.advance(self.now)
        return store

    @property
    def store(self) -> KeyValueStore:
        assert isinstance(self.life.store, KeyValueStore)
        return self.life.store

    def alive(self) -> dict[bytes, bytes]:
        return {key: value for key, (written, value) in self.model.items() if self.now - written < TTL}

    @rule(entries=st.dictionaries(KEYS, st.binary(max_size=2), max_size=5))
    def put(self, entries: dict[bytes, bytes]) -> None:
        self.store.put_many(list(entries), list(entries.values()))
        self.model |= {key: (self.now, value) for key, value in entries.items()}

    @rule(keys=st.lists(KEYS, max_size=3))
    def delete(self, keys: list[bytes]) -> None:
        self.store.delete_many(keys)
        for key in keys:
            self.model.pop(key, None)

    @rule(by=st.integers(0, TTL + 2))
    def time_passes(self, by: int) -> None:
        self.now += by
        self.store.advance(self.now)

    @rule(budget=st.integers(1, 20))
    def sweep(self, budget: int) -> None:
        assert self.store.sweep(self.now, budget) <= budget

    @rule()
    def commit(self) -> None:
        self.life.commit()
        self.committed = dict(self.model)

    @rule()
    def roll_back(self) -> None:
        self.life.rollback()
        self.model = dict(self.committed)

    @rule(keys=st.lists(KEYS, max_size=6))
    def get(self, keys: list[bytes]) -> None:
        assert self.store.get_many(keys) == [self.alive().get(key) for key in keys]

    @precondition(lambda self: not self.alive())
    @rule()
    def sweeps_leave_nothing_behind(self) -> None:
        self.now += 2 * TTL
        for _ in range(3):
            self.store.sweep(self.now, 100)
            self.now += TTL
        self.store.advance(self.now)
        self.life.commit()
        self.model, self.committed = {}, {}
        assert self.store.entries() == 0

    @invariant()
    def holds_what_is_alive(self) -> None:
        assert list(self.store.range()) == sorted(self.alive().items())


ExpiringMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
TestExpiring = ExpiringMachine.TestCase


def test_a_clock_that_shows_a_time_before_1970_breaks_nothing() -> None:
    stamps = Stamps(1000)
    stamps.advance(-86_400_000)
    (stored,) = stamps.stamp([b"x"])
    assert stamps.strip([stored]) == [b"x"]
    stamps.advance(1000)
    assert stamps.strip([stored]) == [None]

"""A store and a dict agree, whatever a task does in whatever order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drawn import examples
from headrace.kit.contracts import StoreLife
from headrace.stores.keyvalue import KeyValueStore, after_prefix

KEYS = st.one_of(
    st.sampled_from([b"a", b"a\x00", b"b", b"ab", b"\xff", b"\xff\xff"]), st.binary(min_size=1, max_size=3)
)
ENTRIES = st.dictionaries(KEYS, st.binary(max_size=4), max_size=40)


class StoreMachine(RuleBasedStateMachine):
    """In memory; the subclass has a database."""

    folder: Path | None = None

    def __init__(self) -> None:
        super().__init__()
        self.life = StoreLife(lambda: KeyValueStore("store", change_bytes_max=60), self.folder)
        self.model: dict[bytes, bytes] = {}
        self.committed: dict[bytes, bytes] = {}

    @rule(entries=ENTRIES)
    def put(self, entries: dict[bytes, bytes]) -> None:
        self.life.store.put_many(list(entries), list(entries.values()))
        self.model |= entries

    @rule(keys=st.lists(KEYS, max_size=10))
    def delete(self, keys: list[bytes]) -> None:
        self.life.store.delete_many(keys)
        for key in keys:
            self.model.pop(key, None)

    @rule(persist=st.booleans())
    def commit(self, persist: bool) -> None:
        self.life.commit(persist=persist)
        self.committed = dict(self.model)

    @rule()
    def persist(self) -> None:
        self.life.persist()

    @rule()
    def roll_back(self) -> None:
        self.life.rollback()
        self.model = dict(self.committed)

    @rule()
    def restart(self) -> None:
        self.life.restart()
        self.model = dict(self.committed)

    @precondition(lambda self: len(self.life.log) < 100)
    @rule()
    def replay(self) -> None:
        assert dict(self.life.replayed().range()) == self.committed

    @rule(keys=st.lists(KEYS, max_size=20))
    def get(self, keys: list[bytes]) -> None:
        assert self.life.store.get_many(keys) == [self.model.get(key) for key in keys]

    @rule(start=st.binary(max_size=2), stop=st.none() | st.binary(max_size=2), reverse=st.booleans())
    def iterate(self, start: bytes, stop: bytes | None, reverse: bool) -> None:
        inside = [(k, v) for k, v in self.model.items() if k >= start and (stop is None or k < stop)]
        found = list(self.life.store.range(start, stop, reverse=reverse))
        assert found == sorted(inside, reverse=reverse)

    @rule(prefix=st.binary(max_size=2), reverse=st.booleans())
    def iterate_prefix(self, prefix: bytes, reverse: bool) -> None:
        inside = [(k, v) for k, v in self.model.items() if k.startswith(prefix)]
        store = self.life.store
        assert isinstance(store, KeyValueStore)
        assert list(store.range(prefix, after_prefix(prefix), reverse=reverse)) == sorted(inside, reverse=reverse)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert list(self.life.store.range()) == sorted(self.model.items())

    @invariant()
    def counts_exactly_in_memory(self) -> None:
        if self.folder is None and self.model == self.committed:
            assert self.life.store.entries() == len(self.model)

    def teardown(self) -> None:
        self.life.close()


class DatabaseMachine(StoreMachine):
    """The same over RocksDB."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-store-")) / "db"
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        assert self.folder is not None
        shutil.rmtree(self.folder.parent)


StoreMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
DatabaseMachine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=30, deadline=None)
TestStoreInMemory = StoreMachine.TestCase
TestStoreOverRocksDB = DatabaseMachine.TestCase


def test_after_prefix() -> None:
    assert after_prefix(b"a") == b"b"
    assert after_prefix(b"a\xff\xff") == b"b"
    assert after_prefix(b"\xff") is None
    assert after_prefix(b"") is None

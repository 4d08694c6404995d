"""Runs hold partial results by time and key: added in batches, taken out by time, rebuilt from their changes."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from persisted_runs import PersistedRuns
from stored_values import Disk

from drawn import examples
from headrace.core.errors import CorruptLogError
from headrace.stores import pieces
from headrace.stores.runs import Runs

HERE = Path(__file__).parent
SCHEMA = {"time": pl.Int64, "key": pl.Int64, "n": pl.Int64}
Contents = Counter[tuple[int, int]]


def merge(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by("time", "key").agg(pl.col("n").sum())


def store() -> Runs:
    return Runs("per-10s", "time", merge, ["key"])


def take(runs: Runs, bound: int) -> pl.DataFrame | None:
    parts = list(runs.take_parts(bound))
    return pl.concat(parts) if parts else None


def run(*rows: tuple[int, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, SCHEMA, orient="row")


def contents(rows: pl.DataFrame | None) -> Contents:
    """Rows as a dict; a key that occurs twice is an error."""
    if rows is None:
        return Counter()
    pairs = {(time, key): n for time, key, n in rows.select(*SCHEMA).rows()}
    assert len(pairs) == rows.height
    return Counter(pairs)


def test_equal_keys_are_merged_when_they_are_looked_at() -> None:
    windows = store()
    windows.add(run((10, 1, 1), (20, 1, 5)))
    windows.add(run((10, 1, 2)))
    assert contents(windows.scan()) == {(10, 1): 3, (20, 1): 5}


def test_keys_whose_merge_was_left_out_are_merged_when_they_are_looked_at() -> None:
    windows = store()
    for first in (0, 50):
        windows.add(run(*((10, key, 1) for key in range(first, first + 50))))
    windows.take_changes(1)  # merges, and learns that no key was there twice
    for _ in range(2):
        windows.add(run(*((20, key, 2) for key in range(50))))
    windows.take_changes(2)
    assert windows.entries() == 200
    assert contents(take(windows, 20)) == {(10, key): 1 for key in range(100)} | {(20, key): 4 for key in range(50)}


def test_take_removes_what_is_at_or_below_the_bound() -> None:
    windows = store()
    windows.add(run((10, 1, 1), (20, 1, 5), (20, 2, 6), (30, 1, 7)))
    assert contents(take(windows, 20)) == {(10, 1): 1, (20, 1): 5, (20, 2): 6}
    assert contents(windows.scan()) == {(30, 1): 7}
    assert take(windows, 29) is None


def test_an_empty_store_gives_nothing() -> None:
    windows = store()
    windows.add(run())
    assert (take(windows, 10**9), windows.scan(), windows.earliest, windows.entries()) == (None, None, None, 0)
    assert windows.take_changes(1) == []


def test_a_change_is_reported_once() -> None:
    windows = store()
    windows.add(run((10, 1, 1)))
    assert len(windows.take_changes(1)) == 1
    assert windows.take_changes(1) == []


def test_what_was_applied_is_no_change() -> None:
    windows, copy = store(), store()
    windows.add(run((10, 1, 1)))
    for change in windows.take_changes(1):
        copy.apply(change)
    assert copy.take_changes(1) == []


def test_a_large_run_is_recorded_in_several_changes() -> None:
    """A change is one record, and the size of records is limited."""
    windows, copy = store(), store()
    rows = (1 << 18) + 1
    windows.add(pl.DataFrame({"time": [10] * rows, "key": range(rows), "n": [1] * rows}))
    changes = windows.take_changes(1)
    assert len(changes) == 2
    for change in changes:
        copy.apply(change)
    assert copy.entries() == rows
    taken = take(copy, 10)
    assert taken is not None
    assert taken["key"].sum() == sum(range(rows))


def test_much_is_taken_in_parts_of_different_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", 64)
    windows = store()
    for _ in range(2):
        windows.add(pl.DataFrame({"time": [10] * 500, "key": range(500), "n": [1] * 500}))
    windows.add(run((11, 1, 7)))
    parts = list(windows.take_parts(10))
    keys = [set(part["key"]) for part in parts]
    assert len(parts) > 3
    assert sum(map(len, keys)) == len(set().union(*keys)) == 500
    assert {n for part in parts for n in part["n"]} == {2}
    assert contents(windows.scan()) == {(11, 1): 7}


def test_what_is_read_stays() -> None:
    windows = store()
    windows.add(run((10, 1, 1), (20, 1, 5)))
    windows.take_changes(1)
    windows.add(run((20, 1, 2), (30, 1, 9)))
    assert [contents(part) for part in windows.read_parts(15, 25)] == [{(20, 1): 7}]
    assert contents(windows.scan()) == {(10, 1): 1, (20, 1): 7, (30, 1): 9}
    assert (windows.earliest, windows.latest) == (10, 30)


def test_a_bound_that_nothing_is_below_is_remembered_too() -> None:
    windows, copy = store(), store()
    windows.add(run((10, 1, 1)))
    windows.retire(5)
    for change in windows.take_changes(1):
        copy.apply(change)
    assert (windows.taken, copy.taken) == (5, 5)
    assert contents(copy.scan()) == {(10, 1): 1}
    assert (windows.earliest, copy.earliest) == (10, 10)


def test_an_unknown_change_is_refused() -> None:
    with pytest.raises(CorruptLogError, match=r"store 'per-10s': unknown change format b'x'"):
        store().apply(b"x...")


def test_a_large_run_consists_of_pieces_and_a_bound_of_the_rows_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", 64)
    disk, windows = Disk(), store()
    windows.attach(disk)
    windows.add(pl.DataFrame({"time": [10, 20] * 250, "key": range(500), "n": [1] * 500}))
    windows.take_changes(1)
    windows.persist(disk)
    before = dict(disk.values)
    taken = take(windows, 10)
    windows.take_changes(2)
    windows.persist(disk)
    assert taken is not None
    assert set(taken["key"]) == set(range(0, 500, 2))
    assert {key for key, value in disk.values.items() if before.get(key) != value} == {b"manifest"}
    again = store()
    again.attach(disk)
    assert again.earliest == 11
    left = take(again, 20)
    assert left is not None
    assert set(left["key"]) == set(range(1, 500, 2))


def test_a_missing_piece_is_an_error() -> None:
    disk, windows = Disk(), store()
    windows.add(run((10, 1, 1)))
    windows.take_changes(1)
    windows.persist(disk)
    disk.delete(next(key for key in disk.values if key != b"manifest"))
    again = store()
    again.attach(disk)
    with pytest.raises(CorruptLogError, match="store 'per-10s': piece 0 of 0 is missing in the local state"):
        again.scan()


# -- the formats of the local state, byte for byte


def test_local_state_of_version_5_is_read() -> None:
    disk = Disk()
    disk.put(
        b"manifest",
        b'{"format":5,"runs":[{"number":3,"heights":[0,2],"low":11,"high":20,"gone_to":10}],"taken":10}',
    )
    disk.put(b"p" + (3).to_bytes(8) + (1).to_bytes(4) + (0).to_bytes(4), (HERE / "runs-piece-v1.bin").read_bytes())
    windows = store()
    windows.attach(disk)
    assert (windows.earliest, windows.latest, windows.taken) == (11, 20, 10)
    assert contents(windows.scan()) == {(20, 2): 6}


def test_local_state_of_another_version_is_refused() -> None:
    disk = Disk()
    disk.put(b"manifest", b'{"format":9,"runs":[]}')
    with pytest.raises(CorruptLogError, match="local state of format 9; this version of Headrace reads 5"):
        store().attach(disk)


class RunsMachine(RuleBasedStateMachine):
    """A store, a dict, and a copy of the store that gets only its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.store = store()
        self.copy = store()
        self.model: Contents = Counter()

    @rule(rows=st.lists(st.tuples(st.integers(-3, 5), st.integers(0, 3), st.integers(1, 9)), max_size=6))
    def add(self, rows: list[tuple[int, int, int]]) -> None:
        self.store.add(merge(run(*rows)))
        for time, key, n in rows:
            self.model[time, key] += n

    @rule(bound=st.integers(-4, 6))
    def take(self, bound: int) -> None:
        due = {at: n for at, n in self.model.items() if at[0] <= bound}
        assert contents(take(self.store, bound)) == due
        for at in due:
            del self.model[at]

    @rule()
    def tell_changes(self) -> None:
        for change in self.store.take_changes(1):
            self.copy.apply(change)
        assert contents(self.copy.scan()) == self.model

    @rule()
    def go_on_with_the_copy(self) -> None:
        self.tell_changes()
        self.store, self.copy = self.copy, store()
        self.rebuild_the_copy()

    def rebuild_the_copy(self) -> None:
        """Replace the copy: the new one holds what the store holds, and has no changes of its own."""
        rows = self.store.scan()
        if rows is not None:
            self.copy.add(rows.select(*SCHEMA))
            self.copy.take_changes(1)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert contents(self.store.scan()) == self.model
        lowest = min((time for time, _ in self.model), default=None)
        if lowest is not None:
            assert self.store.earliest is not None
            assert self.store.earliest <= lowest
        assert self.store.entries() >= len(self.model)


class DealtRunsMachine(PersistedRuns):
    """A store on a disk, and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.model: Contents = Counter()

    def new_store(self) -> Runs:
        return store()

    def all_rows(self) -> list[pl.DataFrame]:
        rows = self.store.scan()
        return [] if rows is None else [rows.select(*SCHEMA)]

    @rule(rows=st.lists(st.tuples(st.integers(-3, 5), st.integers(0, 20), st.integers(1, 9)), max_size=12))
    def add(self, rows: list[tuple[int, int, int]]) -> None:
        self.store.add(merge(run(*rows)))
        for time, key, n in rows:
            self.model[time, key] += n

    def parted(self, parts: Iterator[pl.DataFrame]) -> Contents:
        """All parts; no key is in two of them."""
        found: Contents = Counter()
        keys: set[int] = set()
        for part in parts:
            assert keys.isdisjoint(part["key"])
            keys |= set(part["key"])
            found |= contents(part)
        return found

    @rule(bound=st.integers(-4, 6))
    def take(self, bound: int) -> None:
        due = {at: n for at, n in self.model.items() if at[0] <= bound}
        assert self.parted(self.store.take_parts(bound)) == due
        for at in due:
            del self.model[at]

    @rule(low=st.integers(-4, 6), bound=st.integers(-4, 6), gone=st.integers(-4, 6))
    def read(self, low: int, bound: int, gone: int) -> None:
        """What is taken before the parts are read shows in them."""
        parts = self.store.read_parts(low, bound)
        self.store.retire(gone)
        assert self.parted(parts) == {at: n for at, n in self.model.items() if low <= at[0] <= bound}
        self.model = Counter({at: n for at, n in self.model.items() if at[0] > gone})

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert contents(self.store.scan()) == self.model
        lowest = min((time for time, _ in self.model), default=None)
        if lowest is not None:
            assert self.store.earliest is not None
            assert self.store.earliest <= lowest
        assert self.store.entries() >= len(self.model)


RunsMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
DealtRunsMachine.TestCase.settings = RunsMachine.TestCase.settings
TestRuns = RunsMachine.TestCase
TestDealtRuns = DealtRunsMachine.TestCase

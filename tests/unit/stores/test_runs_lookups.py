"""Look-ups in runs by hashes and by times find all matching rows, however few of them are in memory."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from persisted_runs import PersistedRuns
from stored_values import Disk

from drawn import examples
from headrace.rows.hashing import hash_rows
from headrace.rows.ipc import encode_rows
from headrace.stores import pieces
from headrace.stores import pieces as slices
from headrace.stores.database import Database, KeySpace, PartOfBatch
from headrace.stores.pieces import Kept, Pieces
from headrace.stores.runs import HashIndex, Runs, places_of

FIRST, LAST = -(2**63), 2**63 - 1
Rows = list[tuple[int, int, int]]
"""Time, key, number."""


def store() -> Runs:
    return Runs("buffer", "time", lambda run: run.sort("hash"), hashed="hash")


def frame(rows: Iterable[tuple[int, int, int]]) -> pl.DataFrame:
    found = pl.DataFrame(list(rows), {"time": pl.Int64, "key": pl.Int64, "n": pl.Int64}, orient="row")
    return found.with_columns(pl.Series("hash", hash_rows(found, ["key"]), dtype=pl.UInt64)).sort("hash")


def hashes(keys: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.unique(hash_rows(pl.DataFrame({"key": pl.Series(list(keys), dtype=pl.Int64)}), ["key"]))


def listed(frames: Iterator[pl.DataFrame]) -> Rows:
    return sorted(row for each in frames for row in each.select("time", "key", "n").rows())


class Reads(Disk):
    """A disk that notes the kind of each value that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        self.kinds.append(key[:1])
        return super().get(key)

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        found = list(super().range(start, stop, reverse=reverse))
        self.kinds += [key[:1] for key, _ in found]
        return iter(found)


def stored(disk: Disk, rows: Rows) -> None:
    runs = store()
    runs.attach(disk)
    runs.add(frame(rows))
    runs.take_changes(1)
    runs.persist(disk)


def test_only_pieces_that_have_what_is_asked_for_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", 64)
    disk = Reads()
    stored(disk, [(key, key, key) for key in range(1000)])
    again = store()
    again.attach(disk)
    disk.kinds.clear()
    assert listed(again.matching(hashes(range(1000, 3000)), FIRST, LAST)) == []
    assert disk.kinds == [b"i"]
    assert listed(again.matching(hashes([7]), FIRST, LAST)) == [(7, 7, 7)]
    assert disk.kinds == [b"i", b"f", b"p"]
    assert listed(again.matching(hashes([8]), 9, LAST)) == []
    assert listed(again.between(1001, 2000)) == []
    assert disk.kinds == [b"i", b"f", b"p"]


def test_of_a_piece_of_which_little_is_wanted_only_slices_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_ROWS_MAX", 16)
    disk = Reads()
    stored(disk, [(key, key, key) for key in range(1000)])
    again = store()
    again.attach(disk)
    disk.kinds.clear()
    assert [row for row in listed(again.matching(hashes([7, 8, 9]), FIRST, LAST)) if row[1] in (7, 8, 9)] == [
        (7, 7, 7), (8, 8, 8), (9, 9, 9)
    ]  # fmt: skip
    assert disk.kinds == [b"i", b"f", b"p", b"p", b"p"]
    assert len(listed(again.matching(hashes(range(500)), FIRST, LAST))) >= 500
    assert disk.kinds.count(b"p") == 3 + 63


def test_a_piece_of_which_most_is_asked_for_is_not_gathered_but_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", 8)
    runs = store()
    runs.add(frame([(time, 1, time) for time in range(100)]))
    runs.take_changes(1)
    assert listed(runs.matching(hashes([1]), 40, 49))[:1] == [(40, 1, 40)]
    assert listed(runs.between(40, 49)) == [(time, 1, time) for time in range(40, 50)]
    (whole,) = runs.matching(hashes([1]), 10, 99)
    assert whole.height == 100


def test_times_may_be_as_far_apart_as_there_are() -> None:
    runs = store()
    runs.add(frame([(FIRST, 1, 0), (0, 1, 1), (LAST, 1, 2), (0, 2, 3)]))
    runs.take_changes(1)
    assert listed(runs.between(FIRST, FIRST)) == [(FIRST, 1, 0)]
    assert listed(runs.between(LAST, LAST)) == [(LAST, 1, 2)]
    assert (0, 1, 1) in listed(runs.matching(hashes([1]), -1, 1))


def test_rows_that_were_taken_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", 8)
    runs = store()
    runs.add(frame([(time, time % 10, time) for time in range(100)]))
    runs.take_changes(1)
    runs.drop(49)
    assert listed(runs.matching(hashes([3]), FIRST, LAST)) == [(time, 3, time) for time in range(53, 100, 10)]
    assert listed(runs.between(40, 51)) == [(50, 0, 50), (51, 1, 51)]


# -- the formats of the local state, byte for byte


def test_an_index_is_hashes_and_times_since_the_first_in_steps() -> None:
    rows = pl.DataFrame(
        {"hash": [1, 1 << 63], "time": [1_000, 1_000 + (3 << 16)]}, {"hash": pl.UInt64, "time": pl.Int64}
    )
    disk = Disk()
    HashIndex(Kept("buffer", disk), Pieces(Kept("buffer", disk), 5, [2], [rows]), "hash", "time").write(disk)
    assert disk.values == {
        b"i" + (5).to_bytes(8): bytes.fromhex(
            "e803000000000000"  # the first time
            "0201000000000000"  # steps of 2^2 ms; format 1
            "01000000000000000000000000000080"  # hashes
            "000000c0"  # steps since the first time
        )
    }
    index = HashIndex(Kept("buffer", disk), Pieces(Kept("buffer", disk), 5, [2]), "hash", "time")
    assert index.places(np.array([1 << 63], np.uint64), FIRST, LAST).tolist() == [1]
    assert index.between(1_000, 2_000).tolist() == [0]


def test_pieces_without_slices_or_an_index_are_looked_up_in() -> None:
    """Columns of nested types have no slices. A missing index is computed from the rows."""
    disk = Disk()
    entry = b'{"number":3,"heights":[3],"low":11,"high":20,"gone_to":10}'
    disk.put(b"manifest", b'{"format":5,"runs":[%b],"taken":10}' % entry)
    piece = b"p" + (3).to_bytes(8) + (0).to_bytes(4) + (0).to_bytes(4)
    disk.put(piece, encode_rows(frame([(9, 1, 0), (12, 1, 1), (20, 2, 2)])))
    runs = store()
    runs.attach(disk)
    assert listed(runs.matching(hashes([1]), FIRST, LAST)) == [(12, 1, 1)]
    assert listed(runs.between(13, LAST)) == [(20, 2, 2)]
    runs.drop(LAST)
    runs.take_changes(1)
    runs.persist(disk)
    assert list(disk.values) == [b"manifest"]


@pytest.mark.parametrize("found", ["nothing", "another format"])
def test_a_missing_index_is_computed_from_the_rows(found: str) -> None:
    disk = Disk()
    stored(disk, [(1, 1, 1), (2, 2, 2)])
    key = next(key for key in disk.values if key.startswith(b"i"))
    value = disk.values.pop(key)
    if found == "another format":
        disk.values[key] = value[:9] + b"\x02" + bytes(len(value) - 10)
    runs = store()
    runs.attach(disk)
    assert listed(runs.matching(hashes([2]), FIRST, LAST)) == [(2, 2, 2)]


# -- properties

NUMBERS = st.lists(st.integers(0, 30), max_size=40)


@given(held=NUMBERS, wanted=NUMBERS)
def test_places_are_where_the_wanted_are(held: list[int], wanted: list[int]) -> None:
    asked = set(wanted)
    found = places_of(np.array(sorted(held), np.uint64), np.array(sorted(asked), np.uint64)).tolist()
    assert found == [place for place, number in enumerate(sorted(held)) if number in asked]


class LookUpsMachine(PersistedRuns):
    """A store on a disk, beside a list."""

    def __init__(self) -> None:
        super().__init__()
        self.model: Rows = []

    def new_store(self) -> Runs:
        return store()

    def all_rows(self) -> Iterator[pl.DataFrame]:
        return self.store.held(FIRST, LAST)

    @rule(rows=st.lists(st.tuples(st.integers(-3, 5), st.integers(0, 20), st.integers(1, 9)), max_size=12))
    def add(self, rows: Rows) -> None:
        self.store.add(frame(rows))
        self.model += rows

    @rule(bound=st.integers(-4, 6))
    def drop(self, bound: int) -> None:
        self.store.drop(bound)
        self.model = [row for row in self.model if row[0] > bound]

    @rule(keys=st.sets(st.integers(0, 25)), low=st.integers(-4, 6), high=st.integers(-4, 6))
    def look_up(self, keys: set[int], low: int, high: int) -> None:
        found = []
        for each in self.store.matching(hashes(keys), low, high):
            assert each["hash"].is_sorted()
            found += each.select("time", "key", "n").rows()
        wanted = [row for row in self.model if row[1] in keys and low <= row[0] <= high]
        assert sorted(row for row in found if row[1] in keys and low <= row[0] <= high) == sorted(wanted)
        assert set(found) <= set(self.model)

    @rule(low=st.integers(-4, 6), high=st.integers(-4, 6))
    def look_between(self, low: int, high: int) -> None:
        assert listed(self.store.between(low, high)) == sorted(row for row in self.model if low <= row[0] <= high)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert listed(self.store.held(FIRST, LAST)) == sorted(self.model)


LookUpsMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
TestLookUps = LookUpsMachine.TestCase


def test_the_real_database_keeps_indexes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", 64)
    monkeypatch.setattr(pieces, "KEPT_BYTES_MAX", 1 << 10)
    monkeypatch.setattr(slices, "_ROWS_MAX", 8)
    rows = [(time, time * 7 % 500, time) for time in range(3000)]
    database = Database(tmp_path / "state")
    runs = store()
    runs.attach(KeySpace(database, "buffer"))
    for start in range(0, 3000, 300):
        runs.add(frame(rows[start : start + 300]))
        runs.take_changes(1)
        batch = database.batch()
        runs.persist(PartOfBatch(batch, "buffer"))
        database.write(batch)
    database.close()
    database = Database(tmp_path / "state")
    again = store()
    again.attach(KeySpace(database, "buffer"))
    found = [row for row in listed(again.matching(hashes(range(0, 500, 50)), 1000, 2000)) if 1000 <= row[0] <= 2000]
    database.close()
    assert [row for row in found if row[1] % 50 == 0] == [r for r in rows if r[1] % 50 == 0 and 1000 <= r[0] <= 2000]

"""Keyed rows: look-ups, taking, putting back, due rows; rebuilt from changes, or from the database."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from stored_values import Disk, in_small_pieces

from drawn import examples
from headrace.core.errors import CorruptLogError
from headrace.rows.ipc import decode_rows, encode_rows
from headrace.stores import keyed, pieces
from headrace.stores.keyed import KeyedRows

HERE = Path(__file__).parent
SCHEMA = {"key": pl.String, "start": pl.Int64, "due": pl.Int64, "n": pl.Int64}
Row = tuple[str | None, int, int, int]


def store(by_row: Sequence[str] = ()) -> KeyedRows:
    return KeyedRows("sessions", ["key"], ["start"], ["due"], by_row=by_row)


def rows(*values: Row) -> pl.DataFrame:
    return pl.DataFrame(values, SCHEMA, orient="row")


def keys(*values: str | None) -> pl.DataFrame:
    return pl.DataFrame({"key": values}, {"key": pl.String})


def held(frame: pl.DataFrame | None) -> list[Row]:
    found: list[Any] = [] if frame is None else frame.rows()
    return sorted(found, key=repr)


def due(sessions: KeyedRows, bound: int) -> list[Row]:
    return sorted((row for part in sessions.take_due("due", bound) for row in held(part)), key=repr)


def test_a_key_may_have_several_rows_and_a_null_is_a_key() -> None:
    sessions = store()
    sessions.put(rows(("a", 1, 9, 1), ("a", 20, 29, 2), (None, 3, 9, 3), ("b", 4, 9, 4)))
    assert held(sessions.take(keys("a", None, "c"))) == [("a", 1, 9, 1), ("a", 20, 29, 2), (None, 3, 9, 3)]
    assert held(sessions.scan()) == [("b", 4, 9, 4)]
    assert sessions.take(keys("a")) is None


def test_rows_of_a_key_that_nothing_tells_apart_are_removed_by_its_name() -> None:
    before, after = (KeyedRows("rows", ["key"], [], ["due"]) for _ in range(2))
    a, b = [("a", 1, 9, 1)] * 3, [("b", n, 9, n) for n in range(6)]
    changes: list[list[bytes]] = []
    for some in (rows(*a, *b), rows(*a)):
        before.put(some)
        changes.append(before.take_changes(1))
    assert held(before.take(keys("a"))) == [*a, *a]
    before.put(rows(*a))
    changes.append(before.take_changes(2))
    for change in (change for commit in changes for change in commit):
        after.apply(change)
    assert held(after.scan()) == held(before.scan()) == [*a, *b]
    assert after.entries() == 9
    (removed,) = (decode_rows(change[1:]) for change in changes[-1] if change[:1] == b"\x02")
    assert removed.rows() == [("a",)]


def test_what_is_due_is_taken_by_any_due_column() -> None:
    sessions = store()
    sessions.put(rows(("a", 1, 9, 1), ("b", 2, 5, 2), ("c", 3, 7, 3)))
    assert sessions.earliest("due") == 5
    assert due(sessions, 7) == [("b", 2, 5, 2), ("c", 3, 7, 3)]
    assert (sessions.earliest("due"), due(sessions, 8)) == (9, [])


def test_many_due_rows_are_taken_in_parts_and_recorded_in_few_bytes() -> None:
    sessions = store()
    number = 2_500_000
    sessions.put(pl.DataFrame({"key": pl.Series(range(number)).cast(pl.String), "start": 0, "due": 5, "n": 1}, SCHEMA))
    sessions.take_changes(1)
    parts = sessions.take_due("due", 5)
    assert sessions.entries() == 0
    heights = [part.height for part in parts]
    assert sum(heights) == number
    assert max(heights) < 200_000
    assert sum(map(len, sessions.take_changes(2))) < 20


def test_without_key_columns_all_rows_are_one_keys() -> None:
    whole = KeyedRows("whole", [], ["start"], ["due"])
    whole.put(rows(("a", 1, 9, 1), ("b", 2, 5, 2)))
    assert whole.entries() == 2
    assert held(whole.take(pl.DataFrame({"any": [0]}))) == [("a", 1, 9, 1), ("b", 2, 5, 2)]


def test_a_commit_records_what_differs_and_not_what_happened() -> None:
    sessions = store()
    for n in range(20):
        sessions.take(keys("a"))
        sessions.put(rows(("a", n, 9, n)))
    changes = sessions.take_changes(1)
    assert [change[:1] for change in changes] == [b"\x01"]
    copy = store()
    copy.apply(changes[0])
    assert held(copy.scan()) == [("a", 19, 9, 19)]
    assert copy.take_changes(1) == []


def test_keys_of_one_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "hash_rows", lambda frame, columns: np.zeros(frame.height, np.uint64))
    sessions = store()
    sessions.put(rows(("a", 1, 9, 1), ("b", 2, 5, 2)))
    assert held(sessions.take(keys("b"))) == [("b", 2, 5, 2)]


@pytest.mark.parametrize("by_row", [(), ("start",)])
def test_a_look_up_of_one_row_passes_by_keys_of_the_same_hash(
    monkeypatch: pytest.MonkeyPatch, by_row: Sequence[str]
) -> None:
    monkeypatch.setattr(keyed, "hash_rows", lambda frame, columns: np.zeros(frame.height, np.uint64))
    sessions = store(by_row)
    sessions.put(rows(("a", 1, 9, 1), ("b", 2, 5, 2), ("b", 3, 5, 3)))
    assert {row[0] for _, found in sessions.find(keys("b"), one=True) for row in held(found)} == {"b"}
    assert held(sessions.take_rows(rows(("b", 3, 0, 0)))) == [("b", 3, 5, 3)]


def test_one_row_of_a_hot_key_is_removed_in_few_bytes() -> None:
    sessions = store(["start"])
    number = 100_000
    sessions.put(pl.DataFrame({"key": "a", "start": range(number), "due": 5, "n": 1}, SCHEMA))
    sessions.take_changes(1)
    assert held(sessions.take_rows(rows(("a", 77, 0, 0)))) == [("a", 77, 5, 1)]
    assert sum(map(len, sessions.take_changes(2))) < 1000
    assert sessions.entries() == number - 1


def test_a_column_that_is_added_later_is_null_and_hides_no_row() -> None:
    disk, sessions = Disk(), store(["start"])
    sessions.put(rows(("a", 1, 9, 1)))
    sessions.take_changes(1)
    sessions.persist(disk)

    def conform(found: pl.DataFrame) -> pl.DataFrame:
        return found.with_columns(pl.lit(None, pl.Int64).alias("more"))

    again = KeyedRows("sessions", ["key"], ["start", "more"], ["due"], conform, by_row=["start", "more"])
    again.attach(disk)
    taken = again.take_rows(rows(("a", 1, 9, 1)).with_columns(pl.lit(None, pl.Int64).alias("more")))
    assert taken is not None
    assert taken.rows() == [("a", 1, 9, 1, None)]


def test_rows_of_one_key_are_removed_by_what_distinguishes_them() -> None:
    sessions, copy = store(), store()
    sessions.put(rows(("a", 1, 9, 1), ("a", 20, 29, 2), (None, 3, 9, 3), (None, 30, 39, 4)))
    for change in sessions.take_changes(1):
        copy.apply(change)
    sessions.take(keys("a"))
    for change in sessions.take_changes(2):
        copy.apply(change)
    assert held(copy.scan()) == held(sessions.scan()) == [(None, 3, 9, 3), (None, 30, 39, 4)]


def test_an_unknown_change_is_refused() -> None:
    with pytest.raises(CorruptLogError, match=r"store 'sessions': unknown change format b'x'"):
        store().apply(b"x...")


def test_a_few_rows_out_of_many_are_written_as_a_mask() -> None:
    disk, sessions = Disk(), store()
    sessions.put(pl.DataFrame({"key": map(str, range(10_000)), "start": 0, "due": 5, "n": 1}, SCHEMA))
    sessions.take_changes(1)
    sessions.persist(disk)
    before = dict(disk.values)
    sessions.take(keys("17", "9999"))
    sessions.take_changes(2)
    sessions.persist(disk)
    written = {key: value for key, value in disk.values.items() if before.get(key) != value}
    assert sum(map(len, written.values())) < 2000
    again = store()
    again.attach(disk)
    assert (again.entries(), again.take(keys("17"))) == (9_998, None)


def test_a_restart_reads_the_manifest_alone_until_it_is_asked() -> None:
    disk, sessions = Disk(), store()
    sessions.put(rows(("a", 1, 9, 1), ("b", 2, 5, 2), ("c", 3, 7, 3)))
    sessions.take_changes(1)
    sessions.persist(disk)
    sessions.take(keys("b"))
    sessions.take_changes(2)
    sessions.persist(disk)
    manifest = Disk()
    manifest.put(b"manifest", disk.values[b"manifest"])
    again = store()
    again.attach(manifest)
    assert (again.entries(), again.earliest("due")) == (2, 7)
    with pytest.raises(CorruptLogError, match="a part of segment 0 is missing in the local state"):
        again.take(keys("a"))


def test_taking_all_keys_is_recorded_in_a_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", 64)
    sessions, copy = store(), store()
    for start in range(2):
        sessions.put(pl.DataFrame({"key": map(str, range(500)), "start": start, "due": 5, "n": 1}, SCHEMA))
        for change in sessions.take_changes(1):
            copy.apply(change)
    sessions.put(rows(("a", 1, 9, 1)))
    parts = [set(part["key"]) for part in sessions.take_all()]
    assert len(parts) > 5
    assert sum(map(len, parts)) == len(set().union(*parts)) == 501
    sessions.put(rows(("b", 1, 9, 1)))
    changes = sessions.take_changes(2)
    assert [change[:1] for change in changes] == [b"\x04", b"\x01"]
    for change in changes:
        copy.apply(change)
    assert held(copy.scan()) == held(sessions.scan()) == [("b", 1, 9, 1)]


def test_a_missing_piece_is_an_error() -> None:
    disk, sessions = Disk(), store()
    sessions.put(rows(("a", 1, 9, 1)))
    sessions.take_changes(1)
    sessions.persist(disk)
    gone = next(key for key in disk.values if key.startswith(b"p"))
    disk.delete(gone)
    again = store()
    again.attach(disk)
    with pytest.raises(CorruptLogError, match="piece 0 of 0 is missing in the local state"):
        again.take(keys("a"))


# -- the formats, byte for byte


def test_changes_of_version_1_are_read() -> None:
    sessions = store()
    sessions.apply((HERE / "keyed-add-v1.bin").read_bytes())
    assert held(sessions.scan()) == [("a", 1, 9, 1), (None, -2, 7, 2)]
    sessions.apply((HERE / "keyed-remove-v1.bin").read_bytes())
    assert held(sessions.scan()) == [("a", 1, 9, 1)]
    sessions.apply(bytes.fromhex("03 00 0000000000000009"))
    assert sessions.scan() is None


def test_local_state_of_version_4_is_read() -> None:
    disk = Disk()
    disk.put(
        b"manifest",
        b'{"format":4,"segments":[{"number":3,"heights":[2],"living":1,"lows":[7],"masked":true}]}',
    )
    place = (3).to_bytes(8) + (0).to_bytes(4)
    # In the order of their hashes, the null first.
    ordered = decode_rows((HERE / "keyed-add-v1.bin").read_bytes()[1:])[[1, 0]]
    disk.put(b"p" + place + (0).to_bytes(4), encode_rows(ordered))
    hashes, due = bytes.fromhex("79656b2d6c6c756e 2e10dcde68dbb9c8"), bytes.fromhex("0700000000000000 0900000000000000")
    disk.put(b"i" + place, hashes + due)
    disk.put(b"m" + (3).to_bytes(8), b"\x80")
    sessions = store()
    sessions.attach(disk)
    assert sessions.earliest("due") == 7
    assert sessions.take(keys("a")) is None
    assert held(sessions.take(keys(None))) == [(None, -2, 7, 2)]


def test_local_state_of_another_version_is_refused() -> None:
    disk = Disk()
    disk.put(b"manifest", b'{"format":9,"segments":[]}')
    with pytest.raises(CorruptLogError, match="local state of format 9; this version of Headrace reads 4"):
        store().attach(disk)


class KeyedMachine(RuleBasedStateMachine):
    """A store, a dict, a copy that gets only the changes, and a disk."""

    by_row: Sequence[str] = ()

    def __init__(self) -> None:
        super().__init__()
        self.store, self.copy, self.disk = store(self.by_row), store(self.by_row), Disk()
        self.model: dict[tuple[str | None, int], Row] = {}
        self.version = 0

    names = st.sampled_from(["a", "b", "c", None])

    @rule(values=st.lists(st.tuples(names, st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)), max_size=6))
    def put(self, values: list[Row]) -> None:
        new = {(v[0], v[1]): v for v in values if (v[0], v[1]) not in self.model}
        self.store.put(rows(*new.values()))
        self.model |= new

    @rule(wanted=st.lists(names, unique=True, max_size=3))
    def take(self, wanted: list[str | None]) -> None:
        expected = [row for row in self.model.values() if row[0] in wanted]
        assert held(self.store.take(keys(*wanted))) == sorted(expected, key=repr)
        self.model = {at: row for at, row in self.model.items() if row[0] not in wanted}

    @rule(wanted=st.lists(st.tuples(names, st.integers(0, 3)), unique=True, max_size=4))
    def take_rows(self, wanted: list[tuple[str | None, int]]) -> None:
        asked = pl.DataFrame(wanted, {"key": pl.String, "start": pl.Int64}, orient="row")
        expected = [self.model.pop(at) for at in wanted if at in self.model]
        assert held(self.store.take_rows(asked)) == sorted(expected, key=repr)

    @rule(wanted=st.lists(names, min_size=1, max_size=4))
    def find(self, wanted: list[str | None]) -> None:
        asked = keys(*wanted)
        every = [
            (wanted[place], name)
            for places, found in self.store.find(asked)
            for place, name in zip(places, found["key"], strict=True)
        ]
        assert all(one == other for one, other in every)
        assert len(every) == sum(row[0] == name for name in wanted for row in self.model.values())
        some = {int(place) for places, _ in self.store.find(asked, one=True) for place in places}
        assert some == {
            place for place, name in enumerate(wanted) if any(name == row[0] for row in self.model.values())
        }

    @rule(bound=st.integers(-1, 9))
    def take_due(self, bound: int) -> None:
        expected = [row for row in self.model.values() if row[2] <= bound]
        assert due(self.store, bound) == sorted(expected, key=repr)
        self.model = {at: row for at, row in self.model.items() if row[2] > bound}

    @rule()
    def take_all(self) -> None:
        taken: list[Row] = []
        for part in self.store.take_all():
            assert not {row[0] for row in taken} & set(part["key"])
            taken += held(part)
        assert sorted(taken, key=repr) == sorted(self.model.values(), key=repr)
        self.model = {}

    @rule(persist=st.booleans())
    def commit(self, persist: bool) -> None:
        self.version += 1
        for change in self.store.take_changes(self.version):
            self.copy.apply(change)
        assert held(self.copy.scan()) == held(self.store.scan())
        if persist:
            self.store.persist(self.disk)
            again = store(self.by_row)
            again.attach(self.disk)
            assert held(again.scan()) == held(self.store.scan())

    @rule()
    def restart(self) -> None:
        self.commit(persist=True)
        self.store = store(self.by_row)
        self.store.attach(self.disk)

    @invariant()
    def holds_what_it_should(self) -> None:
        assert held(self.store.scan()) == sorted(self.model.values(), key=repr)
        assert self.store.entries() == len(self.model)
        assert self.store.earliest("due") == min((row[2] for row in self.model.values()), default=None)


class DealtKeyedMachine(KeyedMachine):
    """The same in pieces of a few rows, few of which stay in memory, and slices of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = in_small_pieces()

    def teardown(self) -> None:
        self.patch.undo()

    @rule(start=st.integers(0, 3), due=st.integers(0, 9))
    def put_many(self, start: int, due: int) -> None:
        self.put([(name, start, due, 1) for name in "cdefghijkl"])


class ByRowMachine(DealtKeyedMachine):
    """The same, where rows of a key are found one by one."""

    by_row = ("start",)


TestKeyedRows = KeyedMachine.TestCase
TestDealtKeyedRows = DealtKeyedMachine.TestCase
TestKeyedRowsByRow = ByRowMachine.TestCase
TestKeyedRows.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
TestDealtKeyedRows.settings = TestKeyedRowsByRow.settings = TestKeyedRows.settings

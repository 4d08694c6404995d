"""State moves to other tasks: whole stores, and shares of them, which add up to what there was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_values import Disk, in_small_pieces

from drawn import examples
from headrace.core.errors import UsageError
from headrace.rows.hashing import partition_of
from headrace.stores.base import Share, StateStore
from headrace.stores.keyed import KeyedRows
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.outbox import Outbox
from headrace.stores.runs import Runs
from headrace.stores.table import MemoryTable, TableStore

COLUMNS: dict[str, pl.DataType] = {"a": pl.String(), "b": pl.Int64(), "n": pl.Int64()}
Row = tuple[str | None, int, int]


class Kind(Protocol):
    """A kind of store, driven alike: rows come in, some go, and there is something to compare."""

    store: StateStore

    def take_in(self, rows: pl.DataFrame) -> None: ...

    def let_go(self, rows: pl.DataFrame) -> None: ...

    def contents(self) -> list[tuple[Any, ...]]: ...


class OfTable:
    """A table on disk or in memory."""

    def __init__(self, *, memory: bool = False, ttl_ms: int | None = None) -> None:
        self.table = (
            MemoryTable("kept", COLUMNS, ["a", "b"], ttl_ms=ttl_ms)
            if memory
            else TableStore(KeyValueStore("kept", ttl_ms=ttl_ms), COLUMNS, ["a", "b"])
        )
        self.store: StateStore = self.table.store
        self.table.advance(1000)

    def take_in(self, rows: pl.DataFrame) -> None:
        self.table.put_rows(rows)

    def let_go(self, rows: pl.DataFrame) -> None:
        self.table.delete_rows(rows.select("a", "b"))

    def contents(self) -> list[tuple[Any, ...]]:
        every = pl.DataFrame([(a, b) for a in KEYS for b in range(4)], {"a": pl.String, "b": pl.Int64}, orient="row")
        found = pl.concat([every, self.table.get_rows(every, found="there")], how="horizontal")
        return ordered(found.filter("there").drop("there"))


class OfKeyedRows:
    """Rows by key that are taken and put back, as windows do."""

    def __init__(self) -> None:
        self.rows = KeyedRows("kept", ["a"], ["b"], ["n"])
        self.store: StateStore = self.rows

    def take_in(self, rows: pl.DataFrame) -> None:
        before = self.rows.take(rows.select("a").unique())
        both = rows if before is None else pl.concat([before, rows])
        self.rows.put(both.group_by("a", "b").agg(pl.col("n").sum()))

    def let_go(self, rows: pl.DataFrame) -> None:
        list(self.rows.take_due("n", int(rows["n"].min() or 0)))

    def contents(self) -> list[tuple[Any, ...]]:
        return ordered(*self.rows.held())


class OfRuns:
    """Partial results that merge."""

    def __init__(self) -> None:
        self.rows = Runs("kept", "b", lambda rows: rows.group_by("a", "b").agg(pl.col("n").sum()), ["a"])
        self.store: StateStore = self.rows

    def take_in(self, rows: pl.DataFrame) -> None:
        self.rows.add(rows)

    def let_go(self, rows: pl.DataFrame) -> None:
        self.rows.retire(int(rows["b"].min() or 0) - 1)

    def contents(self) -> list[tuple[Any, ...]]:
        scanned = self.rows.scan()
        return [] if scanned is None else ordered(scanned.select("a", "b", "n"))


class OfHashedRuns(OfRuns):
    """Rows that are looked up by a hash."""

    def __init__(self) -> None:
        self.rows = Runs("kept", "b", lambda rows: rows.sort("__hash"), hashed="__hash")
        self.store = self.rows

    def take_in(self, rows: pl.DataFrame) -> None:
        hashes = pl.Series("__hash", partition_of(rows, ["a"], 1 << 16), pl.UInt64)
        self.rows.add(rows.with_columns(hashes).sort("__hash"))


KINDS: dict[str, Callable[[], Kind]] = {
    "table": OfTable,
    "table with ttl": lambda: OfTable(ttl_ms=10_000),
    "table in memory": lambda: OfTable(memory=True),
    "table in memory with ttl": lambda: OfTable(memory=True, ttl_ms=10_000),
    "keyed rows": OfKeyedRows,
    "runs": OfRuns,
    "hashed runs": OfHashedRuns,
}
KEYS: list[str | None] = [None, "", "ann", "bob", "cleo", "a much longer name"]
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=12),
        st.booleans(),
    ),
    max_size=6,
)
Batches = list[tuple[list[Row], bool]]


def ordered(*frames: pl.DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row for frame in frames for row in frame.select(sorted(frame.columns)).rows()), key=repr)


def frame(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, COLUMNS, orient="row")


def drive(kinds: Sequence[Kind], batches: Batches) -> None:
    """Give each batch to the tasks as a shuffle by ``a`` would; take something out everywhere."""
    for rows, drops in batches:
        batch = frame(rows)
        parts = partition_of(batch, ["a"], len(kinds))
        for number, kind in enumerate(kinds):
            mine = batch.filter(pl.Series(parts == number))
            if mine.height:
                kind.take_in(mine)
            if drops:
                kind.let_go(batch)


def commit(kind: Kind, disk: Disk | None) -> None:
    kind.store.take_changes(1)
    if disk is not None:
        kind.store.persist(disk)


def donors(make: Callable[[], Kind], number: int, batches: Batches) -> list[Kind]:
    """Tasks that have run; then their folders are opened by others."""
    found = []
    disks = [Disk() for _ in range(number)]
    kinds = [make() for _ in range(number)]
    for kind, disk in zip(kinds, disks, strict=True):
        kind.store.attach(disk)
    drive(kinds, batches[: len(batches) // 2])
    for kind, disk in zip(kinds, disks, strict=True):
        commit(kind, disk)
    drive(kinds, batches[len(batches) // 2 :])
    for kind, disk in zip(kinds, disks, strict=True):
        commit(kind, disk)
        found.append(make())
        found[-1].store.attach(disk)
    return found


def dealt(make: Callable[[], Kind], given: Sequence[Kind], number: int, disk: Callable[[], Disk]) -> list[Kind]:
    """As many tasks as ``number``, with their shares of what the donors have."""
    found = []
    for partition in range(number):
        kind = make()
        kept = disk()
        kind.store.attach(kept)
        for other in given:
            for change in other.store.whole(Share(partition, number, ("a",))):
                kind.store.apply(change)
        assert kind.store.take_changes(1) == []
        kind.store.persist(kept)
        again = make()
        again.store.attach(kept)
        found.append(again)
    return found


def every(kinds: Iterable[Kind]) -> list[tuple[Any, ...]]:
    return sorted((row for kind in kinds for row in kind.contents()), key=repr)


@pytest.mark.parametrize("kind", KINDS)
@given(BATCHES)
@settings(max_examples=examples(30), deadline=None)
def test_what_moves_whole_is_equal(kind: str, batches: Batches) -> None:
    patch = in_small_pieces()
    (donor,) = donors(KINDS[kind], 1, batches)
    before = donor.contents()
    copy, disk = KINDS[kind](), Disk()
    copy.store.attach(disk)
    for change in donor.store.whole():
        copy.store.apply(change)
    assert donor.contents() == before
    assert copy.contents() == before
    assert copy.store.take_changes(1) == []
    copy.store.persist(disk)
    again = KINDS[kind]()
    again.store.attach(disk)
    assert again.contents() == before
    assert list(again.store.whole()) or not before
    patch.undo()


@pytest.mark.parametrize("kind", KINDS)
@given(batches=BATCHES, later=BATCHES, before=st.integers(1, 3), after=st.integers(1, 3))
@settings(max_examples=examples(30), deadline=None)
def test_tasks_that_got_shares_go_on_as_if_there_had_always_been_that_many(
    kind: str, batches: Batches, later: Batches, before: int, after: int
) -> None:
    patch = in_small_pieces()
    make = KINDS[kind]
    given_ = donors(make, before, batches)
    tasks = dealt(make, given_, after, Disk)
    always = donors(make, after, batches)
    assert [task.contents() for task in tasks] == [task.contents() for task in always]
    merged = dealt(make, tasks, before, Disk)
    assert [task.contents() for task in merged] == [task.contents() for task in given_]
    drive(tasks, later)
    drive(always, later)
    assert [task.contents() for task in tasks] == [task.contents() for task in always]
    assert every(tasks) == every(always)
    patch.undo()


@pytest.mark.parametrize("kind", KINDS)
def test_people_see_rows_without_the_stores_own_columns(kind: str) -> None:
    (donor,) = donors(KINDS[kind], 1, [([("ann", 1, 2), ("bob", 2, 3)], False)])
    shown = pl.concat(list(donor.store.frames()))
    assert not [name for name in shown.columns if name.startswith("__")]
    assert ordered(shown.select("a", "b", "n")) == [("ann", 1, 2), ("bob", 2, 3)]


def test_a_share_of_columns_that_rows_lack_is_refused() -> None:
    (donor,) = donors(OfTable, 1, [([("ann", 1, 2)], False)])
    with pytest.raises(
        UsageError, match="store 'kept' can't be divided among 2 tasks: its rows have no column 'member'"
    ):
        list(donor.store.whole(Share(0, 2, ("member",))))
    with pytest.raises(UsageError, match="only the app knows what its entries mean"):
        list(KeyValueStore("bytes").whole(Share(0, 2, ("a",))))


def test_columns_that_are_not_of_the_key_may_deal_too() -> None:
    (donor,) = donors(OfTable, 1, [([("ann", 1, 2), ("bob", 2, 3), ("cleo", 3, 4)], False)])
    shares = []
    for partition in range(2):
        task = OfTable()
        for change in donor.store.whole(Share(partition, 2, ("n",))):
            task.store.apply(change)
        shares.append(task)
    assert every(shares) == donor.contents()
    numbers = frame([("", 0, 2), ("", 0, 3), ("", 0, 4)])
    assert [len(task.contents()) for task in shares] == [
        int((partition_of(numbers, ["n"], 2) == partition).sum()) for partition in range(2)
    ]


def test_shares_of_tables_with_different_layouts_make_one_table() -> None:
    """One donor got its first rows before a column came and another one went."""
    older = {"a": pl.String(), "b": pl.Int64(), "gone": pl.String()}
    first, disk = TableStore(KeyValueStore("kept"), older, ["a", "b"]), Disk()
    first.store.attach(disk)
    first.put_rows(pl.DataFrame({"a": ["ann"], "b": [1], "gone": ["x"]}))
    first.store.take_changes(1)
    first.store.persist(disk)
    grown, younger = OfTable(), OfTable()
    grown.store.attach(disk)
    grown.take_in(frame([("bob", 1, 7)]))
    younger.take_in(frame([("cleo", 1, 8)]))
    for donor in (grown, younger):
        donor.store.take_changes(2)
    task = OfTable()
    for donor in (grown, younger):
        for change in donor.store.whole(Share(0, 1, ("a",))):
            task.store.apply(change)
    assert task.contents() == [("ann", 1, None), ("bob", 1, 7), ("cleo", 1, 8)]
    task.take_in(frame([("dora", 1, 9)]))
    assert len(task.contents()) == 3  # dora isn't among the keys that are looked up


def test_an_outbox_goes_to_one_task_and_merges_with_that_of_another() -> None:
    given_ = []
    for first in (0, 10, 20):
        outbox = Outbox("target")
        for version in (7, 8 + first):
            outbox.add(pl.DataFrame({"n": [first + version]}))
            outbox.take_changes(version)
            outbox.commit()
        given_.append(outbox)
    found = []
    for partition in range(2):
        task, disk = Outbox("target"), Disk()
        task.attach(disk)
        for donor, outbox in enumerate(given_):
            for change in outbox.whole(Share(partition, 2, first=donor % 2 == partition)):
                task.apply(change)
            task.persist(disk)
        again = Outbox("target")
        again.attach(disk)
        assert [pl.concat(list(box.frames()))["n"].to_list() for box in (task, again)] == [
            pl.concat(list(task.frames()))["n"].to_list()
        ] * 2
        found.append(drained(again))
    assert found == [[(7, [7, 27]), (8, [8]), (28, [48])], [(7, [17]), (18, [28])]]


def drained(outbox: Outbox) -> list[tuple[int, list[int]]]:
    found = []
    while (entry := outbox.oldest()) is not None:
        found.append((entry[0], pl.concat(entry[1])["n"].to_list()))
        outbox.published(entry[0])
    return found


def test_state_that_moves_does_not_stay_in_memory() -> None:
    """Not even if the donor's rows would stay there once they were read."""
    table, disk = MemoryTable("kept", COLUMNS, ["a", "b"]), Disk()
    table.store.attach(disk)
    table.put_rows(pl.DataFrame({"a": [str(n) for n in range(1000)], "b": 1, "n": 2}, COLUMNS))
    table.store.take_changes(1)
    table.store.persist(disk)
    table.delete_rows(pl.DataFrame({"a": ["7", "8"], "b": [1, 1]}))
    table.store.take_changes(2)
    table.store.persist(disk)
    donor = MemoryTable("kept", COLUMNS, ["a", "b"])
    donor.store.attach(disk)
    reads: list[bytes] = []
    get_many = disk.get_many
    disk.get_many = lambda keys: [reads.extend(keys), get_many(keys)][1]  # type: ignore[method-assign, func-returns-value]
    for number in (1, 2):
        assert sum(rows.height for rows in donor.store.frames()) == 998
        assert len(reads) == number


def test_changes_are_small_however_large_the_rows_are() -> None:
    """A change is one record of the changelog."""
    keyed = KeyedRows("kept", ["a"], ["b"], ["n"])
    runs = Runs("kept", "n", lambda rows: rows, ["a"])
    table = TableStore(KeyValueStore("kept"), {"a": pl.String(), "b": pl.Int64(), "n": pl.Int64()}, ["b"])
    rows = pl.DataFrame({"a": ["x" * 1_000_000] * 30, "b": range(30), "n": 1}, COLUMNS)
    keyed.put(rows)
    runs.add(rows)
    table.put_rows(rows)
    for store in (keyed, runs, table.store):
        store.take_changes(1)
        sizes = [len(change) for change in store.whole(Share(0, 1, ("b",)))]
        assert sum(sizes) > 30_000_000
        assert max(sizes) < 9_000_000


def test_how_far_rows_were_taken_has_this_durable_form() -> None:
    donor, task = OfRuns(), OfRuns()
    donor.take_in(frame([("ann", 5, 1), ("bob", 7, 1)]))
    donor.rows.drop(6)
    donor.store.take_changes(1)
    task.take_in(frame([("cleo", 3, 1)]))
    first, *rest = donor.store.whole()
    assert first == b"\x03\x00\x00\x00\x00\x00\x00\x00\x06"
    for change in (first, *rest):
        task.store.apply(change)
    assert task.rows.taken == 6
    assert task.contents() == [("bob", 7, 1), ("cleo", 3, 1)]  # what another task has not taken stays


def test_a_task_beyond_the_only_one_has_no_share() -> None:
    rows = pl.DataFrame({"member": ["ann", "bob"]})
    assert Share(0, 1, ("member",)).of("s", rows).height == 2
    assert Share(1, 1, ("member",)).of("s", rows).height == 0

"""A store as a table: rows in, rows out, aligned; columns that change; readers on other threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.core.errors import CorruptLogError, DataError, DeclarationError, UnavailableError
from headrace.stores.database import Batch, Database, KeySpace, PartOfBatch
from headrace.stores.keyvalue import CommittedKeyValues, KeyValueStore
from headrace.stores.table import RowReader, TableStore

COLUMNS: dict[str, pl.DataType] = {
    "name": pl.String(),
    "at": pl.Int64(),
    "n": pl.Int64(),
    "note": pl.String(),
}
KEY = ("name", "at")


def table(columns: dict[str, pl.DataType] | None = None, key: tuple[str, ...] = KEY, **options: Any) -> TableStore:
    return TableStore(KeyValueStore("people", **options), COLUMNS if columns is None else columns, key)


def rows(*entries: tuple[Any, ...], columns: dict[str, pl.DataType] | None = None) -> pl.DataFrame:
    return pl.DataFrame(entries, COLUMNS if columns is None else columns, orient="row")


def keys(*entries: tuple[Any, ...]) -> pl.DataFrame:
    return pl.DataFrame(entries, {"name": pl.String, "at": pl.Int64}, orient="row")


def scanned(frames: Iterator[pl.DataFrame]) -> list[tuple[Any, ...]]:
    return [row for frame in frames for row in frame.rows()]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "db")
    yield database
    database.close()


def persist(store: KeyValueStore, database: Database) -> list[bytes]:
    changes = store.take_changes(1)
    batch = Batch()
    store.persist(PartOfBatch(batch, store.id))
    database.write(batch)
    return changes


def reopened(store: KeyValueStore, changes: list[bytes]) -> KeyValueStore:
    again = KeyValueStore(store.id)
    for change in changes:
        again.apply(change)
    return again


def test_rows_are_found_in_the_order_of_the_keys_asked_for() -> None:
    people = table()
    people.put_rows(rows(("a", 1, 10, "x"), ("b", 2, 20, None), (None, None, 30, "z")))
    found = people.get_rows(keys(("b", 2), ("nobody", 0), (None, None), ("a", 1), ("b", 2)), found="there")
    assert found.rows() == [
        (20, None, True), (None, None, False), (30, "z", True), (10, "x", True), (20, None, True),
    ]  # fmt: skip
    assert people.get_rows(keys(("nobody", 0))).rows() == [(None, None)]
    assert people.get_rows(keys()).height == 0


def test_of_equal_keys_the_last_row_counts() -> None:
    people = table()
    people.put_rows(rows(("a", 1, 10, "x"), ("a", 1, 11, "y")))
    people.put_rows(rows(("a", 1, 12, "z"), ("b", 1, 0, "")))
    assert people.get_rows(keys(("a", 1))).rows() == [(12, "z")]


def test_deleted_rows_are_gone() -> None:
    people = table()
    people.put_rows(rows(("a", 1, 10, "x"), ("b", 2, 20, "y")))
    people.delete_rows(keys(("a", 1), ("nobody", 0)))
    assert scanned(people.scan()) == [("b", 2, 20, "y")]


def test_a_table_of_keys_alone() -> None:
    seen = table({"name": pl.String(), "at": pl.Int64()})
    seen.put_rows(keys(("a", 1)))
    assert seen.get_rows(keys(("b", 1), ("a", 1)), found="seen")["seen"].to_list() == [False, True]
    assert scanned(seen.scan()) == [("a", 1)]


@pytest.mark.parametrize("batch_rows", [1, 3, 1000])
def test_scans_follow_the_order_of_keys(batch_rows: int) -> None:
    people = table()
    every = [(name, at, at, name) for name in ("a", "a\x00", "ab", "b") for at in range(-2, 3)]
    people.put_rows(rows(*every[::-1]))
    every.sort()

    def scan(**bounds: Any) -> list[tuple[Any, ...]]:
        return scanned(people.scan(batch_rows=batch_rows, **bounds))

    assert scan() == every
    assert scan(reverse=True) == every[::-1]
    assert scan(prefix={"name": "a"}) == [row for row in every if row[0] == "a"]
    assert scan(prefix={"name": "a", "at": 1}) == [("a", 1, 1, "a")]
    assert scan(start={"name": "ab"}) == [row for row in every if row[0] >= "ab"]
    assert scan(stop={"name": "ab", "at": 0}) == [row for row in every if row[:2] < ("ab", 0)]
    assert scan(start={"name": "a", "at": 1}, prefix={"name": "a"}, reverse=True) == [
        ("a", 2, 2, "a"),
        ("a", 1, 1, "a"),
    ]
    assert scan(start={"name": "b"}, stop={"name": "a"}) == []
    with pytest.raises(DeclarationError, match="aren't the first columns of the key"):
        scan(prefix={"at": 1})


ENTRY = st.tuples(
    st.sampled_from("abc"), st.integers(0, 3), st.integers(-(2**60), 2**60), st.none() | st.text(max_size=3)
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(ENTRY, max_size=6)), max_size=8))
def test_a_table_holds_what_a_dict_holds(steps: list[tuple[bool, list[tuple[str, int, int, str | None]]]]) -> None:
    people = table()
    model: dict[tuple[str, int], tuple[int, str | None]] = {}
    for puts, entries in steps:
        if puts:
            people.put_rows(rows(*entries))
            model |= {row[:2]: row[2:] for row in entries}
        else:
            people.delete_rows(rows(*entries))
            for row in entries:
                model.pop(row[:2], None)
        asked = [(name, at) for name in "abc" for at in range(4)]
        assert people.get_rows(keys(*asked)).rows() == [model.get(key, (None, None)) for key in asked]
        assert scanned(people.scan()) == [(*key, *value) for key, value in sorted(model.items())]


# -- columns that change


def test_added_and_removed_columns(database: Database) -> None:
    old = table()
    old.store.attach(KeySpace(database, "people"))
    old.put_rows(rows(("a", 1, 10, "x"), ("b", 1, 20, "y")))
    changes = persist(old.store, database)

    columns = {"name": pl.String(), "at": pl.Int64(), "extra": pl.List(pl.Int64()), "n": pl.Int64()}
    attached = KeyValueStore("people")
    attached.attach(KeySpace(database, "people"))
    for store in (attached, reopened(old.store, changes)):
        new = TableStore(store, columns, KEY)
        new.put_rows(rows(("b", 1, [1], 21), ("c", 1, [2, 3], 30), columns=columns))
        assert new.get_rows(keys(("c", 1), ("a", 1), ("x", 0), ("b", 1))).rows() == [
            ([2, 3], 30), (None, 10), (None, None), ([1], 21),
        ]  # fmt: skip
        assert scanned(new.scan()) == [("a", 1, None, 10), ("b", 1, [1], 21), ("c", 1, [2, 3], 30)]


def test_columns_as_they_were_before_are_known_again() -> None:
    old = table()
    old.put_rows(rows(("a", 1, 10, "x")))
    new = TableStore(old.store, {"name": pl.String(), "at": pl.Int64(), "n": pl.Int64()}, KEY)
    new.put_rows(rows(("b", 1, 20, None)))
    old.put_rows(rows(("c", 1, 30, "z")))
    assert scanned(old.scan()) == [("a", 1, 10, "x"), ("b", 1, 20, None), ("c", 1, 30, "z")]


def test_a_type_that_changed_is_refused() -> None:
    old = table()
    old.put_rows(rows(("a", 1, 10, "x")))
    new = TableStore(old.store, COLUMNS | {"n": pl.String()}, KEY)
    with pytest.raises(DeclarationError, match=r"store 'people': column 'n' was stored as Int64, .* as String"):
        new.get_rows(keys(("a", 1)))
    with pytest.raises(DeclarationError, match="was stored as Int64"):
        new.put_rows(rows(("a", 1, "10", "x"), columns=COLUMNS | {"n": pl.String()}))


@pytest.mark.parametrize("key", [("at", "name"), ("name",), ("name", "at", "n")])
def test_another_key_is_refused(key: tuple[str, ...]) -> None:
    old = table()
    old.put_rows(rows(("a", 1, 10, "x")))
    other = TableStore(old.store, COLUMNS, key)
    kept = "has the key name: String, at: Int64, but is now declared with"
    with pytest.raises(DeclarationError, match=kept):
        scanned(other.scan())
    with pytest.raises(DeclarationError, match=kept):
        other.get_rows(rows(("a", 1, 10, "x")))
    with pytest.raises(DeclarationError, match=kept):
        other.delete_rows(rows(("a", 1, 10, "x")))


@pytest.mark.parametrize("key", [(), ("nobody",), ("at", "at")])
def test_a_key_is_a_choice_of_the_columns(key: tuple[str, ...]) -> None:
    with pytest.raises(DeclarationError, match=r"must consist of distinct columns|at least one column"):
        table(key=key)


def test_rows_of_other_types_are_refused() -> None:
    people = table()
    with pytest.raises(DataError, match="column 'at' is Int32, but the table has Int64"):
        people.get_rows(keys().with_columns(pl.col("at").cast(pl.Int32)))
    with pytest.raises(DataError, match="column 'note' is missing"):
        people.put_rows(rows().drop("note"))
    with pytest.raises(DataError, match="column 'name' is missing"):
        people.delete_rows(keys().drop("name"))


def test_a_row_of_an_unknown_layout_is_refused() -> None:
    people = table()
    people.put_rows(rows(("a", 1, 10, "x")))
    [(key, value), *_] = people.store.range()
    people.store.put(key, value[:1] + b"\x05" + value[2:])
    with pytest.raises(CorruptLogError, match="unknown layout 5"):
        people.get_rows(keys(("a", 1)))


def test_a_cleared_table_learns_its_columns_again() -> None:
    people = table()
    people.put_rows(rows(("a", 1, 10, "x")))
    people.store.clear()
    people.put_rows(rows(("b", 1, 10, "x")))
    again = TableStore(reopened(people.store, people.store.take_changes(1)), COLUMNS, KEY)
    assert scanned(again.scan()) == [("b", 1, 10, "x")]


# -- commits, time, other threads


def test_rows_expire_but_not_what_is_known_of_them(database: Database) -> None:
    people = table(ttl_ms=100)
    people.store.attach(KeySpace(database, "people"))
    people.store.advance(1000)
    people.put_rows(rows(("a", 1, 10, "x")))
    persist(people.store, database)
    people.store.advance(1050)
    people.put_rows(rows(("b", 1, 20, "y")))
    assert people.store.sweep(1100, 100) == 1
    assert scanned(people.scan()) == [("b", 1, 20, "y")]
    assert people.store.sweep(9000, 100) == 1
    people.put_rows(rows(("c", 1, 30, "z")))
    assert people.get_rows(keys(("a", 1), ("b", 1), ("c", 1))).rows() == [(None, None), (None, None), (30, "z")]


def test_another_thread_reads_what_is_committed(database: Database) -> None:
    people = table()
    people.store.attach(KeySpace(database, "people"))
    reader = RowReader(CommittedKeyValues("people", KeySpace(database, "people")), COLUMNS, KEY)

    def read() -> list[tuple[Any, ...]]:
        with ThreadPoolExecutor(1) as other:
            assert other.submit(lambda: reader.get_rows(keys(("a", 1)), found="there").rows()).result() is not None
            return other.submit(lambda: scanned(reader.scan())).result()

    assert read() == []
    people.put_rows(rows(("a", 1, 10, "x")))
    people.store.take_changes(1)
    assert read() == []
    persist(people.store, database)
    people.put_rows(rows(("a", 1, 11, "later")))
    assert read() == [("a", 1, 10, "x")]


def test_a_reader_that_comes_too_late_damages_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    reader = RowReader(CommittedKeyValues("people", KeySpace(database, "people")), COLUMNS, KEY)
    database.close()
    with pytest.raises(UnavailableError, match="was released"):
        reader.get_rows(keys(("a", 1)))
    with pytest.raises(UnavailableError, match="was released"):
        scanned(reader.scan())
    Database(tmp_path / "db").close()


def test_reading_and_committing_at_once(database: Database) -> None:
    """A reader sees only whole commits: every commit sets all rows to one number."""
    people = table()
    people.store.attach(KeySpace(database, "people"))
    names = [f"{number:03}" for number in range(300)]

    def commit(n: int) -> None:
        people.put_rows(rows(*((name, 0, n, "") for name in names)))
        persist(people.store, database)

    commit(0)
    reader = RowReader(CommittedKeyValues("people", KeySpace(database, "people")), COLUMNS, KEY)

    def read() -> list[int]:
        return pl.concat(list(reader.scan()))["n"].unique().to_list()

    with ThreadPoolExecutor(1) as other:
        for n in range(1, 60):
            reading = other.submit(read)
            commit(n)
            assert len(reading.result()) == 1

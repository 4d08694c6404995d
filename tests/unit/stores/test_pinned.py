"""Readers that read several times, or slowly, see one commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.core.errors import UnavailableError
from headrace.stores.database import Batch, Database, KeySpace, PartOfBatch
from headrace.stores.keyvalue import CommittedKeyValues, KeyValueStore
from headrace.stores.table import RowReader, TableStore

COLUMNS = {"k": pl.Int64(), "j": pl.String(), "v": pl.Int64()}
ROWS = 1_500  # several portions


class Scene:
    def __init__(self, folder: Path, ttl_ms: int | None = None) -> None:
        self.database = Database(folder)
        self.table = TableStore(KeyValueStore("t", ttl_ms=ttl_ms), COLUMNS, ["k", "j"])
        self.table.store.attach(KeySpace(self.database, "t"))
        self.other = KeyValueStore("s")  # its keys are before those of the table
        self.other.attach(KeySpace(self.database, "s"))
        self.committed = CommittedKeyValues("t", KeySpace(self.database, "t"), ttl_ms=ttl_ms)

    def commit(self, value: int, numbers: range = range(ROWS)) -> None:
        self.table.put_rows(pl.DataFrame({"k": numbers, "j": "x", "v": value}, schema=COLUMNS))
        self.other.put(b"x", b"%d" % value)
        batch = Batch()
        for store in (self.table.store, self.other):
            store.take_changes(1)
            store.persist(PartOfBatch(batch, store.id))
        self.database.write(batch)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "db")
    scene.commit(1)
    yield scene
    scene.database.close()


def reader(committed: CommittedKeyValues) -> RowReader:
    return RowReader(committed, COLUMNS, ["k", "j"])


def keys(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame({"k": numbers, "j": "x"}, schema={"k": pl.Int64, "j": pl.String})


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_sees_the_commit_that_it_began_with(scene: Scene, reverse: bool) -> None:
    parts = reader(scene.committed).scan(batch_rows=10, reverse=reverse)
    first = next(parts)
    scene.commit(2, range(-100, ROWS + 100))
    scene.table.delete_rows(keys(*range(0, ROWS, 2)))
    scene.commit(3, range(1, 2))
    whole = pl.concat([first, *parts])
    assert whole["k"].to_list() == sorted(range(ROWS), reverse=reverse)
    assert whole["v"].unique().to_list() == [1]


@pytest.mark.parametrize("reverse", [False, True])
def test_all_that_a_pinned_reader_asks_is_of_one_commit(scene: Scene, reverse: bool) -> None:
    with scene.committed.pinned() as still:
        table = reader(still)
        parts = table.scan(batch_rows=7, reverse=reverse)
        seen = [next(parts)]
        scene.commit(2, range(ROWS + 100))
        assert table.get_rows(keys(5, ROWS + 5), found="there").rows() == [(1, True), (None, False)]
        seen.append(next(parts))
        scene.table.delete_rows(keys(*range(ROWS)))
        scene.commit(3, range(ROWS, ROWS + 1))
        seen += parts
        assert pl.concat(seen)["k"].to_list() == sorted(range(ROWS), reverse=reverse)
        assert pl.concat(seen)["v"].unique().to_list() == [1]
        some = table.scan(start={"k": 100}, stop={"k": 103})
        assert [row for part in some for row in part.rows()] == [(100, "x", 1), (101, "x", 1), (102, "x", 1)]
        assert [part.rows() for part in table.scan(prefix={"k": 7})] == [[(7, "x", 1)]]
        with still.pinned() as twice:
            assert reader(twice).get_rows(keys(5)).rows() == [(1,)]
    assert reader(scene.committed).get_rows(keys(5)).rows() == [(None,)]


def test_two_stores_pinned_together_agree(scene: Scene) -> None:
    with KeySpace(scene.database, "s").pinned() as part:
        scene.commit(2)
        assert part.get(b"x") == b"1"
        assert [value for _, value in part.range(b"", None)][-1] == b"1"
        assert part.get_many([b"x", b"y"]) == [b"1", None]


def test_what_expires_is_passed_over_by_a_pinned_reader_too(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "db", ttl_ms=100)
    scene.table.advance(1_000)
    scene.commit(1, range(3))
    scene.committed.advance(1_050)
    with scene.committed.pinned() as still:
        assert reader(still).get_rows(keys(1)).rows() == [(1,)]
        scene.committed.advance(1_100)
        assert reader(still).get_rows(keys(1)).rows() == [(None,)]
    scene.database.close()


def test_a_database_that_is_closed_lets_go_of_readers(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "db")
    scene.commit(1)
    with scene.committed.pinned() as still:
        table: Any = reader(still)
        parts = table.scan(batch_rows=1)
        next(parts)
        scene.database.close()
        Database(tmp_path / "db").close()  # the folder is free
        with pytest.raises(UnavailableError, match="was released"):
            table.get_rows(keys(1))
        with pytest.raises(UnavailableError, match="was released"):
            list(parts)
    with pytest.raises(UnavailableError, match="was released"), scene.committed.pinned():
        pass

"""Tables of versions, against a list of everything that was ever put."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.core.errors import DataError, DeclarationError
from headrace.stores import pieces
from headrace.stores.base import GONE, SINCE, StateStore
from headrace.stores.database import Batch, Database, KeySpace, PartOfBatch
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.table import MemoryTable, RowTable, TableStore
from headrace.stores.versions import VERSION_COLUMNS, VersionedTable, last_versions

COLUMNS = {"k": pl.String(), "j": pl.Int32(), "v": pl.Int64()}
KEEP_MS = 5_000

Version = tuple[str, int, int, bool]
"""Key, time, value, whether it is a deletion."""


def table(storage: str = "disk", keep_ms: int = KEEP_MS) -> VersionedTable:
    columns = {**COLUMNS, **VERSION_COLUMNS}
    newest: RowTable = TableStore(KeyValueStore("rates"), columns, ["k", "j"])
    if storage == "memory":
        newest = MemoryTable("rates", columns, ["k", "j"])
    found = VersionedTable("rates", newest, keep_ms)
    found.used_by("it")
    return found


def rows(versions: Sequence[Version]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "k": [key for key, *_ in versions],
            "j": [len(key) for key, *_ in versions],
            "v": [None if gone else value for *_, value, gone in versions],
            SINCE: [since for _, since, *_ in versions],
            GONE: [gone for *_, gone in versions],
        },
        schema={**COLUMNS, **VERSION_COLUMNS},
    )


def asked(held: VersionedTable, questions: Sequence[tuple[str | None, int]]) -> list[int | None]:
    keys = pl.DataFrame(
        {"k": [key for key, _ in questions], "j": [len(key or "") for key, _ in questions]},
        schema={"k": pl.String, "j": pl.Int32},
    )
    found = held.as_of(keys, np.array([time for _, time in questions], np.int64), found="found")
    assert found.columns == ["v", "found"]
    assert found.height == len(questions)
    values = found["v"].to_list()
    return [value if there else None for value, there in zip(values, found["found"], strict=True)]


def oracle(versions: Sequence[Version], key: str | None, time: int) -> int | None:
    """The latest of the versions that aren't later; of equal ones, the one put last."""
    earlier = [(since, n) for n, (name, since, _, _) in enumerate(versions) if name == key and since <= time]
    if not earlier:
        return None
    *_, value, gone = versions[max(earlier)[1]]
    return None if gone else value


def test_each_time_finds_the_version_that_was_then() -> None:
    held = table()
    held.put_versions(rows([("a", 100, 1, False), ("a", 300, 3, False), ("b", 200, 9, False)]))
    held.put_versions(rows([("a", 200, 2, False), ("a", 400, 4, False)]))
    questions = [("a", time) for time in (99, 100, 199, 200, 250, 300, 399, 400, 10_000)]
    assert asked(held, questions) == [None, 1, 1, 2, 2, 3, 3, 4, 4]
    assert asked(held, [("b", 199), ("b", 200), ("c", 1), (None, 500)]) == [None, 9, None, None]


def test_a_deletion_is_a_version() -> None:
    held = table()
    held.put_versions(rows([("a", 100, 1, False), ("a", 200, 0, True), ("a", 300, 3, False)]))
    assert asked(held, [("a", 150), ("a", 200), ("a", 299), ("a", 300)]) == [1, None, None, 3]


def test_of_one_time_the_version_put_last_counts_whether_it_is_the_newest_or_not() -> None:
    held = table()
    held.put_versions(rows([("a", 100, 1, False), ("a", 100, 2, False), ("a", 200, 3, False)]))
    assert asked(held, [("a", 100), ("a", 200)]) == [2, 3]
    held.put_versions(rows([("a", 100, 4, False), ("a", 200, 5, False)]))
    assert asked(held, [("a", 100), ("a", 200)]) == [4, 5]
    held.put_versions(rows([("a", 150, 0, False), ("a", 100, 6, False)]))
    assert asked(held, [("a", 100), ("a", 160)]) == [6, 0]


def test_old_versions_are_dropped_except_the_newest() -> None:
    held = table()
    for since in range(0, 60_000, 1_000):
        held.put_versions(rows([(key, since, since, False) for key in "ab"]))
        held.pass_by("it", since)
    held.put_versions(rows([("old", 1, 1, False)]))
    assert held.entries() < 2 * 9
    held.pass_by("it", 10_000_000)
    assert held.entries() == 3
    assert asked(held, [("a", 9_999_999), ("old", 9_999_999)]) == [59_000, 1]


def test_a_version_that_has_ended_already_is_not_kept() -> None:
    held = table()
    held.put_versions(rows([("a", 50_000, 1, False)]))
    held.pass_by("it", 100_000)
    held.put_versions(rows([("a", 40_000, 2, False), ("b", 40_000, 3, False)]))
    assert held.entries() == 2
    assert asked(held, [("a", 95_000), ("b", 95_000)]) == [1, 3]


def test_a_key_that_was_deleted_long_ago_takes_no_room() -> None:
    held = table()
    held.put_versions(rows([(key, 100, 1, False) for key in "abcd"]))
    held.put_versions(rows([(key, 200, 0, True) for key in "abcd"]))
    held.put_versions(rows([("d", 300, 4, False)]))
    held.pass_by("it", 200 + KEEP_MS - 1)
    assert asked(held, [("a", 199), ("a", 200)]) == [1, None]
    held.pass_by("it", 200 + KEEP_MS + 2_000)
    assert held.entries() == 1
    assert asked(held, [("a", 10_000), ("d", 10_000)]) == [None, 4]


def test_nothing_goes_before_all_users_have_come_so_far() -> None:
    held = table()
    held.used_by("another")
    held.put_versions(rows([("a", 100, 1, False), ("a", 200, 2, False)]))
    held.pass_by("it", 100_000)
    assert asked(held, [("a", 150)]) == [1]
    held.pass_by("another", 100_000)
    assert held.entries() == 1


def test_a_version_without_a_time_is_an_error() -> None:
    versions = rows([("a", 1, 1, False)]).with_columns(pl.lit(None, pl.Int64).alias(SINCE))
    with pytest.raises(DataError, match="table 'rates': 1 of 1 versions have no event time"):
        table().put_versions(versions)


def test_rows_that_were_there_before_there_were_versions_count_from_ever() -> None:
    held = table()
    newest = held._newest
    newest.put_rows(rows([("a", 0, 1, False)]).with_columns(pl.lit(None, pl.Int64).alias(SINCE)))
    assert asked(held, [("a", -5)]) == [1]
    held.put_versions(rows([("a", 100, 2, False)]))
    assert asked(held, [("a", 99), ("a", 100)]) == [1, 2]


def test_keys_with_equal_hashes_are_distinguished() -> None:
    run = pl.DataFrame(
        {
            "__hash": pl.Series([7, 7, 7, 7, 9], dtype=pl.UInt64),
            SINCE: [10, 20, 30, 40, 5],
            "k": ["a", "b", "b", "c", "d"],
        }
    )
    keys = pl.DataFrame({"k": ["a", "a", "b", "b", "c", "c", "x", "d", "d"]})
    times = np.array([9, 99, 25, 99, 39, 40, 99, 4, 5])
    hashes = np.array([7, 7, 7, 7, 7, 7, 7, 9, 9], np.uint64)
    assert last_versions(run, keys, hashes, times).tolist() == [-1, 0, 1, 2, -1, 3, -1, -1, 4]


@pytest.mark.parametrize("from_log", [True, False])
@pytest.mark.parametrize("storage", ["disk", "memory"])
def test_columns_may_be_added_and_taken_away(tmp_path: Path, storage: str, from_log: bool) -> None:
    def keeping(columns: dict[str, pl.DataType]) -> VersionedTable:
        columns = {**columns, **VERSION_COLUMNS}
        newest: RowTable = TableStore(KeyValueStore("rates"), columns, ["k", "j"])
        if storage == "memory":
            newest = MemoryTable("rates", columns, ["k", "j"])
        return VersionedTable("rates", newest, KEEP_MS)

    database = Database(tmp_path / "db")
    held = keeping(COLUMNS)
    for store in held.stores():
        store.attach(KeySpace(database, store.id))
    held.put_versions(rows([("a", 100, 1, False), ("a", 200, 2, False)]))
    changes = {store.id: store.take_changes(1) for store in held.stores()}
    batch = Batch()
    for store in held.stores():
        store.persist(PartOfBatch(batch, store.id))
    database.write(batch)

    def again(columns: dict[str, pl.DataType]) -> VersionedTable:
        other = keeping(columns)
        for store in other.stores():
            if from_log:
                for change in changes[store.id]:
                    store.apply(change)
            else:
                store.attach(KeySpace(database, store.id))
        return other

    keys = pl.DataFrame({"k": ["a", "a"], "j": [1, 1]}, schema={"k": pl.String, "j": pl.Int32})
    changed = again({"n": pl.Date(), **COLUMNS})
    changed.put_versions(rows([("a", 150, 3, False)]).with_columns(pl.lit(None, pl.Date).alias("n")))
    found = changed.as_of(keys, np.array([100, 160]), found="found")
    assert found.select("v", "n", "found").rows() == [(1, None, True), (3, None, True)]
    fewer = again({"k": pl.String(), "j": pl.Int32()})
    assert fewer.as_of(keys, np.array([99, 100]), found="found").rows() == [(False,), (True,)]
    with pytest.raises(DeclarationError, match="column 'v' was stored as Int64, but is now declared as String"):
        again(COLUMNS | {"v": pl.String()}).as_of(keys, np.array([99, 100]), found="found")
    database.close()


# -- any history


VERSIONS = st.lists(
    st.tuples(st.sampled_from(["a", "bb", "ccc"]), st.integers(0, 60), st.integers(0, 999), st.booleans()),
    min_size=1,
    max_size=8,
).map(lambda versions: [(key, since * 500, value, gone and value % 3 == 0) for key, since, value, gone in versions])
QUESTIONS = st.lists(
    st.tuples(st.sampled_from(["a", "bb", "ccc", "d", None]), st.integers(0, 70_000)), min_size=1, max_size=12
)
STEPS = st.one_of(
    st.tuples(st.just("put"), VERSIONS),
    st.tuples(st.just("ask"), QUESTIONS),
    st.tuples(st.just("pass"), st.integers(0, 40_000)),
    st.tuples(st.sampled_from(["commit", "rollback", "restart", "replay"]), st.none()),
)


class Life:
    """A table with commits and restarts, and what was put before and after the last commit."""

    def __init__(self, storage: str, folder: Path) -> None:
        self._storage = storage
        self._folder = folder
        self._database = Database(folder)
        self._logs: dict[str, list[bytes]] = {}
        self._persisted: dict[str, int] = {}
        self.committed: tuple[list[Version], int] = ([], -(2**63))
        self.versions: list[Version] = []
        self.watermark = -(2**63)
        self.table = self._begun()

    def _begun(self, *, from_log: bool = False) -> VersionedTable:
        held = table(self._storage)
        for store in held.stores():
            log = self._logs.get(store.id, [])
            if not from_log:
                store.attach(KeySpace(self._database, store.id))
                log = log[self._persisted.get(store.id, 0) :]
            for change in log:
                store.apply(change)
        return held

    def commit(self) -> None:
        batch = Batch()
        stores: Sequence[StateStore] = self.table.stores()
        for store in stores:
            self._logs.setdefault(store.id, []).extend(store.take_changes(1))
        for store in stores:
            store.persist(PartOfBatch(batch, store.id))
            self._persisted[store.id] = len(self._logs[store.id])
        self._database.write(batch)
        self.committed = (list(self.versions), self.watermark)

    def back(self, kind: str) -> None:
        """Go back to the last commit: in the process, from disk, or from the changelog alone."""
        if kind == "restart":
            self._database.close()
            self._database = Database(self._folder)
        self.versions, self.watermark = list(self.committed[0]), self.committed[1]
        if kind == "replay":  # stores without a database can't be persisted: check this one, and continue with others
            replayed = self._begun(from_log=True)
            replayed.pass_by("it", self.watermark)
            self.check(replayed, [(key, time) for key in ("a", "bb", "ccc") for time in range(0, 70_000, 3_000)])
        self.table = self._begun()
        self.table.pass_by("it", self.watermark)

    def check(self, held: VersionedTable, questions: Sequence[tuple[str | None, int]]) -> None:
        questions = [(key, max(time, self.watermark - KEEP_MS)) for key, time in questions]
        assert asked(held, questions) == [oracle(self.versions, key, time) for key, time in questions]

    def put(self, versions: Sequence[Version]) -> None:
        """Put versions, none of them before the bound: deletions are forgotten together with what they deleted."""
        bound = max(0, self.watermark - KEEP_MS)
        timely = [(key, max(since, bound), value, gone) for key, since, value, gone in versions]
        self.table.put_versions(rows(timely))
        self.versions += timely

    def close(self) -> None:
        self._database.close()


@pytest.mark.parametrize("storage", ["disk", "memory"])
@settings(deadline=None, max_examples=examples(60))
@given(history=st.lists(STEPS, max_size=25), in_pieces=st.booleans())
def test_any_history_gives_what_a_list_of_all_versions_gives(
    storage: str, history: list[tuple[str, Any]], in_pieces: bool
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if in_pieces:  # of one or two rows, almost none of which stay in memory
            patch.setattr(pieces, "PIECE_ROWS", 2)
            patch.setattr(pieces, "KEPT_BYTES_MAX", 100)
        life = Life(storage, Path(folder) / "state")
        try:
            for kind, what in history:
                if kind == "put":
                    life.put(what)
                elif kind == "ask":
                    life.check(life.table, what)
                elif kind == "pass":
                    life.watermark = max(life.watermark, what)
                    life.table.pass_by("it", life.watermark)
                elif kind == "commit":
                    life.commit()
                else:
                    life.back(kind)
        finally:
            life.close()

"""A table in memory equals one on disk, whatever is put, read, committed and restored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.core.errors import DataError, DeclarationError, UsageError
from headrace.stores.database import Batch, Database, KeySpace, PartOfBatch
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.table import MemoryTable, TableStore, key_range

COLUMNS: dict[str, pl.DataType] = {"k": pl.String(), "x": pl.Float64(), "v": pl.Int64(), "w": pl.List(pl.String())}
KEY = ("k", "x")
TTL_MS = 1_000

Row = tuple[str | None, float | None, int | None]


def memory(ttl_ms: int | None = None, columns: dict[str, pl.DataType] | None = None) -> MemoryTable:
    return MemoryTable("m", COLUMNS if columns is None else columns, KEY, ttl_ms=ttl_ms)


def disk(ttl_ms: int | None = None) -> TableStore:
    return TableStore(KeyValueStore("d", ttl_ms=ttl_ms), COLUMNS, KEY)


def rows(*values: Row) -> pl.DataFrame:
    whole = [(k, x, v, None if v is None else [f"w{v}", None]) for k, x, v in values]
    return pl.DataFrame(whole, COLUMNS, orient="row")


def keys(*values: tuple[str | None, float | None]) -> pl.DataFrame:
    return pl.DataFrame(values, {"k": pl.String, "x": pl.Float64}, orient="row")


def test_rows_are_found_in_the_order_of_the_keys_asked_for() -> None:
    table = memory()
    table.put_rows(rows(("a", 1.0, 1), ("b", 2.0, 2), (None, None, 3), ("a", 1.0, 4)))
    table.put_rows(rows(("c", float("nan"), 5), ("d", -0.0, 6)))
    asked = keys(("c", float("nan")), ("a", 1.0), ("x", 1.0), (None, None), ("a", 1.0), ("d", 0.0), ("a", None))
    found = table.get_rows(asked, found="there")
    assert found["v"].to_list() == [5, 4, None, 3, 4, 6, None]
    assert found["there"].to_list() == [True, True, False, True, True, True, False]
    assert found.columns == ["v", "w", "there"]
    assert table.get_rows(keys()).shape == (0, 2)
    assert table.entries() == 5


def test_a_table_may_have_nothing_but_its_key() -> None:
    table = memory(columns={"k": pl.String(), "x": pl.Float64()})
    assert table.get_rows(keys(("a", 1.0)), found="there").rows() == [(False,)]
    table.put_rows(keys(("a", 1.0), ("a", 1.0)))
    assert table.get_rows(keys(("b", 1.0), ("a", 1.0)), found="there").rows() == [(False,), (True,)]
    table.delete_rows(keys(("a", 1.0)))
    assert table.get_rows(keys(("a", 1.0)), found="there").rows() == [(False,)]


def test_wrong_columns_are_refused() -> None:
    with pytest.raises(DataError, match="store 'm': column 'v' is String, but the table has Int64"):
        memory().put_rows(rows(("a", 1.0, 1)).cast({"v": pl.String}))
    with pytest.raises(DataError, match="store 'm': column 'x' is missing"):
        memory().get_rows(keys(("a", 1.0)).select("k"))
    with pytest.raises(UsageError, match="its clock was never set"):
        memory(TTL_MS).put_rows(rows(("a", 1.0, 1)))


def persisted(table: MemoryTable | TableStore, database: Database) -> list[bytes]:
    changes = table.store.take_changes(1)
    batch = Batch()
    table.store.persist(PartOfBatch(batch, table.store.id))
    database.write(batch)
    return changes


@pytest.mark.parametrize("from_log", [True, False])
def test_columns_may_be_added_and_taken_away(tmp_path: Path, from_log: bool) -> None:
    table = memory()
    table.put_rows(rows(("a", 1.0, 1)))
    database = Database(tmp_path / "db")
    table.store.attach(KeySpace(database, "m"))
    changes = persisted(table, database)

    def again(columns: dict[str, pl.DataType], ttl_ms: int | None = None) -> MemoryTable:
        other = memory(ttl_ms, columns)
        if from_log:
            for change in changes:
                other.store.apply(change)
        else:
            other.store.attach(KeySpace(database, "m"))
        return other

    changed = again({"n": pl.Date(), "x": pl.Float64(), "k": pl.String(), "v": pl.Int64()})
    changed.put_rows(pl.DataFrame({"k": ["b"], "x": [1.0], "v": [2], "n": [None]}).cast({"n": pl.Date}))
    assert changed.get_rows(keys(("a", 1.0), ("b", 1.0))).select("v", "n").rows() == [(1, None), (2, None)]
    with pytest.raises(
        DeclarationError, match="store 'm': column 'v' was stored as Int64, but is now declared as String"
    ):
        again(COLUMNS | {"v": pl.String()}).get_rows(keys(("a", 1.0)))
    with pytest.raises(
        DeclarationError, match=r"in memory without a time to live, but is now declared as .* with a time"
    ):
        again(COLUMNS, TTL_MS).get_rows(keys(("a", 1.0)))
    database.close()


def test_a_table_that_had_a_time_to_live_is_refused_without() -> None:
    table = memory(TTL_MS)
    table.advance(1)
    table.put_rows(rows(("a", 1.0, 1)))
    other = memory()
    with pytest.raises(
        DeclarationError, match=r"in memory with a time to live, but is now declared as .* without a time"
    ):
        for change in table.store.take_changes(1):
            other.store.apply(change)


def test_the_key_is_given_once_before_the_first_rows() -> None:
    table = memory()
    assert table.store.take_changes(1) == []
    table.put_rows(rows(("a", 1.0, 1)))
    what = b'"what":"a table in memory without a time to live"'
    golden = (
        b'\x05{%b,"key":{"k":"String","x":"Float64"},"columns":{"v":"Int64","w":"{\\"List\\":\\"String\\"}"}}' % what
    )
    assert table.store.take_changes(2)[0] == golden
    table.put_rows(rows(("b", 1.0, 1)))
    assert [change[:1] for change in table.store.take_changes(3)] == [b"\x01"]
    again = memory()
    again.store.apply(golden)
    again.put_rows(rows(("b", 1.0, 1)))
    assert [change[:1] for change in again.store.take_changes(4)] == [b"\x01"]
    with pytest.raises(DeclarationError, match="has the key k: String, x: Float64, but is now declared with k"):
        MemoryTable("m", COLUMNS, ["k"]).store.apply(golden)


# -- any history


KEYS = st.tuples(st.sampled_from(["a", "b", "a\0", None]), st.sampled_from([0.0, -0.0, 1.5, None, float("nan")]))
PUTS = st.lists(KEYS, min_size=1, max_size=6)
STEPS = st.one_of(
    st.tuples(st.just("put"), PUTS),
    st.tuples(st.just("delete"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("ask"), st.lists(KEYS, max_size=8)),
    st.tuples(st.just("time"), st.integers(1, 700)),
    st.tuples(st.sampled_from(["commit", "rollback", "replay", "sweep"]), st.none()),
)


class Pair:
    """Both tables, each with its commits and restarts."""

    def __init__(self, ttl_ms: int | None, database: Database) -> None:
        self._makes: list[Callable[[], Any]] = [lambda: memory(ttl_ms), lambda: disk(ttl_ms)]
        self._database = database
        self._logs: list[list[bytes]] = [[], []]
        self.now = 10_000
        self.begin()

    def begin(self) -> None:
        self.tables = [make() for make in self._makes]
        for table in self.tables:
            table.store.attach(KeySpace(self._database, table.store.id))
        self.tell_time()

    def tell_time(self) -> None:
        for table in self.tables:
            table.advance(self.now)

    def commit(self) -> None:
        for table, log in zip(self.tables, self._logs, strict=True):
            log.extend(persisted(table, self._database))

    def replayed(self) -> list[Any]:
        tables = [make() for make in self._makes]
        for table, log in zip(tables, self._logs, strict=True):
            for change in log:
                table.store.apply(change)
            table.advance(self.now)
        return tables


def scanned(table: MemoryTable | TableStore, *, reverse: bool = False, **bounds: Any) -> list[pl.DataFrame]:
    """The rows of a range of keys, in the order of keys."""
    if isinstance(table, TableStore):
        return list(table.scan(batch_rows=2, reverse=reverse, **bounds))
    named = {"start": None, "stop": None, "prefix": None} | bounds
    rows, _ = table.between(*key_range("m", table.key, **named), 1_000)
    return [rows.reverse() if reverse else rows]


def same(tables: Sequence[Any], asked: Sequence[tuple[str | None, float | None]]) -> None:
    ours, theirs = (table.get_rows(keys(*asked), found="there") for table in tables)
    assert str(ours.rows()) == str(theirs.rows())
    everything: dict[str, Any] = {}
    between = {"start": {"k": "a"}, "stop": {"k": "b", "x": 1.5}}
    for bounds in (everything, {"reverse": True}, between, {"prefix": {"k": "a"}}):
        frames = (pl.concat([pl.DataFrame(schema=COLUMNS), *scanned(table, **bounds)]) for table in tables)
        # On disk a key is 0.0 that was put as -0.0, which is equal to it.
        ours_then, theirs_then = (str(frame.rows()).replace("-0.0", "0.0") for frame in frames)
        assert ours_then == theirs_then


@settings(deadline=None, max_examples=examples(30))
@given(history=st.lists(STEPS, max_size=20), ttl_ms=st.sampled_from([None, TTL_MS]))
def test_any_history_gives_what_a_table_on_disk_gives(history: list[tuple[str, Any]], ttl_ms: int | None) -> None:
    with TemporaryDirectory() as folder:
        database = Database(Path(folder) / "db")
        pair = Pair(ttl_ms, database)
        for number, (kind, what) in enumerate(history):
            if kind == "put":
                for table in pair.tables:
                    table.put_rows(rows(*((k, x, 10 * number + n) for n, (k, x) in enumerate(what))))
            elif kind == "delete":
                for table in pair.tables:
                    table.delete_rows(keys(*what))
            elif kind == "ask":
                same(pair.tables, what)
            elif kind == "time":
                pair.now += what
                pair.tell_time()
            elif kind == "commit":
                pair.commit()
            elif kind == "sweep" and ttl_ms is not None:
                for table in pair.tables:
                    table.sweep(pair.now, 1_000)
            elif kind == "rollback":
                pair.begin()
            elif kind == "replay":
                pair.commit()
                same(pair.replayed(), [])
        same(pair.tables, [])
        database.close()

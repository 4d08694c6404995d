"""Columns that come and go between versions of an app, in every kind of table, against a dict; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_values import Disk, in_small_pieces

from drawn import examples
from headrace.core.errors import CorruptLogError, DeclarationError
from headrace.rows.schema import Schema
from headrace.stores.base import GONE, SINCE, StateForm, StateStore, check_form, conformed, described, grown, misfit
from headrace.stores.keyed import KeyedRows
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.records import RecordStore
from headrace.stores.runs import Runs
from headrace.stores.table import MemoryTable, TableStore
from headrace.stores.versions import VERSION_COLUMNS, VersionedTable

KEY: dict[str, pl.DataType] = {"k": pl.String(), "j": pl.Int32()}
POOL: dict[str, pl.DataType] = {
    "n": pl.Int64(),
    "s": pl.String(),
    "f": pl.Float64(),
    "t": pl.Datetime("ms"),
    "l": pl.List(pl.Int64()),
}
KINDS = ("on disk", "in memory", "records", "versions on disk", "versions in memory")
Row = tuple[str, int]
"""The key, and a number that all values follow from."""
History = list[tuple[list[str], list[list[Row]], bool]]
"""For each version its columns, batches of rows, and whether the next one is rebuilt from the changelog."""


class Opened:
    """A table of one version of the app, and what a test does with it."""

    def __init__(self, kind: str, names: list[str]) -> None:
        self.names = names
        columns = {name: POOL[name] for name in names}
        every = {**columns, **KEY} | (VERSION_COLUMNS if kind.startswith("versions") else {})
        self.table: Any
        match kind:
            case "records":
                self.table = RecordStore(KeyValueStore("m"), KEY, Schema(columns))
            case "on disk" | "versions on disk":
                self.table = TableStore(KeyValueStore("m"), every, list(KEY))
            case _:
                self.table = MemoryTable("m", every, list(KEY))
        self.stores: list[StateStore] = [self.table.store]
        self.versions = None
        if kind.startswith("versions"):
            self.versions = VersionedTable("m", self.table, 10**9)
            self.versions.used_by("it")
            self.stores = list(self.versions.stores())

    def put(self, rows: list[Row], at: int) -> None:
        frame = pl.DataFrame(
            [pl.Series("k", [key for key, _ in rows], pl.String), pl.Series("j", [len(k) for k, _ in rows], pl.Int32)]
            + [pl.Series(name, [value(name, n) for _, n in rows], POOL[name]) for name in self.names]
        )
        frame = frame.unique(["k"], keep="last", maintain_order=True)
        if self.versions is not None:
            stamp = (pl.lit(at, pl.Int64).alias(SINCE), pl.lit(value=False).alias(GONE))
            self.versions.put_versions(frame.with_columns(stamp))
        elif isinstance(self.table, RecordStore):
            for row in frame.to_dicts():
                self.table.put((row.pop("k"), row.pop("j")), row)
        else:
            self.table.put_rows(frame)

    def read(self, keys: list[str], at: int) -> list[dict[str, Any] | None]:
        asked = pl.DataFrame({"k": keys, "j": [len(key) for key in keys]}, KEY)
        if isinstance(self.table, RecordStore):
            single = [self.table.get((key, len(key))) for key in keys]
            assert as_rows(self.table.get_rows(asked, found="@")) == single
            return single
        if self.versions is not None:
            return as_rows(self.versions.as_of(asked, np.full(len(keys), at), found="@"))
        return as_rows(self.table.get_rows(asked, found="@"))


def as_rows(found: pl.DataFrame) -> list[dict[str, Any] | None]:
    return [row if row.pop("@") else None for row in found.to_dicts()]


def value(name: str, number: int) -> Any:
    as_of = {"n": number, "s": f"s{number}", "f": number / 2, "t": number, "l": [number, None]}
    return pl.Series([as_of[name]]).cast(POOL[name])[0] if name == "t" else as_of[name]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """A column that was removed doesn't come back: whether it still has its old values isn't promised."""
    gone: set[str] = set()
    before: list[str] = []
    history = []
    for _ in range(draw(st.integers(2, 4))):
        names = draw(st.permutations(sorted(POOL.keys() - gone)))[: draw(st.integers(1, 3))]
        gone |= set(before) - set(names)
        before = names
        rows = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 99)), min_size=1, max_size=8)
        history.append((names, draw(st.lists(rows, max_size=3)), draw(st.booleans())))
    return history


@settings(max_examples=examples(25), deadline=None)
@pytest.mark.parametrize("kind", KINDS)
@given(history=histories())
def test_added_columns_are_null_in_old_rows(kind: str, history: History) -> None:
    patch = in_small_pieces()
    try:
        check(kind, history)
    finally:
        patch.undo()


def check(kind: str, history: History) -> None:
    disks: dict[str, Disk] = {}
    log: list[tuple[str, bytes]] = []
    oracle: dict[str, dict[str, Any]] = {}
    past: list[dict[str, dict[str, Any]]] = []
    from_log = False
    for names, batches, rebuilt in history:
        table = Opened(kind, names)
        if from_log:
            disks = {}
        for store in table.stores:
            store.attach(disks.setdefault(store.id, Disk()))
            for id_, change in log if from_log else ():
                if id_ == store.id:
                    store.apply(change)
            store.persist(disks[store.id])
        for batch in batches:
            table.put(batch, len(past))
            for key, number in batch:
                oracle[key] = {name: value(name, number) for name in names}
            past.append(dict(oracle))
            for store in table.stores:
                log += [(store.id, change) for change in store.take_changes(1)]
                store.persist(disks[store.id])
        moments = range(len(past)) if kind.startswith("versions") else [len(past) - 1] if past else []
        for at in moments:
            held = past[at]
            expected = [{name: held[key].get(name) for name in names} if key in held else None for key in "abcdefgh"]
            assert table.read(list("abcdefgh"), at) == expected
        from_log = rebuilt


# -- forms


FORM = StateForm(what="a window of tumbling 10s", key={"k": "String"}, columns={"total": "sum Int64"})


def other(**changed: Any) -> StateForm:
    fields = {"what": FORM.what, "key": FORM.key, "fixed": FORM.fixed, "columns": FORM.columns} | changed
    return StateForm(**fields)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            other(what="what deduplicate has seen"),
            "was stored as a window of tumbling 10s, but is now declared as what",
        ),
        (other(key={"k": "Int64"}), "has the key k: String, but is now declared with k: Int64"),
        (other(key={"k": "String", "l": "Int64"}), "has the key k: String, but is now declared with k: String, l"),
        (other(key={}), r"has the key k: String, but is now declared with \(none\)"),
        (other(fixed={"time": "Int64"}), ": time was stored as nothing, but is now declared as Int64"),
        (other(columns={"total": "max Int64"}), ": column 'total' was stored as sum Int64, but is now declared as max"),
    ],
)
def test_a_form_that_does_not_fit_says_why(declared: StateForm, message: str) -> None:
    with pytest.raises(DeclarationError, match=f"store 'w'(: | ){message.removeprefix(': ')}") as caught:
        check_form("w", FORM, declared)
    assert "give the step another id" in (caught.value.hint or "")


def test_columns_of_a_form_may_come_go_and_move() -> None:
    more = other(columns={"n": "count Int64", "total": "sum Int64"})
    assert misfit(FORM, more) is misfit(more, FORM) is misfit(FORM, other(columns={})) is None
    assert misfit(other(key={"k": "String", "l": "Date"}), other(key={"l": "Date", "k": "String"})) is not None
    assert grown(more, FORM).columns == {"n": "count Int64", "total": "sum Int64"}
    retyped = other(columns={"n": "count UInt8"})
    assert misfit(grown(more, FORM), retyped) is not None


def test_the_durable_form() -> None:
    form = other(columns=described({"n": pl.Int64(), "l": pl.List(pl.Int8()), "c": pl.Categorical()}))
    golden = (
        b'{"what":"a window of tumbling 10s","key":{"k":"String"},'
        b'"columns":{"n":"Int64","l":"{\\"List\\":\\"Int8\\"}","c":"Categorical"}}'
    )
    assert form.written() == golden
    assert StateForm.read(golden) == form


# -- stores with a form


def runs(what: str = "sums", columns: dict[str, str] | None = None) -> Runs:
    names = ["time", "key", *(columns or {"n": ""})]
    return Runs(
        "w",
        "time",
        lambda rows: rows.group_by("time", "key").agg(pl.all().sum()),
        ["key"],
        lambda rows: conformed("w", rows, dict.fromkeys(names, pl.Int64()), ["time", "key"]),
        form=StateForm(what=what, key={"key": "Int64"}, columns=columns or {"n": "Int64"}),
    )


def keyed(what: str = "rows by key") -> KeyedRows:
    return KeyedRows("w", ["key"], ["time"], [], form=StateForm(what=what, key={"key": "Int64"}))


ROWS = pl.DataFrame({"time": [1, 2], "key": [1, 2], "n": [3, 4]})


def written(store: StateStore) -> tuple[list[bytes], Disk]:
    disk = Disk()
    store.attach(disk)
    if isinstance(store, Runs):
        store.add(ROWS)
    elif isinstance(store, KeyedRows):
        store.put(ROWS)
    elif isinstance(store, KeyValueStore):
        store.put(b"k", b"v")
    changes = store.take_changes(1)
    store.persist(disk)
    return changes, disk


KINDS_OF_STORES: dict[str, Callable[[], StateStore]] = {
    "sums": runs,
    "other sums": lambda: runs("other sums"),
    "rows": keyed,
    "keys": lambda: KeyValueStore("w"),
}


@pytest.mark.parametrize("before", KINDS_OF_STORES)
@pytest.mark.parametrize("after", KINDS_OF_STORES)
@pytest.mark.parametrize("from_log", [False, True])
def test_state_of_another_kind_is_refused_by_name(before: str, after: str, from_log: bool) -> None:
    changes, disk = written(KINDS_OF_STORES[before]())
    again = KINDS_OF_STORES[after]()

    def reopen() -> None:
        if not from_log:
            again.attach(disk)
        for change in changes if from_log else ():
            again.apply(change)

    if before == after:
        reopen()
        assert again.entries()
        return
    with pytest.raises(DeclarationError, match=r"store 'w' was stored (as|in another form)") as caught:
        reopen()
    assert "give the step another id" in (caught.value.hint or "")


def test_the_form_is_logged_again_only_when_it_has_changed() -> None:
    changes, disk = written(runs())
    assert changes[0] == b'\x05{"what":"sums","key":{"key":"Int64"},"columns":{"n":"Int64"}}'
    again = runs(columns={"m": "Int64"})
    again.attach(disk)
    again.add(ROWS.rename({"n": "m"}))
    later = again.take_changes(2)
    assert later[0] == b'\x05{"what":"sums","key":{"key":"Int64"},"columns":{"n":"Int64","m":"Int64"}}'
    again.add(ROWS.rename({"n": "m"}))
    assert [change[:1] for change in again.take_changes(3)] == [b"\x01"]
    again.persist(disk)
    third = runs(columns={"m": "Int64"})
    third.attach(disk)
    found = third.scan()
    assert found is not None and found.sort("time").rows() == [(1, 1, 6), (2, 2, 8)]
    again = runs(columns={"n": "Int64", "m": "Int64"})
    for change in [*changes, *later]:
        again.apply(change)
    found = again.scan()
    assert found is not None and found.sort("time").rows() == [(1, 1, 3, 3), (2, 2, 4, 4)]


def test_a_column_that_comes_back_with_another_type_is_refused() -> None:
    _, disk = written(runs())
    without = runs(columns={"m": "Int64"})
    without.attach(disk)
    without.add(ROWS.rename({"n": "m"}))
    without.take_changes(2)
    without.persist(disk)
    with pytest.raises(DeclarationError, match="column 'n' was stored as Int64, but is now declared as Float64"):
        runs(columns={"n": "Float64"}).attach(disk)


def test_rows_that_were_cleared_leave_no_form() -> None:
    """A store that starts over logs its form again; one whose rows were taken has logged it already."""
    store = keyed()
    store.put(ROWS)
    first = store.take_changes(1)
    list(store.take_all())
    store.put(ROWS)
    second = store.take_changes(2)
    assert [change[:1] for change in first + second] == [b"\x05", b"\x01", b"\x04", b"\x01"]
    copy = keyed()
    for change in first + second:
        copy.apply(change)
    assert copy.entries() == 2
    store.clear()
    store.put(ROWS)
    assert store.take_changes(3)[0][:1] == b"\x05"


def test_an_unknown_change_after_the_form_is_a_newer_versions() -> None:
    changes, _ = written(keyed())
    again = keyed()
    again.apply(changes[0])
    with pytest.raises(CorruptLogError, match="unknown change format"):
        again.apply(b"\x77")

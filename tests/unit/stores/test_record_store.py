"""Single records against a dict: whatever order of reads and writes, of commits, trials, and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from drawn import examples
from headrace.core.errors import DataError
from headrace.rows.schema import Schema
from headrace.stores import records
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.records import RecordStore

TTL_MS = 10
VALUE: dict[str, pl.DataType] = {"n": pl.Int16(), "x": pl.Float64(), "s": pl.String()}
ROWS = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-3, 3) | st.booleans(),
        "x": st.none() | st.floats(-1, 1) | st.integers(-1, 1),
        "s": st.none() | st.text(st.sampled_from("aé"), max_size=2),
    }
)
MORE = {"l": [1], "at": datetime(2026, 1, 1, 12)}
KEYS: dict[str, tuple[dict[str, pl.DataType], st.SearchStrategy[Any]]] = {
    "text": ({"k": pl.String()}, st.none() | st.text(st.sampled_from("aé\0"), max_size=2)),
    "number": ({"k": pl.Int64()}, st.none() | st.integers(0, 2) | st.booleans()),
    "float": ({"k": pl.Float64()}, st.sampled_from([0.0, -0.0, 1.0, float("nan")])),
    "pair": (
        {"k": pl.String(), "j": pl.Int8()},
        st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1) | st.booleans()),
    ),
    "date": ({"k": pl.Date()}, st.dates()),
}


@dataclass
class Both:
    """A record as a dataclass."""

    n: int | None
    x: float | None
    s: str | None


class RecordMachine(RuleBasedStateMachine):
    """``_committed`` and ``_now`` are what the store must hold, by encoded key. ``_before``: when the trial began."""

    @initialize(kind=st.sampled_from(sorted(KEYS)), ttl=st.booleans(), as_class=st.booleans(), listed=st.booleans())
    def open(self, kind: str, ttl: bool, as_class: bool, listed: bool) -> None:
        self._key, _ = KEYS[kind]
        self._kind, self._ttl, self._as_class = kind, ttl, as_class
        # A column of lists isn't kept decoded, so every write goes straight through. Times are encoded in columns.
        more = {"at": pl.Datetime("ms")} if kind == "text" else {"l": pl.List(pl.Int64)} if listed else {}
        columns = VALUE | ({} if as_class else more)
        self._value = Schema(columns, Both if as_class else None)
        self._time = 0
        self._store = self._opened()
        self._changes: list[bytes] = []
        self._now: dict[bytes, tuple[tuple[Any, ...], int]] = {}
        self._before: dict[bytes, tuple[tuple[Any, ...], int]] | None = None

    def _opened(self) -> RecordStore:
        store = RecordStore(KeyValueStore("r", ttl_ms=TTL_MS if self._ttl else None), self._key, self._value)
        store.advance(self._time)
        return store

    def _encoded(self, key: Any) -> bytes:
        return self._store._key(key)

    def _alive(self) -> dict[bytes, tuple[Any, ...]]:
        since = self._time - TTL_MS
        return {key: values for key, (values, at) in self._now.items() if not self._ttl or at > since}

    def _record(self, row: dict[str, Any]) -> Any:
        record = row | {name: value for name, value in MORE.items() if name in self._value.columns}
        return Both(**row) if self._as_class else record

    def _keys(self, data: st.DataObject) -> Any:
        return data.draw(KEYS[self._kind][1])

    def _frame(self, keys: list[Any]) -> pl.DataFrame:
        rows = [key if isinstance(key, tuple) else (key,) for key in keys]
        return pl.DataFrame(rows, self._key, orient="row", strict=False)

    @rule(data=st.data(), row=ROWS)
    def put(self, data: st.DataObject, row: dict[str, Any]) -> None:
        key, record = self._keys(data), self._record(row)
        self._store.put(key, record)
        self._now[self._encoded(key)] = tuple(self._value.values_of(record)), self._time
        if not self._as_class:
            record["n"] = 99  # the store has a copy

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = self._keys(data)
        self._store.delete(key)
        self._now.pop(self._encoded(key), None)

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        key = self._keys(data)
        wanted = self._alive().get(self._encoded(key))
        assert (key in self._store) is (wanted is not None)
        for found in (self._store.get(key), self._store.get_many([key])[0]):
            assert (None if found is None else tuple(self._value.values_of(found))) == wanted
            if found is not None and not self._as_class:
                assert list(found) == list(self._value.columns)
                found["n"] = 99  # it was a copy

    @rule()
    def items(self) -> None:
        found = {self._encoded(key): tuple(self._value.values_of(row)) for key, row in self._store.items()}
        assert found == self._alive()

    @rule(data=st.data())
    def rows(self, data: st.DataObject) -> None:
        keys = [self._keys(data) for _ in range(3)]
        alive = self._alive()
        found = self._store.get_rows(self._frame(keys), found="@").rows()
        assert [row[:-1] if row[-1] else None for row in found] == [alive.get(self._encoded(key)) for key in keys]
        assert sum(rows.height for rows in self._store.scan()) == len(alive)

    @rule(data=st.data())
    def put_rows(self, data: st.DataObject) -> None:
        key = self._keys(data)
        values = (5, 0.5, "rows", *(value for name, value in MORE.items() if name in self._value.columns))
        columns = [pl.Series(n, [v], t) for (n, t), v in zip(self._value.columns.items(), values, strict=True)]
        self._store.put_rows(self._frame([key]).with_columns(columns))
        self._now[self._encoded(key)] = values, self._time

    @rule(data=st.data())
    def delete_rows(self, data: st.DataObject) -> None:
        key = self._keys(data)
        self._store.delete_rows(self._frame([key]))
        self._now.pop(self._encoded(key), None)

    @precondition(lambda self: self._before is None)
    @rule()
    def begin_trial(self) -> None:
        self._store.begin_trial()
        self._before = dict(self._now)

    @precondition(lambda self: self._before is not None)
    @rule(keep=st.booleans())
    def end_trial(self, keep: bool) -> None:
        assert self._before is not None
        self._store.end_trial(keep=keep)
        self._now = self._now if keep else self._before
        self._before = None

    @precondition(lambda self: self._before is None)
    @rule()
    def commit(self) -> None:
        self._changes += self._store.store.take_changes(1)

    @precondition(lambda self: self._before is None)
    @rule()
    def restart(self) -> None:
        self.commit()
        self._store = self._opened()
        for change in self._changes:
            self._store.store.apply(change)

    @precondition(lambda self: self._before is None)
    @rule(ms=st.integers(1, TTL_MS))
    def wait(self, ms: int) -> None:
        self._time += ms
        self._store.advance(self._time)


@pytest.mark.parametrize("rows_max", [1, 3, 1 << 15])
def test_records_against_a_dict(rows_max: int) -> None:
    with patch.object(records, "_ROWS_MAX", rows_max):
        run_state_machine_as_test(
            RecordMachine, settings=settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
        )


@pytest.mark.parametrize("key", ["\ud800", 1, ("a",), 1 << 63])
@pytest.mark.parametrize("act", [RecordStore.get, RecordStore.delete, lambda store, key: store.put(key, {"n": 1})])
def test_a_key_that_does_not_fit_is_refused_at_once(act: Callable[[RecordStore, Any], Any], key: Any) -> None:
    number = type(key) is int and key > 1
    store = RecordStore(KeyValueStore("r"), {"k": pl.Int64() if number else pl.String()}, Schema({"n": pl.Int64()}))
    with pytest.raises(DataError, match="column 'k'"):
        act(store, key)


@pytest.mark.parametrize("record", [{"n": 1 << 15}, {"n": 1.0}, {"n": "1"}, {"m": 1}, [1], None])
def test_a_record_that_does_not_fit_is_refused_at_once(record: Any) -> None:
    store = RecordStore(KeyValueStore("r"), {"k": pl.String()}, Schema({"n": pl.Int16()}))
    store.put("a", {"n": 1})
    with pytest.raises(DataError):
        store.put("a", record)
    assert store.get("a") == {"n": 1}


def test_many_writes_of_a_key_are_one_change() -> None:
    store = RecordStore(KeyValueStore("r"), {"k": pl.String()}, Schema({"n": pl.Int16()}))
    for n in range(100):
        store.put("a", {"n": n})
    store.put("b", {"n": 1})
    store.delete("b")
    assert store.store.take_changes(1)
    other = RecordStore(KeyValueStore("r"), {"k": pl.String()}, Schema({"n": pl.Int16()}))
    assert store.store.take_changes(2) == []
    for change in store.store.whole():
        other.store.apply(change)
    assert list(other.items()) == [("a", {"n": 99})]


def test_a_key_of_another_type_with_the_same_bytes_is_the_same_key() -> None:
    store = RecordStore(KeyValueStore("r"), {"k": pl.Int64()}, Schema({"n": pl.Int16()}))
    store.put(1, {"n": 1})
    store.put(True, {"n": 2})
    assert store.get(1) == {"n": 2}
    store.put(1, {"n": 3})
    assert store.get(True) == {"n": 3}

"""``check_store`` checks any key-value state store against the contract of ``KeyValues`` and ``StateStore``.

It needs no test framework: a broken rule is a ``ContractError`` that names it. Each check goes through
commits, rollbacks and restarts like a task: a rollback is a new store over the same database, and nothing that was
not committed survives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from headrace.core.errors import CorruptLogError, UsageError
from headrace.stores.base import StateStore
from headrace.stores.database import Batch, Database, KeySpace, PartOfBatch
from headrace.stores.keyvalue import KeyValueReader
from headrace.testing.system_scene import ContractError, expect, expect_raises


class KeyValues(StateStore, KeyValueReader, Protocol):
    """A state store of byte keys and values. Keys have at least one byte."""

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set each key to the value at the same position; the last one of equal keys counts."""
        ...

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete each key that exists."""
        ...


Make = Callable[[], KeyValues]

_ODD_KEYS = (b"\x00", b"\x00\x00", b"\x01", b"a", b"a\x00", b"a\x00\xff", b"a\xff", b"b", b"\xff", b"\xff\xff")


class StoreLife:
    """A store, what it has committed to a changelog, and its database if there is a folder for one."""

    def __init__(self, make: Make, folder: Path | None) -> None:
        self._make = make
        self._folder = folder
        self._database = None if folder is None else Database(folder)
        self.log: list[bytes] = []
        self.version = 0
        self._persisted = 0
        self.store = self._begun()

    def _begun(self) -> KeyValues:
        store = self._make()
        if self._database is not None:
            store.attach(KeySpace(self._database, store.id))
        for change in self.log[self._persisted :]:
            store.apply(change)
        return store

    def commit(self, *, persist: bool = True) -> list[bytes]:
        """Commit a version. Without ``persist`` it is written into the database with the next one."""
        self.version += 1
        changes = self.store.take_changes(self.version)
        self.log += changes
        if persist:
            self.persist()
        return changes

    def persist(self) -> None:
        """Write what was committed into the database, as a task does."""
        if self._database is not None:
            batch = Batch()
            self.store.persist(PartOfBatch(batch, self.store.id))
            self._database.write(batch)
            self._persisted = len(self.log)

    def rollback(self) -> None:
        """Restart from the last commit, in the same process."""
        self.store = self._begun()

    def restart(self) -> None:
        """Restart in a new process."""
        if self._database is not None and self._folder is not None:
            self._database.close()
            self._database = Database(self._folder)
        self.store = self._begun()

    def forget(self) -> None:
        """Restart the changelog."""
        self.log.clear()
        self._persisted = 0

    def replayed(self) -> KeyValues:
        """Another store, in memory, that was given all changes and nothing else."""
        store = self._make()
        for change in self.log:
            store.apply(change)
        return store

    def moved(self) -> KeyValues:
        """Another store, in memory, that was given everything that this one has committed."""
        store = self._make()
        for change in self.store.whole():
            store.apply(change)
        return store

    def close(self) -> None:
        """Release the folder."""
        if self._database is not None:
            self._database.close()


def check_store(make: Make, folder: Path | None = None, *, only: str | None = None) -> None:
    """Run every check, or the one named ``only``, with stores that ``make`` returns, all new, empty and with one id.

    With ``folder``, stores keep their entries in a database, in a new folder below it for each check. Without it, they
    keep them in memory.
    """
    for check in _CHECKS:
        name = check.__name__.lstrip("_")
        if only not in (None, name):
            continue
        life = StoreLife(make, None if folder is None else folder / name)
        try:
            check(life)
        except ContractError as error:
            raise ContractError(f"{name}: {error}") from error
        finally:
            life.close()


def store_checks() -> list[str]:
    """The names of the checks, in the order in which they run."""
    return [check.__name__.lstrip("_") for check in _CHECKS]


def _put(life: StoreLife, entries: Mapping[bytes, bytes]) -> None:
    life.store.put_many(list(entries), list(entries.values()))


def _holds(store: KeyValues, expected: Mapping[bytes, bytes], when: str) -> None:
    """Every way of reading gives these entries."""
    ordered = sorted(expected.items())
    expect(list(store.range()) == ordered, f"{when}: iteration gives other entries, or in another order")
    expect(list(store.range(reverse=True)) == ordered[::-1], f"{when}: iteration backwards gives other entries")
    keys = [*expected, b"not there"]
    expect(store.get_many(keys) == [*expected.values(), None], f"{when}: get_many gives other values")
    expect(all(store.get(key) == value for key, value in expected.items()), f"{when}: get gives another value")


def _in_each_state(life: StoreLife, expected: Mapping[bytes, bytes]) -> None:
    """The store reads the same before a commit, after it, from the database, and after a restart."""
    _holds(life.store, expected, "before the commit")
    life.commit(persist=False)
    _holds(life.store, expected, "committed, but not in the database")
    life.persist()
    _holds(life.store, expected, "in the database")
    life.restart()
    _holds(life.store, expected, "after a restart")
    _holds(life.replayed(), expected, "replayed from the changes")


def _an_empty_store(life: StoreLife) -> None:
    expect(life.store.get_many([]) == [], "get_many of no keys returns no values")
    expect(life.store.take_changes(1) == [], "an unused store has no changes")
    expect(life.store.entries() == 0, "an empty store has 0 entries")
    _in_each_state(life, {})


def _puts_and_gets(life: StoreLife) -> None:
    entries = {key: key[::-1] * number for number, key in enumerate(_ODD_KEYS)}
    _put(life, entries)
    _in_each_state(life, entries)
    expect(life.store.entries() == len(entries), "entries counts few entries exactly")


def _large_values(life: StoreLife) -> None:
    entries = {b"k%d" % number: bytes([number]) * (number * 700_000) for number in range(4)}
    _put(life, entries)
    _in_each_state(life, entries)


def _an_empty_key(life: StoreLife) -> None:
    expect_raises(UsageError, lambda: life.store.put_many([b"a", b""], [b"1", b"2"]), "put of an empty key")
    expect_raises(UsageError, lambda: life.store.delete_many([b""]), "delete of an empty key")
    _in_each_state(life, {})


def _the_last_of_equal_keys(life: StoreLife) -> None:
    life.store.put_many([b"a", b"b", b"a"], [b"1", b"2", b"3"])
    expect(life.store.get_many([b"a", b"a", b"b"]) == [b"3", b"3", b"2"], "of equal keys the last counts")
    _in_each_state(life, {b"a": b"3", b"b": b"2"})


def _overwriting(life: StoreLife) -> None:
    _put(life, {b"a": b"1", b"b": b"1", b"c": b"1"})
    life.commit()
    _put(life, {b"b": b"2"})
    life.commit(persist=False)
    _put(life, {b"c": b"3", b"d": b"3"})
    _in_each_state(life, {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"3"})
    expect(life.store.entries() == 4, "an entry that was overwritten counts once")


def _deleting(life: StoreLife) -> None:
    _put(life, dict.fromkeys(_ODD_KEYS, b"1"))
    life.commit()
    life.store.delete_many([b"a", b"never there", b"\xff"])
    life.commit(persist=False)
    life.store.delete_many([b"b"])
    _put(life, {b"a": b"again"})
    kept = {key: b"1" for key in _ODD_KEYS if key not in (b"b", b"\xff")}
    _in_each_state(life, {**kept, b"a": b"again"})
    life.store.delete_many([*_ODD_KEYS])
    _in_each_state(life, {})
    expect(life.store.entries() == 0, "entries that were deleted don't count")


def _ranges(life: StoreLife) -> None:
    entries = dict.fromkeys(_ODD_KEYS, b"1")
    _put(life, dict.fromkeys(_ODD_KEYS[0::3], b"1"))
    life.commit()
    _put(life, dict.fromkeys(_ODD_KEYS[1::3], b"1"))
    life.commit(persist=False)
    _put(life, dict.fromkeys(_ODD_KEYS[2::3], b"1"))
    for start in (b"", *_ODD_KEYS):
        for stop in (None, *_ODD_KEYS):
            wanted = sorted((k, v) for k, v in entries.items() if k >= start and (stop is None or k < stop))
            said = f"range({start!r}, {stop!r})"
            expect(list(life.store.range(start, stop)) == wanted, said)
            expect(list(life.store.range(start, stop, reverse=True)) == wanted[::-1], f"{said} backwards")


def _writing_while_iterating(life: StoreLife) -> None:
    _put(life, {b"%03d" % number: b"old" for number in range(300)})
    life.commit()
    _put(life, {b"%03d" % number: b"new" for number in range(0, 300, 2)})
    seen = []
    for number, (key, _) in enumerate(life.store.range()):
        seen.append(key)
        life.store.delete_many([key])
        _put(life, {b"%03d+" % number: b"more"})
        if number in (50, 150):
            life.commit()
    first = [key for key in seen if not key.endswith(b"+")]
    expect(first == [b"%03d" % number for number in range(300)], "an iteration misses entries that were there")
    expect(seen == sorted(set(seen)), "an iteration gives a key twice, or out of order")
    _in_each_state(life, {b"%03d+" % number: b"more" for number in range(len(seen))})


def _changes_are_reported_once(life: StoreLife) -> None:
    _put(life, {b"a": b"1"})
    expect(len(life.commit()) == 1, "a few entries are one change")
    expect(life.commit() == [], "a change is reported once")
    copy = life.replayed()
    expect(copy.take_changes(1) == [], "applied changes are not changes of the store itself")
    copy.put_many([b"b"], [b"2"])
    for change in copy.take_changes(2):
        life.store.apply(change)
    _holds(life.store, {b"a": b"1", b"b": b"2"}, "after a change from elsewhere")


def _an_unknown_change(life: StoreLife) -> None:
    expect_raises(CorruptLogError, lambda: life.store.apply(b"\xfe..."), "a change of an unknown format")
    expect_raises(CorruptLogError, lambda: life.store.apply(b""), "an empty change")
    _put(life, {b"a": b"1"})
    change = life.commit()[0]
    expect_raises(CorruptLogError, lambda: life.replayed().apply(change[:-20]), "a change without its end")


def _changes_are_small(life: StoreLife) -> None:
    entries = {b"%06d" % number: b"v" * 100 for number in range(30_000)}
    _put(life, entries)
    changes = life.commit()
    expect(max(map(len, changes)) < 1_000_000, "a change is larger than a record may be")
    expect(sum(map(len, changes)) < 30_000 * 130, "changes take more than 30 bytes per entry in addition to it")
    _holds(life.replayed(), entries, "replayed from several changes")


def _rolling_back(life: StoreLife) -> None:
    _put(life, {b"a": b"1"})
    life.commit()
    _put(life, {b"b": b"1"})
    life.commit(persist=False)
    _put(life, {b"a": b"lost", b"c": b"lost"})
    life.store.delete_many([b"b"])
    life.rollback()
    _in_each_state(life, {b"a": b"1", b"b": b"1"})
    _put(life, {b"c": b"2"})
    _in_each_state(life, {b"a": b"1", b"b": b"1", b"c": b"2"})


def _clearing(life: StoreLife) -> None:
    _put(life, dict.fromkeys(_ODD_KEYS, b"1"))
    life.commit()
    _put(life, {b"a": b"2"})
    life.store.clear()
    life.forget()
    expect(life.store.entries() == 0, "a store that was cleared has 0 entries")
    expect(life.store.take_changes(9) == [], "a store that was cleared is like a new one: it has no changes")
    _in_each_state(life, {})
    _put(life, {b"b": b"3"})
    life.store.clear()
    _put(life, {b"c": b"4"})
    _in_each_state(life, {b"c": b"4"})


def _many_entries(life: StoreLife) -> None:
    entries = {b"%d" % (number * 7919 % 20_000): b"%d" % number for number in range(20_000)}
    items = list(entries.items())
    for low in range(0, 20_000, 5_000):
        _put(life, dict(items[low : low + 5_000]))
        life.commit(persist=low % 10_000 == 0)
    _in_each_state(life, entries)
    expect(10_000 <= life.store.entries() <= 40_000, f"of 20000 entries {life.store.entries()} are counted")


def _moving(life: StoreLife) -> None:
    expect(list(life.store.whole()) == [], "an empty store gives no changes to another one")
    entries = {b"%06d" % number: b"v" * 100 for number in range(30_000)} | dict.fromkeys(_ODD_KEYS, b"1")
    _put(life, dict.fromkeys(entries, b"old") | {b"gone": b"1"})
    life.commit()
    _put(life, entries)
    life.store.delete_many([b"gone"])
    life.commit(persist=False)
    _put(life, {b"not committed": b"1"})
    changes = list(life.store.whole())
    expect(max(map(len, changes)) < 1_000_000, "a change is larger than a record may be")
    _holds(life.moved(), entries, "moved to another store")
    expect(life.moved().take_changes(1) == [], "what moved to a store isn't a change of that store")
    _in_each_state(life, {**entries, b"not committed": b"1"})
    shown = sum(rows.height for rows in life.store.frames())
    expect(shown == len(entries) + 1, f"of {len(entries) + 1} entries people see {shown}")


_CHECKS: Iterable[Callable[[StoreLife], None]] = (
    _an_empty_store,
    _puts_and_gets,
    _large_values,
    _an_empty_key,
    _the_last_of_equal_keys,
    _overwriting,
    _deleting,
    _ranges,
    _writing_while_iterating,
    _changes_are_reported_once,
    _an_unknown_change,
    _changes_are_small,
    _rolling_back,
    _clearing,
    _many_entries,
    _moving,
)

"""Check that an implementation keeps its contract. Works with any test framework, or without one.

Each check uses its own streams or names, so all can use one system or target. A check of a store restarts it like a
task: as a new store over the same database, in which nothing that was not committed survives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Protocol, cast

import polars as pl

from headrace.core.errors import CorruptLogError, ProtocolError, UsageError
from headrace.kit.sources import SOURCE_CHECKS, SourceScene
from headrace.kit.systems import (
    CHECKS,
    TARGET_CHECKS,
    TARGET_COLUMNS,
    WITHOUT_POSITIONS,
    ContractError,
    Scene,
    TargetScene,
    at_once,
    expect,
    expect_raises,
    run_checks,
)
from headrace.life.metadata import Delete, MetadataStore, Put, update
from headrace.stores.base import StateStore
from headrace.stores.database import Batch, Database, KeySpace, PartOfBatch
from headrace.stores.keyvalue import KeyValueReader
from headrace.systems.base import System, Target
from headrace.systems.small import Sink, Source
from headrace.systems.small_system import SinkTarget

__all__ = ["ContractError", "check_system", "check_target", "source_checks", "system_checks", "target_checks"]


def system_checks() -> list[str]:
    """Return the names of the checks of ``check_system``, in the order in which they run."""
    return [check.__name__ for check in CHECKS]


def source_checks() -> list[str]:
    """Return the names of the checks of ``check_system`` for a source, in the order in which they run."""
    return [check.__name__ for check in SOURCE_CHECKS]


def check_system(
    make_system: Callable[[], System | Source], *, only: str | None = None, wait_s: float = 5.0, trims: bool = True
) -> None:
    """Check a record system against the contracts of ``headrace.systems.base``, or a source against the small one.

    Parameters
    ----------
    make_system
        Returns the system: the same one each time, or another handle on it, as a second process would have. A source
        has at least 3 rows in a partition, and gets no others while it is checked.
    only
        Run only the check of this name.
    wait_s
        How many seconds an appended record may take to become readable.
    trims
        Whether to check ``Admin.trim``; False for a system whose retention can't be controlled.

    Raises
    ------
    ContractError
        Names the check that failed.
    """
    if isinstance(make_system(), Source):
        make_source = cast("Callable[[], Source]", make_system)
        run_checks(SOURCE_CHECKS, only, lambda _: nullcontext(SourceScene(make_source, wait_s)))
        return
    make = cast("Callable[[], System]", make_system)
    checks = [check for check in CHECKS if trims or "trim" not in check.__name__]
    run_checks(checks, only, lambda name: Scene(make, name, wait_s))


def target_checks() -> list[str]:
    """Return the names of the checks of ``check_target``, in the order in which they run."""
    return [check.__name__ for check in TARGET_CHECKS]


def check_target(
    make_target: Callable[[], Target | Sink], read: Callable[[], pl.DataFrame], *, only: str | None = None
) -> None:
    """Check a target or a sink, a foreign system that versions are published to, against its contract.

    Parameters
    ----------
    make_target
        Returns another handle on the same place each time, as another process would have. Of a sink that keeps no
        positions, only what it promises is checked.
    read
        Returns everything that is visible there, in any order, with the columns ``writer`` (String), ``version`` and
        ``n`` (Int64).
    only
        Run only the check of this name.

    Raises
    ------
    ContractError
        Names the check that failed.
    """
    kept = TARGET_CHECKS
    if isinstance(made := make_target(), Sink):
        made.create(TARGET_COLUMNS)
        kept = TARGET_CHECKS if made.keeps_positions else WITHOUT_POSITIONS
    else:
        made.close()

    def target() -> Target:
        made = make_target()
        return SinkTarget(made) if isinstance(made, Sink) else made

    run_checks(kept, only, lambda name: TargetScene(target, read, name))


_SPACE = "check"


def check_metadata(factory: Callable[[], MetadataStore]) -> None:
    """Check a metadata store. ``factory`` returns a new handle on the same store each time, empty at the first call."""
    for check in (
        _absent, _compare_and_set, _delete, _versions_never_recur, _all_or_nothing, _no_key_twice, _namespaces, _scan,
        _any_bytes, _handles_agree, _one_winner, _writes_are_whole, _versions_rise_as_they_show, _no_update_is_lost,
    ):  # fmt: skip
        store = factory()
        try:
            for key, entry in store.scan(_SPACE).items():
                _expect(store.delete_if(_SPACE, key, entry.version), f"delete_if of {key!r} just scanned")
            check(store, factory)
        finally:
            store.close()
            store.close()  # idempotent


Factory = Callable[[], MetadataStore]


def _expect(holds: bool, rule: str) -> None:
    if not holds:
        raise AssertionError(f"metadata store: {rule}")


def _created(store: MetadataStore, key: str, value: bytes = b"1") -> int:
    version = store.put_if(_SPACE, key, value, None)
    _expect(version is not None and version > 0, "put_if of a new key returns a version above 0")
    assert version is not None
    return version


def _absent(store: MetadataStore, factory: Factory) -> None:
    _expect(store.get(_SPACE, "none") is None, "get of a key that isn't there is None")
    _expect(store.scan(_SPACE) == {}, "scan of an empty namespace is empty")
    _expect(not store.delete_if(_SPACE, "none", 1), "delete_if of a key that isn't there is False")
    _expect(store.put_if(_SPACE, "none", b"x", 1) is None, "put_if expecting a version of an absent key loses")
    _expect(store.get(_SPACE, "none") is None, "a put_if that lost writes nothing")


def _compare_and_set(store: MetadataStore, factory: Factory) -> None:
    first = _created(store, "k")
    _expect(store.put_if(_SPACE, "k", b"2", None) is None, "put_if expecting no key loses against a key")
    _expect(store.put_if(_SPACE, "k", b"2", first + 1000) is None, "put_if with a wrong version loses")
    _expect(store.get(_SPACE, "k") == (b"1", first), "a lost put_if changes neither value nor version")
    second = store.put_if(_SPACE, "k", b"2", first)
    _expect(second is not None and second > first, "versions rise")
    _expect(store.put_if(_SPACE, "k", b"3", first) is None, "an old version loses")
    _expect(store.get(_SPACE, "k") == (b"2", second), "get returns what the last put_if wrote")
    same = store.put_if(_SPACE, "k", b"2", second)
    _expect(same is not None and same != second, "the same value again is a new version")


def _delete(store: MetadataStore, factory: Factory) -> None:
    first = _created(store, "k")
    second = store.put_if(_SPACE, "k", b"2", first)
    assert second is not None
    _expect(not store.delete_if(_SPACE, "k", first), "delete_if with an old version is False")
    _expect(store.get(_SPACE, "k") is not None, "a refused delete_if leaves the key")
    _expect(store.delete_if(_SPACE, "k", second), "delete_if with the right version is True")
    _expect(store.get(_SPACE, "k") is None, "a deleted key is gone")
    _expect(store.put_if(_SPACE, "k", b"3", second) is None, "put_if expecting a deleted version loses")


def _versions_never_recur(store: MetadataStore, factory: Factory) -> None:
    first = _created(store, "k")
    store.delete_if(_SPACE, "k", first)
    with closing(factory()) as other:
        again = _created(other, "k")
    _expect(again > first, "a key that was deleted and made again gets a version that was never used")


def _all_or_nothing(store: MetadataStore, factory: Factory) -> None:
    kept, gone = _created(store, "kept"), _created(store, "gone")
    for what, wrong in (
        ("an absent key", Put("absent", b"2", 1)),
        ("a deletion of an absent key", Delete("absent", 1)),
        ("a key that exists", Put("gone", b"2", None)),
        ("an old version", Delete("gone", gone + 1000)),
    ):
        for changes in ([wrong, Put("kept", b"2", kept)], [Put("new", b"2", None), Put("kept", b"2", kept), wrong]):
            _expect(store.write(_SPACE, changes) is None, f"write is None if one change expects {what}")
            _expect(store.get(_SPACE, "kept") == (b"1", kept), "a write that lost changes nothing")
            _expect(store.get(_SPACE, "new") is None, "a write that lost creates nothing")
    versions = store.write(_SPACE, [Put("kept", b"2", kept), Delete("gone", gone), Put("new", b"3", None)])
    _expect(versions is not None and len(versions) == 3, "write answers for each change")
    assert versions is not None
    _expect(store.get(_SPACE, "kept") == (b"2", versions[0]), "write answers in the order of its changes")
    _expect(store.get(_SPACE, "new") == (b"3", versions[2]), "write creates keys")
    _expect(versions[1] == 0 and store.get(_SPACE, "gone") is None, "write deletes keys, and answers 0 for that")
    _expect(versions[0] != versions[2] and min(versions[0], versions[2]) > gone, "each put has a version of its own")
    _expect(store.write(_SPACE, []) == [], "a write of nothing is nothing")


def _no_key_twice(store: MetadataStore, factory: Factory) -> None:
    version = _created(store, "k")
    try:
        store.write(_SPACE, [Delete("k", version), Put("k", b"2", None)])
    except ProtocolError:
        _expect(store.get(_SPACE, "k") == (b"1", version), "a refused write changes nothing")
    else:
        _expect(False, "a write that changes a key twice is a ProtocolError")


def _namespaces(store: MetadataStore, factory: Factory) -> None:
    version = _created(store, "k")
    other = f"{_SPACE}/other"
    _expect(store.get(other, "k") is None, "a key of one namespace is unseen in another")
    _expect(store.scan(other) == {}, "scan stays in its namespace, also when one's name begins with the other's")
    _expect(not store.delete_if(other, "k", version), "delete_if stays in its namespace")


def _scan(store: MetadataStore, factory: Factory) -> None:
    for key in ("b/2", "a", "b/1", "B", "b%", "c", "é"):
        _created(store, key, key.encode())
    entries = store.scan(_SPACE)
    _expect(list(entries) == sorted(entries), "scan is sorted by key")
    _expect({k: e.value.decode() for k, e in entries.items()} == {k: k for k in entries}, "scan returns values")
    _expect(list(store.scan(_SPACE, "b/")) == ["b/1", "b/2"], "scan takes a prefix")
    _expect(list(store.scan(_SPACE, "b%")) == ["b%"], "a prefix is plain text, not a pattern")
    entry = store.get(_SPACE, "é")
    _expect(entry is not None and entry == entries["é"], "scan and get return the same version")


def _any_bytes(store: MetadataStore, factory: Factory) -> None:
    for number, value in enumerate((b"", b"\x00\xff\n'\"", bytes(range(256)) * 400)):
        version = _created(store, f"bytes-{number}", value)
        _expect(store.get(_SPACE, f"bytes-{number}") == (value, version), f"keeps {len(value)} bytes as they are")


def _handles_agree(store: MetadataStore, factory: Factory) -> None:
    version = _created(store, "k")
    with closing(factory()) as other:
        _expect(other.get(_SPACE, "k") == (b"1", version), "a write is seen by another handle at once")
        changed = other.put_if(_SPACE, "k", b"2", version)
        _expect(changed is not None, "another handle may change it")
    _expect(store.get(_SPACE, "k") == (b"2", changed), "closing one handle leaves the others and the data")


def _in_threads(factory: Factory, count: int, work: Callable[[MetadataStore, int], None]) -> None:
    together = threading.Barrier(count)

    def run(number: int) -> None:
        with closing(factory()) as handle:
            together.wait(30)
            work(handle, number)

    at_once(count, run)


def _one_winner(store: MetadataStore, factory: Factory) -> None:
    version = _created(store, "k")
    won: list[int] = []

    def work(handle: MetadataStore, number: int) -> None:
        if handle.put_if(_SPACE, "k", str(number).encode(), version) is not None:
            won.append(number)

    _in_threads(factory, 4, work)
    _expect(len(won) == 1, f"of 4 racing put_if with one version exactly 1 wins, not {len(won)}")
    entry = store.get(_SPACE, "k")
    _expect(entry is not None and entry.value == str(won[0]).encode(), "the winner's value is kept")


def _writes_are_whole(store: MetadataStore, factory: Factory) -> None:
    def work(handle: MetadataStore, number: int) -> None:
        for _ in range(10):
            before = handle.scan(_SPACE)
            keys = ("a", "b", "c")[:: 1 if number % 2 else -1]  # in both orders: no two writers wait for each other
            handle.write(_SPACE, [Put(k, b"%d" % number, before[k].version if k in before else None) for k in keys])
            seen = {entry.value for entry in handle.scan(_SPACE).values()}
            _expect(len(seen) == 1, f"three keys that are always written together agree, not {sorted(seen)}")

    _in_threads(factory, 4, work)


def _versions_rise_as_they_show(store: MetadataStore, factory: Factory) -> None:
    """A reader that has seen a version sees no lower one appear later, so that it can ask for news."""
    done = threading.Event()

    def work(handle: MetadataStore, number: int) -> None:
        if number == 0:
            seen: set[int] = set()
            while not done.is_set():
                now = {entry.version for entry in handle.scan(_SPACE).values()}
                low = [version for version in now - seen if seen and version < max(seen)]
                _expect(not low, f"versions {low} show after version {max(seen, default=0)}")
                seen |= now
            return
        try:
            for turn in range(25):
                handle.put_if(_SPACE, f"{number}-{turn}", b"1", None)
        finally:
            if number == 1:
                done.set()

    _in_threads(factory, 4, work)


def _no_update_is_lost(store: MetadataStore, factory: Factory) -> None:
    def work(handle: MetadataStore, number: int) -> None:
        for _ in range(10):
            update(handle, _SPACE, "sum", lambda old: str(int(old or b"0") + 1).encode())

    _in_threads(factory, 4, work)
    entry = store.get(_SPACE, "sum")
    _expect(entry is not None and entry.value == b"40", f"40 increments by compare-and-set make 40, not {entry}")


class KeyValues(StateStore, KeyValueReader, Protocol):
    """A state store of byte keys and values. Keys have at least one byte."""

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set each key to the value at the same position; the last one of equal keys counts."""

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete each key that exists."""


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
        return self._given(self.log)

    def moved(self) -> KeyValues:
        """Another store, in memory, that was given everything that this one has committed."""
        return self._given(self.store.whole())

    def _given(self, changes: Iterable[bytes]) -> KeyValues:
        store = self._make()
        for change in changes:
            store.apply(change)
        return store

    def close(self) -> None:
        """Release the folder."""
        if self._database is not None:
            self._database.close()


def check_store(make: Make, folder: Path | None = None, *, only: str | None = None) -> None:
    """Run the checks with stores that ``make`` returns: new, empty, of one id. ``folder``: in databases below it."""
    run_checks(_CHECKS, only, lambda name: closing(StoreLife(make, None if folder is None else folder / name)))


def store_checks() -> list[str]:
    """The names of the checks, in the order in which they run."""
    return [check.__name__.lstrip("_") for check in _CHECKS]


def _put(life: StoreLife, entries: Mapping[bytes, bytes]) -> None:
    life.store.put_many(list(entries), list(entries.values()))


def _holds(store: KeyValues, expected: Mapping[bytes, bytes], when: str) -> None:
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
    _an_empty_store, _puts_and_gets, _large_values, _an_empty_key, _the_last_of_equal_keys, _overwriting, _deleting,
    _ranges, _writing_while_iterating, _changes_are_reported_once, _an_unknown_change, _changes_are_small,
    _rolling_back, _clearing, _many_entries, _moving,
)  # fmt: skip

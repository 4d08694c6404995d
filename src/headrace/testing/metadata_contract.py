"""``check_metadata`` checks any metadata store against the contract of ``headrace.metadata.store``.

It needs no test framework: a broken rule is an ``AssertionError`` that names it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.core.errors import ProtocolError
from headrace.metadata.store import Delete, MetadataStore, Put, update

_SPACE = "check"


def check_metadata(factory: Callable[[], MetadataStore]) -> None:
    """Run every check.

    ``factory`` returns a new handle on the same store each time; the store is empty at the first call.
    """
    for check in (
        _absent,
        _compare_and_set,
        _delete,
        _versions_never_recur,
        _all_or_nothing,
        _no_key_twice,
        _namespaces,
        _scan,
        _any_bytes,
        _handles_agree,
        _one_winner,
        _writes_are_whole,
        _versions_rise_as_they_show,
        _no_update_is_lost,
    ):
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
    other = factory()
    try:
        again = _created(other, "k")
    finally:
        other.close()
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
    other = factory()
    try:
        _expect(other.get(_SPACE, "k") == (b"1", version), "a write is seen by another handle at once")
        changed = other.put_if(_SPACE, "k", b"2", version)
        _expect(changed is not None, "another handle may change it")
    finally:
        other.close()
    _expect(store.get(_SPACE, "k") == (b"2", changed), "closing one handle leaves the others and the data")


def _in_threads(factory: Factory, count: int, work: Callable[[MetadataStore, int], None]) -> None:
    errors: list[BaseException] = []
    together = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            handle = factory()
            try:
                together.wait(30)
                work(handle, number)
            finally:
                handle.close()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


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

"""The contract, on both stores, and what ``update`` adds."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from headrace.core.errors import UnavailableError
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.sqlite import SqliteMetadata
from headrace.metadata.store import Put, update
from headrace.testing.metadata_contract import check_metadata


def test_memory_keeps_the_contract():
    store = MemoryMetadata()
    check_metadata(lambda: store)


def test_sqlite_keeps_the_contract(tmp_path):
    check_metadata(lambda: SqliteMetadata(tmp_path / "home" / "metadata.db"))


class Forgetful(MemoryMetadata):
    """Broken on purpose: numbers versions by key, so that they repeat."""

    def _make(self, namespace, change):
        entry = self._entries.get((namespace, change.key))
        self._last_version = entry.version if entry else 0
        return super()._make(namespace, change)


class Careless(MemoryMetadata):
    """Broken on purpose: accepts any version as the right one."""

    def _is_as_expected(self, namespace, change):
        return isinstance(change, Put) or super()._is_as_expected(namespace, change)


class Piecemeal(MemoryMetadata):
    """Broken on purpose: makes changes until one loses."""

    def write(self, namespace, changes):
        versions = [super(Piecemeal, self).write(namespace, [change]) for change in changes]
        return None if None in versions else [version for (version,) in versions]


class Early(MemoryMetadata):
    """Broken on purpose: numbers a write before others that show sooner, as a sequence of a database does."""

    def __init__(self):
        super().__init__()
        self._next = count(1)
        self._taken = threading.local()

    def write(self, namespace, changes):
        self._taken.versions = [next(self._next) for _ in changes]
        threading.Event().wait(0.001 * (sum(self._taken.versions) % 3))
        return super().write(namespace, changes)

    def _make(self, namespace, change):
        self._last_version = self._taken.versions.pop(0) - 1
        return super()._make(namespace, change)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (Forgetful, "never used"),
        (Careless, "put_if expecting a version of an absent key"),
        (Piecemeal, "a write that lost changes nothing"),
        (Early, "show after version"),
    ],
)
def test_the_contract_catches(broken, rule):
    store = broken()
    with pytest.raises(AssertionError, match=rule):
        check_metadata(lambda: store)


def test_update_creates_changes_and_deletes():
    store = MemoryMetadata()
    assert update(store, "ns", "k", lambda old: (old or b"") + b"a") == b"a"
    assert update(store, "ns", "k", lambda old: (old or b"") + b"b") == b"ab"
    assert update(store, "ns", "k", lambda old: None) is None
    assert store.scan("ns") == {}
    assert update(store, "ns", "k", lambda old: None) is None


def test_update_gives_up_when_others_always_win():
    store = MemoryMetadata()
    numbers = count()

    def change(old):
        other = store.get("ns", "k")
        store.put_if("ns", "k", str(next(numbers)).encode(), other.version if other else None)
        return b"mine"

    with pytest.raises(UnavailableError, match="'k' of 'ns'"):
        update(store, "ns", "k", change)

"""The contract, on both stores, and what ``update`` adds."""

from __future__ import annotations

import importlib.metadata
import threading
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from headrace.core.deployment import metadata_url_of
from headrace.core.errors import UnavailableError, UsageError
from headrace.core.secrets import SecretUrl
from headrace.kit.contracts import check_metadata
from headrace.life.metadata import MemoryMetadata, Put, SqliteMetadata, existing_metadata, open_metadata, update


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


class Point:
    """The entry point of a plug-in."""

    name, value = "plugged", "test_metadata_store:open_plugged"


def open_plugged(url: SecretUrl, *, create: bool) -> MemoryMetadata:
    """What the entry point names."""
    return MemoryMetadata(place=f"{url} {create}")


def test_a_plug_in_is_found_by_the_scheme_of_the_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    groups: list[str] = []

    def entry_points(group: str) -> list[type[Point]]:
        groups.append(group)
        return [Point]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setenv("HEADRACE_METADATA", "plugged://ann:s3cret@here/there")
    url = metadata_url_of()
    with closing(open_metadata(tmp_path, url)) as store:
        assert store.place == "plugged://ann:***@here/there True"
    with existing_metadata(tmp_path, url) as store:
        assert store.place == "plugged://ann:***@here/there False"
    assert set(groups) == {"headrace.metadata"}
    with pytest.raises(UsageError, match="nor of a store that a plug-in brings") as caught:
        metadata_url_of("redis://s3cret")
    assert "installed plug-ins: plugged" in str(caught.value.hint)
    groups.clear()
    metadata_url_of("postgresql://db/headrace")
    assert groups == []  # reading all entry points takes a while

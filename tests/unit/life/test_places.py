"""The book of which host held which task last."""

from __future__ import annotations

from headrace.core.ids import TaskName
from headrace.life.metadata import MemoryMetadata, Places

A0, A1, A2, B0 = TaskName("a", 0), TaskName("a", 1), TaskName("a", 2), TaskName("b", 0)


def test_what_is_noted_is_read_and_what_is_known_stays() -> None:
    store = MemoryMetadata()
    places = Places(store, "shop")
    assert places.read() == {}
    places.note({A0: "ann", B0: "bob"})
    Places(store, "shop").note({A2: "bob"})
    assert places.read() == {A0: "ann", A2: "bob", B0: "bob"}
    places.note({A0: "cid", A1: "ann"})
    assert places.read() == {A0: "cid", A1: "ann", A2: "bob", B0: "bob"}
    assert Places(store, "other").read() == {}


def test_its_bytes_are_golden() -> None:
    store = MemoryMetadata()
    Places(store, "shop").note({A0: "ann", A2: "bob"})
    entry = store.get("places/shop", "a")
    assert entry is not None
    assert entry.value == b'{"version":1,"hosts":["ann","","bob"]}'


def test_standbys_are_noted_beside_that() -> None:
    store = MemoryMetadata()
    places = Places(store, "shop")
    places.note({}, {A1: ["bob", "cid"]})
    places.note({A0: "ann"}, {B0: ["cid"]})
    assert places.read() == {A0: "ann"}
    assert places.read_standbys() == {A1: ["bob", "cid"], B0: ["cid"]}
    places.note({A2: "bob"}, {A1: ["ann"]})
    assert places.read_standbys() == {A1: ["ann"], B0: ["cid"]}
    entry = store.get("places/shop", "a")
    assert entry is not None
    assert entry.value == b'{"version":1,"hosts":["ann","","bob"],"standbys":[[],["ann"]]}'


def test_what_cant_be_read_isnt_known_and_is_replaced() -> None:
    store = MemoryMetadata()
    places = Places(store, "shop")
    for unreadable in (b"nonsense", b'{"version":2,"hosts":["ann"]}'):
        entry = store.get("places/shop", "a")
        store.put_if("places/shop", "a", unreadable, entry.version if entry else None)
        assert places.read() == {}
        places.note({A1: "bob"})
        assert places.read() == {A1: "bob"}

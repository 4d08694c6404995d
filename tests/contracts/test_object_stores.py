"""Each object store does what snapshots need of it: in memory, in a folder, and S3 as moto plays it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from headrace.core.errors import InfrastructureError, UnavailableError
from headrace.stores.snapshots import ObjectStore, object_place
from headrace.stores.transfer import check_objects, open_objects
from servers.moto import MotoServer
from servers.s3_buckets import bucket_on
from simulator.objects import MemoryObjects

LARGE = (17 << 20) + 3
Make = Callable[[], ObjectStore]


def in_pieces(data: bytes, size: int = 1 << 20) -> Iterator[bytes]:
    return (data[first : first + size] for first in range(0, len(data), size))


def put(store: ObjectStore, name: str, data: bytes) -> None:
    store.put(name, len(data), partial(in_pieces, data))


def read(store: ObjectStore, name: str) -> bytes:
    size = store.list("")[name]
    return b"".join(store.read(name, first, 5 << 20) or b"" for first in range(0, size, 5 << 20))


@pytest.fixture(params=["memory", "folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return MemoryObjects()
    pytest.importorskip("obstore", reason="obstore is not installed")
    if request.param == "folder":
        return open_objects(object_place(f"file://{tmp_path}/shared"))
    moto: MotoServer = request.getfixturevalue("moto")
    return open_objects(object_place(f"s3://{bucket_on(moto)}/a/prefix", endpoint=moto.endpoint, region=moto.region))


def test_an_object_is_created_once(store: ObjectStore) -> None:
    assert store.create("a/b", b"one")
    assert not store.create("a/b", b"two")
    assert store.get("a/b") == b"one"


def test_of_many_who_create_an_object_one_does(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda n: store.create("a/b", b"%d" % n), range(16)))
    assert created.count(True) == 1
    assert store.get("a/b") == b"%d" % created.index(True)


@pytest.mark.parametrize("size", [0, 5, LARGE])
def test_objects_of_any_size_are_written_and_read(store: ObjectStore, size: int) -> None:
    data = bytes(size) if size < LARGE else bytes(range(251)) * (LARGE // 251)
    put(store, "a/b", data)
    assert read(store, "a/b") == data
    assert store.list("a/") == {"a/b": len(data)}
    put(store, "a/b", b"other")
    assert read(store, "a/b") == b"other"


def test_a_part_of_an_object_is_read(store: ObjectStore) -> None:
    put(store, "a/b", b"0123456789")
    assert store.read("a/b", 0, 3) == b"012"
    assert store.read("a/b", 3, 7) == b"3456789"
    assert store.read("a/b", 9, 100) == b"9"


def test_a_write_that_breaks_off_leaves_nothing(store: ObjectStore) -> None:
    def broken() -> Iterator[bytes]:
        yield bytes(9 << 20)
        raise RuntimeError("the disk is gone")

    with pytest.raises((RuntimeError, UnavailableError)):
        store.put("a/b", LARGE, broken)
    assert (store.get("a/b"), store.list("a/")) == (None, {})


def test_what_is_not_there_is_none(store: ObjectStore) -> None:
    assert store.get("no") is None
    assert store.read("no", 0, 1) is None
    assert store.list("no/") == {}
    assert not store.copy("no", "other")


def test_names_are_listed_by_prefix(store: ObjectStore) -> None:
    for name in ("a/1", "a/b/2", "ab/3", "c"):
        assert store.create(name, name.encode())
    assert store.list("a/") == {"a/1": 3, "a/b/2": 5}
    for number in range(1200):
        store.create(f"many/{number:04}", b"")
    assert sorted(store.list("many/")) == [f"many/{number:04}" for number in range(1200)]


def test_a_copy_is_an_object_of_its_own(store: ObjectStore) -> None:
    put(store, "a", b"one")
    assert store.copy("a", "b/c")
    store.delete(["a"])
    assert store.get("b/c") == b"one"


def test_deleting_what_is_gone_does_no_harm(store: ObjectStore) -> None:
    for name in ("a/1", "a/2", "a/3"):
        put(store, name, b"x")
    store.delete(["a/1", "no", "a/3"])
    store.delete(["a/1"])
    store.delete([])
    assert store.list("a/") == {"a/2": 1}


# -- what is obstore's


def test_a_place_is_checked_by_using_it(moto: MotoServer, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    check_objects(None)
    check_objects(object_place(f"file://{tmp_path}/shared"))
    bucket = bucket_on(moto)
    place = object_place(f"s3://{bucket}/p", endpoint=moto.endpoint, region=moto.region)
    check_objects(place)
    assert open_objects(place).list("") == {}
    missing = object_place(f"{place.scheme}://no-{uuid.uuid4().hex}", endpoint=moto.endpoint, region=moto.region)
    with pytest.raises(InfrastructureError, match=r"can't keep its snapshots in .*no such bucket") as caught:
        check_objects(missing)
    assert "<" not in caught.value.message
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match=r"below can't be opened: Not a directory"):
        check_objects(object_place(f"file://{tmp_path}/file/below"))


def test_a_server_that_is_gone_is_unavailable(aws_environment: None) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    server = MotoServer()
    with server:
        bucket = bucket_on(server)
        store = open_objects(object_place(f"s3://{bucket}/p", endpoint=server.endpoint, region=server.region))
        assert store.create("a", b"1")
    for call in (
        lambda: store.get("a"),
        lambda: store.create("b", b""),
        lambda: store.list("a/"),
        lambda: store.copy("a", "b"),
        lambda: store.delete(["a"]),
        lambda: put(store, "b", b"x"),
    ):
        with pytest.raises(UnavailableError) as caught:
            call()
        assert "\n" not in caught.value.message

"""Which objects a generation may delete, what a manifest looks like, and to where a changelog may be trimmed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError
from headrace.stores import snapshots as layout
from headrace.stores.snapshots import Manifest, StoredFile

SHA = "ab" * 32
GOLDEN = (
    b'{"format":1,"offset":4711,"generation":3,"version":1700000000200,"files":[{"name":"000012.sst","size":5,'
    b'"sha256":"' + SHA.encode() + b'","object":"objects/0000000003/00000001-000012.sst"}]}'
)


def snapshot(offset: int, generation: int, *objects: int) -> Manifest:
    files = tuple(
        StoredFile(name=f"{n:06}.sst", size=5, sha256=SHA, object=layout.object_name(generation, n, f"{n:06}.sst"))
        for n in objects
    )
    return Manifest(offset=offset, generation=generation, version=offset * 10, files=files)


def names(*manifests: Manifest) -> set[str]:
    return {m.name for m in manifests} | {file.object for m in manifests for file in m.files}


def test_the_bytes_of_a_manifest_are_durable():
    file = StoredFile(name="000012.sst", size=5, sha256=SHA, object=layout.object_name(3, 1, "000012.sst"))
    manifest = Manifest(offset=4711, generation=3, version=1_700_000_000_200, files=(file,))
    assert manifest.encode() == GOLDEN
    assert Manifest.decode(GOLDEN) == manifest
    assert manifest.name == "manifests/00000000000000004711-3-1700000000200.json"
    assert layout.snapshot_of(manifest.name) == manifest.snapshot


@pytest.mark.parametrize(
    "data",
    [
        GOLDEN.replace(b'"format":1', b'"format":2'),
        GOLDEN[:-1],
        GOLDEN.replace(b'"000012.sst"', b'"../000012.sst"'),
        GOLDEN.replace(b'"000012.sst"', b'".."'),
    ],
)
def test_another_manifest_is_refused(data: bytes):
    with pytest.raises(DataError):
        Manifest.decode(data)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", GOLDEN[:-1], GOLDEN.replace(b"4711", b"true")])
def test_a_damaged_manifest_is_none(data: bytes):
    assert layout.read_manifest(data) is None
    assert layout.read_manifest(GOLDEN) == Manifest.decode(GOLDEN)


@pytest.mark.parametrize("data", [GOLDEN.replace(b'"format":1', b'"format":2'), b'{"format":2,"parts":[]}'])
def test_a_manifest_of_another_format_is_not_damaged(data: bytes):
    with pytest.raises(DataError, match="is of format 2"):
        layout.read_manifest(data)


def test_nothing_is_deleted_before_there_is_a_snapshot():
    assert layout.garbage(names(snapshot(1, 1, 1)), 2, []) == ([], [])


def test_what_older_generations_wrote_goes_once_there_are_two_snapshots():
    older, first, second = snapshot(1, 1, 1, 2), snapshot(2, 2, 1, 2), snapshot(3, 2, 2, 3)
    there = names(older, first, second)
    assert layout.garbage(names(older, first), 2, [first]) == ([], [])
    manifests, objects = layout.garbage(there, 2, [first, second])
    assert (manifests, set(objects)) == ([older.name], {file.object for file in older.files})


def test_a_stale_generation_deletes_nothing_of_a_newer_one():
    first, second, third, newer = snapshot(1, 1, 1), snapshot(2, 1, 2), snapshot(3, 1, 3), snapshot(9, 2, 1)
    manifests, objects = layout.garbage(names(first, second, third, newer), 1, [first, second, third])
    assert (manifests, objects) == ([first.name], [first.files[0].object])


def test_objects_that_nothing_refers_to_go_and_foreign_ones_stay():
    first = snapshot(1, 1, 1)
    left = layout.object_name(1, 7, "left.sst")
    assert layout.garbage({*names(first), left, "notes.txt", "objects/x/y"}, 1, [first]) == ([], [left])


def test_a_snapshot_is_whole_if_all_its_objects_have_their_sizes():
    manifest = snapshot(1, 1, 1, 2)
    sizes = dict.fromkeys(names(manifest), 5)
    assert manifest.whole(sizes)
    assert not manifest.whole(sizes | {manifest.files[1].object: 4})
    assert not manifest.whole({manifest.files[0].object: 5})


def test_manifests_are_listed_from_the_newest():
    manifests = [snapshot(offset, 1) for offset in (5, 40, 300)]
    found = layout.manifest_names({*names(*manifests), "manifests/x.json", "objects/0000000001/00000001-a"})
    assert found == [manifest.name for manifest in reversed(manifests)]


@pytest.mark.parametrize(("complete", "expected"), [((), None), ((7,), None), ((7, 9), 7), ((9, 3, 7), 7)])
def test_a_changelog_is_trimmed_to_the_last_snapshot_but_one(complete: tuple[int, ...], expected: int | None):
    assert layout.trimmable(complete) == expected


@given(
    st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(1, 9), max_size=4)), max_size=8),
    st.integers(1, 4),
)
def test_whatever_is_there_two_own_snapshots_and_all_newer_ones_stay(
    made: list[tuple[int, list[int]]], generation: int
):
    manifests = [snapshot(offset, by, *objects) for offset, (by, objects) in enumerate(made)]
    own = [manifest for manifest in manifests if manifest.generation == generation]
    gone = {name for part in layout.garbage(names(*manifests), generation, own) for name in part}
    for manifest in [*own[-2:], *(m for m in manifests if m.generation > generation)]:
        assert not gone & names(manifest)
    if len(own) < 2:
        assert not gone & names(*(m for m in manifests if m.generation < generation))

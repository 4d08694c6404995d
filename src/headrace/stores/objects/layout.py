"""Where the snapshots of a task are in an object store, what is sent, what is deleted, and what may be trimmed. Pure.

A snapshot consists of objects and of a *manifest*, which is written last and names them. Three rules make that safe,
although any number of older generations may be alive and still at work:

- each object is named by the generation that wrote it, and no name is ever used for something else;
- a manifest refers to objects of its own generation only;
- a generation deletes what it wrote itself, and what older ones wrote only once it has two complete snapshots of its
  own.

So no generation deletes objects that a newer one needs. Names are relative to the folder of the task.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from headrace.core.errors import DataError
from headrace.core.records import UNREADABLE, decode_record

FORMAT = 1
SNAPSHOTS_KEPT = 2
"""How many complete snapshots of its own a generation keeps."""

_WHAT = "the manifest of a snapshot"
_MANIFESTS = "manifests/"
_OBJECTS = "objects/"
_MANIFEST = re.compile(rf"{_MANIFESTS}([0-9]{{20}}-([0-9]+)-[0-9]+)\.json")
_OBJECT = re.compile(rf"{_OBJECTS}([0-9]{{10}})/[^/]+")


class Content(NamedTuple):
    """What a file holds: two files of the same content are the same."""

    size: int
    sha256: str


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a snapshot, and the object that has its bytes."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]
    size: int
    sha256: str
    object: str

    @property
    def content(self) -> Content:
        """What it holds."""
        return Content(self.size, self.sha256)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete snapshot: the commit that it holds, and its files."""

    format: int = FORMAT
    offset: int
    generation: int
    version: int
    files: tuple[StoredFile, ...]

    @property
    def snapshot(self) -> str:
        """The name of the snapshot. Names sort by offset."""
        return f"{self.offset:020}-{self.generation}-{self.version}"

    @property
    def name(self) -> str:
        """The name of the manifest itself."""
        return f"{_MANIFESTS}{self.snapshot}.json"

    @property
    def size(self) -> int:
        """How many bytes its files have."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """The manifest as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read what ``encode`` wrote. Raises ``DataError``."""
        return decode_record(_DECODER, data, _WHAT, FORMAT)

    def whole(self, listing: Mapping[str, int]) -> bool:
        """All its objects are in this list of names and sizes."""
        return all(listing.get(file.object) == file.size for file in self.files)


class _Numbered(msgspec.Struct, frozen=True):
    """A manifest of any format."""

    format: int


_DECODER = msgspec.json.Decoder(Manifest)
_NUMBERED = msgspec.json.Decoder(_Numbered)


def read_manifest(data: bytes) -> Manifest | None:
    """The manifest in these bytes; None if they are damaged. Raises ``DataError`` if it is of another format."""
    try:
        _NUMBERED.decode(data)
    except UNREADABLE:
        return None
    decode_record(_NUMBERED, data, _WHAT, FORMAT)
    try:
        return Manifest.decode(data)
    except DataError:
        return None


def object_name(generation: int, number: int, file: str) -> str:
    """The name of an object of this generation. ``number`` is another one for each."""
    return f"{_OBJECTS}{generation:010}/{number:08}-{file}"


def manifest_names(names: Iterable[str]) -> list[str]:
    """The names of manifests among these, the newest first."""
    return sorted((name for name in names if _MANIFEST.fullmatch(name)), reverse=True)


def snapshot_of(manifest_name: str) -> str:
    """The name of the snapshot to which a manifest of this name belongs."""
    return manifest_name.removeprefix(_MANIFESTS).removesuffix(".json")


def generation_of(name: str) -> int | None:
    """The generation that wrote an object; None if it isn't ours."""
    if (manifest := _MANIFEST.fullmatch(name)) is not None:
        return int(manifest[2])
    part = _OBJECT.fullmatch(name)
    return None if part is None else int(part[1])


def garbage(names: Iterable[str], generation: int, complete: Sequence[Manifest]) -> tuple[list[str], list[str]]:
    """What this generation deletes now: first the manifests, then the other objects.

    ``complete`` are its own complete snapshots, oldest first. Nothing may be on its way to the store.
    """
    kept = complete[-SNAPSHOTS_KEPT:]
    if not kept:
        return [], []
    wanted = {manifest.name for manifest in kept} | {file.object for manifest in kept for file in manifest.files}
    gone = [name for name in names if name not in wanted and _may_delete(name, generation, len(kept))]
    return [name for name in gone if name.startswith(_MANIFESTS)], [n for n in gone if not n.startswith(_MANIFESTS)]


def _may_delete(name: str, generation: int, kept: int) -> bool:
    by = generation_of(name)
    return by is not None and (by == generation or (by < generation and kept == SNAPSHOTS_KEPT))


def trimmable(complete: Collection[int]) -> int | None:
    """To where a changelog may be trimmed: ``complete`` are offsets of snapshots that are known to be complete."""
    known = sorted(complete)[-SNAPSHOTS_KEPT:]
    return known[0] if len(known) == SNAPSHOTS_KEPT else None

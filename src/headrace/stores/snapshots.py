"""Snapshots in an object store: where they are, what is sent, what is deleted, and what may be trimmed. Pure.

A snapshot consists of objects and of a *manifest*, which is written last and names them. ``docs/design/snapshots.md``
says why no generation deletes objects that a newer one needs. Names are relative to the folder of the task.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
from typing_extensions import override

from headrace.core.deployment import setting
from headrace.core.errors import DataError, DeclarationError
from headrace.core.files import UNREADABLE, decode_record
from headrace.core.secrets import check_no_credentials

Chunks = Callable[[], Iterator[bytes]]  # reads something from its beginning, a piece at a time


class ObjectStore(ABC):
    """A place for objects by name, which may have slashes. Objects appear atomically.

    All calls block, and may be made from several threads. One that fails with ``UnavailableError`` may be repeated; it
    may have happened nevertheless, and it may even happen later. A permanent error is of another class.
    """

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write a small object, unless there is one of this name: then it stays, and the answer is False."""

    @abstractmethod
    def put(self, name: str, size: int, chunks: Chunks) -> None:
        """Write an object of any size, in place of one of this name."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """Return a small object; None if it doesn't exist."""

    @abstractmethod
    def read(self, name: str, start: int, length: int) -> bytes | None:
        """Bytes from ``start``, which is within the object: ``length`` or all up to its end; None without an object."""

    @abstractmethod
    def list(self, prefix: str) -> dict[str, int]:
        """The names below ``prefix`` (which ends in a slash), each with the size of its object."""

    @abstractmethod
    def copy(self, source: str, target: str) -> bool:
        """Copy an object within the store; return False if ``source`` doesn't exist."""

    @abstractmethod
    def delete(self, names: Collection[str]) -> None:
        """Delete objects, in no particular order. Those that aren't there do no harm."""


_SCHEMES = {"s3": "s3://bucket/prefix", "gs": "gs://bucket/prefix", "az": "az://container/prefix"}
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?) ?(kB|MB|GB)/s")
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9}
_HINT = f"write {', '.join(_SCHEMES.values())} or file:///shared/folder"


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A prefix in an object store. ``bytes_per_s`` limits what a container sends; None: nothing does."""

    url: str
    endpoint: str | None = None
    region: str | None = None
    bytes_per_s: float | None = None

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    @override
    def __str__(self) -> str:
        return self.url


def object_place(
    url: object, endpoint: str | None = None, region: str | None = None, bandwidth: str | None = None
) -> ObjectPlace:
    """Check a place. Raises ``DeclarationError``.

    >>> from headrace.stores.snapshots import object_place
    >>> object_place("s3://bucket/prefix/", bandwidth="50MB/s").bytes_per_s
    50000000.0
    """
    if not isinstance(url, str) or "://" not in url:
        raise DeclarationError(f"{url!r} isn't the URL of an object store", hint=_HINT)
    check_no_credentials(url)
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        if not rest.startswith("/") or not rest.strip("/"):
            raise DeclarationError(f"{url!r} isn't the absolute path of a folder", hint="write file:///shared/folder")
    elif scheme not in _SCHEMES:
        raise DeclarationError(f"{url!r} isn't the URL of an object store that Headrace supports", hint=_HINT)
    elif not rest.partition("/")[0] or "?" in rest or "#" in rest:
        what = f"{url!r} isn't the URL of an object store"
        raise DeclarationError(what, hint=f"write {_SCHEMES[scheme]}, without ? or #")
    if (endpoint is not None or region is not None) and scheme != "s3":
        what = f"endpoint= and region= apply only to stores like S3, and {url!r} isn't one"
        raise DeclarationError(what, hint="leave them out")
    if endpoint is not None and not str(endpoint).startswith(("http://", "https://")):
        what = f"endpoint={endpoint!r} isn't an http:// or https:// URL"
        raise DeclarationError(what, hint='write endpoint="https://host:port"')
    if endpoint is not None:
        check_no_credentials(endpoint)
    return ObjectPlace(url.rstrip("/"), endpoint, region, None if bandwidth is None else _bytes_per_s(bandwidth))


def snapshots_of(given: str | ObjectPlace | None = None, app: str = "") -> ObjectPlace | None:
    """Return the store of snapshots: ``given``, else the deployment's. None: they are in the home."""
    if isinstance(given, ObjectPlace):
        return given
    value = setting("snapshots", given or None, app)
    return object_place(value) if value else None


def _bytes_per_s(text: str) -> float:
    matched = _BANDWIDTH.fullmatch(text) if isinstance(text, str) else None
    if matched is None or not float(matched[1]):
        what = f"bandwidth={text!r} isn't a number of bytes per second"
        raise DeclarationError(what, hint='write a number above 0 with kB/s, MB/s or GB/s, such as "50MB/s"')
    return float(matched[1]) * _UNITS[matched[2]]


FORMAT = 1
SNAPSHOTS_KEPT = 2  # how many complete snapshots of its own a generation keeps
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
        return f"{_MANIFESTS}{self.snapshot}.json"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Raises ``DataError``."""
        return decode_record(_DECODER, data, _WHAT, FORMAT)

    def whole(self, listing: Mapping[str, int]) -> bool:
        return all(listing.get(file.object) == file.size for file in self.files)


class _Numbered(msgspec.Struct, frozen=True):
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
    return f"{_OBJECTS}{generation:010}/{number:08}-{file}"


def manifest_names(names: Iterable[str]) -> list[str]:
    """The newest first."""
    return sorted((name for name in names if _MANIFEST.fullmatch(name)), reverse=True)


def snapshot_of(manifest_name: str) -> str:
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

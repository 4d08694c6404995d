"""Where files are: on this machine, or in a store that Arrow reaches (S3, Google Cloud Storage, Azure, HDFS).

Credentials come from the environment, as each store's own tools find them. Everything here blocks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import pyarrow as pa
import pyarrow.fs as pafs
from typing_extensions import override

from headrace.core.errors import DeclarationError, StorageError, StreamNotFoundError

_SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Found:
    """The present state of a file. ``modified`` is in nanoseconds since the epoch."""

    path: str
    size: int
    modified: int


class Storage(Protocol):
    """A place with files. Paths are those that ``Found`` has."""

    samples: bool
    """Whether a file may keep its beginning and grow, so that its first and last bytes are worth a look."""

    def find(self, path: str) -> Found | list[Found] | None:
        """The file of this name; or all files below the folder of this name; or None."""
        ...

    def below(self, folder: str, depth: int | None) -> Iterator[Found]:
        """Return all files below a folder, or those whose path has ``depth`` slashes. None if the folder is missing."""
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a file to read its bytes; it can seek."""
        ...

    def sample(self, path: str, size: int) -> str:
        """A checksum of the first and the last bytes of the first ``size`` bytes."""
        ...


class LocalStorage(Storage):
    """The file systems of this machine."""

    samples = True

    @override
    def find(self, path: str) -> Found | list[Found] | None:
        with _reading(path):
            place = Path(path)
            if place.is_file():
                return _found(path, place.stat())
            return list(self.below(path, None)) if place.is_dir() else None

    @override
    def below(self, folder: str, depth: int | None) -> Iterator[Found]:
        with _reading(folder):
            yield from self._walk("" if folder == "." else folder.rstrip("/") + "/", folder, depth)

    def _walk(self, prefix: str, folder: str, depth: int | None) -> Iterator[Found]:
        try:
            with os.scandir(folder) as entries:
                there = list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return  # it was removed while the folder above was read
        for entry in there:
            path = prefix + entry.name
            # A link to a folder is followed where a pattern says how deep it looks: there it can't lead in circles.
            if entry.is_dir(follow_symlinks=depth is not None):
                if depth is None or path.count("/") < depth:
                    yield from self._walk(path + "/", path, depth)
            elif (depth is None or path.count("/") == depth) and entry.is_file():
                try:
                    found = _found(path, entry.stat())
                except FileNotFoundError:
                    continue  # it was removed meanwhile
                yield found

    @override
    def open(self, path: str) -> BinaryIO:
        with _reading(path):
            return Path(path).open("rb")

    @override
    def sample(self, path: str, size: int) -> str:
        with _reading(path), Path(path).open("rb") as file:
            first = file.read(min(size, _SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            last = file.read(min(size, _SAMPLE_BYTES))
        return hashlib.sha256(first + last).hexdigest()[:16]


def _found(path: str, stat: os.stat_result) -> Found:
    return Found(path, stat.st_size, stat.st_mtime_ns)


class ArrowStorage(Storage):
    """A store that Arrow reaches. Files are only replaced as a whole, so size and time show whether one is the same."""

    samples = False

    def __init__(self, files: pafs.FileSystem) -> None:
        self._files = files

    @override
    def find(self, path: str) -> Found | list[Found] | None:
        with _reading(path):
            info = self._files.get_file_info(path.rstrip("/"))
            if info.type is pafs.FileType.File:
                return _remote_found(info)
            return list(self.below(path, None)) if info.type is pafs.FileType.Directory else None

    @override
    def below(self, folder: str, depth: int | None) -> Iterator[Found]:
        recursive = depth is None or depth > folder.rstrip("/").count("/") + 1
        with _reading(folder):
            selector = pafs.FileSelector(folder.rstrip("/"), recursive=recursive, allow_not_found=True)
            for info in self._files.get_file_info(selector):
                if info.type is pafs.FileType.File:
                    yield _remote_found(info)

    @override
    def open(self, path: str) -> BinaryIO:
        with _reading(path):
            return cast("BinaryIO", self._files.open_input_file(path))

    @override
    def sample(self, path: str, size: int) -> str:
        return ""


def _remote_found(info: pafs.FileInfo) -> Found:
    return Found(info.path, info.size, info.mtime_ns or 0)


@cache
def local_storage() -> LocalStorage:
    """This machine's file systems."""
    return LocalStorage()


@cache
def _arrow_storage(root: str) -> ArrowStorage:
    try:
        return ArrowStorage(pafs.FileSystem.from_uri(root)[0])
    except pa.ArrowInvalid as error:
        raise DeclarationError(
            f"{root} isn't a place for files: {error}",
            hint="the known schemes are s3, gs, abfs and hdfs; a local path needs no scheme",
        ) from error
    except OSError as error:
        raise StorageError(f"can't use {root}: {error}", hint="install the package that this scheme needs") from error


def remote_storage(uri: str) -> tuple[ArrowStorage, str]:
    """The store of a URI, and the path in it. One connection serves all paths of a bucket with the same options."""
    base, _, options = uri.partition("?")  # a pattern's "?" must be written [?]: URIs have options there
    scheme, _, rest = base.partition("://")
    authority, slash, path = rest.partition("/")
    # Patterns aren't valid in a URI, so Arrow sees the bucket only.
    storage = _arrow_storage(f"{scheme}://{authority}{slash}{'?' if options else ''}{options}")
    if scheme in ("file", "hdfs"):
        return storage, f"/{path}"
    container = authority.partition("@")[0] if "@" in authority else authority
    return storage, f"{container}/{path}"


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Errors of the file system name the file and are ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise StreamNotFoundError(
            f"there is no file {path}", hint="it existed when the app listed the files: put it back"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"can't read {path}: {error}", hint="check that it can be reached and read") from error

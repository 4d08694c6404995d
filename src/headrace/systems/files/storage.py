"""Where files are, and which files a path means. Everything here blocks.

Remote stores take their credentials from the environment, as each store's own tools do.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
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

    samples: bool  # whether a file may keep its beginning and grow, so that its first and last bytes are worth a look

    def find(self, path: str) -> Found | list[Found] | None:
        """The file of this name; or all files below the folder of this name; or None."""

    def below(self, folder: str, depth: int | None) -> Iterator[Found]:
        """Return all files below a folder, or those whose path has ``depth`` slashes; none if the folder is missing."""

    def open(self, path: str) -> BinaryIO:
        """Open a file to read its bytes; it can seek."""

    def sample(self, path: str, size: int) -> str:
        """A checksum of the first and the last bytes of the first ``size`` bytes."""


class LocalStorage(Storage):
    """The file systems of this machine."""

    samples = True

    @override
    def find(self, path: str) -> Found | list[Found] | None:
        with _reading(path):
            place = Path(path)
            if place.is_file():
                return _local(path, place.stat())
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
                    found = _local(path, entry.stat())
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


def _local(path: str, stat: os.stat_result) -> Found:
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
def _arrow_storage(root: str) -> ArrowStorage:
    try:
        return ArrowStorage(pafs.FileSystem.from_uri(root)[0])
    except pa.ArrowInvalid as error:
        hint = "the known schemes are s3, gs, abfs and hdfs; a local path needs no scheme"
        raise DeclarationError(f"{root} isn't a place for files: {error}", hint=hint) from error
    except OSError as error:
        raise StorageError(f"can't use {root}: {error}", hint="install the package that this scheme needs") from error


def _remote(uri: str) -> tuple[ArrowStorage, str]:
    """One connection serves all paths of a bucket with the same options."""
    base, _, options = uri.partition("?")  # a pattern's "?" must be written [?]: URIs have options there
    scheme, _, rest = base.partition("://")
    authority, slash, path = rest.partition("/")
    # Patterns aren't valid in a URI, so Arrow sees the bucket only.
    storage = _arrow_storage(f"{scheme}://{authority}{slash}{'?' if options else ''}{options}")
    if scheme in ("file", "hdfs"):
        return storage, f"/{path}"
    return storage, f"{authority.partition('@')[0]}/{path}"


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        what = f"there is no file {path}"
        raise StreamNotFoundError(what, hint="it existed when the app listed the files: put it back") from error
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"can't read {path}: {error}", hint="check that it can be reached and read") from error


SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv",
}  # fmt: skip
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
FORMATS = ("parquet", "jsonl", "csv")
FILES_MAX = 1_000_000
_MAGIC = re.compile(r"[*?\[]")


def is_remote(path: str) -> bool:
    return "://" in path


def storage_of(path: str) -> tuple[Storage, str]:
    return _remote(path) if is_remote(path) else (LocalStorage(), path)


def find_files(path: str) -> list[Found]:
    """In the order of names. A folder has all files of known formats below it, but for ``.name`` and ``_name``."""
    storage, place = storage_of(path)
    there = storage.find(place)
    if isinstance(there, Found):
        return [there]
    if there is not None:
        below = len(place.rstrip("/")) + 1
        return _sorted(path, (f for f in there if suffix_of(f.path) in SUFFIXES and not _hidden(f.path[below:])))
    magic = _MAGIC.search(place)
    if magic is None:
        return []
    base = place[: magic.start()].rpartition("/")[0]
    named, depth = _regex(place), None if "**" in place else place.count("/")
    found = storage.below(base or ("/" if place.startswith("/") else "."), depth)
    return _sorted(path, (f for f in found if named.fullmatch(f.path) and not _hidden(f.path.rpartition("/")[2])))


def _sorted(path: str, files: Iterable[Found]) -> list[Found]:
    found = sorted(files, key=lambda file: file.path.split("/"))
    if len(found) > FILES_MAX:
        what = f"{path} has {len(found)} files; an input takes {FILES_MAX} at most"
        raise DeclarationError(what, hint="split it into several inputs")
    return found


def _hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.split("/"))


def _regex(pattern: str) -> re.Pattern[str]:
    """The pattern of a shell as a regular expression: ``*`` stays within a folder, ``**/`` is any number of them."""
    parts = re.split(r"(\*\*/|\*+|\?|\[[^\]]+\])", pattern)
    known = {"**/": "(?:[^/]+/)*", "?": "[^/]"}
    out = []
    for number, part in enumerate(parts):
        if number % 2 == 0:
            out.append(re.escape(part))
        elif part.startswith("["):
            out.append("[" + part[1:-1].replace("\\", "\\\\").replace("!", "^", int(part[1] == "!")) + "]")
        else:
            out.append(known.get(part, "[^/]*"))
    return re.compile("".join(out))


def nothing_found(path: str) -> StreamNotFoundError:
    if is_remote(path):
        hint = f"check the path and the credentials of the environment; known endings: {', '.join(SUFFIXES)}"
        return StreamNotFoundError(f"no files at {path}", hint=hint)
    if Path(path).is_dir():
        what = f"no files to read in the folder {path}"
        return StreamNotFoundError(what, hint=f"known endings: {', '.join(SUFFIXES)}, also with .gz or .zst")
    return StreamNotFoundError(
        f"no file or folder matches {path} (relative to {Path.cwd()})",
        hint="check the path; on a cluster, every executor must be able to read it. An input with "
        'new_files="next_run" or "follow" may begin without files',
    )


def compression_of(path: str) -> str | None:
    """``"gzip"`` or ``"zstd"`` by the ending; None if the file isn't compressed as a whole."""
    return COMPRESSIONS.get(_last_suffix(path))


def suffix_of(path: str) -> str:
    last = _last_suffix(path)
    return _last_suffix(path[: -len(last)]) if last in COMPRESSIONS else last


def _last_suffix(path: str) -> str:
    name = path.rpartition("/")[2]
    stem, dot, suffix = name.rpartition(".")
    return f".{suffix.lower()}" if dot and stem else ""


def format_of(files: Iterable[Found], given: str | None) -> str:
    if given is not None:
        return given
    formats: dict[str, str] = {}
    for file in files:
        format = SUFFIXES.get(suffix_of(file.path))
        if format is None:
            said = f"the format of {file.path} isn't known from its name"
            raise DeclarationError(said, hint=f"set format= to one of {FORMATS}")
        formats.setdefault(format, file.path)
    if len(formats) > 1:
        what = f"files of several formats in one input: {', '.join(sorted(formats))}"
        raise DeclarationError(what, hint="set format=, or use a pattern such as data/*.parquet")
    return next(iter(formats))

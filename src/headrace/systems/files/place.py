"""Which files a path means, and their format.

A path is a file, a folder or a pattern, on this machine or in an object store (``s3://bucket/views/*.parquet``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from headrace.core.errors import DeclarationError, StreamNotFoundError
from headrace.systems.files.storage import Found, Storage, local_storage, remote_storage

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
    """Whether the path is a URI, and not a path of this machine's own file systems."""
    return "://" in path


def storage_of(path: str) -> tuple[Storage, str]:
    """Where the files of a path are, and the path without scheme and options. Connects when it is first used."""
    return remote_storage(path) if is_remote(path) else (local_storage(), path)


def find_files(path: str) -> list[Found]:
    """The files of a file name, a folder or a pattern, in the order of their names. The list may be empty.

    A folder has all files of known formats below it. Names that begin with ``.`` or ``_`` are skipped: they are those
    of unfinished files and markers.
    """
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
        raise DeclarationError(
            f"{path} has {len(found)} files; an input takes {FILES_MAX} at most", hint="split it into several inputs"
        )
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
    """The error for a path without files."""
    if is_remote(path):
        return StreamNotFoundError(
            f"no files at {path}", hint="check the path and the credentials of the environment; known endings: "
            f"{', '.join(SUFFIXES)}",
        )  # fmt: skip
    if Path(path).is_dir():
        return StreamNotFoundError(
            f"no files to read in the folder {path}",
            hint=f"known endings: {', '.join(SUFFIXES)}, also with .gz or .zst",
        )
    return StreamNotFoundError(
        f"no file or folder matches {path} (relative to {Path.cwd()})",
        hint="check the path; on a cluster, every executor must be able to read it. An input with "
        'new_files="next_run" or "follow" may begin without files',
    )


def compression_of(path: str) -> str | None:
    """``"gzip"`` or ``"zstd"`` by the ending; None if the file isn't compressed as a whole."""
    return COMPRESSIONS.get(_last_suffix(path))


def suffix_of(path: str) -> str:
    """The ending that says the format, in lower case: the one before ``.gz`` or ``.zst``."""
    last = _last_suffix(path)
    return _last_suffix(path[: -len(last)]) if last in COMPRESSIONS else last


def _last_suffix(path: str) -> str:
    name = path.rpartition("/")[2]
    stem, dot, suffix = name.rpartition(".")
    return f".{suffix.lower()}" if dot and stem else ""


def format_of(files: Iterable[Found], given: str | None) -> str:
    """The format of all files; raises ``DeclarationError`` if it is unknown, or if they have several."""
    if given is not None:
        return given
    formats: dict[str, str] = {}
    for file in files:
        format = SUFFIXES.get(suffix_of(file.path))
        if format is None:
            raise DeclarationError(
                f"the format of {file.path} isn't known from its name", hint=f"set format= to one of {FORMATS}"
            )
        formats.setdefault(format, file.path)
    if len(formats) > 1:
        raise DeclarationError(
            f"files of several formats in one input: {', '.join(sorted(formats))}",
            hint="set format=, or use a pattern such as data/*.parquet",
        )
    return next(iter(formats))

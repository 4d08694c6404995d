"""A Delta table in a folder: making commits durable, and noticing that the table was replaced.

deltalake syncs nothing. So what a commit has added is synced after it: the data files, then the entry of the log. A
table is created in a folder beside it, and renamed into place: of several creators one wins.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from headrace.core.durable import sync_file, sync_folder
from headrace.core.errors import DeclarationError

LOG = "_delta_log"
_RECENT_S = 300
_UNUSABLE = "[]\\^|"

Stamp = tuple[int, int, int]


def check_folder(folder: Path) -> None:
    """Raise ``DeclarationError`` for a name that deltalake misreads or refuses."""
    name = str(folder)
    wrong = [char for char in name if char in _UNUSABLE or ord(char) < 32]
    if wrong or unquote(name) != name:
        found = repr(wrong[0]) if wrong else "a % with two digits"
        raise DeclarationError(
            f"the folder {name!r} can't hold a Delta table: deltalake can't use a name with {found} in it",
            hint="use another folder",
        )


def stamp(folder: Path, version: int) -> Stamp | None:
    """Return the identity of the log's entry, which differs in a replaced table; None if the entry is missing."""
    try:
        found = _entry(folder, version).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def created(folder: Path) -> Iterator[Path]:
    """A folder for a new table, which the block creates. At its end the table is in place, unless there is one."""
    _check_empty(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.making")
    try:
        making.mkdir()
        yield making
        sync_file(_entry(making, 0))
        sync_folder(making / LOG)
        folder.mkdir(exist_ok=True)
        try:
            (making / LOG).rename(folder / LOG)
        except OSError:
            if not (folder / LOG).is_dir():
                raise
        sync_folder(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def sync_commit(folder: Path, version: int) -> None:
    """Make one commit durable, with the files that it has added."""
    folders = {folder}
    for path in _added(_actions(folder, version)):
        file = folder / path
        if file.exists():  # else it was compacted, and removed, meanwhile
            sync_file(file)
            folders |= {parent for parent in file.parents if parent.is_relative_to(folder)}
    for changed in sorted(folders):
        sync_folder(changed)
    for name in (f"{version:020d}.json", f"{version:020d}.checkpoint.parquet", "_last_checkpoint"):
        if (file := folder / LOG / name).exists():
            sync_file(file)
    sync_folder(folder / LOG)


def sync_recent(folder: Path, version: int, writer: str) -> None:
    """Make the recent commits of a writer durable, up to this one, because a dead process may not have done so."""
    while (found := stamp(folder, version)) is not None and time.time() - found[1] / 1e9 < _RECENT_S:
        actions = _actions(folder, version)
        if any(action.get("txn", {}).get("appId") == writer for action in actions):
            sync_commit(folder, version)
        version -= 1


def _check_empty(folder: Path) -> None:
    """Raise ``DeclarationError`` if there are files of others: the table's ``vacuum`` would remove them."""
    others = [] if not folder.is_dir() else sorted(one.name for one in folder.iterdir() if one.name[0] not in "._")
    if others and not (folder / LOG).exists():
        raise DeclarationError(
            f"the folder {folder} can't become a Delta table, because cleaning the table would remove its other "
            f"files, such as {others[0]}",
            hint="use another folder, or convert the files with convert_to_deltalake of deltalake",
        )


def _entry(folder: Path, version: int) -> Path:
    return folder / LOG / f"{version:020d}.json"


def _actions(folder: Path, version: int) -> list[dict[str, Any]]:
    lines = _entry(folder, version).read_bytes().splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def _added(actions: list[dict[str, Any]]) -> list[str]:
    return [unquote(action["add"]["path"]) for action in actions if "add" in action]

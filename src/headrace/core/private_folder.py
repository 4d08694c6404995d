"""Keep Headrace's files private to their owner, unless the owner opens them to others.

A new folder or file gets the rights that its folder gives the group, as far as the umask allows them, and others get
none. A folder that any user may read doesn't count as opened: new files in it are for its owner
alone. Files that RocksDB or Spark make have the modes that the umask says; they are in folders that are made here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_OTHERS, _GROUP = 0o007, 0o070
_OWNER, _FILE = 0o700, 0o666


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents; do nothing if it exists."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=_mode_in(one.parent), exist_ok=True)


def make_private(folder: Path) -> None:
    """Take from others the rights to a folder, and to those in it, that another program has just made."""
    folder.chmod(folder.stat().st_mode & _mode_in(folder.parent))
    for one in folder.iterdir():
        if one.is_dir():
            make_private(one)


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, and make it if it isn't there; returns its descriptor. It also serves as an ``opener``."""
    if not flags & os.O_EXCL:
        with suppress(FileNotFoundError):
            return os.open(path, flags & ~os.O_CREAT)
    return os.open(path, flags | os.O_CREAT, _mode_in(Path(path).parent) & _FILE)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that isn't there. It isn't durable yet."""
    with open(path, "wb", opener=open_private) as file:
        file.write(data)


def _mode_in(folder: Path) -> int:
    """The mode of a folder that is made in this one."""
    mode = folder.stat().st_mode
    return _OWNER if mode & _OTHERS else _OWNER | mode & _GROUP

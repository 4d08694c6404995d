"""Power cuts. When the processes of an app are dead, its streams lose what nobody has synced, or some of it.

The machine isn't switched off, so its kernel needn't write anything: processes note what they sync (``noted_syncs``).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from headrace.systems.log.segment import FILE_HEADER_SIZE

_INDEX_MAX = 1000
_PAGE = 4096


class Power:
    """The power of the processes that get its ``path``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.program = folder / "sitecustomize.py"
        """What a process that notes has to run."""
        shutil.copy(Path(__file__).with_name("noted_syncs.py"), self.program)

    @property
    def path(self) -> str:
        """A folder with which a process's import path has to begin, so that it runs ``program`` at its start."""
        return str(self._folder)

    def cut(self, home: Path, draw: random.Random, safe: frozenset[str] = frozenset()) -> int:
        """Cut a part of what wasn't synced off the log's files, but not of the streams ``safe``; return how much."""
        lost = 0
        for file, kept, size in self._unsynced(home, safe):
            end = draw.choice([kept, size, draw.randint(kept, size)])
            os.truncate(file, end)
            lost += size - end
        for index in home.glob("streams/*/p*.times"):
            if index.parent.name not in safe:
                index.write_bytes(index.read_bytes()[: draw.randrange(_INDEX_MAX)])
        return lost

    def leave_holes(self, home: Path, draw: random.Random) -> int:
        """Some pages of what wasn't synced read as zeros: the file's length got to the disk before them."""
        lost = 0
        for file, kept, size in self._unsynced(home, frozenset()):
            for page in range(kept // _PAGE, size // _PAGE + 1):
                start, stop = max(page * _PAGE, kept), min((page + 1) * _PAGE, size)
                if start < stop and draw.random() < 0.3:
                    with file.open("r+b") as opened:
                        opened.seek(start)
                        opened.write(bytes(stop - start))
                    lost += stop - start
        return lost

    def synced(self) -> dict[int, int]:
        """How much of the files is on the disk for certain, by their inodes."""
        notes = self._folder / "synced"
        lines = notes.read_text().splitlines() if notes.exists() else []
        pairs = (line.split() for line in lines)
        return {int(inode): int(size) for inode, size in pairs}

    def _unsynced(self, home: Path, safe: frozenset[str]) -> Iterator[tuple[Path, int, int]]:
        """The log's files, how much of each was synced, and how much there is."""
        synced = self.synced()
        for file in sorted(home.glob("streams/*/p*.log")):
            found = file.stat()
            if file.parent.name not in safe:
                yield file, min(found.st_size, synced.get(found.st_ino, FILE_HEADER_SIZE)), found.st_size

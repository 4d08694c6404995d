"""Bounds the descriptors that one thread keeps open for partitions that it has read or written.

A thread that hosts thousands of tasks reads and writes thousands of partitions, most of them rarely. So only those that
were used last stay open, and the others are opened again when they are needed.

A file with unsynced records stays open. If writing it back to the disk fails, the kernel reports that on each
descriptor that is open at that time, but on only one of those that are opened later.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from headrace.core import descriptors

if TYPE_CHECKING:
    from headrace.systems.log.partition import PartitionFile


class OpenFiles:
    """The open partitions of one thread, in the order of their last use."""

    def __init__(self, kept: int | None = None) -> None:
        """Keep so many files open; by default the share of the process's files that ``descriptors`` allows."""
        self._kept = descriptors.share() if kept is None else kept
        self._files: dict[PartitionFile, Callable[[], bool]] = {}
        self._trim_above = self._kept

    def used(self, file: PartitionFile, unsynced: Callable[[], bool]) -> None:
        """Note that a file is used, and open. It isn't closed here while it is ``unsynced``."""
        self._files.pop(file, None)
        self._files[file] = unsynced
        if len(self._files) > self._trim_above:
            self.trim()

    def forget(self, file: PartitionFile) -> None:
        """Close a file."""
        file.close()
        self._files.pop(file, None)

    def trim(self) -> None:
        """Close the files that were used the longest ago, as far as they may be; never the one used last."""
        surplus = len(self._files) - self._kept
        if surplus <= 0:
            return
        closable = (file for file, unsynced in self._files.items() if not unsynced())
        for file in list(islice(closable, surplus)):
            if file is not next(reversed(self._files)):
                self.forget(file)
        # Files that have to stay open aren't looked at each time that another one is used.
        self._trim_above = max(self._kept, 2 * (len(self._files) - self._kept))

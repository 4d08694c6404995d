"""The files of one input: the list, and the addition of new files to it.

A driver takes stock when a run begins, so all containers of the run read the same files. An input that follows its
folder has it looked at while it is read, too, on a thread: listing a folder may take its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from headrace.core.errors import DeclarationError, HeadraceError, UnavailableError
from headrace.core.log import logger
from headrace.systems.files.file_list import FileList, ListFile
from headrace.systems.files.place import find_files, nothing_found
from headrace.systems.files.stocktaking import Look, Policy, additions, over, refused
from headrace.systems.files.storage import Found

PARTITIONS_MAX = 64
"""How many partitions an input of many files has at most, unless it says."""

_ATTEMPTS_MAX = 100
_log = logger(__name__)


class Stock:
    """The list of an input's files. ``where`` is None outside an app: then the list is that of this moment."""

    def __init__(
        self, policy: Policy, partitions: int | None, where: Path | None, look: Callable[[list[Found]], Look]
    ) -> None:
        self._policy = policy
        self._partitions = partitions
        self._file = None if where is None else ListFile(where)
        self._look = look

    def present(self) -> FileList:
        """Return the list, or the one that a run starting now would have, without changes. Always the same object."""
        if self._file is not None:
            self._file.refresh()
            if self._file.exists:
                return self._checked(self._file.contents)
        found = find_files(self._policy.path)
        listed = FileList()
        listed.start(self._count(found))
        for entry in additions(listed, found, self._look(found), self._policy):
            listed.add(entry)
        listed.ended, listed.nothing = self._ends, not found
        return listed

    def take(self) -> FileList:
        """Append new files durably. Raises if the input doesn't accept new or changed files."""
        if self._file is None:
            return self.present()
        for _ in range(_ATTEMPTS_MAX):
            self._file.refresh()
            listed = self._file.contents
            found = find_files(self._policy.path)
            if listed.ended and not self._ends:
                raise over(self._policy)
            if not found and not listed.latest:
                self._check_nothing()
            partitions = 0 if self._file.exists else self._count(found)
            if partitions:
                draft = FileList()
                draft.start(partitions)
            else:
                draft = self._checked(listed)
            added = additions(draft, found, self._look(found), self._policy) if found else []
            if listed.ended and added:
                raise refused(added, self._policy)
            ends = self._ends and not listed.ended
            if not (added or partitions or ends) or self._file.append(added, partitions=partitions, ended=ends):
                _log.debug(
                    "listed the files of an input", path=self._policy.path, new=len(added), files=len(listed.latest)
                )
                return self._file.contents
        raise UnavailableError(
            f"other processes changed the list of files {self._file.path} {_ATTEMPTS_MAX} times in a row",
            hint="look for other runs that read this input",
        )

    def refresh(self) -> None:
        """Read what others have appended to the list."""
        if self._file is not None:
            self._file.refresh()

    @property
    def _ends(self) -> bool:
        return self._policy.new_files == "refuse"

    def _count(self, found: list[Found]) -> int:
        # An input that goes on may get one file a day: in several partitions, the others would hold event time back.
        return self._partitions or (min(max(1, len(found)), PARTITIONS_MAX) if self._ends else 1)

    def _checked(self, listed: FileList) -> FileList:
        if self._partitions not in (None, listed.partitions):
            raise DeclarationError(
                f"files {self._policy.path}: declared with partitions={self._partitions}, but the first run dealt the "
                f"files to {listed.partitions}",
                hint=f"write partitions={listed.partitions}, or give the app another name",
            )
        return listed

    def _check_nothing(self) -> None:
        error = nothing_found(self._policy.path)
        if self._ends:
            raise error
        _log.warning("an input has no files yet", path=self._policy.path, reason=error.message)


class Follower:
    """Takes stock again and again on a thread of its own, until it is closed. ``check`` raises what went wrong."""

    def __init__(self, take: Callable[[], object], every_s: float) -> None:
        self._take = take
        self._every_s = every_s
        self._closed = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="files-follower", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that has ended the thread, if one has."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread. A look that is under way ends later, and does no harm."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                self._take()
            except HeadraceError as error:
                if not error.retry:
                    self._error = error
                    return
                _log.warning("can't look for new files; trying again", error=str(error), every_s=self._every_s)
            except Exception as error:  # noqa: BLE001  # raised on the thread that reads
                self._error = error
                return

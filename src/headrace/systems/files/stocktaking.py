"""What has changed among the files of an input since they were listed: pure, but for the look into a file.

A file that has the size and the time that the list says is the same. A file that has neither is the same if its first
and last bytes are; it has grown if it is longer and keeps its old bytes. Anything else is another file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from headrace.core.errors import DataError, UsageError
from headrace.systems.files.file_list import Entry, FileList
from headrace.systems.files.storage import Found

NewFiles = Literal["refuse", "next_run", "follow"]
ChangedFiles = Literal["refuse", "read_again"]
_NAMED = 3


class Look(Protocol):
    """How to look into a file."""

    def sample(self, path: str, size: int) -> str:
        """A checksum of the first and the last bytes of its first ``size`` bytes."""
        ...

    def appendable(self, path: str, end: int) -> bool:
        """Whether the file may go on after ``end``: it is text that isn't compressed, and a row ends there."""
        ...

    def end(self, file: Found, start: int) -> int:
        """Where to stop reading for now: after the last whole row if something may still be writing the file."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """What the input says about new and changed files; ``path`` names it in errors."""

    path: str
    new_files: NewFiles = "refuse"
    changed_files: ChangedFiles = "refuse"


def additions(listed: FileList, found: Iterable[Found], look: Look, policy: Policy) -> list[Entry]:
    """The entries to append. Raises ``DataError`` for a changed file, unless the input reads such files again.

    Files without content are left out until they have some.
    """
    added: list[Entry] = []
    new = 0
    for file in found:
        last = listed.latest.get(file.path)
        start = 0 if last is None else _start(file, last, look, policy)
        if start is None or start == file.size:
            continue
        end = look.end(file, start)
        if end > start:
            partition = listed.partition_of(file.path, new)
            new += last is None
            added.append(
                Entry(
                    path=file.path,
                    partition=partition,
                    start=start,
                    end=end,
                    size=file.size,
                    modified=file.modified,
                    sample=look.sample(file.path, file.size),
                )
            )
    return added


def _start(file: Found, last: Entry, look: Look, policy: Policy) -> int | None:
    """Where what is new in a listed file begins; None if nothing is new."""
    if (file.size, file.modified) == (last.size, last.modified):
        return last.end
    if last.sample and file.size >= last.size and look.sample(file.path, last.size) == last.sample:
        if file.size == last.size:
            return last.end
        if look.appendable(file.path, last.end):
            return last.end
    if policy.changed_files == "read_again":
        return 0
    raise changed(file.path, last, file)


def changed(path: str, listed: Entry, file: Found) -> DataError:
    """Return the error for a file that was replaced since it was listed."""
    how = f"it had {listed.size} bytes, now {file.size}" if file.size != listed.size else "its contents are different"
    return DataError(
        f"{path} has changed since the app listed it: {how}",
        hint='put new data into new files; or set changed_files="read_again" (with new_files="next_run" or "follow"), '
        "which reads changed files again from their start",
    )


def refused(added: list[Entry], policy: Policy) -> UsageError:
    """Return the error for files that appeared after the input had ended."""
    names = sorted({entry.path for entry in added})
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return UsageError(
        f"{policy.path} has new files, which the app doesn't read: {', '.join(names[:_NAMED])}{more}; "
        "the input ends with the files of its first run",
        hint='to read later files too, declare hr.io.files(..., new_files="next_run") or "follow", and give the app '
        "another name, because the input may have ended for this one; or move the new files away",
    )


def over(policy: Policy) -> UsageError:
    """The error for an input that has ended and is now declared to go on."""
    return UsageError(
        f"the input {policy.path} ended with the files of an earlier run, so it can't continue with "
        f"new_files={policy.new_files!r}",
        hint="give the app another name: it then reads all files from the start",
    )

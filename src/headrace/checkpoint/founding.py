"""The state that a task of a new timeline takes over from a savepoint, and that a task keeps for one. Plain data.

A savepoint has a folder for each task, with the task's database (``DATABASE_FOLDER``) and the commit to which the
database corresponds (``COMMIT_FILE``). That file is written last, so a folder without it is a draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.checkpoint.record import CommitRecord
from headrace.core.ids import Offset
from headrace.core.records import decode_record

COMMIT_FILE = "commit.json"
DATABASE_FOLDER = "db"
FORMAT = 1


class Cut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An order to all tasks of an app: commit exactly ``version``, and keep the state in a subfolder of ``folder``.

    ``last``: a task processes nothing more once it has kept its state.
    """

    id: str
    version: int
    folder: str
    last: bool = False


class KeptCommit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The commit of a task in a savepoint: its record, and its offset in the changelog."""

    format: int = FORMAT
    task: str
    offset: Offset
    record: CommitRecord

    def encode(self) -> bytes:
        """Return it as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> KeptCommit:
        """Read what ``encode`` wrote. Raises ``DataError``."""
        return decode_record(
            _DECODER,
            data,
            "the commit in a savepoint",
            FORMAT,
            lambda kept: f"the commit of task {kept.task} in a savepoint",
        )


_DECODER = msgspec.json.Decoder(KeptCommit)


@dataclass(frozen=True, slots=True)
class Donor:
    """A task in a savepoint: its number, and the folder with its commit and its database."""

    number: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Founding:
    """How a task with an empty changelog begins.

    ``record`` becomes its first commit. ``donors`` have its state. If ``shares`` is None, the task gets all of it;
    otherwise ``shares`` gives for each store the columns that divide its rows among ``tasks`` tasks. Stores that are
    ``copied`` are the same in all donors, and the task gets all rows of the first.
    ``silent_until`` is the app's former position in each source partition, up to which the task reads silently; None
    if the partition had ended.
    """

    record: CommitRecord
    donors: tuple[Donor, ...] = ()
    shares: Mapping[str, Sequence[str]] | None = None
    copied: frozenset[str] = frozenset()
    tasks: int = 1
    silent_until: Mapping[tuple[str, int], Offset | None] = field(default_factory=dict)

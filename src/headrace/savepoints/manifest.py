"""The manifest of a savepoint: its contents, with checksums that prove that it is complete. Pure data.

A savepoint is a folder: ``savepoint.json`` is the manifest, which is written last, and each task has a folder of its
own (``checkpoint.founding``).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.core.errors import DataError
from headrace.core.ids import TaskName
from headrace.core.records import UNREADABLE
from headrace.plan.inventory import Inventory, StageRecord

FORMAT = 1
FILE = "savepoint.json"


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a savepoint: its size in bytes, and the SHA-256 of its contents."""

    size: int
    sha256: str


class TaskCopy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A task in a savepoint. ``files`` are by their paths in the task's folder."""

    task: str
    ended: bool = False
    files: Mapping[str, FileSum]

    @property
    def name(self) -> TaskName:
        """Its name."""
        return TaskName.parse(self.task)

    @property
    def size(self) -> int:
        """The size of its files, in bytes."""
        return sum(file.size for file in self.files.values())


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A savepoint of ``app`` at ``version``: every task had committed exactly that.

    ``stages`` is the inventory of the app, and ``gone`` are its former names. ``system`` is the name of
    the system of its intermediate streams. ``written``: it was made of rows, not taken of a running app.
    """

    format: int = FORMAT
    app: str
    name: str
    version: int
    created_ms: int
    timeline: int = 1
    grouping: str = "partition"
    system: str
    written: bool = False
    stages: tuple[StageRecord, ...]
    gone: tuple[str, ...] = ()
    tasks: tuple[TaskCopy, ...]

    @property
    def inventory(self) -> Inventory:
        """The app's inventory, with its names."""
        return Inventory({record.stage: record for record in self.stages}, frozenset(self.gone))

    @property
    def size(self) -> int:
        """The size of all files, in bytes."""
        return sum(task.size for task in self.tasks)

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def decode(cls, data: bytes, where: str) -> Manifest:
        """Read what ``encode`` wrote. Raises ``DataError``, which says ``where`` it was read."""
        try:
            found = msgspec.json.decode(data, type=_Format).format
            if found != FORMAT:
                raise DataError(
                    f"{where} is a savepoint of format {found}; this version of Headrace reads {FORMAT}",
                    hint="use the version of Headrace that took it, or a newer one",
                )
            return _DECODER.decode(data)
        except UNREADABLE as error:
            raise DataError(
                f"{where} isn't the manifest of a savepoint, or is damaged: {error}: {data[:100]!r}",
                hint="export the savepoint again from its home",
            ) from error


class _Format(msgspec.Struct, frozen=True):
    format: int


_DECODER = msgspec.json.Decoder(Manifest)

"""The initial state of a timeline's tasks on the disk: a folder for each timeline that began with a savepoint.

The folder has a copy of each donor, which shares the savepoint's files, and a description of how each task begins. So
the savepoint may be deleted after the restore. The folder appears atomically.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.checkpoint.founding import Donor, Founding
from headrace.checkpoint.record import CommitRecord
from headrace.core.durable import sync_folder, writing
from headrace.core.errors import DataError
from headrace.core.ids import Offset, TaskName
from headrace.core.private_folder import make_private_folder, write_private
from headrace.core.records import UNREADABLE
from headrace.runtime.naming import founding_folder, task_folder
from headrace.savepoints.folder import sync_tree

FORMAT = 1
DONORS = "donors"
_TASKS = "tasks"


class _Silence(msgspec.Struct, frozen=True, kw_only=True):
    stream: str
    partition: int
    until: Offset | None


class _Founding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``donors`` are tasks, each with a folder in ``donors``."""

    format: int = FORMAT
    record: CommitRecord
    donors: tuple[str, ...] = ()
    shares: Mapping[str, tuple[str, ...]] | None = None
    copied: tuple[str, ...] = ()
    tasks: int = 1
    silent_until: tuple[_Silence, ...] = ()


class _Format(msgspec.Struct, frozen=True):
    format: int


_DECODER = msgspec.json.Decoder(_Founding)


def encode_founding(founding: Founding, stage: str) -> bytes:
    """How a task begins, as JSON."""
    return msgspec.json.encode(
        _Founding(
            record=founding.record,
            donors=tuple(str(TaskName(stage, donor.number)) for donor in founding.donors),
            shares=None if founding.shares is None else {name: tuple(by) for name, by in founding.shares.items()},
            copied=tuple(sorted(founding.copied)),
            tasks=founding.tasks,
            silent_until=tuple(
                _Silence(stream=stream, partition=partition, until=offset)
                for (stream, partition), offset in sorted(founding.silent_until.items())
            ),
        )
    )


def decode_founding(data: bytes, folder: Path) -> Founding:
    """Read what ``encode_founding`` wrote; ``folder`` is that of the timeline. Raises ``DataError``."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found != FORMAT:
            raise DataError(
                f"the initial state of tasks in {folder} has format {found}; this version of Headrace reads {FORMAT}",
                hint="start the app with the version of Headrace that restored the savepoint, or restore it again",
            )
        known = _DECODER.decode(data)
    except UNREADABLE as error:
        raise DataError(
            f"the initial state of tasks in {folder} is unreadable: {error}: {data[:100]!r}",
            hint="restore the savepoint again",
        ) from error
    donors = [TaskName.parse(name) for name in known.donors]
    return Founding(
        record=known.record,
        donors=tuple(Donor(donor.number, folder / DONORS / task_folder(donor)) for donor in donors),
        shares=known.shares,
        copied=frozenset(known.copied),
        tasks=known.tasks,
        silent_until={(one.stream, one.partition): one.until for one in known.silent_until},
    )


@contextmanager
def new_founding_folder(home: Path, app: str, timeline: int) -> Iterator[Path]:
    """Yield a draft of a timeline's folder, which becomes the folder if the block succeeds.

    Remains of an interrupted restore are deleted. The caller holds the lock.
    """
    folder = founding_folder(home, app, timeline)
    draft = folder.with_name(f".draft-{folder.name}")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        with writing(folder):
            make_private_folder(draft / DONORS)
            yield draft
            sync_tree(draft)
            draft.rename(folder)
            sync_folder(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_foundings(draft: Path, foundings: Mapping[TaskName, Founding]) -> None:
    """Write how each task begins."""
    make_private_folder(draft / _TASKS)
    for task, founding in foundings.items():
        write_private(draft / _TASKS / f"{task_folder(task)}.json", encode_founding(founding, task.stage))


def read_foundings(home: Path, app: str, timeline: int, tasks: Iterable[TaskName]) -> dict[TaskName, Founding]:
    """Return how tasks of a timeline begin: those that the savepoint had, or that a rescaling has added."""
    folder = founding_folder(home, app, timeline)
    found: dict[TaskName, Founding] = {}
    for task in tasks:
        path = folder / _TASKS / f"{task_folder(task)}.json"
        if path.exists():
            found[task] = decode_founding(path.read_bytes(), folder)
    return found

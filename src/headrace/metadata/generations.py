"""Issue generations, the numbers that fence off older copies of a task. No number is issued twice.

They are kept in the metadata store, not in the driver's memory. Otherwise a second driver, or one that was restarted,
would issue the same numbers again, and nothing could distinguish two incarnations of one generation. The coordinator
decides who may ask for one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.core.errors import (
    IndeterminateWriteError,
    ProtocolError,
    StorageError,
    UnavailableError,
)
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.core.records import decode_record
from headrace.metadata.store import Entry, MetadataStore, Put

HIGHEST = 2**31 - 1
"""A generation travels as an int32."""

FORMAT = 1
_MOST_ATTEMPTS = 1000

_log = logger(__name__)


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    format: int = msgspec.field(default=FORMAT, name="version")
    generation: int


_DECODER = msgspec.json.Decoder(_Record)


class Generations:
    """The generations of an app's tasks. All deployments of the app share them."""

    def __init__(self, store: MetadataStore, app: str) -> None:
        self._store = store
        self._app = app
        self._namespace = f"generations/{app}"

    def issue(self, tasks: Sequence[TaskName]) -> dict[TaskName, int]:
        """Return a new generation for each of ``tasks``: 1 at first, later higher than any issued before.

        Raises ``StorageError`` or ``UnavailableError``; after either, the call may be repeated.
        """
        wanted = list(dict.fromkeys(tasks))
        for _ in range(_MOST_ATTEMPTS):
            known = self._store.scan(self._namespace)
            issued = {task: self._next(task, known.get(str(task))) for task in wanted}
            if self._write([self._put(task, issued[task], known.get(str(task))) for task in wanted]):
                return issued
            _log.info(
                "another driver took the same generations; trying the next ones", app=self._app, tasks=len(wanted)
            )
        raise UnavailableError(
            f"other drivers took a generation of {', '.join(map(str, wanted))} of app {self._app!r}"
            f" first, {_MOST_ATTEMPTS} times in a row",
            hint="stop the other drivers that run this app",
        )

    def latest(self) -> dict[TaskName, int]:
        """Return the latest generation of every task that has one."""
        entries = self._store.scan(self._namespace)
        return {TaskName.parse(key): self._read(key, entry) for key, entry in entries.items()}

    def _write(self, puts: Sequence[Put]) -> bool:
        try:
            return self._store.write(self._namespace, puts) is not None
        except IndeterminateWriteError as error:
            # If it was written, these numbers are skipped, which does no harm: the next call returns higher ones.
            raise StorageError(
                f"can't issue generations for app {self._app!r}: {error.message}",
                hint=error.hint or "free up space on the disk of the metadata store",
            ) from error

    def _next(self, task: TaskName, entry: Entry | None) -> int:
        generation = self._read(str(task), entry) + 1 if entry else 1
        if generation > HIGHEST:
            raise ProtocolError(
                f"task {task} of app {self._app!r} has used up all {HIGHEST} generations",
                hint="start the app under another name",
            )
        return generation

    def _put(self, task: TaskName, generation: int, entry: Entry | None) -> Put:
        record = msgspec.json.encode(_Record(generation=generation))
        return Put(str(task), record, entry.version if entry else None)

    def _read(self, task: str, entry: Entry) -> int:
        where = f"the generation of task {task} of app {self._app!r} in the metadata store"
        return decode_record(_DECODER, entry.value, where, FORMAT).generation

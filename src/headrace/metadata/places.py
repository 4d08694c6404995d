"""Which host held each task of an app last: there its state still lies, so that a restart reads little. Only a hint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from headrace.core.errors import DataError
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.core.records import decode_record
from headrace.metadata.store import MetadataStore, update

FORMAT = 1

_log = logger(__name__)

_T = TypeVar("_T")


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a stage's tasks by their numbers, and of their standbys; empty where none is known."""

    format: int = msgspec.field(default=FORMAT, name="version")
    hosts: list[str]
    standbys: list[list[str]] | msgspec.UnsetType = msgspec.UNSET
    """An addition that versions of Headrace without standbys ignore."""


_DECODER = msgspec.json.Decoder(_Record)


class Places:
    """The book of an app: an entry for each stage, which only the deployment that runs the stage writes."""

    def __init__(self, store: MetadataStore, app: str) -> None:
        self._store = store
        self._app = app
        self._namespace = f"places/{app}"

    def read(self) -> dict[TaskName, str]:
        """Return the host of each task that one is known of. What can't be read isn't known."""
        return {
            TaskName(stage, number): host
            for stage, record in self._records()
            for number, host in enumerate(record.hosts)
            if host
        }

    def read_standbys(self) -> dict[TaskName, list[str]]:
        """Return the hosts of standbys, of each task that has any."""
        return {
            TaskName(stage, number): hosts
            for stage, record in self._records()
            for number, hosts in enumerate(record.standbys or [])
            if hosts
        }

    def note(self, hosts: Mapping[TaskName, str], standbys: Mapping[TaskName, Sequence[str]] | None = None) -> None:
        """Note that these tasks are on these hosts now, and their standbys on those."""
        copies = standbys or {}
        for stage in sorted({task.stage for task in (*hosts, *copies)}):
            on = {task.number: host for task, host in hosts.items() if task.stage == stage}
            also = {task.number: list(those) for task, those in copies.items() if task.stage == stage}

            def changed(
                value: bytes | None,
                stage: str = stage,
                on: Mapping[int, str] = on,
                also: Mapping[int, list[str]] = also,
            ) -> bytes:
                known = _Record(hosts=[]) if value is None else self._record(stage, value)
                before = known.standbys or []
                return msgspec.json.encode(
                    _Record(hosts=_merged(known.hosts, on, ""), standbys=_merged(before, also, []) or msgspec.UNSET)
                )

            update(self._store, self._namespace, stage, changed)

    def _records(self) -> Iterator[tuple[str, _Record]]:
        for stage, entry in self._store.scan(self._namespace).items():
            yield stage, self._record(stage, entry.value)

    def _record(self, stage: str, value: bytes) -> _Record:
        try:
            what = f"the place of stage {stage} of app {self._app!r} in the metadata store"
            return decode_record(_DECODER, value, what, FORMAT)
        except DataError as error:
            _log.info("can't read where tasks ran last", app=self._app, stage=stage, error=error.message)
            return _Record(hosts=[])


def _merged(known: Sequence[_T], found: Mapping[int, _T], nothing: _T) -> list[_T]:
    """What is known of tasks by their numbers, with what was found."""
    length = max(len(known), max(found, default=-1) + 1)
    return [found.get(n, known[n] if n < len(known) else nothing) for n in range(length)]

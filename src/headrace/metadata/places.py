"""Which host held each task of an app last: there its state still lies, so that a restart reads little. Only a hint."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.core.errors import DataError
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.core.records import decode_record
from headrace.metadata.store import MetadataStore, update

FORMAT = 1

_log = logger(__name__)


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a stage's tasks by their numbers; empty where none is known."""

    format: int = msgspec.field(default=FORMAT, name="version")
    hosts: list[str]


_DECODER = msgspec.json.Decoder(_Record)


class Places:
    """The book of an app: an entry for each stage, which only the deployment that runs the stage writes."""

    def __init__(self, store: MetadataStore, app: str) -> None:
        self._store = store
        self._app = app
        self._namespace = f"places/{app}"

    def read(self) -> dict[TaskName, str]:
        """Return the host of each task that one is known of. What can't be read isn't known."""
        entries = self._store.scan(self._namespace)
        return {
            TaskName(stage, number): host
            for stage, entry in entries.items()
            for number, host in enumerate(self._hosts(stage, entry.value))
            if host
        }

    def note(self, hosts: Mapping[TaskName, str]) -> None:
        """Note that these tasks are on these hosts now."""
        for stage in sorted({task.stage for task in hosts}):
            found = {task.number: host for task, host in hosts.items() if task.stage == stage}

            def changed(value: bytes | None, stage: str = stage, found: Mapping[int, str] = found) -> bytes:
                known = [] if value is None else self._hosts(stage, value)
                known += [""] * (max(found) + 1 - len(known))
                return msgspec.json.encode(_Record(hosts=[found.get(n, host) for n, host in enumerate(known)]))

            update(self._store, self._namespace, stage, changed)

    def _hosts(self, stage: str, value: bytes) -> list[str]:
        try:
            what = f"the place of stage {stage} of app {self._app!r} in the metadata store"
            return list(decode_record(_DECODER, value, what, FORMAT).hosts)
        except DataError as error:
            _log.info("can't read where tasks ran last", app=self._app, stage=stage, error=error.message)
            return []

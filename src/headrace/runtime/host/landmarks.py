"""Check that an input is still the one that the last commit has read. Commits keep a landmark for each position.

A stream may have been replaced by another one of its name, or may have lost its end in a crash and grown again. The
commit's position may then still be valid, but mean other records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import UNSET

from headrace.checkpoint.record import CommitRecord, InputEntry, SourceEntry
from headrace.core.ids import SSP
from headrace.runtime.inputs.consumers import InputConsumers, not_what_was_read
from headrace.runtime.task_scope import TaskScope
from headrace.systems.base import Position

Entry = TypeVar("Entry", InputEntry, SourceEntry)


class Landmarks:
    """The landmarks of one task's inputs."""

    def __init__(self, scope: TaskScope, inputs: InputConsumers) -> None:
        self._inputs = inputs
        self._ssps = {(scope.position_name(ssp), ssp.partition): ssp for ssp in scope.specs}
        self._ssps |= {(str(ssp.stream), ssp.partition): ssp for ssp in scope.inputs}

    def put_into(self, record: CommitRecord) -> CommitRecord:
        """Return the record with landmarks added."""
        inputs = tuple(map(self._with_landmark, record.inputs))
        sources = tuple(map(self._with_landmark, record.sources))
        return msgspec.structs.replace(record, inputs=inputs, sources=sources)

    def _with_landmark(self, entry: Entry) -> Entry:
        ssp = self._ssps.get((entry.stream, entry.partition))
        if ssp is None or entry.offset is None or not (found := self._inputs.landmark(ssp, entry.offset)):
            return entry
        return msgspec.structs.replace(entry, landmark=found)

    def check(self, record: CommitRecord | None, positions: Mapping[SSP, Position]) -> None:
        """Raise ``StreamNotFoundError`` if an input has other records before the commit's position than were read."""
        entries: list[InputEntry | SourceEntry] = [] if record is None else [*record.inputs, *record.sources]
        for entry in entries:
            ssp = self._ssps.get((entry.stream, entry.partition))
            if ssp is None or entry.landmark is UNSET or positions.get(ssp) != entry.offset:
                continue
            if not self._inputs.has_landmark(ssp, entry.landmark):
                raise not_what_was_read(f"{ssp}: the record before offset {entry.offset} is missing")

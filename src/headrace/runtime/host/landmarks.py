"""Check that the streams of a task are still those that its last commit knew. Commits keep landmarks.

A stream may have been replaced by another one of its name, or may have lost its end in a crash and grown again. The
commit's position in an input may then still be valid, but mean other records; and an output may lack results that the
commit covers, which only a reader of the whole stream would notice. (An intermediate stream needs no landmark of its
writer: its readers keep theirs, and know which commits of the writer they need.)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TypeVar

import msgspec
from msgspec import UNSET

from headrace.api.specs import Role
from headrace.checkpoint.record import CommitRecord, InputEntry, OutputSeq, SourceEntry
from headrace.core.errors import InfrastructureError
from headrace.core.ids import SSP
from headrace.core.log import logger
from headrace.runtime.connections import Connections
from headrace.runtime.inputs.consumers import InputConsumers, not_what_was_read
from headrace.runtime.task_scope import TaskScope
from headrace.systems.base import Edge, Position
from headrace.systems.registry import SystemSpec

Entry = TypeVar("Entry", InputEntry, SourceEntry)

_log = logger(__name__)


class Landmarks:
    """The landmarks of one task's inputs, and of the outputs of the app that it writes."""

    def __init__(self, scope: TaskScope, inputs: InputConsumers, connections: Connections) -> None:
        self._task = scope.name
        self._inputs = inputs
        self._ssps = {(scope.position_name(ssp), ssp.partition): ssp for ssp in scope.specs}
        self._ssps |= {(str(ssp.stream), ssp.partition): ssp for ssp in scope.inputs}
        self._connections = connections
        self._accepts_losses = scope.settings.lost_results == "accept"
        self._outputs: dict[SSP, SystemSpec] = {}
        machine = scope.machine
        for stream in scope.outputs.values():
            name = stream.spec.stream
            if stream.spec.role is not Role.INTERMEDIATE and name in machine.outputs:
                ssps = [SSP(name, machine.own[name])] if name in machine.own else stream.ssps()
                self._outputs |= dict.fromkeys(ssps, stream.spec.system)
        self._written: dict[SSP, str] = {}
        """By output partition the landmark for the next commit."""

    def flushed(self) -> None:
        """Note the landmarks of what was written so far: all of it is acknowledged now.

        What other tasks of the container write later may be lost in a power cut that the next commit survives.
        """
        for ssp, system in self._outputs.items():
            found = self._connections.record_producer(system).landmark(ssp.stream.name, ssp.partition)
            if found:
                self._written[ssp] = found

    def put_into(self, record: CommitRecord) -> CommitRecord:
        """Return the record with landmarks added."""
        return msgspec.structs.replace(
            record,
            outputs=tuple(map(self._with_written, record.outputs)),
            inputs=tuple(map(self._with_landmark, record.inputs)),
            sources=tuple(map(self._with_landmark, record.sources)),
        )

    def _with_written(self, entry: OutputSeq) -> OutputSeq:
        found = self._written.get(SSP.of(entry.stream, entry.partition))
        return entry if found is None else msgspec.structs.replace(entry, landmark=found)

    def _with_landmark(self, entry: Entry) -> Entry:
        ssp = self._ssps.get((entry.stream, entry.partition))
        if ssp is None or entry.offset is None or not (found := self._inputs.landmark(ssp, entry.offset)):
            return entry
        return msgspec.structs.replace(entry, landmark=found)

    def check(self, record: CommitRecord | None, positions: Mapping[SSP, Position]) -> None:
        """Raise if a stream isn't the one that the commit knew.

        ``StreamNotFoundError``: an input has other records before the commit's position than were read.
        ``InfrastructureError``: an output lacks what was written, and the app doesn't accept that.
        """
        entries: list[InputEntry | SourceEntry] = [] if record is None else [*record.inputs, *record.sources]
        for entry in entries:
            ssp = self._ssps.get((entry.stream, entry.partition))
            if ssp is None or entry.landmark is UNSET or positions.get(ssp) != entry.offset:
                continue
            if not self._inputs.has_landmark(ssp, entry.landmark):
                raise not_what_was_read(f"{ssp}: the record before offset {entry.offset} is missing")
        self._written = {}
        for written in () if record is None else record.outputs:
            ssp = SSP.of(written.stream, written.partition)
            if written.landmark is not UNSET and ssp in self._outputs:
                self._written[ssp] = written.landmark
        for ssp, landmark in [*self._written.items()]:
            if not self._has(ssp, landmark):
                self._note_loss(ssp)

    def _has(self, ssp: SSP, landmark: str) -> bool:
        with closing(self._connections.reader(self._outputs[ssp])) as reader:
            reader.register(ssp, Edge.OLDEST)
            return reader.has_landmark(ssp, landmark)

    def _note_loss(self, ssp: SSP) -> None:
        what = f"task {self._task}: the output {ssp} lacks results that this task has committed"
        if not self._accepts_losses:
            raise InfrastructureError(
                what,
                hint="the stream was replaced by another of its name, or lost its end in a crash of the machine: put "
                'the old one back. To continue without them, start the app with lost_results="accept" once',
            )
        _log.warning(f"{what}, which lost_results accepts")
        del self._written[ssp]

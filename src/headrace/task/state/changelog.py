"""One task's changelog partition: append, flush, read, and replay into state at a start or a rollback.

Which records count is the protocol's matter. ``flush`` and ``read`` block. A replay pauses at each commit, and calls
``pulse`` at each record so that others see how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.core.errors import (
    CorruptLogError,
    FencedError,
    FrameError,
    InfrastructureError,
    TrimmedOffsetError,
    UsageError,
)
from headrace.core.frame import Header, Kind, body_of, decode_header, encode
from headrace.core.ids import SSP, Offset
from headrace.core.log import logger
from headrace.protocol.changelog import ReplayStep
from headrace.protocol.machine import ProtocolMachine
from headrace.systems.base import Edge, Polled, Records, next_polled, polled_to
from headrace.systems.registry import SystemSpec
from headrace.task.connections import Connections
from headrace.task.scope import Pause, Steps
from headrace.task.state.task_state import TaskState

_READ_BYTES = 8 << 20


def records_in(polled: Polled, end: Offset | None = None) -> Iterator[tuple[Offset, Header, memoryview]]:
    if not isinstance(polled, Records):
        raise CorruptLogError(f"{polled.ssp}: a changelog can't end or hold rows, this one does")
    for offset, payload in zip(polled.offsets, polled.payloads, strict=True):
        if end is not None and offset >= end:
            return
        try:
            header = decode_header(payload)
        except FrameError as error:
            raise CorruptLogError(f"{polled.ssp} at offset {offset}: {error.message}", hint=error.hint) from error
        yield offset, header, body_of(payload)


class ChangelogPartition:
    """The changelog of one task."""

    def __init__(self, ssp: SSP, system: SystemSpec, connections: Connections) -> None:
        self.ssp = ssp
        self._admin = connections.admin(system)
        self._producer = connections.record_producer(system)
        self._consumer = connections.reader(system)

    def append(self, header: Header, body: bytes) -> int:
        frame = encode(header, body)
        self._producer.send(self.ssp.stream.name, self.ssp.partition, frame)
        return len(frame)

    def flush(self) -> Offset:
        """Wait until the appended records are acknowledged; return the offset after the last one."""
        return self._producer.flush()[self.ssp.stream.name, self.ssp.partition]

    def read(self, start: Offset | None, end: Offset) -> Iterator[tuple[Offset, Header, memoryview]]:
        consumer = self._consumer
        consumer.register(self.ssp, Edge.OLDEST if start is None else start)
        for polled in polled_to(consumer, self.ssp, end, _READ_BYTES):
            yield from records_in(polled, end)

    def header_at(self, offset: Offset) -> Header | None:
        """The header of the record that begins at ``offset``; None if none begins there, or it was trimmed."""
        try:
            self._consumer.register(self.ssp, offset)
            found = [] if self._consumer.lag(self.ssp) == 0 else next_polled(self._consumer, self.ssp, offset + 1, 1)
        except (TrimmedOffsetError, CorruptLogError, UsageError):
            return None
        for polled in found:
            if isinstance(polled, Records) and polled.offsets[0] == offset:
                return next(records_in(polled))[1]
        return None

    def trim(self, commit: Offset) -> None:
        self._admin.trim(self.ssp, commit)

    def close(self) -> None:
        self._consumer.close()


_log = logger(__name__)


class Replay:
    """Reads one task's changelog into its state."""

    def __init__(self, task: str, changelog: ChangelogPartition, state: TaskState, pulse: Callable[[], None]) -> None:
        self._task = task
        self._changelog = changelog
        self._state = state
        self._pulse = pulse
        self.progress: tuple[int, int] | None = None  # while it runs: how much has been read, of how much
        self.records = 0

    def steps(self, machine: ProtocolMachine, start: Offset | None, end: Offset) -> Steps[bool]:
        """False: another base is needed. One of another changelog may end after this one, or where no record begins.
        Raises ``FencedError`` when a newer generation has trimmed it past ``end``, the own fence, or committed."""
        begin = start or 0
        if begin >= end:
            found = self._changelog.header_at(begin)
            if found is not None and found.kind is Kind.COMMIT and found.generation > machine.generation:
                raise self._replaced(f"generation {found.generation} has committed at offset {begin}, after its fence")
            return False
        before = self.records
        try:
            for offset, header, body in self._changelog.read(start, end):
                if start is None and self.records == before and header.seq > 1:
                    if self._state.has_snapshot:  # taken since this attempt looked for one
                        return False
                    raise self._lost(f"its changelog begins at offset {offset}, in the middle of a generation")
                self.progress = (offset - begin, end - begin)
                self.records += 1
                step = machine.changelog(offset, header, body)
                if step is ReplayStep.MISFIT:
                    return False
                if step is ReplayStep.APPLY and header.generation > machine.generation:
                    # Perhaps of another version of the app, with state that this one doesn't know.
                    raise self._replaced(f"generation {header.generation} has committed at offset {offset}")
                self._state.take(step, body, machine.local)
                self._pulse()
                if step is ReplayStep.APPLY:
                    yield Pause.PROGRESS
        except TrimmedOffsetError as error:
            if start is None and not self._state.has_snapshot:
                raise self._lost(error.message) from error
            _log.debug("the base is older than the changelog", task=self._task, offset=start, error=error.message)
            return False
        except (CorruptLogError, UsageError) as error:
            if start is None or self.records > before:
                raise
            _log.debug("the base is of another changelog", task=self._task, offset=start, error=error.message)
            return False
        finally:
            self.progress = None
        if self.records == before:  # not even its own fence
            raise self._replaced("its changelog begins after its fence")
        self._state.read_to(machine.local)
        return True

    def _replaced(self, why: str) -> FencedError:
        return FencedError(
            f"task {self._task} was replaced while it read its changelog: {why}",
            hint="ignore this: the newer generation has taken over",
        )

    def _lost(self, why: str) -> InfrastructureError:
        return InfrastructureError(
            f"the state of task {self._task} is lost: {why}, and no snapshot exists to rebuild it from",
            hint="restore the folder of snapshots, or start the app under another name, without that state",
        )

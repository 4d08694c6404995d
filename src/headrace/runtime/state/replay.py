"""Rebuilding a task's state from its changelog, at its start and at a rollback.

The protocol machine decides which records count; here they are read and their changes applied. Reading takes its
time: it pauses at each commit, and calls ``pulse`` at each record so that others see how far it is.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.checkpoint.changelog import ReplayStep
from headrace.checkpoint.machine import ProtocolMachine
from headrace.core.errors import CorruptLogError, FencedError, InfrastructureError, TrimmedOffsetError, UsageError
from headrace.core.frame import Kind
from headrace.core.ids import Offset
from headrace.core.log import logger
from headrace.runtime.pauses import Pause, Steps
from headrace.runtime.state.changelog_partition import ChangelogPartition
from headrace.runtime.state.task_state import TaskState

_log = logger(__name__)


class Replay:
    """Reads one task's changelog into its state."""

    def __init__(self, task: str, changelog: ChangelogPartition, state: TaskState, pulse: Callable[[], None]) -> None:
        self._task = task
        self._changelog = changelog
        self._state = state
        self._pulse = pulse
        self.progress: tuple[int, int] | None = None
        """While it runs: how much has been read, of how much."""
        self.records = 0

    def steps(self, machine: ProtocolMachine, start: Offset | None, end: Offset) -> Steps[bool]:
        """Read from ``start`` (None: the oldest) to ``end``; returns False when another base is needed.

        A base that isn't of this changelog may be anywhere: after its end, or where no record begins. Raises
        ``FencedError`` when a newer generation has trimmed the changelog past ``end``, the own fence, or its newest
        snapshot holds a later commit: that snapshot belongs to the newer generation, and is a good one.
        """
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

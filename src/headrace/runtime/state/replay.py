"""Rebuilding a task's state from its changelog, at its start and at a rollback.

Which records count the protocol's node decides; here they are read and their changes applied. Blocking: it reads
to the end, and calls ``pulse`` on the way so that others see how far it is.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.checkpoint.changelog import ReplayStep
from headrace.checkpoint.machine import ProtocolMachine
from headrace.core.errors import CorruptLogError, FencedError, InfrastructureError, TrimmedOffsetError, UsageError
from headrace.core.frame import Header, Kind
from headrace.core.ids import Offset
from headrace.core.log import logger
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

    def run(self, node: ProtocolMachine, start: Offset | None, end: Offset) -> bool:
        """Read from ``start`` (None: the oldest) to ``end``; False when another base is needed.

        A base that isn't of this changelog may lie anywhere: behind its end, or where no record begins. Raises
        ``FencedError`` when a newer generation has come so far already that ``end``, the own fence, lies behind what is
        kept, or behind the commit that the newest snapshot holds: that snapshot is the newer one's, and a good one.
        """
        begin = start or 0
        if begin >= end:
            found = self._changelog.header_at(begin)
            if found is not None and found.kind is Kind.COMMIT and found.generation > node.generation:
                raise self._replaced(f"generation {found.generation} has committed at offset {begin}, behind its fence")
            return False
        before = self.records
        try:
            for offset, header, body in self._changelog.read(start, end):
                if start is None and self.records == before and header.seq > 1:
                    raise self._lost(f"its changelog begins at offset {offset}, in the midst of a generation")
                self.progress = (offset - begin, end - begin)
                self.records += 1
                if not self._take(node, offset, header, body):
                    return False
                self._pulse()
        except TrimmedOffsetError as error:
            if start is None:
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
        if self.records == before:  # not even the own fence
            raise self._replaced("what its changelog holds begins behind its fence")
        self._state.read_to(node.local)
        return True

    def _replaced(self, why: str) -> FencedError:
        return FencedError(
            f"task {self._task} was replaced while it read its changelog: {why}",
            hint="nothing to do: the newer one has taken over",
        )

    def _lost(self, why: str) -> InfrastructureError:
        return InfrastructureError(
            f"the state of task {self._task} is lost: {why}, and there is no snapshot to begin from",
            hint="restore the folder of snapshots, or start the app under another name to begin anew",
        )

    def _take(self, node: ProtocolMachine, offset: Offset, header: Header, body: memoryview) -> bool:
        match node.changelog(offset, header, body):
            case ReplayStep.HOLD:
                self._state.hold(body)
            case ReplayStep.APPLY:
                self._state.apply(node.local)
            case ReplayStep.FORGET:
                self._state.forget()
            case ReplayStep.MISFIT:
                return False
            case ReplayStep.SKIP:
                return True
        return True

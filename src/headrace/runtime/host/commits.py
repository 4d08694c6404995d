"""Write one task's commits to its changelog, check that they count, and take the snapshots that keep it short.

Runs on the run-loop thread, and pauses where it would wait for acknowledgements or read for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.checkpoint.machine import ProtocolMachine
from headrace.checkpoint.record import Change, LocalCheckpoint, SourceEntry, encode_record
from headrace.core.errors import FencedError, TrimmedOffsetError
from headrace.core.frame import Header
from headrace.core.ids import Offset, TaskName
from headrace.runtime.host.durability import Survival
from headrace.runtime.host.landmarks import Landmarks
from headrace.runtime.pauses import Pause, Steps
from headrace.runtime.state.changelog_partition import ChangelogPartition
from headrace.runtime.state.task_state import TaskState


class Commits:
    """The commits of one task."""

    def __init__(
        self,
        task: TaskName,
        machine: ProtocolMachine,
        state: TaskState,
        changelog: ChangelogPartition,
        survival: Survival,
        landmarks: Landmarks,
    ) -> None:
        self._task = task
        self._machine = machine
        self._state = state
        self._changelog = changelog
        self._survival = survival
        self._landmarks = landmarks

    def take_over(self, changes: Iterable[Change], pulse: Callable[[], None]) -> Steps[None]:
        """Apply changes from a savepoint and append them; call ``pulse`` after each."""
        for change in changes:
            self._state.adopt(change)
            self._changelog.append(self._machine.stamp_change(), change.encode())
            pulse()
            yield Pause.PROGRESS

    def append_changes(self, version: int) -> None:
        """Append the stores' changes."""
        for change in self._state.changes(version):
            self._changelog.append(self._machine.stamp_change(), change.encode())

    def append_record(self, sources: tuple[SourceEntry, ...], times: bytes) -> Steps[None]:
        """Append the record that makes the changes count, and wait until it is written."""
        header, record = self._machine.seal(sources=sources, bookkeeping=times)
        data = encode_record(self._landmarks.put_into(record))
        self._state.grown(len(data))
        yield from self.append(header, data)

    def append(self, header: Header, data: bytes) -> Steps[None]:
        """Append a commit or an abort, wait until it survives, and tell the machine where it ends."""
        self._changelog.append(header, data)
        yield Pause.ACKNOWLEDGED
        end = self._changelog.flush()
        yield from self._survival.of_the_record()
        self._machine.performed(end)

    def check(self, start: Offset | None, end: Offset) -> Steps[None]:
        """Show the machine the records appended since its last commit. Raises ``FencedError`` if they were trimmed."""
        try:
            for offset, header, body in self._changelog.read(start, end):
                self._machine.changelog(offset, header, body)
                yield Pause.PROGRESS
        except TrimmedOffsetError as error:
            raise FencedError(
                f"task {self._task}: the changelog was trimmed past its last commit: {error.message}",
                hint="this is a stale copy of the task; its replacement has taken a snapshot since",
            ) from error

    def snapshot_if_due(self, local: LocalCheckpoint) -> Steps[None]:
        """Take a snapshot when the changelog has grown enough, then trim everything before the last but one."""
        yield Pause.PROGRESS
        trim = self._state.snapshot_if_due(local)
        if trim is not None:
            yield Pause.PROGRESS
            self._changelog.trim(trim)

    def trim_what_was_sent(self) -> Steps[None]:
        """Trim the changelog before the last but one of the snapshots that have arrived in the object store."""
        trim = self._state.learned()
        if trim is not None:
            yield Pause.PROGRESS
            self._changelog.trim(trim)

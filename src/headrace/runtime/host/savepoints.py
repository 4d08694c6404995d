"""A task's part in savepoints: it keeps its state at a cut, and takes over state from a savepoint.

Runs on the run-loop thread. Both wait for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

from headrace.checkpoint.founding import COMMIT_FILE, DATABASE_FOLDER, Cut, Founding, KeptCommit
from headrace.checkpoint.machine import ProtocolMachine
from headrace.checkpoint.protocol import Phase
from headrace.checkpoint.record import Change
from headrace.core.errors import ProtocolError
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.runtime.host.attempt import Attempt
from headrace.runtime.naming import task_folder
from headrace.runtime.state.task_state import TaskState
from headrace.stores.database import KeySpace
from headrace.stores.outbox import Outbox, timeline_begun
from headrace.stores.share import Share

CutState = Literal["waiting", "kept", "missed"]

_log = logger(__name__)


class Keeper:
    """Keeps the state of one task at the cut that the coordinator orders."""

    def __init__(self, task: TaskName, machine: ProtocolMachine, state: TaskState) -> None:
        self._task = task
        self._machine = machine
        self._state = state
        self._cut: Cut | None = None

    def order(self, cut: Cut | None) -> None:
        """Take part in this cut; None cancels it. Repeating an order changes nothing."""
        if cut == self._cut:
            return
        self._cut = cut
        self._machine.cut(None if cut is None else cut.version)
        if self._machine.phase is Phase.OVER:
            self.ended()

    def ended(self) -> None:
        """Keep the final state, which is the task's only one, unless its version is above the cut's."""
        cut = self._cut
        if cut is not None and self._machine.version <= cut.version and not self._machine.cut_kept:
            self.keep()

    @property
    def state(self) -> tuple[str, CutState] | None:
        """The id of the cut and its progress; None without a cut."""
        if self._cut is None:
            return None
        if self._machine.cut_missed:
            return self._cut.id, "missed"
        return self._cut.id, "kept" if self._machine.cut_kept else "waiting"

    @property
    def holds(self) -> bool:
        """Whether the state is kept and the task must process nothing more."""
        return self._cut is not None and self._cut.last and self._machine.cut_kept

    def keep(self) -> None:
        """Keep a durable copy of the local state and of its commit."""
        cut, local, record = self._cut, self._machine.local, self._machine.record
        if cut is None or local is None or record is None:
            raise ProtocolError(f"task {self._task}: no commit to keep")
        folder = Path(cut.folder) / task_folder(self._task)
        kept = KeptCommit(task=str(self._task), offset=local.offset, record=record)
        self._state.keep(folder / DATABASE_FOLDER, folder / COMMIT_FILE, kept.encode())
        self._machine.kept()
        _log.info("kept the state for a savepoint", task=str(self._task), version=record.version, folder=str(folder))


def columns_for(store: str, shares: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the columns that divide a store among tasks. A step may have several stores, named after it."""
    while store and store not in shares:
        store = store.rpartition(".")[0]
    return shares.get(store, ())


def taken_over(
    founding: Founding | None,
    task: TaskName,
    state: TaskState,
    new_attempt: Callable[[], Attempt],
) -> Iterator[Change]:
    """Yield the changes that give a task its share of the donors' state. ``new_attempt`` makes stores like its own.

    From now on, its outboxes belong to another timeline.
    """
    if founding is None:
        raise ProtocolError(f"task {task}: no state to take over", hint="this is a bug in the planning")
    for donor in founding.donors:
        share = None
        if founding.shares is not None:
            # State without a key stays with its task, because a target knows its writers by their numbers.
            share = Share(task.number, founding.tasks, first=donor.number == task.number)
        with state.donated(donor.folder / DATABASE_FOLDER) as database, closing(new_attempt()) as attempt:
            for name, store in attempt.stores().items():
                if name in founding.copied and donor != founding.donors[0]:
                    continue
                store.attach(KeySpace(database, name))
                mine = None
                if share is not None and founding.shares is not None and name not in founding.copied:
                    mine = share.by(columns_for(name, founding.shares))
                for change in store.whole(mine):
                    yield Change(name, change)
    with closing(new_attempt()) as attempt:
        for name, store in attempt.stores().items():
            if isinstance(store, Outbox):
                yield Change(name, timeline_begun(founding.record.version))

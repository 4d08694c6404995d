"""Wait until the folder or the snapshot that a task begins from is available. Meanwhile other tasks continue."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.checkpoint import instructions as do
from headrace.checkpoint.record import LocalCheckpoint
from headrace.runtime.state.task_state import TaskState
from headrace.stores.base import StateStore

FOLDER_MS = 100.0
"""How often it is looked whether the folder is free."""


class Beginning:
    """The start of one task, and of each of its rollbacks.

    ``fetching``: it waits for a snapshot. ``again``: its base didn't belong to its changelog.
    """

    def __init__(self, state: TaskState) -> None:
        self._state = state
        self.fetching = False
        self.again = False

    def ready(self, instruction: do.Instruction) -> bool:
        """Return False while the snapshot for the instruction hasn't arrived: the caller asks again later."""
        begins = self.again or isinstance(instruction, do.TakeGeneration)
        self.fetching = begins and not self._state.prepared()
        return not self.fetching

    @property
    def ask_ms(self) -> float:
        """How long to wait, at most, before it is asked again whether it is ready."""
        return FOLDER_MS if self._state.locked_out else 1000.0

    def begin(self, stores: Mapping[str, StateStore]) -> LocalCheckpoint | None:
        """Fill new, empty stores; return the commit to which they correspond."""
        self.again = False
        return self._state.begin(stores)

    def misfit(self) -> None:
        """Begin again, because the base doesn't belong to the task's changelog."""
        self._state.misfit()
        self.again = True

"""Read the last commits of an app's tasks, for displays of positions in inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.ids import Offset
from headrace.metadata.store import MetadataStore
from headrace.runners.app_inputs import AppInput
from headrace.runners.checkpoints import Position, TaskCheckpoint, read_checkpoints

Committed = Callable[[str], TaskCheckpoint | None]
"""Returns the last commit of a task; None if it has none."""


def committed_in(home: Path, metadata: MetadataStore, app: str) -> Committed:
    """What reads them from the app's home, each once."""
    known: dict[str, TaskCheckpoint | None] = {}

    def find(task: str) -> TaskCheckpoint | None:
        if task not in known:
            try:
                (known[task],) = read_checkpoints(home, metadata, app, task)
            except UsageError:  # the app, or this task of it, has never run
                known[task] = None
        return known[task]

    return find


def position_in(checkpoint: TaskCheckpoint | None, one: AppInput, partition: int) -> Offset | None:
    """The position that a commit has in a partition of an input; None if it has none."""
    found = found_in(checkpoint, one, partition)
    return None if found is None else found.offset


def found_in(checkpoint: TaskCheckpoint | None, one: AppInput, partition: int) -> Position | None:
    """What a commit says of a partition of an input."""
    for position in () if checkpoint is None else checkpoint.inputs:
        if (position.stream, position.partition) == (one.kept_as, partition):
            return position
    return None

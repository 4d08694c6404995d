"""The tasks that have to start over in place, each as it was when that was asked for: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.core.ids import TaskName


class Restarts:
    """By task the generation that has to end. A later one has started over already."""

    def __init__(self) -> None:
        self._generations: dict[TaskName, int] = {}

    def ask(self, grants: Mapping[TaskName, int], tasks: Iterable[TaskName]) -> list[TaskName]:
        """Ask those of the tasks to start over that have been granted a generation; return them."""
        found = [task for task in tasks if task in grants]
        self._generations |= {task: grants[task] for task in found}
        return found

    def granted(self, grants: Mapping[TaskName, int]) -> None:
        """Forget tasks that have a new generation."""
        for task, generation in grants.items():
            if self._generations.get(task, generation) < generation:
                del self._generations[task]

    def of(self, tasks: Iterable[TaskName]) -> dict[str, int]:
        """What is asked of these tasks."""
        return {str(task): self._generations[task] for task in tasks if task in self._generations}

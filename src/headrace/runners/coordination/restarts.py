"""The tasks that have to start over in place, each with its generation at the time of the request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.core.ids import TaskName


class Restarts:
    """The generation that has to end, by task. A later one has started over already."""

    def __init__(self) -> None:
        self._generations: dict[TaskName, int] = {}

    def ask(self, grants: Mapping[TaskName, int], tasks: Iterable[TaskName]) -> list[TaskName]:
        """Ask the tasks that have been granted a generation to start over; return them."""
        found = [task for task in tasks if task in grants]
        self._generations |= {task: grants[task] for task in found}
        return found

    def granted(self, grants: Mapping[TaskName, int]) -> None:
        """Forget tasks that have a new generation."""
        for task, generation in grants.items():
            if self._generations.get(task, generation) < generation:
                del self._generations[task]

    def of(self, tasks: Iterable[TaskName]) -> dict[str, int]:
        """Return the restarts that these tasks owe."""
        return {str(task): self._generations[task] for task in tasks if task in self._generations}

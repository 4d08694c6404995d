"""Whether a task has read what was in its sources when it started: so that a run can stop which reads only that.

On the run-loop thread; nothing blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.api.specs import Role
from headrace.core.ids import SSP, Offset
from headrace.runtime.task_scope import TaskScope


class CatchingUp:
    """The goals of one task. ``version`` is that of a commit at which they were reached; None: not yet.

    ``silent``: what a restored savepoint repeats isn't written again, and the goals are where the app had come to.

    Exactly-once: that of the first such commit. Otherwise: that of the last commit, if no frame of the app's own
    streams waited at that moment.
    """

    def __init__(self, scope: TaskScope) -> None:
        self.sources = [ssp for ssp, spec in scope.specs.items() if spec.role is Role.SOURCE]
        self.version: int | None = None
        self.silent = False
        self._scope = scope
        self._between = [ssp for ssp, spec in scope.specs.items() if spec.role is Role.INTERMEDIATE]
        self._exactly_once = scope.settings.guarantee == "exactly_once"
        self._goals: dict[SSP, Offset] | None = None

    def granted(self, *, silent: bool) -> None:
        """Take in how the task goes on; when silence is over, the goals are new ones."""
        if self.silent and not silent:
            self._goals, self.version = None, None
        self.silent = silent

    def limits(self, begun: Mapping[SSP, Offset]) -> dict[SSP, Offset]:
        """Up to where a silent task reads its sources: as far as the app had read them. It begins at ``begun``."""
        if not self.silent:
            return {}
        founding, name = self._scope.founding, self._scope.position_name
        known = founding.silent_until if founding is not None else {}
        limits = {ssp: known.get((name(ssp), ssp.partition), begun[ssp]) for ssp in self.sources}
        return {ssp: max(limit, begun[ssp]) for ssp, limit in limits.items() if limit is not None}

    @property
    def begun(self) -> bool:
        """The goals are known. They stay when the task rolls back."""
        return self._goals is not None

    def begin(self, ends: Mapping[SSP, Offset]) -> None:
        """Set the goals: where the sources end now."""
        self._goals = dict(ends)

    def rolled_back(self) -> None:
        """What was reached may have to be reached again."""
        self.version = None

    def committed(self, version: int, positions: Mapping[SSP, Offset], lag: Callable[[SSP], int | None]) -> None:
        """The task has committed a version that includes everything before ``positions``."""
        reached = all(positions[ssp] >= goal for ssp, goal in (self._goals or {}).items())
        if not self._exactly_once:
            self.version = version if reached and not any(lag(ssp) for ssp in self._between) else None
        elif reached and self.version is None:
            self.version = version

"""Track whether a task has read what its sources held when it started, so that a bounded run can stop.

Runs on the run-loop thread; nothing blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.api.specs import Role
from headrace.core.ids import SSP, Offset
from headrace.runtime.task_scope import TaskScope


class CatchingUp:
    """The goals of one task. ``version`` is a commit at which they were reached; None: not yet.

    ``silent``: the app doesn't write repeated results after a restore, and the goals are its former positions.

    With exactly-once, it is the first such commit, or the first since one that left out an upstream task. Otherwise it
    is the last commit, if no frame of the app's own streams was waiting at that moment.
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
        """Note how the task continues. When silence ends, the goals are set again."""
        if self.silent and not silent:
            self._goals, self.version = None, None
        self.silent = silent

    def limits(self, begun: Mapping[SSP, Offset]) -> dict[SSP, Offset]:
        """Return where a silent task stops reading sources: at the app's former positions, or at ``begun`` if later."""
        if not self.silent:
            return {}
        founding, name = self._scope.founding, self._scope.position_name
        known = founding.silent_until if founding is not None else {}
        limits = {ssp: known.get((name(ssp), ssp.partition), begun[ssp]) for ssp in self.sources}
        return {ssp: max(limit, begun[ssp]) for ssp, limit in limits.items() if limit is not None}

    @property
    def begun(self) -> bool:
        """Whether the goals are known. They stay when the task rolls back."""
        return self._goals is not None

    def begin(self, ends: Mapping[SSP, Offset]) -> None:
        """Set the goals to the present ends of the sources."""
        self._goals = dict(ends)

    def rolled_back(self) -> None:
        """Forget that goals were reached, because the task may have to reach them again."""
        self.version = None

    def committed(
        self,
        version: int,
        positions: Mapping[SSP, Offset],
        lag: Callable[[SSP], int | None],
        *,
        whole: bool,
        detoured: bool = False,
    ) -> None:
        """Note that the task has committed a version that includes everything before ``positions``.

        If it isn't ``whole``, it leaves out frames of upstream tasks that are late. A later version has them. While it
        is ``detoured``, the positions are those in a past range that is read again.
        """
        reached = not detoured and all(positions[ssp] >= goal for ssp, goal in (self._goals or {}).items())
        if not self._exactly_once:
            self.version = version if reached and not any(lag(ssp) for ssp in self._between) else None
        elif not whole:
            self.version = None
        elif reached and self.version is None:
            self.version = version

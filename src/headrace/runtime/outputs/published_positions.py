"""How far a task has read, for others: published positions for back-pressure and lag, and trimming.

Positions are published every few milliseconds, whether or not they are committed. Commits of positions in sources are
reported to systems whose tools show them. Intermediate streams are trimmed up to what the last commit needs, in large
steps. A broadcast stream has several readers, so it is never trimmed.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.specs import Role
from headrace.core.ids import SSP, Offset
from headrace.runtime.connections import Connections
from headrace.runtime.task_scope import TaskScope
from headrace.runtime.timing import Every

REPORT_INTERVAL_MS = 20
TRIM_STEP = 32 << 20


class PublishedPositions:
    """The inputs of one task as seen by others."""

    def __init__(self, scope: TaskScope, connections: Connections, now_ms: float, trim_step: int = TRIM_STEP) -> None:
        self._trim_step = trim_step
        self._group = scope.app
        self._reader = f"{scope.app}/{scope.name.stage}"
        self._specs = specs = scope.specs
        self._connections = connections
        self._every = Every(REPORT_INTERVAL_MS, now_ms)
        self._reported: dict[SSP, Offset] = {}
        self._trimmed: dict[SSP, Offset] = {}
        self._sources = {ssp for ssp, spec in specs.items() if spec.role is not Role.INTERMEDIATE}
        self._sealed: dict[SSP, Offset] = {}

    def news(self, positions: Mapping[SSP, Offset]) -> bool:
        """Whether positions have moved since they were published."""
        return positions != self._reported

    @property
    def next_ms(self) -> float:
        """When news may be published."""
        return self._every.next_ms

    def report(self, positions: Mapping[SSP, Offset], now_ms: float) -> None:
        """Publish positions that have moved, if it is time."""
        if not self.news(positions) or not self._every.due(now_ms):
            return
        for ssp, position in positions.items():
            if self._reported.get(ssp) != position:
                self._reported[ssp] = position
                self._connections.admin(self._specs[ssp].system).report_position(ssp, self._group, position)

    def sealed(self, positions: Mapping[SSP, Offset]) -> None:
        """A commit of these positions is under way."""
        self._sealed = {ssp: positions[ssp] for ssp in self._sources & positions.keys()}

    def committed(self, needed: Mapping[SSP, Offset | None]) -> None:
        """Report the commit that was under way, and trim what is before the offsets that it needs."""
        for ssp, position in self._sealed.items():
            self._connections.admin(self._specs[ssp].system).report_commit(ssp, self._reader, position)
        self._sealed = {}
        for ssp, offset in needed.items():
            spec = self._specs[ssp]
            if offset is None or spec.broadcast or spec.role is not Role.INTERMEDIATE:
                continue
            admin = self._connections.admin(spec.system)
            behind = offset - self._trimmed.setdefault(ssp, 0)
            if behind * admin.bytes_per_offset(ssp.stream.name) >= self._trim_step:
                admin.trim(ssp, offset)
                self._trimmed[ssp] = offset

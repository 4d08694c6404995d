"""Admins of streams whose writers wait for no reader."""

from __future__ import annotations

from typing_extensions import override

from headrace.core.ids import SSP, Offset
from headrace.systems.base import Admin


class UnwatchedAdmin(Admin):
    """Keeps the positions of readers in this process only."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, str], dict[int, Offset]] = {}

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        self._positions.setdefault((ssp.stream.name, group), {})[ssp.partition] = position

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        return dict(self._positions.get((stream, group), {}))

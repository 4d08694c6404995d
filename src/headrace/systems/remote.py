"""A remote table that is read and written by the user's functions, as a row system.

There is nothing to create, and nothing to read as a stream. There is no target either, because functions keep no
positions; ``runtime.outputs.function_publisher`` calls them instead.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import polars as pl
from typing_extensions import override

from headrace.core.errors import UsageError
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Admin, Consumer, Extent, RowSystem, StreamInfo, Target


@dataclass(frozen=True)
class RemoteSystem(Admin, RowSystem):
    """The row system of one remote table, and its own admin."""

    name: str

    @override
    def admin(self) -> RemoteSystem:
        return self

    @override
    def consumer(self, columns: Collection[str] | None = None) -> Consumer:
        """Refuse: functions look rows up by key."""
        self._refuse("can't be read as a stream")

    @override
    def target(self, stream: str) -> Target:
        """Refuse: functions keep no positions."""
        self._refuse("has no target")

    @override
    def list(self) -> builtins.list[str]:
        """Return nothing: which tables exist isn't known."""
        return []

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        return StreamInfo(stream, 1)

    @override
    def create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> StreamInfo:
        """Create nothing: the user has already created the table."""
        return StreamInfo(stream, partitions, columns)

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        self._refuse("has no offsets")

    @override
    def seal(self, stream: str) -> None:
        self._refuse("can't be sealed")

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        self._refuse("can't be trimmed")

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        self._refuse("isn't read as a stream")

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        return {}

    def _refuse(self, why: str) -> NoReturn:
        raise UsageError(f"the remote table {self.name} {why}", hint="use the service that its functions call")


def open_remote(name: str, options: Mapping[str, Any]) -> RemoteSystem:
    """Open the system of a ``SystemSpec`` of kind ``remote``, which has only a name and no options."""
    del options
    return RemoteSystem(name.removeprefix("remote-"))

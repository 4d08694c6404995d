"""What a function of the user's writes to, as a row system: there is nothing to create and nothing to read.

The runtime doesn't publish there by a target, as functions keep no positions: see ``runtime.publishing_calls``.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.errors import UsageError
from headrace.systems.base import Consumer, RowSystem, StreamInfo, Target
from headrace.systems.write_only import WriteOnlyAdmin


@dataclass(frozen=True)
class RemoteSystem(WriteOnlyAdmin, RowSystem):
    """See ``RowSystem``; and its own admin."""

    name: str

    @override
    def admin(self) -> RemoteSystem:
        return self

    @override
    def consumer(self, columns: Collection[str] | None = None) -> Consumer:
        """Refused: functions are asked by key."""
        raise self.refused("can't be read as a stream")

    @override
    def target(self, stream: str) -> Target:
        """Refused: functions keep no positions."""
        raise self.refused("has no target")

    @override
    def list(self) -> builtins.list[str]:
        """See ``Admin``; what is there isn't known."""
        return []

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        return StreamInfo(stream, 1)

    @override
    def create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> StreamInfo:
        """See ``Admin``; the user has created it."""
        return StreamInfo(stream, partitions, columns)

    @override
    def refused(self, why: str) -> UsageError:
        return UsageError(f"the remote table {self.name} {why}", hint="look at the place that its functions write to")


def open_remote(name: str, options: Mapping[str, Any]) -> RemoteSystem:
    """What a ``SystemSpec`` of this kind describes: nothing but its name."""
    del options
    return RemoteSystem(name.removeprefix("remote-"))

"""A remote table that is read and written by the user's functions, as a row system.

There is no target, because functions keep no positions; ``task.outputs.publisher`` calls them instead.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.errors import UsageError
from headrace.rows.dtypes import Columns
from headrace.systems.base import Consumer, RowSystem, StreamInfo, Target, WriteOnlyAdmin


@dataclass(frozen=True)
class RemoteSystem(WriteOnlyAdmin, RowSystem):
    """The row system of one remote table, and its own admin."""

    name: str

    @override
    def admin(self) -> RemoteSystem:
        return self

    @override
    def consumer(self, columns: Columns | None = None, *, whole: bool = False) -> Consumer:
        raise self.refused("can't be read as a stream")

    @override
    def target(self, stream: str) -> Target:
        raise self.refused("has no target")

    @override
    def list(self) -> builtins.list[str]:
        return []

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        return StreamInfo(stream, 1)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        return StreamInfo(stream, partitions, columns)

    @override
    def refused(self, why: str) -> UsageError:
        return UsageError(f"the remote table {self.name} {why}", hint="use the service that its functions call")


def open_remote(name: str, options: Mapping[str, Any]) -> RemoteSystem:
    """The kind ``remote`` has only a name, and no options."""
    return RemoteSystem(name.removeprefix("remote-"))

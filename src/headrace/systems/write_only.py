"""The admin of a system that is only written: it has no offsets, and can't be sealed or trimmed."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.errors import UnsupportedPositionError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Admin, Extent, StreamInfo


class WriteOnlyAdmin(Admin):
    """Refuses what only streams that are read can do."""

    def refused(self, why: str) -> UsageError:
        """The error to raise; ``why`` continues a sentence that begins with the name of the place."""
        raise NotImplementedError

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        raise self.refused("takes no columns from Headrace")

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        raise self.refused("has no partitions")

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        raise self.refused("has no offsets")

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        raise self._no_positions()

    @override
    def custom_offset(self, ssp: SSP, kind: str, value: Mapping[str, Any]) -> Offset:
        raise self._no_positions()

    def _no_positions(self) -> UnsupportedPositionError:
        refused = self.refused("has no positions to read from")
        return UnsupportedPositionError(refused.message, hint=refused.hint)

    @override
    def seal(self, stream: str) -> None:
        raise self.refused("can't be sealed")

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        raise self.refused("can't be trimmed")

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        raise self.refused("isn't read as a stream")

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        return {}

"""What callers in Python give as startpoints, and as their ends."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from headrace.core.errors import UsageError
from headrace.systems.positions import CustomStartpoint
from headrace.systems.startpoint import (
    End,
    EndOffset,
    EndTime,
    Startpoint,
    StartpointCustom,
    StartpointSpecific,
    StartpointTimestamp,
)


def as_startpoint(point: Startpoint | CustomStartpoint) -> Startpoint:
    """Return what a caller gives as a startpoint. Raises ``UsageError`` for anything else."""
    if isinstance(point, CustomStartpoint):
        try:
            value = msgspec.to_builtins(point)
        except TypeError as error:
            raise UsageError(
                f"a startpoint of the kind {point.kind!r} can't be kept: {error}",
                hint="make it a frozen dataclass whose fields can be written as JSON",
            ) from error
        return StartpointCustom(name=point.kind, value=value)
    if not isinstance(point, Startpoint):
        raise UsageError(f"{point!r} isn't a startpoint", hint="write hr.startpoints.oldest(), or ago('1h')")
    return point


def as_end(until: object) -> End | UnsetType:
    """Return a startpoint as the end of another one (None: it has none). Raises ``UsageError`` if it can't be one."""
    match until:
        case None:
            return UNSET
        case StartpointSpecific(offset=number, until=msgspec.UNSET):
            return EndOffset(offset=number)
        case StartpointTimestamp(time_ms=time_ms, or_oldest=False, until=msgspec.UNSET):
            return EndTime(time_ms=time_ms)
        case _:
            raise UsageError(
                f"until={until!r} isn't an end", hint='write until=hr.startpoints.offset(n), at(time) or ago("30m")'
            )

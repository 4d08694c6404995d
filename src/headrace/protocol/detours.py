"""Detours: a source is read again from A up to B, and then goes on where it was. Pure.

A startpoint with an end sends a task on one. The commit record has the position to go back to, with all that a reader
of committed frames knows there, so a restart in the middle goes on exactly.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from headrace.core.ids import SSP, Offset
from headrace.protocol.record import Detour, SourceEntry


def detour(until: Offset, saved: SourceEntry | None, first: Offset) -> Detour:
    """Return the detour that ends at ``until`` and begins at a saved position; without one, at ``first``.

    If the position is on a detour itself, then this one leads back to the same place, so nothing is lost.
    """
    if saved is not None and saved.detour is not UNSET:
        return msgspec.structs.replace(saved.detour, until=until)
    if saved is None or saved.offset is None:
        return Detour(until=until, offset=first)
    return Detour(
        until=until,
        offset=saved.offset,
        whole=saved.whole,
        covered=saved.covered,
        plain_before=saved.plain_before,
        since_ms=saved.since_ms,
        landmark=saved.landmark,
    )


def started(ssp: SSP, start: Offset, ahead: Detour) -> SourceEntry:
    """Return the position at the beginning of a detour."""
    return msgspec.structs.replace(SourceEntry.at(ssp, start), detour=ahead)


def rejoined(ssp: SSP, done: Detour) -> SourceEntry:
    """Return the position that a detour leads back to."""
    return SourceEntry.at(ssp, done)

"""Offsets that are moments: positions to begin at in systems of slots, whose other offsets count rows. Pure."""

from __future__ import annotations

from headrace.core.ids import Offset

MOMENTS = 1 << 61
"""Offsets from here on are moments: so many milliseconds since the epoch more. The first one: the oldest records."""


def is_moment(offset: Offset) -> bool:
    """Whether an offset is a moment."""
    return offset >= MOMENTS

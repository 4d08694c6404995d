"""Rows up to an offset. Pure."""

from __future__ import annotations

import numpy as np

from headrace.core.ids import Offset
from headrace.systems.base import Rows


def height_before(rows: Rows, limit: Offset) -> int:
    """How many of the rows are before an offset."""
    if rows.offsets is not None:
        return int(np.searchsorted(rows.offsets, limit))
    bad = sum(record.offset < limit for record in rows.bad)
    return max(0, min(rows.frame.height, limit - rows.offset - bad))


def rows_before(rows: Rows, limit: Offset) -> Rows:
    """The rows without those at an offset or after it; nothing else of them counts then."""
    if rows.next <= limit:
        return rows
    height = height_before(rows, limit)
    bad = [record for record in rows.bad if record.offset < limit]
    offsets = None if rows.offsets is None else rows.offsets[:height]
    return Rows(rows.ssp, rows.frame.head(height), rows.offset, limit, bad, rows.place, offsets=offsets)

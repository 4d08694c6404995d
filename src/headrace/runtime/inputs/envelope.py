"""Envelopes that wait to be processed: runs of user frames, single control frames, tables and ends, in partition order.

User frames stay undecoded until their turn comes. The protocol judges a frame when it is processed, so dropped and held
frames needn't be decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.frame import Kind
from headrace.core.ids import SSP, Offset
from headrace.systems.base import BadRecord, Ended, Polled, Records, Rows, Unread
from headrace.systems.slot_reports import Shards

_USER = int(Kind.USER)


class Frames(msgspec.Struct):
    """Consecutive user frames of one partition; ``next`` is the offset after the last.

    ``arrived_ms``: when they were polled (monotonic).
    """

    ssp: SSP
    offsets: list[Offset]
    payloads: list[bytes]
    next: Offset
    bytes: int
    arrived_ms: float = 0.0


class SingleFrame(msgspec.Struct):
    """One frame that isn't a user frame, or whose first byte isn't a known kind, which decoding reports."""

    ssp: SSP
    offset: Offset
    payload: bytes
    next: Offset
    bytes: int


@dataclass(slots=True)
class RowBatch:
    """Rows of a row system, and the records that could not be read. ``place`` says in errors where they are from.

    The last fields are those of ``Rows``, and when they were polled (monotonic).
    """

    ssp: SSP
    rows: pl.DataFrame
    offset: Offset
    next: Offset
    bad: tuple[BadRecord, ...]
    bytes: int
    place: str = ""
    shard: str = ""
    shards: Shards | None = None
    holding: frozenset[str] = frozenset()
    offsets: npt.NDArray[np.int64] | None = None
    unread: Sequence[Unread] = ()
    arrived_ms: float = 0.0


class PartitionEnd(msgspec.Struct):
    """A partition has ended: it is bounded, or it was sealed."""

    ssp: SSP
    next: Offset
    bytes: int = 0


Envelope = Frames | SingleFrame | RowBatch | PartitionEnd


def envelopes(polled: Polled) -> list[Envelope]:
    """Cut what was polled into envelopes, in order."""
    match polled:
        case Rows():
            return [row_batch(polled)]
        case Ended(ssp=ssp, next=after):
            return [PartitionEnd(ssp, after)]
        case Records():
            return _cut(polled)


def row_batch(rows: Rows) -> RowBatch:
    """The envelope of rows."""
    frame = rows.frame
    return RowBatch(
        rows.ssp,
        frame,
        rows.offset,
        rows.next,
        tuple(rows.bad),
        rows.bytes or int(frame.estimated_size()),
        rows.place,
        rows.shard,
        rows.shards,
        rows.holding,
        rows.offsets,
        rows.unread,
    )


def _cut(records: Records) -> list[Envelope]:
    cut: list[Envelope] = []
    ssp, payloads, offsets = records.ssp, records.payloads, records.offsets
    afters = [*offsets[1:], records.next]
    start, total = 0, len(payloads)
    for i, payload in enumerate(payloads):
        if payload and payload[0] == _USER:
            continue
        if i > start:
            cut.append(_frames(ssp, offsets[start:i], payloads[start:i], afters[i - 1]))
        cut.append(SingleFrame(ssp, offsets[i], payload, afters[i], len(payload)))
        start = i + 1
    if start < total:
        cut.append(_frames(ssp, offsets[start:], payloads[start:], afters[-1]))
    return cut


def _frames(ssp: SSP, offsets: list[Offset], payloads: list[bytes], after: Offset) -> Frames:
    return Frames(ssp, offsets, payloads, after, sum(map(len, payloads)))

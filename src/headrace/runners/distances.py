"""How far apart two positions of a partition are: in messages where they can be counted, and in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.errors import HeadraceError
from headrace.core.frame import Kind, body_of, decode_header
from headrace.core.ids import SSP, Offset
from headrace.core.log import logger
from headrace.runtime.connections import Connections
from headrace.serdes.ipc import decode_rows
from headrace.systems.base import Consumer, Records, Rows
from headrace.systems.moments import is_moment
from headrace.systems.registry import SystemSpec, keeps_rows, offsets_are_bytes
from headrace.systems.row_cuts import height_before
from headrace.systems.whole import polled_to

COUNT_BYTES_MAX = 64 << 20
"""Messages are counted by reading them; beyond this many bytes of a partition they aren't."""

_POLL_BYTES = 4 << 20

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Distance:
    """``messages`` is None if they are too many to be counted, ``size`` (bytes) if offsets aren't bytes."""

    messages: int | None
    size: int | None


def distance(connections: Connections, spec: SystemSpec, ssp: SSP, start: Offset, end: Offset) -> Distance:
    """Return the amount between two offsets of a partition, the lower one first. To a moment, it is unknown."""
    size = end - start if offsets_are_bytes(spec) else None
    if is_moment(end):
        return Distance(None, None)
    if start >= end:
        return Distance(0, 0 if size is not None else None)
    if size is not None and size > COUNT_BYTES_MAX:
        return Distance(None, size)
    consumer = connections.consumer(spec)
    try:
        consumer.register(ssp, start)
        return Distance(_count(consumer, ssp, end), size)
    except HeadraceError as error:
        _log.info("messages can't be counted", ssp=str(ssp), start=start, end=end, error=error.message)
        return Distance(None, size)
    finally:
        consumer.close()


def lag(connections: Connections, spec: SystemSpec, ssp: SSP, start: Offset, end: Offset) -> Distance:
    """Return how much lies between a position and the end, which a system of rows may estimate."""
    found = distance(connections, spec, ssp, start, end)
    if found.messages is not None or not keeps_rows(spec):
        return found
    consumer = connections.consumer(spec)
    try:
        consumer.register(ssp, start)
        return Distance(consumer.lag(ssp), None)
    finally:
        consumer.close()


def _count(consumer: Consumer, ssp: SSP, end: Offset) -> int | None:
    messages, read = 0, 0
    for found in polled_to(consumer, ssp, end, _POLL_BYTES):
        if isinstance(found, Records):
            within = [p for offset, p in zip(found.offsets, found.payloads, strict=True) if offset < end]
            messages += sum(_rows_in(payload) for payload in within)
            read += sum(map(len, within))
        elif isinstance(found, Rows):
            messages += height_before(found, end) + sum(record.offset < end for record in found.bad)
            read += int(found.frame.estimated_size())
        if read > COUNT_BYTES_MAX:
            return None
    return messages


def _rows_in(payload: bytes) -> int:
    if decode_header(payload).kind is not Kind.USER:
        return 0
    return decode_rows(body_of(payload)).height

"""Reads what an app has committed to an output stream, as a reader outside the app must."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from headrace.core.errors import StreamNotFoundError
from headrace.core.frame import Kind, body_of, decode_control, decode_header
from headrace.core.ids import SSP, Offset, StreamId
from headrace.protocol.read_committed import ReadCommitted
from headrace.rows.given import concat_rows
from headrace.rows.ipc import decode_rows
from headrace.systems.base import Edge, Records
from headrace.systems.log.system import LogSystem


def committed_rows(home: Path, stream: str, before: Sequence[Offset] | None = None) -> tuple[pl.DataFrame, int]:
    """Return all committed rows of a stream of the embedded log, and the number of its uncommitted frames.

    ``before``: only the rows that were written before these offsets of the partitions, whenever it became known that
    they are committed.
    """
    system = LogSystem(home / "streams")
    info = system.admin().describe(stream)
    if info is None:
        raise StreamNotFoundError(f"there is no stream {stream!r} in {home}", hint="the app never created this output")
    bodies: list[pl.DataFrame] = []
    held = 0
    for partition, extent in enumerate(system.admin().extents(stream)):
        ssp = SSP(StreamId("log", stream), partition)
        until = extent.upcoming if before is None else before[partition]
        frames, waiting = _committed_frames(system, ssp, extent.upcoming, until)
        bodies += frames
        held += waiting
    if not bodies:
        return pl.DataFrame(schema=info.columns or {}), held
    return concat_rows(bodies), held


def _committed_frames(system: LogSystem, ssp: SSP, end: Offset, before: Offset) -> tuple[list[pl.DataFrame], int]:
    reader: ReadCommitted[bytes] = ReadCommitted(whole=True)
    frames: list[pl.DataFrame] = []
    consumer = system.consumer()
    try:
        consumer.register(ssp, Edge.OLDEST)
        while consumer.position(ssp) < end:
            found = consumer.poll([ssp], 8 << 20)
            if not found:
                break  # only an incomplete append is left
            for records in found:
                if isinstance(records, Records):
                    frames += _released(reader, records, before)
    finally:
        consumer.close()
    return frames, reader.held


def _released(reader: ReadCommitted[bytes], records: Records, before: Offset) -> list[pl.DataFrame]:
    rows: list[pl.DataFrame] = []
    following = [*records.offsets[1:], records.next]
    for offset, after, payload in zip(records.offsets, following, records.payloads, strict=True):
        header = decode_header(payload)
        control = None if header.kind is Kind.USER else decode_control(header.kind, body_of(payload))
        for released in reader.receive(offset, after, header, control, payload):
            if released.header.kind is Kind.USER and released.offset < before:
                rows.append(decode_rows(body_of(released.frame)))
    return rows

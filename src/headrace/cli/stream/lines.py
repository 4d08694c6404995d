"""Frames as JSON lines: one line per row, and, if requested, one per control frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import polars as pl

from headrace.core.errors import FrameError
from headrace.core.frame import END_VERSION, UNVERSIONED, Kind
from headrace.serdes.json_lines import encode_lines
from headrace.serdes.schema import filled_up
from headrace.streams.frames import Damaged, Frame, control_of, refuse, rows_of

PARTITION, OFFSET, CONTROL = "@partition", "@offset", "@control"
_CONTROL_KINDS = (Kind.WATERMARK, Kind.END_OF_STREAM, Kind.CHECKPOINT, Kind.RESTORE)


class Lines:
    """Turns frames into at most ``limit`` lines. ``rows`` and ``others`` count the rows and the other frames."""

    def __init__(
        self,
        columns: Mapping[str, pl.DataType] | None = None,
        *,
        control: bool = False,
        offsets: bool = False,
        limit: int | None = None,
        damaged: Damaged = refuse,
    ) -> None:
        """``columns`` are the stream's declared columns, if any; rows from before a column was added lack it.

        ``damaged`` gets the error of each frame that can't be read.
        """
        self._columns = columns
        self._control = control
        self._offsets = offsets
        self._left = limit
        self._damaged = damaged
        self.rows = 0
        self.others = 0

    @property
    def full(self) -> bool:
        """Return whether the limit is reached."""
        return self._left == 0

    def of(self, frames: Iterable[Frame]) -> bytes:
        """Yield the lines of these frames."""
        return b"".join(self._frame(frame) for frame in frames if not self.full)

    def _frame(self, frame: Frame) -> bytes:
        try:
            return self._line(frame)
        except FrameError as error:
            self._damaged(error)
            return b""

    def _line(self, frame: Frame) -> bytes:
        if frame.header.kind is Kind.USER:
            rows = self._rows(frame)
            self.rows += rows.height
            self._count(rows.height)
            return encode_lines(rows)
        self.others += 1
        if not self._control:
            return b""
        line = msgspec.json.encode(_described(frame)) + b"\n"
        self._count(1)
        return line

    def _count(self, lines: int) -> None:
        if self._left is not None:
            self._left -= lines

    def _rows(self, frame: Frame) -> pl.DataFrame:
        rows = rows_of(frame)
        if self._columns is not None:
            rows = filled_up(rows, self._columns)
        if self._left is not None:
            rows = rows.head(self._left)
        if not self._offsets:
            return rows
        place = [pl.lit(frame.ssp.partition).alias(PARTITION), pl.lit(frame.offset).alias(OFFSET)]
        return rows.select(*place, pl.exclude(PARTITION, OFFSET))


def _described(frame: Frame) -> dict[str, Any]:
    """Describe a frame without rows: its header, and its message if it is a control message."""
    header = frame.header
    versions = {UNVERSIONED: None, END_VERSION: "end"}
    described: dict[str, Any] = {
        CONTROL: header.kind.name.lower(),
        PARTITION: frame.ssp.partition,
        OFFSET: frame.offset,
        "producer": header.producer,
        "generation": header.generation,
        "version": versions.get(header.version, header.version),
        "seq": header.seq,
    }
    if header.kind not in _CONTROL_KINDS:
        return described | {"bytes": len(frame.body)}
    return described | {"message": control_of(frame)}

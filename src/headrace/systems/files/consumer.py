"""Reads the files of partitions as rows, one file after another, and then ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from headrace.core.errors import StreamNotFoundError, UsageError
from headrace.core.ids import SSP
from headrace.serdes.row_pieces import Piece
from headrace.systems.base import BadRecord, Edge, Ended, Polled, Position, Rows
from headrace.systems.files.rowfile import RowFile
from headrace.systems.registered import Reading, RegisteringConsumer

Open = Callable[[Path], RowFile]


@dataclass(slots=True, kw_only=True)
class _Reading(Reading):
    files: list[Path]
    """The files that were not opened yet, the next one last."""
    open: RowFile | None = None


class FilesConsumer(RegisteringConsumer[_Reading]):
    """Reads files as rows. An offset is a row number over all files of the partition, in the order of their names."""

    def __init__(self, partitions: list[list[Path]], open_file: Open, count: Callable[[Path], int | None]) -> None:
        super().__init__()
        self._partitions = partitions
        self._open = open_file
        self._count = count

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        """Rows before an offset are counted, not parsed. In Parquet they aren't even read."""
        if not 0 <= ssp.partition < len(self._partitions):
            raise StreamNotFoundError(f"{ssp}: there are partitions 0 to {len(self._partitions) - 1}")
        self.unregister(ssp)
        reading = _Reading(ssp, files=self._partitions[ssp.partition][::-1])
        if position is Edge.UPCOMING:
            self._skip(reading, None)
        elif not isinstance(position, Edge) and position > 0:
            self._skip(reading, position)
            if reading.position < position:
                self._release(reading)
                raise UsageError(
                    f"{ssp}: offset {position} is after the end, {reading.position}",
                    hint="the files are shorter or fewer than they were; read again from the oldest offset",
                )
        self._readings[ssp] = reading

    def _skip(self, reading: _Reading, rows: int | None) -> None:
        """Skip this number of rows, or all."""
        while rows is None or reading.position < rows:
            if reading.open is None:
                if not reading.files:
                    return
                reading.open = self._open(reading.files.pop())
            want = (1 << 62) if rows is None else rows - reading.position
            skipped = reading.open.skip(want)
            reading.position += skipped
            if skipped < want:
                self._release(reading)

    @override
    def _release(self, reading: _Reading) -> None:
        if reading.open is not None:
            reading.open.close()
            reading.open = None

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        out: list[Polled] = []
        for reading in self._asked(ssps):
            if not reading.ended:
                out.extend(self._read(reading, max_bytes))
        return out

    def _read(self, reading: _Reading, max_bytes: int) -> list[Polled]:
        while True:
            if reading.open is None:
                if not reading.files:
                    reading.ended = True
                    return [Ended(reading.ssp, reading.position)]
                reading.open = self._open(reading.files.pop())
            pieces = reading.open.read(max_bytes)
            if pieces is None:
                self._release(reading)
                continue
            out: list[Polled] = [rows for piece in pieces if (rows := self._rows(reading, piece)) is not None]
            if out:
                return out

    def _rows(self, reading: _Reading, piece: Piece) -> Rows | None:
        offset = reading.position + piece.skipped
        reading.position = offset + piece.span
        if not piece.span:
            return None
        bad = tuple(BadRecord(reading.ssp, offset + row.index, row.reason, row.raw) for row in piece.bad)
        return Rows(reading.ssp, piece.frame, offset, reading.position, bad)

    @override
    def fileno(self) -> int | None:
        """None: files have more rows until they end."""
        return None

    @override
    def lag(self, ssp: SSP) -> int | None:
        """Rows to the end; None where the files don't say how many they have (JSON lines, CSV)."""
        reading = self._reading(ssp)
        if reading.ended:
            return 0
        counts = [self._count(path) for path in self._partitions[ssp.partition]]
        total = sum(count for count in counts if count is not None)
        return None if None in counts else total - reading.position

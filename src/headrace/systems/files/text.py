"""JSON lines and CSV: read in blocks of bytes that are cut between rows, parsed whole by Polars or Arrow.

A block that doesn't parse is halved until the rows that are wrong stand alone, so good data never pays for the
search. A row number counts lines (CSV: records, which may hold line breaks in quotes; the header has none), blank
ones too: so it can be found again by counting, without parsing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError
from headrace.systems.files.rowfile import BadRow, Piece, RowFile

Parse = Callable[[bytes], pl.DataFrame]
"""Parses whole rows; raises ``RowsUnreadable`` when any is wrong."""

MAX_ROW_BYTES = 64 << 20
COUNT_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
_NEWLINE, _QUOTE = 10, 34


class RowsUnreadable(Exception):
    """At least one of the rows given to a parser is wrong. Not an error yet: halving the block finds which."""


def row_ends(data: bytes, quoted: bool) -> npt.NDArray[np.int64]:
    """Where each row ends, behind its line break; with ``quoted``, line breaks in quotes end none."""
    codes = np.frombuffer(data, dtype=np.uint8)
    breaks = codes == _NEWLINE
    if quoted and b'"' in data:
        inside = np.logical_xor.accumulate(codes == _QUOTE)
        breaks &= ~inside
    return np.flatnonzero(breaks) + 1


class TextFile(RowFile):
    """See ``RowFile``. ``quoted`` says that quotes may hold line breaks (CSV)."""

    def __init__(self, path: Path, *, quoted: bool) -> None:
        self.path = path
        self._quoted = quoted
        self._file: BinaryIO = path.open("rb")
        self._rest = b""
        self._parse: Parse | None = None
        if self._file.read(len(_BOM)) != _BOM:
            self._file.seek(0)

    def parse_with(self, parse: Parse) -> TextFile:
        """Say how rows are parsed; before the first ``read``."""
        self._parse = parse
        return self

    def block(self, max_bytes: int) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The next whole rows, and where each ends; empty at the end of the file."""
        data, want = b"", max(1, max_bytes)
        while True:
            more = self._more(want - len(data))
            data += more
            ends = row_ends(data, self._quoted)
            if not more:
                if data and (not len(ends) or ends[-1] < len(data)):
                    ends = np.append(ends, len(data))
                return data, ends
            if len(ends):
                cut = int(ends[-1])
                self.give_back(data[cut:])
                return data[:cut], ends
            if len(data) > MAX_ROW_BYTES:
                raise DataError(
                    f"{self.path}: a row of more than {MAX_ROW_BYTES} bytes: {data[:60]!r}...",
                    hint="is a quote never closed, or is this another format?",
                )
            want *= 2

    def _more(self, size: int) -> bytes:
        if not self._rest:
            return self._file.read(size)
        more, self._rest = self._rest[:size], self._rest[size:]
        return more

    def give_back(self, data: bytes) -> None:
        """Put the unused end of a block back."""
        self._rest = data + self._rest

    @override
    def skip(self, rows: int) -> int:
        left = rows
        while left:
            data, ends = self.block(COUNT_BYTES)
            if not len(ends):
                break
            if len(ends) > left:
                self.give_back(data[int(ends[left - 1]) :])
                return rows
            left -= len(ends)
        return rows - left

    @override
    def read(self, max_bytes: int) -> list[Piece] | None:
        data, ends = self.block(max_bytes)
        if not len(ends):
            return None
        if self._parse is None:
            raise ValueError("parse_with comes before read")
        return parse_rows(data, ends, self._parse)

    @override
    def close(self) -> None:
        self._file.close()


def parse_rows(data: bytes, ends: npt.NDArray[np.int64], parse: Parse) -> list[Piece]:
    """The pieces of a block: one if all is well, else one between any two blank lines."""
    try:
        frame = parse(data)
        if frame.height == len(ends):
            return [Piece(frame, frame.height)]
    except RowsUnreadable:
        pass  # looked into row by row below
    starts = [0, *ends[:-1].tolist()]
    rows = [data[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
    pieces: list[Piece] = []
    run: list[bytes] = []
    blanks = 0
    for row in [*rows, b""]:
        if row.strip():
            run.append(row)
            continue
        if run:
            pieces.append(_parse_run(run, blanks, parse))
            run, blanks = [], 0
        blanks += 1
    if blanks > 1:
        # What is blank at the end of the block belongs to no piece, but its row numbers are used up.
        pieces.append(Piece(pl.DataFrame(), 0, skipped=blanks - 1))
    return pieces


def _parse_run(rows: list[bytes], skipped: int, parse: Parse) -> Piece:
    frames: list[pl.DataFrame] = []
    bad: list[BadRow] = []
    _halve(rows, 0, parse, frames, bad)
    frame = pl.concat(frames) if frames else parse(b"")
    return Piece(frame, len(rows), skipped, tuple(bad))


def _halve(rows: list[bytes], first: int, parse: Parse, frames: list[pl.DataFrame], bad: list[BadRow]) -> None:
    try:
        frame = parse(b"".join(rows))
        if frame.height != len(rows):
            raise RowsUnreadable(f"{frame.height} rows instead of {len(rows)}")
    except RowsUnreadable as error:
        if len(rows) == 1:
            bad.append(BadRow(first, str(error), rows[0].rstrip(b"\r\n")))
            return
        middle = len(rows) // 2
        _halve(rows[:middle], first, parse, frames, bad)
        _halve(rows[middle:], first + middle, parse, frames, bad)
    else:
        frames.append(frame)

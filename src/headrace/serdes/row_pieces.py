"""Rows out of bytes: rows that follow one another, and those among them that can't be read.

A block of whole rows is parsed at once. If that fails, it is halved until the bad rows are isolated, so good data never
pays for the search. Row numbers count lines, blank ones too (in CSV they count records, whose quotes may contain line
breaks; the header has no number). So a row can be found again by counting, without parsing.

Pure; nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Parse = Callable[[bytes], pl.DataFrame]
"""Parses whole rows; raises ``RowsUnreadable`` when any is bad. Of no bytes it makes a frame without rows."""

ROW_BYTES_MAX = 64 << 20
_NEWLINE = 10


class RowsUnreadable(Exception):
    """At least one of the rows given to a parser is bad. Not an error yet: halving the block finds which."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be read; ``index`` counts from the start of its piece, ``line`` from 1 in its file."""

    index: int
    reason: str
    raw: bytes
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that follow one another; ``frame`` has the good ones.

    ``skipped``: how many row numbers before them have no row (blank lines). ``span``: how many row numbers the piece
    covers, those of bad rows included. ``bytes``: about how much memory the good rows take, if that is known.
    """

    frame: pl.DataFrame
    span: int
    skipped: int = 0
    bad: tuple[BadRow, ...] = ()
    bytes: int = 0


def row_ends(data: bytes, quote: bytes | None) -> npt.NDArray[np.int64]:
    """Where each row ends, after its line break. With ``quote``, line breaks in quotes don't end a row."""
    codes = np.frombuffer(data, dtype=np.uint8)
    breaks = codes == _NEWLINE
    if quote is not None and quote in data:
        inside = np.logical_xor.accumulate(codes == quote[0])
        breaks &= ~inside
    return np.flatnonzero(breaks) + 1


def last_row_ends(data: bytes, quote: bytes | None) -> npt.NDArray[np.int64]:
    """As ``row_ends``, for data whose last row needs no line break."""
    ends = row_ends(data, quote)
    return np.append(ends, len(data)) if data and (not len(ends) or ends[-1] < len(data)) else ends


def parse_rows(data: bytes, ends: npt.NDArray[np.int64], parse: Parse) -> list[Piece]:
    """The pieces of a block: one if every line is a good row, else one between any two blank lines."""
    try:
        frame = parse(data)
        if frame.height == len(ends):
            return [Piece(frame, frame.height)]
    except RowsUnreadable:
        pass  # the rows are looked at one by one below
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
        # Blank lines at the end of the block belong to no piece, but use up row numbers.
        pieces.append(Piece(pl.DataFrame(), 0, skipped=blanks - 1))
    return pieces


def readable_rows(
    rows: Sequence[bytes], parse: Callable[[Sequence[bytes]], pl.DataFrame]
) -> tuple[list[pl.DataFrame], list[BadRow]]:
    """The frames of the rows that can be parsed, in order, and the rows that can't."""
    frames: list[pl.DataFrame] = []
    bad: list[BadRow] = []
    _halve(rows, 0, parse, frames, bad)
    return frames, bad


def _parse_run(rows: list[bytes], skipped: int, parse: Parse) -> Piece:
    frames, bad = readable_rows(rows, lambda part: parse(b"".join(part)))
    frame = pl.concat(frames) if frames else parse(b"")
    return Piece(frame, len(rows), skipped, tuple(bad))


def _halve(
    rows: Sequence[bytes],
    first: int,
    parse: Callable[[Sequence[bytes]], pl.DataFrame],
    frames: list[pl.DataFrame],
    bad: list[BadRow],
) -> None:
    try:
        frame = parse(rows)
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

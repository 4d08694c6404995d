"""Files of text (JSON lines and CSV), read in blocks of whole rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from headrace.core.errors import DataError
from headrace.serdes.row_pieces import ROW_BYTES_MAX, BadRow, Parse, Piece, last_row_ends, parse_rows, row_ends
from headrace.systems.files.rowfile import RowFile
from headrace.systems.files.source import Source, SourceBroken

COUNT_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"


class TextFile(RowFile):
    """Rows that end with line breaks. ``quote``: between two of these, line breaks don't end a row (CSV).

    ``lines_before`` returns how many lines of the file come before the source begins; it is called when a row is bad. A
    file that breaks off ends with a bad row, which says so.
    """

    def __init__(
        self, path: str, source: Source, *, quote: bytes | None, lines_before: Callable[[], int] = lambda: 0
    ) -> None:
        self.path = path
        self._source = source
        self._quote = quote
        self._lines_before = lines_before
        self._lines = 0
        self._rest = b""
        self._broken: BadRow | None = None
        self._over = False
        self._parse: Parse | None = None
        first = self._more(len(_BOM))
        while first and len(first) < len(_BOM) and (more := self._more(len(_BOM) - len(first))):
            first += more
        if first != _BOM:
            self.give_back(first)

    def parse_with(self, parse: Parse) -> TextFile:
        """Set the parser. Called before the first ``read``."""
        self._parse = parse
        return self

    def block(self, max_bytes: int) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The next whole rows, and where each ends. Empty at the end of the file."""
        data, want = b"", max(1, max_bytes)
        while True:
            more = self._more(want - len(data))
            data += more
            if not more and self._broken is None:
                return data, last_row_ends(data, self._quote)
            ends = row_ends(data, self._quote)
            if len(ends):
                cut = int(ends[-1])
                self.give_back(data[cut:])
                return data[:cut], ends
            if not more:  # the beginning of a row whose end can't be read
                self._broken = dataclasses.replace(self._broken, raw=data) if self._broken is not None else None
                return b"", ends
            if len(data) > ROW_BYTES_MAX:
                raise DataError(
                    f"{self.path}:{self._line(b'', 0)}: a row of more than {ROW_BYTES_MAX} bytes: {data[:60]!r}...",
                    hint="check for a quote that is never closed, and that the file has this format",
                )
            want *= 2

    def first_row(self, max_bytes: int) -> bytes | None:
        """Remove and return the first row; None if there is none."""
        data, ends = self.block(max_bytes)
        if not len(ends):
            return None
        first = data[: int(ends[0])]
        self.give_back(data[len(first) :])
        self._lines += first.count(b"\n")
        return first

    def _more(self, size: int) -> bytes:
        if self._rest:
            more, self._rest = self._rest[:size], self._rest[size:]
            return more
        if self._over:
            return b""
        try:
            more = self._source.read(size)
        except SourceBroken as error:
            self._broken = BadRow(0, f"the rest of the file can't be read: {error}", b"")
            more = b""
        self._over = not more
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
                if self._broken is not None:
                    self._broken = None
                    left -= 1
                break
            if len(ends) > left:
                cut = int(ends[left - 1])
                self.give_back(data[cut:])
                self._lines += data.count(b"\n", 0, cut)
                return rows
            self._lines += data.count(b"\n")
            left -= len(ends)
        return rows - left

    @override
    def read(self, max_bytes: int) -> list[Piece] | None:
        if self._parse is None:
            raise ValueError("parse_with has to be called before read")
        data, ends = self.block(max_bytes)
        if len(ends):
            pieces = parse_rows(data, ends, self._parse)
            if any(piece.bad for piece in pieces):
                pieces = self._with_lines(pieces, data, ends)
            self._lines += len(ends) if self._quote is None else data.count(b"\n")
            return pieces
        if self._broken is None:
            return None
        broken, self._broken = dataclasses.replace(self._broken, line=self._line(b"", 0)), None
        return [Piece(self._parse(b""), 1, bad=(broken,))]

    @override
    def left(self) -> int | None:
        return None

    def _with_lines(self, pieces: list[Piece], data: bytes, ends: npt.NDArray[np.int64]) -> list[Piece]:
        found, first = [], 0
        for piece in pieces:
            first += piece.skipped
            bad = [
                dataclasses.replace(row, line=self._line(data, int(ends[at - 1]) if at else 0))
                for row in piece.bad
                for at in (first + row.index,)
            ]
            found.append(dataclasses.replace(piece, bad=tuple(bad)))
            first += piece.span
        return found

    def _line(self, data: bytes, at: int) -> int:
        """The number of the line that begins there in a block."""
        return self._lines_before() + self._lines + data.count(b"\n", 0, at) + 1

    @override
    def close(self) -> None:
        self._source.close()

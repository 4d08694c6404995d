"""Files of text (JSON lines and CSV), read in blocks of whole rows."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from headrace.core.errors import DataError
from headrace.serdes.row_pieces import ROW_BYTES_MAX, Parse, Piece, last_row_ends, parse_rows, row_ends
from headrace.systems.files.rowfile import RowFile

COUNT_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"


class TextFile(RowFile):
    """A file of rows that end with line breaks. ``quoted``: quotes may contain line breaks (CSV)."""

    def __init__(self, path: Path, *, quoted: bool) -> None:
        self.path = path
        self._quoted = quoted
        self._file: BinaryIO = path.open("rb")
        self._rest = b""
        self._parse: Parse | None = None
        if self._file.read(len(_BOM)) != _BOM:
            self._file.seek(0)

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
            if not more:
                return data, last_row_ends(data, self._quoted)
            ends = row_ends(data, self._quoted)
            if len(ends):
                cut = int(ends[-1])
                self.give_back(data[cut:])
                return data[:cut], ends
            if len(data) > ROW_BYTES_MAX:
                raise DataError(
                    f"{self.path}: a row of more than {ROW_BYTES_MAX} bytes: {data[:60]!r}...",
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
            raise ValueError("parse_with has to be called before read")
        return parse_rows(data, ends, self._parse)

    @override
    def close(self) -> None:
        self._file.close()

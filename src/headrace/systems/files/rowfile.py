"""What the readers of all formats have in common: rows in pieces, from any row on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import polars as pl


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be read; ``index`` counts from the start of its piece."""

    index: int
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that follow one another; ``frame`` has those that are good.

    ``skipped`` is how many row numbers before them have no row (blank lines); ``span`` is how many the piece
    covers, bad ones included.
    """

    frame: pl.DataFrame
    span: int
    skipped: int = 0
    bad: tuple[BadRow, ...] = ()


class RowFile(Protocol):
    """One open file."""

    def skip(self, rows: int) -> int:
        """Pass over so many rows, before the first ``read``; fewer if the file ends. Returns how many."""
        ...

    def read(self, max_bytes: int) -> list[Piece] | None:
        """The next pieces, about ``max_bytes`` together; None at the end."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...

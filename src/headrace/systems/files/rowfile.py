"""What the readers of all formats have in common: rows in pieces, from any row on."""

from __future__ import annotations

from typing import Protocol

from headrace.serdes.row_pieces import Piece


class RowFile(Protocol):
    """One open file, or a stretch of one."""

    def skip(self, rows: int) -> int:
        """Skip this number of rows, before the first ``read``; returns how many there were."""
        ...

    def read(self, max_bytes: int) -> list[Piece] | None:
        """The next pieces, about ``max_bytes`` together; None at the end."""
        ...

    def left(self) -> int | None:
        """How many rows are left; None if the file doesn't say."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...

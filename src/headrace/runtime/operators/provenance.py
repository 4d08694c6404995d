"""Where the rows come from that a step is at work on; found out only when one of them has to be reported.

Rows enter a task as an ``Arrival``: frames of a partition, decoded together. On their way each operator that has
taken some stands on the task's ``Provenance`` until it has handed on what follows from them. An operator whose results
each come of one row can say of which (``became``); then a row can be followed back to its message. Behind one that
can't (a window, a join) all that is known is which messages were being processed.

That costs a list's append and pop a batch and operator; nothing is computed unless
``ProvenanceSnapshot.place`` is asked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.core.ids import SSP, Offset

Numbers = Sequence[int] | pl.Series | npt.NDArray[np.int64]
Origins = Callable[[], Numbers]
"""For each row that an operator hands on the number of the row it took that it comes of."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message stood: at ``first``, or somewhere from ``first`` to ``last``.

    ``index`` is its number among the rows of the frame there that fit, if that is known.
    """

    ssp: SSP
    first: Offset
    last: Offset
    index: int | None = None

    @override
    def __str__(self) -> str:
        if self.first != self.last:
            return f"while messages of {self.ssp}, offsets {self.first} to {self.last}, were processed"
        row = "" if self.index is None else f", row {self.index} of it"
        return f"on a message of {self.ssp}, offset {self.first}{row}"


class Arrival:
    """Rows of a partition that stood at the offsets ``first`` up to (not with) ``after``.

    ``offsets`` and ``heights`` say at which offset a frame stood, and how many rows of it are taken; they are empty
    for rows that stand alone, each at an offset of its own unless some were left out (``rows`` is how many are taken).
    """

    __slots__ = ("_ends", "_offsets", "after", "first", "rows", "ssp")

    def __init__(
        self,
        ssp: SSP,
        first: Offset,
        after: Offset,
        rows: int,
        offsets: Sequence[Offset] = (),
        heights: Sequence[int] = (),
    ) -> None:
        self.ssp, self.first, self.after, self.rows = ssp, first, after, rows
        self._offsets = offsets
        self._ends = list(accumulate(heights))

    def place(self, row: int | None) -> Origin:
        """Where a row stood; None stands for one that isn't known."""
        if row is not None and self._ends:
            frame = bisect_right(self._ends, row)
            offset = self._offsets[frame]
            return Origin(self.ssp, offset, offset, row - (self._ends[frame - 1] if frame else 0))
        if row is not None and self.after - self.first == self.rows:
            return Origin(self.ssp, self.first + row, self.first + row)
        return Origin(self.ssp, self.first, self.after - 1)


class _Passage:
    """Rows that an operator has taken, and how those that it hands on come of them."""

    __slots__ = ("_found", "origins", "rows")

    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows
        self.origins: Origins | None = None
        self._found: Numbers | None = None

    def origin(self, row: int, handed_on: int) -> int | None:
        """The number of the taken row that the given one, of so many handed on, comes of."""
        if self._found is None:
            self._found = () if self.origins is None else self.origins()
        return int(self._found[row]) if len(self._found) == handed_on else None


class ProvenanceSnapshot:
    """What the trail was at one moment. Steps that wait may keep it; it keeps the rows of that moment, too."""

    def __init__(self, arrival: Arrival | None, passages: Sequence[_Passage]) -> None:
        """The last passage is that of who asks."""
        self._arrival = arrival
        self._passages = tuple(passages)

    def place(self, row: int | None) -> Origin | None:
        """Where the message stood that a taken row comes of; None when no message is being processed."""
        if self._arrival is None:
            return None
        for before, after in zip(self._passages[-2::-1], self._passages[:0:-1], strict=True):
            if row is None:
                break
            row = before.origin(row, after.rows.height)
        return self._arrival.place(row)


class Provenance:
    """The operators of one task that are at work, the first one first."""

    def __init__(self) -> None:
        self._arrival: Arrival | None = None
        self._passages: list[_Passage] = []

    def arrive(self, arrival: Arrival | None) -> None:
        """Rows enter the task; None: they have been processed."""
        self._arrival = arrival

    def enter(self, rows: pl.DataFrame) -> None:
        """An operator takes rows."""
        self._passages.append(_Passage(rows))

    def leave(self) -> None:
        """The operator that came last has handed on all that follows."""
        self._passages.pop()

    def became(self, origins: Origins) -> None:
        """Each row that is handed on next comes of one row that was taken; ``origins`` says, when asked, of which."""
        if self._passages:
            self._passages[-1].origins = origins

    def here(self) -> ProvenanceSnapshot:
        """Where the rows come from that the operator on top is at work on."""
        return ProvenanceSnapshot(self._arrival, self._passages)

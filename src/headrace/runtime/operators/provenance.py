"""The origin of the rows that a step processes, computed only if a row must be reported.

Rows enter a task as an ``Arrival``: frames of a partition, decoded together. Each operator that processes some of them
is on the stack of the task's ``Provenance`` until it has emitted their results. An operator whose results each come
from one row can say from which one (``became``); then a row can be traced back to its message. After an operator that
can't (a window, a join) it is only known which messages were being processed.

This costs one append and one pop of a list for each batch and operator. Nothing else is computed unless
``ProvenanceSnapshot.place`` is called.
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
from headrace.runtime.at_work import AtWork, Done, UserCall

Numbers = Sequence[int] | pl.Series | npt.NDArray[np.int64]
Origins = Callable[[], Numbers]
"""For each row that an operator emits the number of the input row that it comes from."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of a message: the offset ``first``, or some offset from ``first`` to ``last``.

    ``index`` is its number among the rows of the frame that fit the schema, if it is known.
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
    """Rows of a partition from the offsets ``first`` up to, but not including, ``after``.

    ``offsets`` and ``heights`` are the offset of each frame and the number of its rows that are processed. They are
    empty for single messages, which have an offset each; ``rows`` is the number that is processed. ``shard``: the one
    of a slot that they are from. ``each``: the offsets of single messages, if there are gaps between them.
    """

    __slots__ = ("_each", "_ends", "_offsets", "after", "first", "rows", "shard", "ssp")

    def __init__(
        self,
        ssp: SSP,
        first: Offset,
        after: Offset,
        rows: int,
        offsets: Sequence[Offset] = (),
        heights: Sequence[int] = (),
        shard: str = "",
        each: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._each = each
        self.ssp, self.first, self.after, self.rows, self.shard = ssp, first, after, rows, shard
        self._offsets = offsets
        self._ends = list(accumulate(heights))

    @override
    def __str__(self) -> str:
        last = self.after - 1
        return f"{self.ssp}, " + (f"offset {last}" if last <= self.first else f"offsets {self.first} to {last}")

    def place(self, row: int | None) -> Origin:
        """The place of a row by its number; None: an unknown row of these."""
        if row is not None and self._ends:
            frame = bisect_right(self._ends, row)
            offset = self._offsets[frame]
            return Origin(self.ssp, offset, offset, row - (self._ends[frame - 1] if frame else 0))
        if row is not None and self._each is not None:
            return Origin(self.ssp, int(self._each[row]), int(self._each[row]))
        if row is not None and self.after - self.first == self.rows:
            return Origin(self.ssp, self.first + row, self.first + row)
        return Origin(self.ssp, self.first, self.after - 1)


class Passage:
    """The rows that an operator processes, and how its results come from them."""

    __slots__ = ("cached", "origins", "rows")

    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows
        self.origins: Origins | None = None
        self.cached: Numbers | None = None
        """What ``origins`` has returned."""

    def origin(self, row: int, handed_on: int) -> int | None:
        """The number of the input row that a result comes from; ``handed_on`` is the number of results."""
        if self.cached is None:
            self.cached = () if self.origins is None else self.origins()
        return int(self.cached[row]) if len(self.cached) == handed_on else None


class ProvenanceSnapshot:
    """The provenance at one moment. Steps that wait may keep it; it keeps the rows of that moment, too."""

    def __init__(self, arrival: Arrival | None, passages: Sequence[Passage]) -> None:
        """The last passage is that of the operator that asks."""
        self._arrival = arrival
        self._passages = tuple(passages)

    def place(self, row: int | None) -> Origin | None:
        """The place of the message that an input row comes from; None if no message is being processed."""
        if self._arrival is None:
            return None
        for before, after in zip(self._passages[-2::-1], self._passages[:0:-1], strict=True):
            if row is None:
                break
            row = before.origin(row, after.rows.height)
        return self._arrival.place(row)


class Provenance:
    """The operators of one task that are processing rows, the outermost first."""

    def __init__(self) -> None:
        self._arrival: Arrival | None = None
        self._passages: list[Passage] = []
        self._at_work = AtWork()
        self._task = ""

    def report_to(self, at_work: AtWork, task: str) -> None:
        """Report the calls of this task's own code there."""
        self._at_work, self._task = at_work, task

    def user_call(self, step: str, done: Done | None = None) -> UserCall:
        """A context manager around a call of the app's own code by a step."""
        return UserCall(self._at_work, self._task, step, "" if self._arrival is None else str(self._arrival), done)

    def arrive(self, arrival: Arrival | None) -> None:
        """Rows enter the task; None: they have been processed."""
        self._arrival = arrival

    def enter(self, rows: pl.DataFrame) -> None:
        """An operator begins to process rows. What the app's code counts meanwhile, on any thread, is this task's."""
        self._at_work.entered(self._task)
        self._passages.append(Passage(rows))

    def leave(self) -> None:
        """The innermost operator has emitted its results."""
        self._passages.pop()

    def became(self, origins: Origins) -> None:
        """Each row that is emitted next comes from one input row; ``origins`` returns from which, if called."""
        if self._passages:
            self._passages[-1].origins = origins
            self._passages[-1].cached = None

    def here(self) -> ProvenanceSnapshot:
        """The provenance of the rows that the innermost operator processes."""
        return ProvenanceSnapshot(self._arrival, self._passages)

"""Whether it is worth its time to merge partial results. Pure.

A merge of rows with mostly different keys takes long and leaves about as many. So if the last one did, the next ones of
as many rows are left out, and then it is tried again. Whoever reads the rows merges them in any case.

How many keys occur more than once depends on how many rows are merged: the same keys may come back each minute, and
not within a second. So each size, by powers of two, is judged by itself.
"""

from __future__ import annotations

_LEFT_OUT = 7
_WORTH_IT = 0.8
"""A merge that leaves at most this share of its rows was worth its time."""


class Worth:
    """What is known of the merges of one store. ``always``: they do more than save rows, so none is left out."""

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._to_leave_out: dict[int, int] = {}

    def wanted(self, rows: int) -> bool:
        """Whether to merge so many rows. If not, that counts as one left out."""
        left = self._to_leave_out.get(rows.bit_length(), 0)
        self._to_leave_out[rows.bit_length()] = max(0, left - 1)
        return self._always or left == 0

    def merged(self, before: int, after: int) -> None:
        """A merge has made ``after`` rows of ``before``."""
        self._to_leave_out[before.bit_length()] = _LEFT_OUT if after > _WORTH_IT * before else 0

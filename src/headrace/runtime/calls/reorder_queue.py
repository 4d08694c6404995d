"""The queue of a step that waits for calls: places for results, with watermarks between them. Pure.

Results before a watermark leave before it, and results after it leave after it. Between two watermarks results leave in
the order of their places, or in the order in which they arrived.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import Generic, TypeVar

Result = TypeVar("Result")


class ReorderQueue(Generic[Result]):
    """Places are numbered from 0 up, in the order in which they are taken."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._next = 0
        self._left = 0
        """The number of results that have left. All of them were before the first queued watermark."""
        self._come: dict[int, Result] = {}
        """Results that haven't left, by place, in the order in which they arrived."""
        self._marks: deque[tuple[int, int]] = deque()
        """The queued watermarks, each with the number of places before it."""

    def __len__(self) -> int:
        """The number of places whose results haven't left."""
        return self._next - self._left

    def take_places(self, count: int) -> range:
        """Take places for ``count`` results."""
        first = self._next
        self._next += count
        return range(first, self._next)

    def mark(self, watermark: int) -> None:
        """Queue a watermark after all places; of several in a row only the last one is kept."""
        if self._marks and self._marks[-1][0] == self._next:
            self._marks.pop()
        self._marks.append((self._next, watermark))

    def put(self, place: int, result: Result) -> None:
        """Put the result of a place."""
        self._come[place] = result

    def leave(self) -> tuple[list[Result], int | None]:
        """Remove and return the results that may leave, and the watermark after them if all have. Call until empty."""
        before = self._marks[0][0] if self._marks else self._next
        if self._ordered:
            places = range(self._left, before)
            leaving = list(takewhile(self._come.__contains__, places))
        else:
            leaving = [place for place in self._come if place < before]
        results = [self._come.pop(place) for place in leaving]
        self._left += len(results)
        if self._marks and self._left == before:
            return results, self._marks.popleft()[1]
        return results, None

"""What stands in line in a step that waits for answers: results to come, and watermarks between them. Pure.

Whatever stood before a watermark leaves before it, whatever stood behind it afterwards; between two watermarks results
leave in the order of their places, or in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import Generic, TypeVar

Result = TypeVar("Result")


class ReorderQueue(Generic[Result]):
    """Places are numbered from 0 on, in the order in which they were taken."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._next = 0
        self._left = 0
        """How many results have left. All of them stood before the first watermark that still waits."""
        self._come: dict[int, Result] = {}
        """Results that can't leave yet, or could: by place, in the order in which they came."""
        self._marks: deque[tuple[int, int]] = deque()
        """Watermarks, each with the number of places before it."""

    def __len__(self) -> int:
        """How many results haven't left."""
        return self._next - self._left

    def take_places(self, count: int) -> range:
        """Stand in line for so many results."""
        first = self._next
        self._next += count
        return range(first, self._next)

    def mark(self, watermark: int) -> None:
        """A watermark takes its place behind all that stand here; of several in a row only the last one counts."""
        if self._marks and self._marks[-1][0] == self._next:
            self._marks.pop()
        self._marks.append((self._next, watermark))

    def put(self, place: int, result: Result) -> None:
        """A result has come."""
        self._come[place] = result

    def leave(self) -> tuple[list[Result], int | None]:
        """What may leave now, and the watermark behind it if its turn has come. Call until nothing does."""
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

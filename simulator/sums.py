"""What changes add up to, in plain Python: none of this knows Headrace.

**The rule** for each stream whose rows have ``_change``: how many changes tell something is open, since a batch is
netted, so only what they add up to is compared. But whoever has read some of them must have rows: nothing is taken away
that isn't there. If the changes have a key, there is also never more than one row of it, and an update is told whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CHANGE = "_change"
_TAKES = {"update_before", "delete"}


class WrongChangeError(Exception):
    """Changes don't make sense, in the order in which they are told."""


class Sum:
    """What the changes add up to that were told so far; ``key`` is theirs, if they have one."""

    def __init__(self, key: Sequence[str] = ()) -> None:
        self._key = key
        self._rows: Counter[tuple[tuple[str, Any], ...]] = Counter()
        self._names: dict[str, None] = {}
        self._told: dict[tuple[Any, ...], str] = {}
        """The last change of each key, but for deletes."""

    def add(self, change: Mapping[str, Any]) -> None:
        """One more is told."""
        kind = change[CHANGE]
        self._names |= dict.fromkeys(change)  # a version of the app may have a further one
        row = tuple(sorted((name, value) for name, value in change.items() if name != CHANGE and value is not None))
        if kind in _TAKES and not self._rows[row]:
            raise WrongChangeError(f"{dict(change)} takes away a row that isn't there")
        self._rows[row] += -1 if kind in _TAKES else 1
        if self._key:
            self._follow(kind, change)

    def _follow(self, kind: str, change: Mapping[str, Any]) -> None:
        key = tuple(change[name] for name in self._key)
        before = self._told.pop(key, "delete")
        follows = {"delete": {"insert"}, "update_before": {"update_after"}}.get(before, _TAKES)
        if kind not in follows:
            raise WrongChangeError(f"{dict(change)} comes after the {before} of its key")
        if kind != "delete":
            self._told[key] = kind

    def rows(self) -> list[dict[str, Any]]:
        """The rows, in one order. A batch has ended: no update is told by half."""
        if halves := [key for key, kind in self._told.items() if kind == "update_before"]:
            raise WrongChangeError(f"only the first halves of updates were written for {halves}")
        names = dict.fromkeys(name for name in self._names if name != CHANGE)
        return [names | dict(row) for row in sorted(self._rows.elements(), key=repr)]


def added_up(changes: Iterable[Mapping[str, Any]], key: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows that changes add up to, in one order."""
    total = Sum(key)
    for change in changes:
        total.add(change)
    return total.rows()


def summed(
    outputs: Mapping[str, list[dict[str, Any]]], keys: Mapping[str, Sequence[str]]
) -> dict[str, list[dict[str, Any]]]:
    """Outputs, those of changes as what they add up to; ``keys`` are those of changes, by output."""
    changing = {name for name, rows in outputs.items() if rows and CHANGE in rows[0]}
    return {name: added_up(rows, keys.get(name, ())) if name in changing else rows for name, rows in outputs.items()}

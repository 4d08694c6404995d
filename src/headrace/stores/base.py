"""What keeps a task's state: a store that can say what changed, be told it again, and give its whole self.

The changelog is the source of truth. A store's part of it is a series of *changes*: bytes that only the
store reads. Applied in order to an empty store they give the same contents; ``snapshot`` is a shorter series
with the same effect. Changes start with a format byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class StateStore(Protocol):
    """The state of one operator in one task. One thread uses it."""

    @property
    def id(self) -> str:
        """Its durable name, unique in the task: the id that the user gave the step."""
        ...

    def take_changes(self) -> list[bytes]:
        """What has changed since the last call (or the start)."""
        ...

    def apply(self, change: bytes) -> None:
        """Do again what a change says; never shows up in ``take_changes``."""
        ...

    def snapshot(self) -> Iterator[bytes]:
        """A series of changes that rebuilds everything, uncommitted parts included."""
        ...

    def clear(self) -> None:
        """Be empty again, as at first."""
        ...

    def entries(self) -> int:
        """How many entries are held, roughly; for status pages."""
        ...

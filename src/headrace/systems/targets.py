"""The contracts of foreign systems that take rows and look them up: targets of outputs, and remote tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import polars as pl


class Target(Protocol):
    """A foreign system for results that stores each writer's position in one transaction with the data.

    A writer is named by ids joined with ``/``; its versions rise. A version is published again whenever it isn't known
    whether it arrived, possibly by a zombie long after. The stored position decides whether it counts, not the caller.
    ``headrace.testing.contracts.check_target`` checks implementations. One thread uses a target. One without
    transactions keeps no positions: rows may arrive again, and the ``SystemSpec`` says so (``may_repeat``).
    """

    replaces: bool = False
    """Whether a row may replace an older one. Then what a stale copy publishes late must never count."""

    def accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of a version as ``publish`` will get them. It isn't committed yet.

        Raises ``DataError`` for what can't be published: once it is committed, no other version of the app can help.
        """
        return rows

    def prepare(self, writer: str, published: int) -> float | None:
        """Find the position of ``writer``, of which a commit says that ``published`` was published.

        Return after how many milliseconds to make the same call again, and None when ``position`` won't have to wait.
        A target that can lose positions raises an error if it has lost this one, because its contents are then unknown.
        """
        return None

    def position(self, writer: str) -> int:
        """Return the highest version that ``writer`` has published; -1 if there is none, or the target keeps none."""
        ...

    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> float | None:
        """Add the rows and set the writer's position to ``version``, both or neither, durably, before returning.

        Does nothing if the position is already ``version`` or higher; the transaction itself checks this. ``rows`` are
        pieces of one table, at least one. Raises an error whose ``retry`` says whether the same call may succeed later;
        even then the call may have succeeded. Must not block for more than seconds.

        A target may work in the background, or take a version in parts if it has no transactions: it returns after
        how many milliseconds to make the same call again, and None when it has everything.
        """
        ...

    def close(self) -> None:
        """Release everything. Called once."""
        ...


class Lookup(Protocol):
    """Looks rows up by their keys. One thread uses it at a time; it connects when it is first used."""

    def read(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with these keys, in the requested columns. The keys are distinct and not null.

        Raises an error whose ``retry`` says whether the same call may succeed later. Must not block for more than
        seconds.
        """
        ...

    def close(self) -> None:
        """Release everything. Called once, possibly from another thread, and while ``read`` is running."""
        ...

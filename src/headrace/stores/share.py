"""Shares: which rows of a store belong to one task, when state is dealt to another number of tasks.

A shuffle sends each message to the partition that the hash of its key gives. So do shares: a row belongs to the task to
whose partition a message with the same values in the same columns would go. So what a task finds in its share is what
it would have kept itself. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.errors import UsageError
from headrace.serdes.hashing import partition_of

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Share:
    """The rows whose values in ``columns`` hash to ``partition`` of ``partitions``.

    ``columns`` are those by which the messages were shuffled, in that order, under the names that the store has for
    them. What has no key, like an outbox, isn't dealt: all of it belongs to the one share that is ``first``.
    """

    partition: int
    partitions: int
    columns: tuple[str, ...] = field(default=())
    first: bool = False

    def by(self, columns: Sequence[str]) -> Share:
        """The same share of a store whose rows have these columns."""
        return replace(self, columns=tuple(columns))

    def columns_in(self, known: Collection[str]) -> bool:
        """Whether all of its columns are among these."""
        return all(name in known for name in self.columns)

    def mask(self, store: str, rows: pl.DataFrame) -> Mask:
        """Which of these rows belong to it. Raises ``UsageError`` if they lack one of its columns."""
        missing = [name for name in self.columns if name not in rows.columns]
        if missing or not self.columns:
            raise self.undealt(store, f"its rows have no column {', '.join(map(repr, missing)) or 'to divide them by'}")
        if self.partitions == 1:
            return np.full(rows.height, self.partition == 0, np.bool_)
        mask: Mask = partition_of(rows, self.columns, self.partitions) == self.partition
        return mask

    def of(self, store: str, rows: pl.DataFrame) -> pl.DataFrame:
        """Those of the rows that belong to it, in their order."""
        return rows.filter(pl.Series(self.mask(store, rows)))

    def undealt(self, store: str, why: str) -> UsageError:
        """The error for a store that can't be dealt."""
        return UsageError(
            f"store {store!r} can't be divided among {self.partitions} tasks: {why}",
            hint="keep the number of partitions, or give the step another id (then its state starts empty)",
        )

"""Whether rows are where their key belongs: those of an input that has a key, and results of functions. Pure, columnar.

State by such a key trusts the partitions, so every row is checked. That costs about 10 ns a row, and up to 70 with long
keys of which few repeat: the key is hashed once for each value in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.api.specs import Node
from headrace.core.errors import DataError
from headrace.serdes.hashing import partition_of
from headrace.serdes.kafka_partitioning import partitions_of
from headrace.systems.registry import Hash

_FEW = 500
"""So many rows are hashed faster than their distinct keys are found."""


@dataclass(frozen=True, slots=True)
class Placing:
    """An input with several partitions, in which a row's key chooses the partition."""

    key: tuple[str, ...]
    partitions: int
    hash: Hash = "headrace"

    def misplaced(self, rows: pl.DataFrame, partition: int) -> pl.Series | None:
        """Return which rows of a partition belong in another one; None if all are in place."""
        keys = rows.select(self.key)
        if rows.height > _FEW and self._in_place(keys.unique(), partition).all():
            return None
        there = self._in_place(keys, partition)
        return None if there.all() else pl.Series(~there)

    def complaint(self, rows: pl.DataFrame) -> str:
        """Return what is wrong with rows that belong in another partition."""
        values = rows.select(self.key).row(0)
        named = ", ".join(f"{name}={value!r}" for name, value in zip(self.key, values, strict=True))
        where = f"in partition {int(self._partitions_of(rows.head(1))[0])}"
        if self.hash == "kafka" and values[0] is None:
            where = "nowhere, because records without a key may be in any partition"
        whose = "Kafka's default partitioner" if self.hash == "kafka" else "partition_by"
        return (
            f"{rows.height} rows are in another partition than their key chooses with {whose}; "
            f"the first has {named}, which belongs {where}"
        )

    @property
    def remedy(self) -> str:
        """Return what the user can do if the writers have another key, or another way to choose the partition."""
        names = ", ".join(map(repr, self.key))
        return (
            "its writers don't partition it by this key: leave out key=, or read it from a stream that isn't created "
            f"with a key, and put .partition_by({names}, id=...) before the steps that need it"
        )

    def check_results(self, rows: pl.DataFrame, partition: int, node: Node) -> None:
        """Raise ``DataError`` if a function has given rows of this partition a key of another one."""
        wrong = self.misplaced(rows, partition)
        if wrong is not None:
            names = ", ".join(map(repr, self.key))
            first = rows.filter(wrong).select(self.key).row(0)
            raise DataError(
                f"{node.operator.kind} {node.id!r} ({node.location}) has changed {names}, by which its messages are "
                f"partitioned and a later step keeps state: one of its results has {first}, which belongs to another "
                "task",
                hint=f"put .partition_by({names}, id=...) after it, or let it return the key under another name",
            )

    def _in_place(self, keys: pl.DataFrame, partition: int) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self._partitions_of(keys) == partition
        if self.hash == "kafka":
            found &= keys.to_series().is_not_null().to_numpy()
        return found

    def _partitions_of(self, rows: pl.DataFrame) -> npt.NDArray[np.integer]:
        if self.hash == "kafka":
            return partitions_of(rows[self.key[0]].cast(pl.Binary), self.partitions)
        return partition_of(rows, self.key, self.partitions)

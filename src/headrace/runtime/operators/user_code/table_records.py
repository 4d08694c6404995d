"""A table of the stage as a low-level task uses it: record by record, in the store that the stage's joins read.

A write is seen by the task's next read, and by every step that the rows of the stage reach afterwards.
"""

from __future__ import annotations

from typing import Any, NoReturn

import polars as pl

from headrace.api.operators.table import TableUse
from headrace.core.errors import UsageError
from headrace.stores.records import RecordStore


class TableRecords:
    """The reads and, if the task was declared to write the table, the writes."""

    __slots__ = ("_key", "_records", "get", "get_many", "get_rows", "items", "scan", "use")

    def __init__(self, use: TableUse, records: RecordStore) -> None:
        self.use = use
        self._records = records
        self._key = list(records.key)
        self.get = records.get
        self.get_many = records.get_many
        self.items = records.items
        self.get_rows = records.get_rows
        self.scan = records.scan

    def __contains__(self, key: object) -> bool:
        return key in self._records

    def put(self, key: Any, record: Any) -> None:
        """Set the record of a key, which has no null."""
        if not self.use.writes:
            self._refuse()
        if key is None or (type(key) is tuple and None in key):
            self._refuse_null(key)
        self._records.put(key, record)

    def delete(self, key: Any) -> None:
        """Delete a key, if it exists."""
        if not self.use.writes:
            self._refuse()
        self._records.delete(key)

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Set rows, whose keys have no nulls; of equal keys the last one counts."""
        if not self.use.writes:
            self._refuse()
        wrong = rows.filter(pl.any_horizontal(pl.col(name).is_null() for name in self._key if name in rows.columns))
        if wrong.height:
            self._refuse_null(wrong.row(0))
        self._records.put_rows(rows)

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Delete the row of each key, if there is one."""
        if not self.use.writes:
            self._refuse()
        self._records.delete_rows(keys)

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f"the task writes the table {self.use.name!r}, and was declared to read it",
            hint=f"declare it: writes=[{self.use.name!r}]",
        )

    def _refuse_null(self, key: object) -> NoReturn:
        raise UsageError(
            f"{key!r:.200} has a null in the key of the table {self.use.name!r}: no join would find it",
            hint="leave such rows out",
        )
